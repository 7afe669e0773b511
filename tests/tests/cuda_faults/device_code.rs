//! The device code of the kernels that these tests launch. All of the test kernels' is many times as much, and is read anew for
//! each device that a case opens.

use std::sync::OnceLock;

use preempt::Module;
use preempt_test_kit::KERNELS;

const LAUNCHED: [&str; 5] =
    ["count_1d", "panics", "rotate_saving", "spin_yielding", "tables_saving"];

const ENTRY: &str = ".visible .entry ";

/// The test kernels' module without the entries of other kernels.
pub fn module() -> Module {
    static MODULE: OnceLock<Module> = OnceLock::new();
    *MODULE.get_or_init(|| {
        Module::new(KERNELS.name(), KERNELS.ptx().map(|ptx| &*shortened(ptx).leak()))
    })
}

/// An entry begins and ends with lines of its own.
fn shortened(ptx: &str) -> String {
    let (mut is_kept, mut kept) = (true, 0);
    let mut text = String::new();
    for line in ptx.lines() {
        if let Some(entry) = line.strip_prefix(ENTRY) {
            let name = entry.split('(').next().unwrap_or_default();
            let kernel = name.strip_suffix("__plain").unwrap_or(name);
            is_kept = LAUNCHED.contains(&kernel);
            kept += usize::from(is_kept);
        }
        // The device's library, which these kernels call nothing of.
        is_kept &= !line.starts_with(".func");
        if is_kept {
            text.push_str(line);
            text.push('\n');
        }
        // Of a definition, or a declaration.
        is_kept |= matches!(line.trim_start(), "}" | ";");
    }
    let mut lines = text.lines().map(str::trim_start);
    assert!(!lines.any(|line| line.starts_with("call")), "a function that is not there is called");
    assert_eq!(kept, 2 * LAUNCHED.len(), "each of the kernels has two entries");
    text
}
