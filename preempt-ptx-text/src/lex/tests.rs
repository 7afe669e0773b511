//! Tokens put together are the text again.

use super::*;

fn words(text: &str) -> Vec<&str> {
    Tokens::of(text).filter(|token| token.kind != Kind::Blank).map(|token| token.text).collect()
}

#[test]
fn an_operation_with_its_modifiers_is_one_word() {
    assert_eq!(
        words("cp.async.bulk.shared::cluster.global [%rd1], 16;")[..3],
        ["cp.async.bulk.shared::cluster.global", "[", "%rd1"]
    );
    assert_eq!(words("$L__BB0_1:.reg .b32 %r<9>;")[..3], ["$L__BB0_1", ":", ".reg"]);
    assert_eq!(
        words("%tid.x 0f3F800000 1.5e-3 0x1F -1"),
        ["%tid.x", "0f3F800000", "1.5e-3", "0x1F", "-", "1"]
    );
}

#[test]
fn comments_are_blanks_and_quotations_hide_what_is_in_them() {
    let text = "a /* ; { */ \"; } //\" // \" b\nc";
    assert_eq!(words(text), ["a", "\"; } //\"", "c"]);
    assert_eq!(Tokens::of(text).map(|token| token.text).collect::<String>(), text);
}

#[test]
fn what_does_not_end_is_told() {
    for text in ["/* é", "\"é"] {
        assert_eq!(Tokens::of(text).map(|token| token.kind).collect::<Vec<_>>(), [Kind::Unended]);
    }
}
