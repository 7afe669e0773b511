//! Each thing that is refused, and what looks like it and is not.

use super::*;

const HEAD: &str = ".version 7.0\n.target sm_80\n.address_size 64\n";

/// A kernel whose preemptible and plain entry have these bodies, and `functions` before them.
fn kernel(functions: &str, preemptible: &str, plain: &str) -> String {
    format!(
        "{HEAD}{functions}\n\
         .visible .entry k(\n\t.param .align 8 .b8 k_param_0[64]\n)\n{{\n{preemptible}\n}}\n\
         .visible .entry k__plain(\n\t.param .u64 p\n)\n{{\n{plain}\n}}\n"
    )
}

fn refusal(functions: &str, preemptible: &str) -> String {
    check(&kernel(functions, preemptible, "ret;")).unwrap_err().to_string()
}

#[test]
fn the_plain_entry_may_read_the_hardware_index() {
    let ptx = kernel("", "mov.u32 %r1, %tid.x;\nret;", "mov.u32 %r1, %ctaid.x;\nret;");
    let report = check(&ptx).unwrap();
    assert_eq!((report.target.as_str(), report.plain.len()), ("sm_80", 0));
    assert_eq!(report.preemptible, ["k"]);
}

#[test]
fn a_preemptible_entry_may_not() {
    for register in ["%ctaid.x", "%ctaid.z", "%nctaid.y", "%clusterid.x"] {
        let message = refusal("", &format!("mov.u32 \t%r1, {register};\nret;"));
        assert!(message.contains(&format!("`k` reads `{register}` in `k`")), "{message}");
    }
}

#[test]
fn the_worker_loop_may_read_its_block_s_number() {
    let number = "{ .reg .u32 %preempt_number; mov.u32 %preempt_number, %ctaid.x; }";
    assert!(check(&kernel("", number, "ret;")).is_ok());
    let message = refusal("", &format!("{number}\nmov.u32 %r1, %ctaid.x;"));
    assert!(message.contains("`k` reads `%ctaid.x` in `k`"), "{message}");
    let message = refusal("", "mov.u32 %r1, %preempt_number, %ctaid.x;");
    assert!(message.contains("`k` reads `%ctaid.x` in `k`"), "{message}");
}

#[test]
fn an_axis_may_be_anything() {
    let message = refusal("", "mov.u32 %r1, %ctaid.é;");
    assert!(message.contains("`k` reads `%ctaid` in `k`"), "{message}");
}

#[test]
fn nor_may_a_function_that_it_calls() {
    let helpers = "
        .func (.param .b32 func_retval0) inner(.param .b32 inner_param_0)
        { mov.u32 %r1, %nctaid.x; ret; }
        .func outer()
        { { // callseq 0, 0
            .param .b32 param0;
            call.uni (retval0), inner, (param0);
        } ret; }";
    let message = refusal(helpers, "{ // callseq 1, 0\n\tcall.uni \n\touter, \n\t(\n\t);\n\t}");
    assert!(message.contains("`k` reads `%nctaid.x` in `inner`"), "{message}");
}

#[test]
fn kernels_for_rust_cuda_have_the_name_on_the_plain_entry() {
    let kernel = |functions: &str, body: &str| {
        format!(
            "{HEAD}{functions}
             .visible .entry k(.param .u64 p) {{ mov.u32 %r1, %ctaid.x; ret; }}
             .visible .entry k__preemptible(.param .align 8 .b8 p[64]) {{ {body} }}
             .visible .entry lone__preemptible() {{ mov.u32 %r1, %ctaid.x; ret; }}"
        )
    };
    let report = check(&kernel("", "ret;")).unwrap();
    assert_eq!(
        (&report.preemptible[..], &report.plain[..]),
        (&["k".to_owned()][..], &["lone__preemptible".to_owned()][..])
    );
    let helper = ".func _ZN8my_crate6global17h0123456789abcdefE() { mov.u32 %r1, %ctaid.x; ret; }";
    let call = "call.uni _ZN8my_crate6global17h0123456789abcdefE, (); ret;";
    let message = check(&kernel(helper, call)).unwrap_err().to_string();
    assert!(
        message.contains("`k__preemptible` reads `%ctaid.x` in `my_crate::global`. "),
        "{message}"
    );
    let message = check(&kernel("", "mov.u32 %r1, %ctaid.x; ret;")).unwrap_err().to_string();
    assert!(message.contains("or in a helper that was inlined into it"), "{message}");
}

#[test]
fn a_function_that_only_others_call_may() {
    let helper = ".func helper() { mov.u32 %r1, %ctaid.x; ret; }";
    assert!(check(&kernel(helper, "ret;", "call helper;")).is_ok());
    // A plain kernel is not ours to judge.
    let plain = ".visible .entry plain() { mov.u32 %r1, %ctaid.x; ret; }";
    assert_eq!(check(&kernel(plain, "ret;", "ret;")).unwrap().plain, ["plain"]);
}

#[test]
fn a_recursive_function_is_followed_once() {
    let helper = ".func helper() { call.uni helper, (); ret; }";
    assert!(check(&kernel(helper, "call.uni helper, ();", "ret;")).is_ok());
}

#[test]
fn a_helper_that_reads_the_task_index_must_be_inlined() {
    let helper = ".func (.param .b32 func_retval0) _ZN7kernels6helper17h0123456789abcdefE()
        {\n// begin inline asm\nmov.u32 %r1, %preempt_block_x;\n// end inline asm\nret; }";
    let message = refusal(helper, "mov.u32 %r1, %preempt_block_y;");
    assert!(message.contains("helper `kernels::helper`"), "{message}");
    assert!(message.contains("#[inline(always)]"), "{message}");
}

#[test]
fn a_call_through_a_pointer_is_refused_in_a_preemptible_entry_alone() {
    let call = "call (retval0), \n\t%rd1, \n\t(param0), \n\tprototype_0;";
    let message = refusal("", call);
    assert!(
        message.contains("`k` calls a function that it chooses at run time, in `k`"),
        "{message}"
    );
    assert!(message.contains("`match which { 0 => first(x), _ => second(x) }`"), "{message}");
    assert!(check(&kernel("", "ret;", call)).is_ok());
}

#[test]
fn comments_and_names_that_look_like_it_are_neither() {
    let body = "// %ctaid.x\n/* %nctaid.x */ mov.u32 %ctaidx, %callee; $call_1: bra $call_1;";
    assert!(check(&kernel("// .func\n.extern .func vprintf(.param .b64 a);", body, "")).is_ok());
    assert!(check(&kernel("", "call.uni (retval0), vprintf, (param0);", "ret;")).is_ok());
}

#[test]
fn what_is_not_ptx_is_refused() {
    for text in ["", "ELF", ".version 7.0\n", "/*", "/", ".target", ".target sm_80\n.entry"] {
        let result = check(text);
        assert!(result.is_err() || result.unwrap().preemptible.is_empty());
    }
    assert!(matches!(check(""), Err(KernelFault::NotPtx { .. })));
}
