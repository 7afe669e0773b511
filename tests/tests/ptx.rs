//! The committed PTX of the test kernels, by its text, which needs no tool of NVIDIA's. `.ci/ptx` checks the machine
//! code.

use std::collections::BTreeMap;
use std::mem::offset_of;
use std::process::Command;
use std::sync::LazyLock;

use preempt_build::{Kernels, check};
use preempt_device::abi::Cohort;
use preempt_ptx_text::{CohortLayout, with_panic_records};

const COMMITTED: &str = include_str!("../kernels/kernels.ptx");

/// The committed PTX, or another file, such as that of another compiler.
static PTX: LazyLock<String> = LazyLock::new(|| match std::env::var("PREEMPT_TEST_PTX") {
    Ok(file) => std::fs::read_to_string(file).expect("PREEMPT_TEST_PTX names a file"),
    Err(_) => COMMITTED.to_owned(),
});

/// The kernels of the crate.
const NAMES: [&str; 58] = [
    "add_index",
    "angles_f32",
    "angles_f64",
    "apart",
    "approximations",
    "atomics_f32",
    "atomics_f64",
    "atomics_i32",
    "atomics_i64",
    "atomics_u32",
    "atomics_u64",
    "copy_four",
    "count_1d",
    "disagree",
    "exchanged",
    "filtered__16",
    "filtered__8",
    "guard_sync_guard",
    "halves",
    "halves_by_crate",
    "helper_indices",
    "math",
    "meet_marked",
    "optional",
    "paced_1d",
    "paced_2d",
    "paced_3d",
    "paced_early_return",
    "paced_irregular",
    "paced_shared",
    "panics",
    "powers_f32",
    "powers_f64",
    "reversed_runs",
    "rotate_marking",
    "rotate_saving",
    "rotate_yielding",
    "rounded_f32",
    "rounded_f64",
    "same_as_table",
    "scale",
    "scaled__3_true",
    "scaled__m2_false",
    "sm_of_task",
    "spin_marked",
    "spin_marking",
    "spin_yielding",
    "struct_arg",
    "sum",
    "tables_saving",
    "tiled_mm",
    "vector_add",
    "vector_add_own",
    "warp_matches",
    "warp_sums",
    "weighted",
    "whole_powers",
    "window_sums",
];

/// Kernels whose attribute fixes the block, and their threads in a block.
const BLOCKS: [(&str, u32); 32] = [
    ("apart", 32),
    ("same_as_table", 256),
    ("exchanged", 128),
    ("filtered__16", 32),
    ("filtered__8", 16),
    ("guard_sync_guard", 128),
    ("meet_marked", 256),
    ("paced_shared", 256),
    ("rotate_marking", 256),
    ("rotate_saving", 256),
    ("rotate_yielding", 256),
    ("tables_saving", 256),
    ("tiled_mm", 256),
    ("vector_add", 256),
    ("warp_sums", 64),
    ("weighted", 256),
    ("window_sums", 256),
    ("rounded_f32", 128),
    ("rounded_f64", 128),
    ("powers_f32", 128),
    ("powers_f64", 128),
    ("angles_f32", 128),
    ("angles_f64", 128),
    ("whole_powers", 128),
    ("approximations", 128),
    ("warp_matches", 40),
    ("vector_add_own", 256),
    ("halves", 128),
    ("halves_by_crate", 128),
    ("scale", 32),
    ("sum", 32),
    ("copy_four", 4),
];

/// The kernel whose yield points each thread passes on its own.
const YIELDING: &str = "spin_yielding";

/// The kernel whose yield points are votes of the block.
const VOTING: &str = "rotate_yielding";

/// Kernels with a checkpoint, the first of them with shared memory.
const SAVING: [&str; 2] = ["rotate_saving", "tables_saving"];

