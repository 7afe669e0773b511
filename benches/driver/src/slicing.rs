//! Kernel slicing: PTX whose plain entries run a part of their grid.

/// Parameters of a sliced entry after the kernel's own: the first block, and the extents of the whole grid.
pub const PARAMETERS: usize = 4;

/// Names of the parameters and registers.
const NAMES: [&str; PARAMETERS] = ["first", "x", "y", "z"];

/// The text in which the entry `name` is launched as a part of its grid, in one dimension. Block `i` of the launch is
/// block `first + i`, counted row by row. `None` if there is no such entry.
pub fn sliced(ptx: &str, name: &str) -> Option<String> {
    let head = format!(".entry {name}(");
    let start = ptx.find(&head)? + head.len();
    let close = start + ptx[start..].find(')')?;
    let open = close + ptx[close..].find('{')? + 1;
    let end = open + ptx[open..].find("\n}")?;
    let own = ptx[start..close].trim_end();
    let comma = if own.trim().is_empty() { "" } else { "," };
    let added: Vec<String> =
        NAMES.iter().map(|part| format!("\n\t.param .u32 {name}_slice_{part}")).collect();
    let read: String = NAMES
        .iter()
        .map(|part| format!("\tld.param.u32 %slice_{part}, [{name}_slice_{part}];\n"))
        .collect();
    // As in the worker loop: no division where the grid has one dimension.
    let prologue = format!(
        "
\t.reg .pred %slice_flat;
\t.reg .b32 %slice_first, %slice_x, %slice_y, %slice_z, %slice_row;
\t.reg .b32 %slice_at_x, %slice_at_y, %slice_at_z;
{read}\tmov.u32 %slice_at_x, %ctaid.x;
\tadd.u32 %slice_at_x, %slice_at_x, %slice_first;
\tmov.u32 %slice_at_y, 0;
\tmov.u32 %slice_at_z, 0;
\tmul.lo.u32 %slice_row, %slice_y, %slice_z;
\tsetp.eq.u32 %slice_flat, %slice_row, 1;
\t@%slice_flat bra $slice_{name};
\tdiv.u32 %slice_row, %slice_at_x, %slice_x;
\trem.u32 %slice_at_x, %slice_at_x, %slice_x;
\trem.u32 %slice_at_y, %slice_row, %slice_y;
\tdiv.u32 %slice_at_z, %slice_row, %slice_y;
$slice_{name}:
"
    );
    let mut body = ptx[open..end].to_owned();
    for axis in ["x", "y", "z"] {
        // `%nctaid.x` first, since `%ctaid.x` is no part of it but looks like one.
        body = body.replace(&format!("%nctaid.{axis}"), &format!("%slice_{axis}"));
        body = body.replace(&format!("%ctaid.{axis}"), &format!("%slice_at_{axis}"));
    }
    let (before, between, after) = (&ptx[..start], &ptx[close..open], &ptx[end..]);
    Some(format!("{before}{own}{comma}{}{between}{prologue}{body}{after}", added.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sliced_entry_reads_no_block_index_of_the_hardware_but_once() {
        let other = ".visible .entry other(\n)\n{\n\tmov.u32 %r1, %ctaid.x;\n\tret;\n}\n";
        let ptx = format!(
            "{other}.visible .entry k(\n\t.param .u64 k_param_0\n) // k\n{{\n\tmov.u32 %r2, %nctaid.y;\n\
             \tmov.u32 %r1, %ctaid.y;\n\tret;\n}}\n{other}"
        );
        let text = sliced(&ptx, "k").expect("there is such an entry");
        assert_eq!(text.matches(other).count(), 2, "others stay as they are");
        let own = &text[other.len()..text.len() - other.len()];
        assert_eq!(own.matches("%ctaid").count(), 1);
        assert!(
            own.contains("mov.u32 %r2, %slice_y;") && own.contains("mov.u32 %r1, %slice_at_y;")
        );
        assert!(own.contains("k_param_0,\n\t.param .u32 k_slice_first,"), "{own}");
        let without = sliced(&text, "other").expect("there is such an entry");
        assert!(without.contains("other(\n\t.param .u32 other_slice_first"), "{without}");
        assert_eq!(sliced(&ptx, "missing"), None);
    }
}
