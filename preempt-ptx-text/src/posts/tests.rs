//! Plain entries get a parameter and code, and everything else stays.

use super::*;

/// A kernel of each kind: with and without arguments, for rust-cuda, and one of others.
const PTX: &str = "\
.version 7.0
.target sm_80
.address_size 64
.func helper() { ret; }
.visible .entry k(.param .align 8 .b8 k_param_0[168]) { ret; }
.visible .entry k__plain(
\t.param .u64 p,
\t.param .u32 q
) // ( a comment with ret;
.maxntid 64
{
\t@%p1 ret;
\tcall.uni helper, ();
\tst.global.u32 [ret], %ret;
\tret.uni;
}
.visible .entry l(.param .align 8 .b8 l_param_0[168]) { ret; }
.visible .entry l__plain() { }
.visible .entry m__preemptible(.param .align 8 .b8 m_param_0[168]) { ret; }
.visible .entry m(.param .u64 p) { ret; }
.visible .entry others(.param .u64 p) { ret; }
";

fn posting() -> String {
    with_posts(PTX).expect("it has plain entries")
}

#[test]
fn plain_entries_get_their_posts_first() {
    let ptx = posting();
    let text = blanked(&ptx);
    let functions = functions(&text);
    for (name, is_plain) in [
        ("k__plain", true),
        ("l__plain", true),
        ("m", true),
        ("k", false),
        ("m__preemptible", false),
        ("others", false),
        ("helper", false),
    ] {
        assert_eq!(has_posts(&functions[name]), is_plain, "{name}");
        assert_eq!(functions[name].body.contains("st.release.sys"), is_plain, "{name}");
    }
    assert!(
        ptx.contains("k__plain(\n\t.param .align 8 .b8 preempt_posts[48],\n\t.param .u64 p,"),
        "{ptx}"
    );
    assert!(ptx.contains("l__plain(\n\t.param .align 8 .b8 preempt_posts[48])"), "{ptx}");
    assert!(ptx.contains(".maxntid 64\n{\n\t{\n"), "{ptx}");
}

#[test]
fn returns_lead_to_the_count_of_blocks_with_their_guards() {
    let ptx = posting();
    assert!(ptx.contains("@%p1 bra $preempt_post_last;"), "{ptx}");
    assert!(ptx.contains("\n\tbra $preempt_post_last;"), "{ptx}");
    // What only looks like a return stays.
    assert!(ptx.contains("st.global.u32 [ret], %ret;") && ptx.contains("a comment with ret;"));
    let text = blanked(&ptx);
    for name in ["k__plain", "l__plain", "m"] {
        let functions = functions(&text);
        let body = functions[name].body;
        assert_eq!(body.matches("$preempt_post_last:").count(), 1, "{name}");
        assert_eq!(body.matches("\tret;").count(), 1, "{name}");
        assert!(body.trim_end().ends_with("ret;\n}"), "{name}");
    }
}

#[test]
fn code_that_cannot_have_posts_stays() {
    let old = PTX.replace("sm_80", "sm_60");
    let narrow = PTX.replace(".address_size 64", ".address_size 32");
    let none = PTX.replace("__plain", "_plain").replace("__preemptible", "_preemptible");
    for ptx in [&old, &narrow, &none, &posting(), "", ".version 7.0\n.target sm_80"] {
        assert_eq!(with_posts(ptx), None);
    }
}

#[test]
fn offsets_are_those_of_the_parameter() {
    let ptx = posting();
    let loads: Vec<_> =
        ptx.split("[preempt_posts").filter_map(|rest| rest.split_once("];")).collect();
    let offsets = ["+0", "+8", "+16", "+24", "+32", "+40"];
    let loads =
        loads.into_iter().map(|(offset, _)| offset).filter(|offset| offset.starts_with('+'));
    assert_eq!(loads.collect::<Vec<_>>(), offsets.repeat(3));
}
