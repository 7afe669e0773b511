//! The modules of each crate lie in layers, and use only modules in layers below.

mod checker;
mod sources;

use std::path::Path;

use checker::Layers;
use sources::Sources;

/// A crate of this workspace: the folder of its sources, and its layers, the lowest one first. A layer lists modules;
/// a module that is not listed belongs to the nearest one around it that is. `crate` is the root, `lib.rs`.
struct LayeredCrate {
    sources: &'static str,
    layers: Layers<'static>,
}

const CRATES: [LayeredCrate; 2] = [MACROS, PREEMPT];

const MACROS: LayeredCrate = LayeredCrate {
    sources: "preempt-macros/src",
    layers: &[
        // Vocabulary.
        &["errors", "names", "conditions", "primitives", "device_crate"],
        &["parse", "parse::instances", "parse::rust_cuda"],
        &[
            "analyze",
            "analyze::barriers",
            "analyze::idempotence",
            "analyze::idempotence::calls",
            "analyze::idempotence::findings",
            "analyze::idempotence::library",
            "analyze::idempotence::patterns",
            "analyze::idempotence::places",
            "analyze::idempotence::types",
            "analyze::idempotence::walk",
            "analyze::rust_cuda",
            "analyze::uniform",
            "analyze::uniform::kinds",
            "analyze::uniform::values",
        ],
        &[
            "rewrite",
            "rewrite::assertions",
            "rewrite::checkpoints",
            "rewrite::markers",
            "rewrite::rust_cuda",
            "rewrite::shared",
            "rewrite::variables",
            "rewrite::yields",
        ],
        &[
            "generate",
            "generate::parts",
            "generate::device",
            "generate::host",
            "generate::instances",
            "generate::rust_cuda",
        ],
        &["derive", "expand", "kernel_attribute"],
        &["crate"],
    ],
};

const PREEMPT: LayeredCrate = LayeredCrate {
    sources: "preempt/src",
    layers: &[
        &["text", "vocabulary"],
        &["error"],
        &["sync", "module", "foreign", "ptx", "worker"],
        &["policy", "predict", "pool::dispatch", "pool::policy", "pool::terms"],
        &["coschedule"],
        &["engine"],
        &["device", "recording", "sim"],
        &["scheduler"],
        &["pool"],
        // Uses buffers, like an application.
        &["device::conformance"],
        &["raw"],
        &["tune", "cudarc", "cust", "guide"],
        &["crate"],
        &["prelude"],
    ],
};

#[test]
fn modules_use_only_what_lies_below_them() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("a folder above");
    let mut faults = Vec::new();
    for LayeredCrate { sources, layers } in CRATES {
        let found = Sources::read(&workspace.join(sources)).expect("sources that can be read");
        let of_crate = checker::check(&found, layers);
        faults.extend(of_crate.iter().map(|fault| format!("{sources}: {fault}")));
    }
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}
