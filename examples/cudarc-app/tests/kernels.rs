//! The kernels, without a GPU.

use cudarc_app::{COMMITTED, SOURCE, with_source};
use preempt::ptx::{Verdict, transform};

#[test]
fn the_committed_ptx_is_of_this_source() {
    let source = with_source("");
    assert!(SOURCE.contains("score") && source.contains("score"));
    let is_same = COMMITTED.starts_with(source.trim_end());
    assert!(is_same, "run `cargo run -p cudarc-app -- --write-ptx` where there is NVRTC");
}

#[test]
fn both_kernels_become_preemptible() {
    let kernels = transform(COMMITTED, &["walk", "score"]).expect("understood").kernels;
    assert_eq!(kernels.len(), 2);
    for kernel in kernels {
        let (name, verdict) = (&kernel.name, &kernel.verdict);
        assert!(kernel.preemptible.is_some(), "{name}: {verdict}");
        assert!(!matches!(verdict, Verdict::Refused(_)), "{name}: {verdict}");
    }
}
