//! The committed PTX of the test kernels, by its text: what needs no tool of NVIDIA's. The
//! machine code is looked at by `.ci/ptx`.

use preempt::build::{Kernels, check};

const PTX: &str = include_str!("../kernels/kernels.ptx");

/// The kernels of the crate.
const NAMES: [&str; 16] = [
    "count_1d",
    "count_2d",
    "count_3d",
    "count_early_return",
    "count_irregular",
    "count_shared",
    "disagree",
    "guard_sync_guard",
    "helper_indices",
    "math",
    "panics",
    "sm_of_task",
    "struct_arg",
    "tiled_mm",
    "vector_add",
    "warp_sums",
];

/// Operation and operands of each instruction of one entry, without guards.
fn instructions(name: &str) -> Vec<(&'static str, &'static str)> {
    let start = PTX.find(&format!(".entry {name}(")).expect("the entry exists");
    let end = PTX[start..].find("\n}").expect("the entry ends");
    let mut instructions = Vec::new();
    for line in PTX[start..start + end].lines() {
        let line = line.split("//").next().unwrap_or_default().trim();
        let line = match line.strip_prefix('@') {
            Some(guarded) => guarded.split_once(char::is_whitespace).expect("an instruction").1,
            None => line,
        };
        let line = line.trim().trim_end_matches(';');
        let (operation, operands) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        instructions.push((operation, operands.trim()));
    }
    instructions
}

/// The number of instructions of an entry that start with `operation`.
fn count(name: &str, operation: &str) -> usize {
    instructions(name).iter().filter(|(found, _)| found.starts_with(operation)).count()
}

/// The number of barriers in the kernel's own code; the worker loop uses barrier 1.
fn own_barriers(name: &str) -> usize {
    let barriers = instructions(name).into_iter().filter(|(found, _)| found.starts_with("bar"));
    barriers.filter(|(_, operands)| operands.split(',').next() == Some("0")).count()
}

#[test]
fn is_fresh() {
    let kernels = Kernels::new(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels"));
    assert!(
        kernels.committed("kernels.ptx").is_fresh().expect("cargo resolves the crate"),
        "tests/kernels/kernels.ptx is stale: `cargo run -p preempt --features build --bin \
         preempt-ptx` rebuilds it"
    );
}

#[test]
fn is_what_an_application_embeds() {
    assert_eq!(preempt_tests::KERNELS.name(), "preempt_test_kernels");
    assert_eq!(preempt_tests::KERNELS.ptx(), Some(PTX), "while it is fresh");
}

#[test]
fn passes_the_check_with_every_kernel_preemptible() {
    let report = check(PTX).expect("the committed PTX passes");
    assert_eq!(report.target, "sm_80");
    assert_eq!(report.preemptible, NAMES);
    assert!(report.native.is_empty());
}

#[test]
fn names_no_path_of_the_machine_that_made_it() {
    for sign in ["/home/", "/root/", "/usr/", "/tmp/", "registry", ".cargo"] {
        assert!(!PTX.contains(sign), "contains `{sign}`");
    }
}

#[test]
fn a_barrier_between_guards_stays_one() {
    for entry in ["guard_sync_guard", "guard_sync_guard__plain"] {
        assert_eq!(own_barriers(entry), 1, "in {entry}");
    }
}

#[test]
fn the_body_is_there_once() {
    for name in NAMES {
        assert_eq!(own_barriers(name), own_barriers(&format!("{name}__plain")), "in {name}");
    }
    for operation in ["fma.rn.f32", "st.shared.b32", "ld.global", "st.global.b32"] {
        let (loops, plain) = (count("tiled_mm", operation), count("tiled_mm__plain", operation));
        assert_eq!(loops, plain, "{operation} in tiled_mm");
    }
}

#[test]
fn shared_memory_is_accessed_as_such_and_nothing_as_generic() {
    assert!(count("tiled_mm__plain", "ld.shared") > 0 && count("tiled_mm__plain", "st.shared") > 0);
    for name in NAMES {
        for (operation, operands) in instructions(name) {
            let accesses = ["ld.", "st.", "atom.", "red."];
            if accesses.iter().any(|access| operation.starts_with(access)) {
                let space = [".shared", ".global", ".param", ".local"];
                // The stack, which libm uses a little, is known to the assembler.
                let known = operands.contains("[%SP")
                    || space.iter().any(|space| operation.contains(space));
                assert!(known, "{name}: {operation} {operands}");
            }
        }
    }
}

#[test]
fn the_worker_loop_reads_its_signal_from_memory_and_releases_before_it_posts() {
    for name in NAMES {
        // A cached read (`ld.global.nc`) would never see the host's word.
        let signal = ("ld.relaxed.sys.global.b64", "+32]");
        let all = instructions(name);
        assert!(all.iter().any(|(op, operands)| *op == signal.0 && operands.ends_with(signal.1)));
        // Release, count; acquire; clear the slot; release; post.
        let leaving = all.iter().map(|(operation, _)| *operation).filter(|operation| {
            operation.starts_with("fence") || operation.starts_with("st.relaxed.sys")
        });
        let fence = "fence.acq_rel.sys";
        let store = "st.relaxed.sys.global.b64";
        assert_eq!(leaving.collect::<Vec<_>>(), [fence, fence, store, fence, store], "in {name}");
    }
}
