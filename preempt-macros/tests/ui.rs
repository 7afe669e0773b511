//! The errors that users see for each mistake, with the compiler's own words around them.
//!
//! Those words change with each release: `tests/ui/*.stderr` are those of Rust 1.95, and the test runs only
//! on request:
//!
//!     PREEMPT_UI_TESTS=1 cargo +1.95.0 test -p preempt-macros --test ui

#[test]
fn mistakes() {
    if std::env::var_os("PREEMPT_UI_TESTS").is_none_or(|value| value != "1") {
        println!("skipped; PREEMPT_UI_TESTS=1 runs it");
        return;
    }
    trybuild::TestCases::new().compile_fail("tests/ui/*.rs");
}