/// Kernels with yield points: how many the compiler makes of them, a checkpoint is one, and at how many of these a limit counts.
/// Of the last four, block-tasks can be dropped until a thread gets to a marker. Where all threads of a block have passed it, as
/// the compiler sees, only a revocation counts; where some may have, a loop can be there twice, for those that have and others.
const WITH_YIELDS: [(&str, usize, usize); 8] = [
    (YIELDING, 1, 1),
    (VOTING, 1, 1),
    (SAVING[0], 1, 1),
    (SAVING[1], 1, 1),
    ("spin_marking", 1, 1),
    ("rotate_marking", 2, 1),
    ("spin_marked", 3, 3),
    ("meet_marked", 2, 1),
];

/// The number of yield points of a kernel, and of those where a limit counts.
fn yield_points(name: &str) -> (usize, usize) {
    let found = WITH_YIELDS.iter().find(|(of, ..)| *of == name);
    found.map_or((0, 0), |&(_, points, limited)| (points, limited))
}

/// The text of one entry.
fn entry(name: &str) -> &'static str {
    let start = PTX.find(&format!(".entry {name}(")).expect("the entry exists");
    let end = PTX[start..].find("\n}").expect("the entry ends");
    &PTX[start..start + end]
}

/// Operation and operands of each instruction of one entry, without guards.
fn instructions(name: &str) -> Vec<(&'static str, &'static str)> {
    let mut instructions = Vec::new();
    for line in entry(name).lines() {
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

/// The number of barriers with this number in an entry: 0 in the kernel's own code, 1 in the worker loop.
fn barriers(name: &str, number: u32) -> usize {
    let barriers = instructions(name).into_iter().filter(|(found, _)| found.starts_with("bar"));
    // The result of a reduction comes first in the text, and the threads' own value last.
    barriers
        .filter(|(_, operands)| operands.split(", ").any(|operand| operand == number.to_string()))
        .count()
}

/// The number of barriers in the kernel's own code.
fn own_barriers(name: &str) -> usize {
    barriers(name, 0)
}

#[test]
fn is_fresh() {
    let kernels = Kernels::new(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels"));
    assert!(
        kernels.committed("kernels.ptx").is_fresh().expect("cargo resolves the crate"),
        "tests/kernels/kernels.ptx is stale: `cargo run -p preempt-build --bin \
         preempt-ptx` rebuilds it"
    );
}

#[test]
fn is_what_an_application_embeds() {
    assert_eq!(preempt_test_kit::KERNELS.name(), "preempt_test_kernels");
    assert_eq!(preempt_test_kit::KERNELS.ptx(), Some(COMMITTED), "while it is fresh");
}

#[test]
fn passes_the_check_with_every_kernel_preemptible() {
    let report = check(&PTX).expect("the PTX passes");
    assert_eq!(report.target, "sm_80");
    assert_eq!(report.preemptible, NAMES);
    assert!(report.plain.is_empty());
}

#[test]
fn names_no_path_of_the_machine_that_made_it() {
    for sign in ["/home/", "/root/", "/usr/", "/tmp/", "registry", ".cargo"] {
        assert!(!PTX.contains(sign), "contains `{sign}`");
    }
}

#[test]
fn no_function_is_left_to_be_found_elsewhere() {
    assert!(!PTX.contains(".extern .func"), "no driver links one");
}

#[test]
fn rounding_is_one_instruction_and_approximations_are_too() {
    for (kernel, bits) in [("rounded_f32", "f32"), ("rounded_f64", "f64")] {
        // `round` and `div_euclid` truncate, too.
        for (mode, times) in [("rmi", 1), ("rpi", 1), ("rni", 1), ("rzi", 3)] {
            let operation = format!("cvt.{mode}.{bits}.{bits}");
            assert_eq!(count(kernel, &operation), times, "{operation} in {kernel}");
        }
        assert_eq!(count(kernel, "sqrt.rn"), 1, "in {kernel}");
    }
    for (operation, times) in [
        ("ex2", 3),
        ("lg2", 1),
        ("sin", 1),
        ("cos", 1),
        ("tanh", 1),
        ("sqrt", 1),
        ("rsqrt", 1),
        ("rcp", 1),
        ("div", 2),
    ] {
        let operation = format!("{operation}.approx.f32");
        assert_eq!(count("approximations", &operation), times, "{operation}");
    }
}

#[test]
fn a_threads_own_element_costs_nothing() {
    for entry in ["", "__plain"] {
        let operations = |name: &str| -> Vec<_> {
            let all = instructions(&format!("{name}{entry}"));
            // Without labels, and the declarations of the head, which have the kernel's name.
            let own = all.into_iter().map(|(operation, _)| operation);
            own.filter(|operation| operation.starts_with(char::is_lowercase)).collect()
        };
        assert_eq!(operations("vector_add_own"), operations("vector_add"));
    }
}

#[test]
fn halves_are_converted_by_instructions() {
    for (operation, times) in
        [("cvt.f32.f16", 2), ("cvt.rn.f16.f32", 1), ("cvt.rn.bf16.f32", 1), ("fma.rn.f32", 2)]
    {
        assert_eq!(count("halves__plain", operation), times, "{operation}");
    }
}

#[test]
fn atomics_are_single_instructions_with_the_fences_of_their_order() {
    /// Atomic operations and fences of an entry.
    fn found(name: &str) -> Vec<&'static str> {
        let is_one =
            |operation: &&str| operation.starts_with("atom") || operation.starts_with("fence");
        let all = instructions(&format!("{name}__plain"));
        all.into_iter().map(|(operation, _)| operation).filter(is_one).collect()
    }
    // Without a scope it is the device's (PTX ISA, `atom`).
    let short = |operation: &str| operation.replace(".relaxed.gpu", "").replace(".global", "");
    let relaxed: Vec<_> = found("atomics_u32").into_iter().map(short).collect();
    let expected =
        ["add.u32", "min.u32", "max.u32", "and.b32", "or.b32", "xor.b32", "cas.b32", "exch.b32"];
    assert_eq!(relaxed, expected.map(|operation| format!("atom.{operation}")));
    let fenced = found("atomics_i32");
    for (operation, fence) in fenced.chunks(3).map(|three| (three[1], (three[0], three[2]))) {
        assert!(operation.starts_with("atom"), "{fenced:?}");
        assert_eq!(fence, ("fence.sc.gpu", "fence.acq_rel.gpu"), "{operation}");
    }
    for operation in found("atomics_u64").chunks(3) {
        assert_eq!((operation[0], operation[2]), ("fence.acq_rel.cta", "fence.acq_rel.cta"));
    }
    for operation in found("atomics_i64") {
        assert_eq!(operation, "atom.relaxed.sys.global.cas.b64");
    }
    let of_floats: Vec<_> = found("atomics_f32").into_iter().map(short).collect();
    assert_eq!(
        of_floats,
        ["atom.add.f32", "atom.cas.b32", "atom.cas.b32", "atom.cas.b32", "atom.exch.b32"]
    );
}

#[test]
fn warps_match_and_reduce_by_instructions_on_all_lanes() {
    let all = instructions("warp_matches__plain");
    let found = all
        .iter()
        .filter(|(operation, _)| operation.starts_with("match") || operation.starts_with("redux"));
    let found: Vec<_> =
        found.map(|(operation, _)| operation.rsplit_once(".sync.").expect("is one").1).collect();
    let matches = ["b32", "b64", "b32", "b64"];
    let reductions =
        ["add.s32", "min.u32", "max.u32", "and.b32", "or.b32", "xor.b32", "min.s32", "max.s32"];
    assert_eq!(found, [&matches[..], &reductions].concat());
    assert_eq!(count("warp_matches__plain", "match.all"), 2);
    assert_eq!(count("warp_matches__plain", "activemask"), 1);
}

#[test]
fn a_barrier_between_guards_stays_one() {
    for entry in ["guard_sync_guard", "guard_sync_guard__plain"] {
        assert_eq!(own_barriers(entry), 1, "in {entry}");
    }
}

#[test]
fn the_body_is_there_once() {
    // LLVM 23 unrolls a loop with a barrier where nothing else is around it. That is harmless, because all threads make
    // the same number of rounds, and so take the same copies.
    for name in NAMES {
        assert!(own_barriers(name) <= own_barriers(&format!("{name}__plain")), "in {name}");
    }
    for operation in ["fma.rn.f32", "st.shared.b32", "ld.global", "st.global.b32"] {
        let (loops, plain) = (count("tiled_mm", operation), count("tiled_mm__plain", operation));
        assert_eq!(loops, plain, "{operation} in tiled_mm");
    }
}

#[test]
fn the_worker_loop_is_there_once() {
    for name in NAMES {
        // The first chunk; the chunk after it, and a chunk that has to be looked for; between tasks; the end. With
        // yield points, whether the last task was requeued, and the requeue.
        let expected = if yield_points(name).0 > 0 { 7 } else { 5 };
        assert_eq!(barriers(name, 1), expected, "in {name}");
        assert_eq!(barriers(&format!("{name}__plain"), 1), 0, "in the plain entry of {name}");
    }
}

#[test]
fn a_mutable_reference_is_read_again_after_a_barrier() {
    for name in ["exchanged", "exchanged__plain"] {
        let all = instructions(name);
        let is_own_barrier = |(operation, operands): &(&str, &str)| {
            operation.starts_with("bar") && operands.split(',').next() == Some("0")
        };
        let last = all.iter().rposition(is_own_barrier).expect("a barrier");
        let first_write = all[last..].iter().position(|(found, _)| *found == "st.global.b32");
        let read = all[last..].iter().position(|(found, _)| *found == "ld.shared.b32");
        assert!(read.expect("a read") < first_write.expect("a result"), "in {name}");
    }
}

#[test]
fn preemptible_entries_keep_no_more_in_local_memory_than_plain_ones() {
    let stack =
        |name: &str| entry(name).lines().find(|line| line.contains("__local_depot")).map(str::trim);
    let bytes =
        |name: &str| stack(name).map(|line| line.split(['[', ']']).nth(1).map(str::to_owned));
    for name in NAMES {
        assert_eq!(bytes(name), bytes(&format!("{name}__plain")), "in {name}");
    }
    assert_eq!(stack("weighted"), None, "arrays by value stay where they are");
    assert_eq!(stack("window_sums"), None, "the loop over an array is unrolled");
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
    // Kernels of atomics have reads and fences of their own.
    for name in NAMES.into_iter().filter(|name| !name.starts_with("atomics_")) {
        let all = instructions(name);
        // A cached read (`ld.global.nc`, `cp.async.ca`) would never see the host's word. The signal is read at first,
        // by a copy when tasks start, and when a block finds no chunk ready; so is the progress of the launch before.
        let reads = all.iter().filter(|(operation, _)| *operation == "ld.relaxed.sys.global.b64");
        // And at yield points, with when it came if it may give the block time. Where a save area is, is read where a slot is taken and given back, and where threads go to
        // it to leave and to go on.
        let places = if SAVING.contains(&name) { 4 } else { 0 };
        // When the signal came, where a block finds no chunk ready; both words where one with a single task leaves, and where one
        // has stopped within its tasks.
        let (points, limited) = yield_points(name);
        let stops = if points > 0 { 5 } else { 3 };
        let expected = 3 + points + limited + places + stops;
        assert_eq!(reads.count(), expected, "in {name}");
        let copies = all.iter().filter(|(operation, _)| operation.starts_with("cp.async"));
        let (waits, copies): (Vec<_>, Vec<_>) =
            copies.partition(|(operation, _)| *operation == "cp.async.wait_all");
        let past_l1 = |copy: &&(&str, &str)| copy.0 == "cp.async.cg.shared.global";
        assert!(waits.len() >= 2 && !copies.is_empty() && copies.iter().all(past_l1), "in {name}");
        if SAVING.contains(&name) {
            // A slot is given back behind a fence, and written behind another one.
            let order = all.iter().map(|(operation, _)| *operation).filter(|operation| {
                operation.starts_with("fence")
                    || operation.ends_with(".and.b32")
                    || operation.ends_with(".or.b32")
            });
            let order: Vec<_> = order.collect();
            let is_atomic =
                |operation: &str| operation.starts_with("atom.") && operation.contains(".global.");
            let given_back =
                order.iter().position(|found| is_atomic(found) && found.ends_with(".and.b32"));
            assert_eq!(order[given_back.expect("a slot is given back") - 1], "fence.acq_rel.gpu");
            let taken =
                order.iter().position(|found| is_atomic(found) && found.ends_with(".or.b32"));
            assert_eq!(order[taken.expect("a slot is taken") + 1], "fence.acq_rel.gpu");
        }
        let fences_and_stores = all.iter().map(|(operation, _)| *operation).filter(|operation| {
            operation.starts_with("fence") || operation.starts_with("st.relaxed.sys.global")
        });
        let all: Vec<_> = fences_and_stores.collect();
        // How blocks have stopped comes behind the clearing.
        let told = 3;
        let (given_back, end) = all.split_at(all.len() - 5 - told);
        // Acquire the requeued chunks, at first and at the end; release them. Ahead of that, with a block for each block-task
        // and with fewer blocks, what the host is told of how far a block is.
        let (fence, told_at) = ("fence.acq_rel.gpu", "st.relaxed.sys.global.b64");
        let (fences, others): (Vec<&str>, Vec<&str>) =
            given_back.iter().partition(|&&found| found == fence);
        assert!(fences.len() >= 3 && others == [told_at; 2], "in {name}: {others:?}");
        // Release, also of what a block with a single task tells; count; clear the words of the launch before; acquire and
        // release to the host; post.
        let (clear, post) = ("st.relaxed.sys.global.b32", "st.relaxed.sys.global.b64");
        let told = std::iter::repeat_n(post, told);
        let expected =
            [fence, fence, clear].into_iter().chain(told).chain(["fence.acq_rel.sys", post]);
        assert_eq!(end, expected.collect::<Vec<_>>(), "in {name}");
    }
}

#[test]
fn a_yield_point_looks_at_the_signal_only_if_the_time_has_come() {
    let all = instructions(YIELDING);
    let index = |from: usize, operation: &str| {
        let found = all[from..].iter().position(|(found, _)| *found == operation);
        from + found.unwrap_or_else(|| panic!("{operation} after instruction {from}"))
    };
    let is_last_look = |(operation, operands): &(&str, &str)| {
        *operation == "ld.relaxed.sys.shared.b32" && operands.contains("preempt_yields")
    };
    let last_look = all.iter().position(is_last_look).expect("the time of the last look");
    let exchange = index(last_look, "atom.relaxed.sys.shared.cas.b32");
    let look = index(exchange, "ld.relaxed.sys.global.b64");
    // It is too early to look, and no answer is there, which is one; the SM is known to be taken; another thread of the warp
    // looks; another warp does.
    let exits = all[last_look..look].iter().filter(|(operation, _)| *operation == "bra");
    assert_eq!(exits.count(), 4);
    // The loop around it is there once, not once for tasks that may be requeued and once for others. The word is read where a
    // thread looks, and where the block leaves.
    assert_eq!(all.iter().copied().filter(|found| is_last_look(found)).count(), 2);
    assert_eq!(all.iter().filter(|(_, operands)| operands.contains("1664525")).count(), 1);
}

#[test]
fn a_marker_and_a_drop_change_one_word_by_compare_and_swap() {
    let word = "[preempt_yields+4]";
    let all = instructions("spin_marking");
    let on_word = |start: &str| {
        let those = all.iter().filter(|(operation, operands)| {
            operation.starts_with(start) && operands.contains(word)
        });
        those.count()
    };
    assert_eq!(on_word("st.shared"), 1, "the block's start");
    assert!(on_word("atom.relaxed.sys.shared.cas.b32") >= 2, "a marker, and a drop");
    assert_eq!(on_word("atom"), on_word("atom.relaxed.sys.shared.cas.b32"));
    assert_eq!(on_word("ld.relaxed.sys.shared.b32"), on_word("atom"), "a look before each");
    // In a body with barriers there is no word, and one reduction: all agree.
    assert!(!entry("rotate_marking").contains(word));
    let votes =
        instructions("rotate_marking").iter().filter(|(of, _)| *of == "bar.red.and.pred").count();
    assert_eq!(votes, 2);
    // Others do not pay for it.
    for name in [YIELDING, VOTING] {
        assert!(!entry(name).contains(word) && !entry(name).contains("bar.red.and"));
    }
}

#[test]
fn threads_save_behind_the_vote_that_says_so_and_ahead_of_the_barrier_that_ends_the_task() {
    let name = SAVING[0];
    let all = instructions(name);
    let votes: Vec<_> = all
        .iter()
        .enumerate()
        .filter(|(_, found)| found.0 == "bar.red.or.pred" && found.1.contains(", 2, "))
        .map(|(at, _)| at)
        .collect();
    // Two around what goes on, which reads the slot and writes shared memory in between, and that of the loop, which is
    // there once.
    let [begin, end, _] = votes[..] else { panic!("{} votes", votes.len()) };
    let between =
        |operation: &str| all[begin..end].iter().filter(|(found, _)| *found == operation).count();
    assert!(between("ld.global.v2.b64") == 1 && between("st.shared.v2.b64") == 1);
    assert_eq!(between("ld.global.b32"), 3, "the state, the round and the last one");
    // Shared memory is saved whole words at a time, past no cache that other SMs do not see.
    assert_eq!(count(name, "ld.shared.v2.b64"), 1);
    assert_eq!(count(name, "st.global.v2.b64"), 1);
    assert_eq!(count(name, ".nc."), 0);
    let saved = all.iter().position(|(found, _)| *found == "st.global.v2.b64").expect("above");
    let behind = |start: &str| {
        let found = all[saved..].iter().position(|(found, _)| found.starts_with(start));
        saved + found.unwrap_or_else(|| panic!("{start} behind the save"))
    };
    assert!(behind("bar.red.or.pred") < behind("fence.acq_rel.gpu"));
    assert!(behind("fence.acq_rel.gpu") < behind("atom.relaxed.sys.global.cas.b64"));
}

#[test]
fn a_vote_asks_for_the_signal_and_does_not_wait_for_it() {
    let all = instructions(VOTING);
    let is_vote = |(operation, _): &(&str, &str)| operation.starts_with("bar.red");
    let vote = all.iter().position(is_vote).expect("a vote");
    let is_ask = |(operation, _): &(&str, &str)| *operation == "ld.relaxed.sys.global.b64";
    let ask = all[..vote].iter().rposition(is_ask).expect("a look");
    let (register, _) = all[ask].1.split_once(',').expect("a register and an address");
    // Code that only moves the value does not wait, once it is in a register of the machine.
    let mut waits = all[ask + 1..vote].iter().filter(|(operation, _)| *operation != "mov.b64");
    assert!(waits.all(|(_, operands)| !operands.contains(register)), "{register} is used");
}

#[test]
fn only_preemptible_entries_with_yield_points_pay_for_them() {
    for (name, ..) in WITH_YIELDS {
        let plain = entry(&format!("{name}__plain"));
        for sign in ["preempt_yields", "%clock", "ld.relaxed", "bar.red"] {
            assert!(!plain.contains(sign), "{sign} in the plain entry of {name}");
        }
    }
    assert!(!entry("spin_yielding__plain").contains(".shared"));
    // An entry has the shared memory that it names, so the others do not have it. Several entries use the word, so its
    // declaration is outside of them.
    let outside =
        WITH_YIELDS.iter().fold(PTX.to_owned(), |text, (name, ..)| text.replace(entry(name), ""));
    let mut lines = outside.lines().filter(|line| line.contains("preempt_yields"));
    assert!(lines.all(|line| line.starts_with("//") || line.starts_with(".shared .align")));
}

#[test]
fn a_preemptible_entry_says_how_many_threads_its_blocks_have_if_that_is_fixed() {
    let said = |name: &str| -> Vec<String> {
        let lines = entry(name).lines().map(str::trim);
        lines.filter(|line| line.contains("preempt.block")).map(str::to_owned).collect()
    };
    for name in NAMES {
        let block = BLOCKS.iter().find(|(of, _)| *of == name);
        let expected = block.map(|(_, threads)| format!("// preempt.block {threads}"));
        assert_eq!(said(name), Vec::from_iter(expected), "in {name}");
        assert_eq!(said(&format!("{name}__plain")), [""; 0], "in the plain entry of {name}");
    }
}

#[test]
fn a_kernel_that_is_launched_early_waits_before_it_looks_at_the_launch_before() {
    for name in NAMES {
        let entry = entry(name);
        // A loader puts the instruction in the comment's place.
        let waits: Vec<_> =
            entry.match_indices("// preempt.griddepcontrol.wait").map(|(at, _)| at).collect();
        // A block that claims its first task, and a block that has it.
        let [wait, last] = waits[..] else { panic!("{} marks in {name}", waits.len()) };
        assert_eq!(entry.matches("griddepcontrol").count(), 3, "in {name}");
        // The next task and the signal are read before it, and the progress of the launch before after it.
        let reads = |operation| entry.match_indices(operation).map(|(at, _)| at);
        let (mut claims, mut words) =
            (reads("ld.relaxed.sys.global.b32"), reads("ld.relaxed.sys.global.b64"));
        assert!(claims.next() < Some(wait) && words.next() < Some(wait), "in {name}");
        assert!(words.next() > Some(wait), "in {name}");
        // Nothing is claimed or requeued before, on either way.
        assert!(wait < entry.find("atom.").expect("a claim"), "in {name}");
        assert!(last < entry.rfind("atom.").expect("giving back"), "in {name}");
    }
}

/// Registers, bytes of stack frame and of spills of each entry, as NVIDIA's assembler tells; `None` where there is none.
fn resources(ptx: &str) -> Option<BTreeMap<String, [u32; 3]>> {
    let file =
        std::env::temp_dir().join(format!("preempt-{}-{}.ptx", std::process::id(), ptx.len()));
    std::fs::write(&file, ptx).expect("a file");
    let mut ptxas = Command::new("ptxas");
    let output = ptxas.args(["-arch=sm_90", "-v", "-o", "/dev/null"]).arg(&file).output();
    std::fs::remove_file(&file).expect("it was written");
    let output = output.inspect_err(|error| println!("SKIP: ptxas: {error}")).ok()?;
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    let before = |line: &str, unit: &str| -> Option<u32> {
        line.split_once(unit)?.0.split(|c: char| !c.is_ascii_digit()).next_back()?.parse().ok()
    };
    let mut entries = BTreeMap::<String, [u32; 3]>::new();
    let (mut entry, mut is_own) = (String::new(), false);
    for line in text.lines() {
        if let Some((_, name)) = line.split_once("Compiling entry function '") {
            entry = name.split('\'').next().unwrap_or_default().to_owned();
        } else if let Some((_, name)) = line.split_once("Function properties for ") {
            is_own = name.trim() == entry;
        } else if let Some(frame) = before(line, " bytes stack frame").filter(|_| is_own) {
            let spills = before(line, " bytes spill stores").expect("in the same line");
            entries.entry(entry.clone()).or_default()[1..].copy_from_slice(&[frame, spills]);
        } else if let Some(registers) = before(line, " registers") {
            entries.entry(entry.clone()).or_default()[0] = registers;
        }
    }
    Some(entries)
}

/// An SM holds as many blocks of any size with 32 registers a thread as with fewer.
const FREE_REGISTERS: u32 = 32;

/// Registers by which the assembler's choices differ when anything in an entry does.
const NOISE: u32 = 4;

#[test]
fn records_of_panics_take_nothing_from_kernels() {
    let layout = CohortLayout {
        grid: offset_of!(Cohort, grid),
        post: offset_of!(Cohort, post),
        ticket: offset_of!(Cohort, ticket),
    };
    let recording = with_panic_records(&PTX, layout).expect("kernels panic");
    let (Some(before), Some(after)) = (resources(&PTX), resources(&recording)) else { return };
    assert!(before.len() == 2 * NAMES.len() && before.keys().eq(after.keys()), "{after:?}");
    for (name, [registers, frame, spills]) in before {
        let [now, frame_now, spills_now] = after[&name];
        println!("{name}: {registers} -> {now} registers");
        assert!(now <= FREE_REGISTERS.max(registers + NOISE), "{name}: {registers}, {now}");
        assert!(frame_now <= frame && spills_now <= spills, "{name}: {frame_now} {spills_now}");
    }
}
