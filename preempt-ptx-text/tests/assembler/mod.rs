//! NVIDIA's assembler, where there is one.

use std::ffi::OsString;
use std::io;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Assembles a text for `sm_90a`, and panics with what the assembler says if it cannot. `PREEMPT_PTXAS` names another program
/// than the `ptxas` of the path. Without one, says so and does nothing.
#[allow(dead_code, reason = "a part of the tests names another architecture")]
pub fn assemble(name: &str, text: &str) {
    assemble_for("sm_90a", name, text);
}

/// As [`assemble`], for another architecture.
#[allow(dead_code, reason = "most of the tests name none")]
pub fn assemble_for(architecture: &str, name: &str, text: &str) {
    match run(architecture, text) {
        Ok(output) => {
            let says = [output.stdout, output.stderr].concat();
            let says = String::from_utf8_lossy(&says);
            assert!(output.status.success(), "{name}: {}: {says}", output.status);
        }
        Err(error) => println!("SKIP: {name} is not assembled: ptxas: {error}"),
    }
}

/// Whether the assembler takes a text; an error if there is none.
#[allow(dead_code, reason = "the others' texts are to assemble")]
pub fn assembles(architecture: &str, text: &str) -> io::Result<bool> {
    run(architecture, text).map(|output| output.status.success())
}

fn run(architecture: &str, text: &str) -> io::Result<Output> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let program = std::env::var_os("PREEMPT_PTXAS").unwrap_or_else(|| OsString::from("ptxas"));
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let file = std::env::temp_dir().join(format!("preempt-{}-{number}.ptx", std::process::id()));
    std::fs::write(&file, text)?;
    let mut ptxas = Command::new(program);
    let arguments = [&format!("-arch={architecture}"), "-O1", "-o", "/dev/null"];
    let output = ptxas.args(arguments).arg(&file).output();
    std::fs::remove_file(&file)?;
    output
}
