//! NVIDIA's assembler, where there is one.

use std::ffi::OsString;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Assembles a text for `sm_90a`, and panics with what the assembler says if it cannot. `PREEMPT_PTXAS` names another program
/// than the `ptxas` of the path. Without one, says so and does nothing.
#[allow(dead_code, reason = "a part of the tests names another architecture")]
pub fn assemble(name: &str, text: &str) {
    assemble_for("sm_90a", name, text);
}

/// As [`assemble`], for another architecture.
pub fn assemble_for(architecture: &str, name: &str, text: &str) {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let program = std::env::var_os("PREEMPT_PTXAS").unwrap_or_else(|| OsString::from("ptxas"));
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!("preempt-{}-{number}.ptx", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let mut ptxas = Command::new(program);
    let output = ptxas
        .arg(format!("-arch={architecture}"))
        .args(["-O1", "-o", "/dev/null"])
        .arg(&file)
        .output();
    std::fs::remove_file(&file).unwrap();
    match output {
        Ok(output) => {
            let says = [output.stdout, output.stderr].concat();
            assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&says));
        }
        Err(error) => println!("SKIP: {name} is not assembled: ptxas: {error}"),
    }
}
