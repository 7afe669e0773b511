//! The guide's page about the expansion.

use std::fs;
use std::path::Path;

use super::expand;

/// The page's kernel.
const KERNEL: &str = "\
/// `out[i] = 2 * x[i]`
#[preemptible(block = 128)]
pub fn twice(x: &[f32], out: PerThread<f32>) {
    if let Some(own) = out.own() {
        own.set(2.0 * x[own.index()]);
    }
}
";

/// The macro around the body of entries, whose argument is a function.
const BODY: &str = "::preempt_device::kernel_body! {\n";

/// The expansion, with the argument of the macro around the body formatted, too.
fn expansion() -> String {
    let item = KERNEL.replacen("#[preemptible(block = 128)]\n", "", 1);
    let text = prettyplease::unparse(&syn::parse2(expand("block = 128", &item)).unwrap());
    let (before, rest) = text.split_once(BODY).unwrap();
    let (body, after) = rest.split_once("\n    }\n").unwrap();
    let body = prettyplease::unparse(&syn::parse_str(body).unwrap());
    let body: String = body.lines().map(|line| format!("        {line}\n")).collect();
    format!("{before}{BODY}{body}    }}\n{after}")
}

#[test]
fn the_guide_shows_what_comes_out() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../preempt/src/guide/expansion.md");
    let page = fs::read_to_string(&path).unwrap();
    let mut parts: Vec<_> = page.split("```").map(str::to_owned).collect();
    assert_eq!(parts.len(), 5, "a kernel and its expansion");
    (parts[1], parts[3]) = (format!("ignore\n{KERNEL}"), format!("ignore\n{}", expansion()));
    let expected = parts.join("```");
    if std::env::var_os("PREEMPT_WRITE_GUIDE").is_some() {
        fs::write(&path, expected).unwrap();
    } else {
        assert!(page == expected, "PREEMPT_WRITE_GUIDE=1 writes the page anew:\n{expected}");
    }
}
