//! Each refusal, by a part of its message: what is wrong, and the way out.

use super::{derive, expand, expand_kernel, messages};

#[track_caller]
fn refused(found: Vec<String>, expected: &[&str]) {
    let matches = found.len() == expected.len()
        && found.iter().zip(expected).all(|(found, part)| found.contains(part));
    assert!(matches, "expected {expected:#?}, found {found:#?}");
}

/// `options; item => parts of the messages`
macro_rules! kernels {
    ($($name:ident: $options:literal, $item:literal => [$($part:literal),* $(,)?];)*) => {
        $(#[test] fn $name() { refused(messages(expand($options, $item)), &[$($part),*]); })*
    };
}

kernels! {
    unknown_option: "blocks = 4, amortise = 3", "fn k() {}" => [
        "unknown option `blocks`; the options are `block = 256`",
        "unknown option `amortise`",
    ];
    duplicate_option: "block = 4, block = 4", "fn k() {}" => ["`block` is given twice"];
    option_without_value: "block", "fn k() {}" => ["expected `block = ..`"];
    block_of_zero: "block = 0", "fn k() {}" => ["1 to 1024 threads"];
    block_with_a_zero: "block = (N, 0)", "fn k() {}" => ["1 to 1024 threads"];
    block_too_large: "block = (32, 32, 2)", "fn k() {}" => ["1 to 1024 threads"];
    block_too_deep: "block = (1, 1, 65)", "fn k() {}" => ["at most 64 in z"];
    block_of_four: "block = (1, 1, 1, 1)", "fn k() {}" => ["`block = (16, 16)`"];
    duplicate_flag: "idempotent, idempotent", "fn k() {}" => ["`idempotent` is given twice"];
    flag_with_a_value: "idempotent = true, blocks = 4", "fn k() {}" => [
        "`idempotent` takes no value; write `#[preemptible(idempotent)]`",
        "unknown option `blocks`",
    ];
    flag_in_parentheses: "idempotent(true)", "fn k() {}" => ["expected `,`"];
    amortize_zero: "amortize = 0", "fn k() {}" => ["at least 1"];

    address_space: "", "#[kernel] unsafe fn k() { #[address_space(shared)] static mut A: [u32; 4] = [0; 4]; }" => [
        "write `let name = shared_array![T; N];`",
    ];
    dynamic_shared_memory: "", "#[kernel] unsafe fn k() { let x = cuda_std::shared::dynamic_shared_mem::<f32>(); }" => [
        "the largest `N` that a launch needs",
    ];
    not_a_function: "", "struct Kernel;" => ["goes on a kernel"];
    without_a_body: "", "fn k();" => ["goes on a kernel"];
    const_kernel: "", "const fn k() {}" => ["cannot be `const`"];
    async_kernel: "", "async fn k() {}" => ["cannot be `async`"];
    extern_kernel: "", "extern \"C\" fn k() {}" => ["remove `extern`"];
    variadic_kernel: "", "unsafe fn k(n: u32, ...) {}" => ["pass a slice"];
    return_type: "", "fn k() -> u32 { 0 }" => ["write results to a `SliceMut<T>`"];
    type_parameter: "", "fn k<T>(n: T) {}" => ["one kernel for each type"];
    const_parameter: "", "fn k<const N: usize>() {}" => ["list them, `#[preemptible(instances(8, 16))]`"];
    instances_of_a_type: "instances(f32)", "fn k<T>(n: T) {}" => ["one kernel for each type"];
    instances_of_nothing: "instances(8)", "fn k() {}" => ["remove the option"];
    instances_without_values: "instances()", "fn k<const N: usize>() {}" => ["`instances(8, 16)`"];
    instance_twice: "instances(8, 16, 8)", "fn k<const N: usize>() {}" => ["`8` is listed twice"];
    instances_of_too_few: "instances(8, (8, 16))", "fn k<const N: usize, const M: u32>() {}" => [
        "`instances((8, 16), (32, 64))`",
    ];
    instances_of_too_many: "instances((8, 16))", "fn k<const N: usize>() {}" => ["one constant parameter"];
    instances_twice: "instances(8), instances(16)", "fn k<const N: usize>() {}" => ["`instances` is given twice"];
    instances_for_rust_cuda: "instances(8)", "#[kernel] unsafe fn k<const N: usize>() {}" => ["leave `#[kernel]` out"];
    lifetime_parameter: "", "fn k<'a>(a: &'a [f32]) {}" => [
        "no lifetime parameters",
        "without a lifetime",
    ];
    where_clause: "", "fn k() where u32: Copy {}" => ["needs no `where`"];
    impl_trait: "", "fn k(n: impl Copy) {}" => ["name the type"];
    no_mangle: "", "#[unsafe(no_mangle)] fn k() {}" => ["`no_mangle` does not go with"];
    inline: "", "#[inline(never)] fn k() {}" => ["`inline` does not go with"];

    receiver: "", "fn k(&self, n: u32) {}" => ["make it a free function"];
    cfg_on_a_parameter: "", "fn k(#[cfg(x)] n: u32) {}" => ["write two kernels"];
    destructured: "", "fn k((a, b): (u32, u32)) {}" => ["take it apart in the body"];
    wildcard: "", "fn k(_: u32) {}" => ["a plain name"];
    by_reference: "", "fn k(ref a: u32) {}" => ["a plain name"];
    mutable_slice: "", "fn k(a: &mut [f32]) {}" => ["take `SliceMut<T>` or `*mut T`"];
    mutable_reference: "", "fn k(a: &mut f32) {}" => ["take `SliceMut<T>` or `*mut T`"];
    reference: "", "fn k(a: &f32) {}" => ["references to slices only"];
    array_reference: "", "fn k(a: &[f32; 4]) {}" => ["references to slices only"];
    string: "", "fn k(a: &str) {}" => ["take the bytes"];
    static_slice: "", "fn k(a: &'static [f32]) {}" => ["without a lifetime"];
    reference_in_a_value: "", "fn k(a: Option<&f32>) {}" => ["holds no references"];

    pointer_to_pointer: "", "fn k(a: *const *const f32, b: &[*mut u8], c: SliceMut<*const u8>) {}" => [
        "where each starts into another",
        "where each starts into another",
        "make each buffer a parameter",
    ];
    function_pointer: "", "fn k(f: fn(f32) -> f32, g: Box<dyn Fn()>) {}" => [
        "pass a number and `match` on it",
        "write a kernel for each function",
    ];
    attribute_twice: "block = 32", "#[preemptible(idempotent)] fn k() {}" => ["keep one of them"];
    attribute_twice_by_path: "", "#[preempt_device::preemptible] fn k() {}" => ["keep one of them"];
    self_type: "", "fn k(a: &[Self], n: u32) { Self::f(); impl Of for u32 { fn f() -> Self { 0 } } }" => [
        "move the kernel out of the `impl`",
        "there is no `Self` in a kernel",
    ];
    shared_array_of_a_parameter: "", "fn k(n: usize) { let a = shared_array![f32; 2 * n]; }" => [
        "a constant, and `n` is a variable",
    ];
    shared_array_of_a_variable: "", "fn k() { let n = 3; { shared_array![f32; n]; } }" => [
        "or the largest length that a launch needs",
    ];
    shared_array_of_a_constant: "", "fn k(m: u32) { match m { N => {} n => {} }
        shared_array![f32; { let n = N; n }]; }" => [];

    shared_slice_of_a_variable: "", "fn k(x: &[u32], p: *const u32) { let m = 3;
        shared_slice![f32; x.len() + m + p]; }" => [
        "`m` is a variable of the body",
        "the pointer `p` does not tell one",
    ];
    shared_slice_of_the_block: "", "fn k() { shared_slice![f32; thread::block_dim_x()]; }" => [
        "`#[preemptible(block = N)]`",
    ];
    shared_slice_without_a_length: "", "fn k() { shared_slice![f32]; shared_slice!(); }" => [
        "`shared_slice![f32; n]`",
        "`shared_slice![f32; n]`",
    ];
    shared_slice_for_rust_cuda: "", "#[kernel] unsafe fn k(n: u32) { shared_slice![f32; n]; }" => [
        "or leave `#[kernel]` out",
    ];

    several_at_once: "block = 0", "async fn k(a: &str, _: u32) -> u32 { 0 }" => [
        "1 to 1024 threads",
        "cannot be `async`",
        "returns nothing",
        "take the bytes",
        "a plain name",
    ];

    shared_array_without_length: "", "fn k() { let a = shared_array![f32]; }" => ["`shared_array![f32; 256]`"];

    shared_array_of_a_constant_inside: "", "fn k() { const N: usize = 3; { let a = shared_array![f32; 2 * N]; } }" => [
        "declares `N`; move that out of the function",
    ];
    shared_array_of_an_import_inside: "", "fn k() { use a::{b::{self}, c as D}; shared_array![b::T; 3]; shared_array![[D; 2]; 3]; }" => [
        "declares `b`",
        "declares `D`",
    ];

    return_before_a_barrier: "", "fn k(n: u32) { if n == 0 { return; } thread::sync_threads(); }" => [
        "never reach `sync_threads` below; make the rest of the body conditional",
        "every thread must reach this",
    ];
    return_before_a_warp_operation: "",
        "fn k(n: u32) { if n == 0 { return } unsafe { warp_shuffle_down(!0, n, 1, 32) }; }" =>
        ["never reach `warp_shuffle_down`", "every thread must"];
    returns_before_one_barrier: "",
        "fn k(n: u32) { if n == 0 { return } if n == 1 { return } sync_threads() }" =>
        ["below", "below", "every thread must"];
    return_in_the_loop_of_a_barrier: "",
        "fn k(n: u32) { for i in 0..n { { sync_threads(); } if i == 3 { return; } } }" =>
        ["never reach `sync_threads` in the next round of the loop", "every thread must"];
    return_in_a_macro_call: "", "fn k(n: u32) { when!(n == 0 => return); sync_threads(); }" =>
        ["below", "every thread must"];
    barrier_in_a_macro_call: "", "fn k(n: u32) { if n == 0 { return } times!(4, { sync_threads() }); }" =>
        ["below", "every thread must"];
    barrier_in_a_closure: "",
        "fn k(n: u32) { let wait = || sync_threads(); if n == 0 { return } wait(); }" =>
        ["never reach `wait` below", "every thread must"];
    barrier_in_a_function_inside: "",
        "fn k(n: u32) { if n == 0 { return } a(); fn a() { b() } fn b() { sync_threads() } }" =>
        ["never reach `a` below", "every thread must"];
    barrier_under_another_name: "",
        "fn k(n: u32) { use thread::sync_threads as wait; if n == 0 { return } wait(); }" =>
        ["never reach `wait` below", "every thread must"];
    barrier_as_a_method: "", "fn k(n: u32) { if n == 0 { return } block.sync_threads(); }" =>
        ["below", "every thread must"];

    yield_point_without_idempotent: "", "fn k(x: SliceMut<u32>) { x.write(0, x.read(1)); yield_point!(); }" => [
        "declare it: `#[preemptible(idempotent)]`",
        "`x` is read here",
    ];
    yield_point_with_arguments: "idempotent", "fn k(n: u32) { yield_point!(n); }" => [
        "takes no arguments: `yield_point!()`",
    ];
    yield_point_in_a_closure: "idempotent", "fn k(n: u32) { let f = || yield_point!(); f() }" => [
        "put it where the closure is called",
    ];
    yield_point_in_other_blocks: "idempotent",
        "fn k(n: u32) { wait(async { yield_point!(); }); const { yield_point!() } }" =>
        ["put it where", "put it where"];
    yield_point_that_some_miss: "idempotent",
        "fn k() { if thread_idx_x() < 3 { yield_point!(); } thread::sync_threads(); }" => [
        "only parameters, constants and block indices decide",
        "this may differ between threads",
    ];
    yield_point_and_a_hidden_barrier: "idempotent",
        "fn k(n: u32) { fn f() { warp_vote_all(true) } f(); while t() { yield_point!(); } }" => [
        "have to reach a yield point together",
        "this may differ between threads",
    ];
    return_before_a_vote: "idempotent",
        "fn k(n: u32) { sync_threads(); if t() { return } yield_point!(); }" => [
        "threads that return here never reach `yield_point!` below",
        "every thread must reach this",
    ];
    yield_in_loops_without_loops: "idempotent, yield_in_loops", "fn k() {}" => ["has no loop"];
    yield_in_loops_that_differ: "idempotent, yield_in_loops",
        "fn k() { while t() { work() } sync_threads(); }" => ["no loop of this kernel is certain"];
    yield_in_loops_whose_rounds_a_users_type_counts: "idempotent, yield_in_loops",
        "fn k(p: Path) { for _ in 0..p.len() { work() } sync_threads(); }" => ["no loop of this kernel is certain"];
    yield_in_loops_of_closures: "idempotent, yield_in_loops",
        "fn k() { let f = |n: u32| { for i in 0..n {} }; f(1) }" => ["has no loop"];
    yield_in_loops_with_a_value: "idempotent, yield_in_loops = true", "fn k() { loop {} }" => [
        "write `#[preemptible(yield_in_loops)]`",
    ];
    yield_in_loops_without_idempotent: "yield_in_loops", "fn k(x: *mut u32) { *x += 1; loop { *x += 1; } }" => [
        "no yield point is ahead of that; put one there",
        "`x` is read here",
    ];
    checkpoint_without_a_type: "", "fn k(n: u32) { checkpoint!(sum = 0 => for i in 0..n {}); }" => [
        "the state has a type, by which its size is known",
    ];
    checkpoint_without_a_loop: "", "fn k(n: u32) { checkpoint!(sum: u32 = 0 => { sum += n; }); }" => [
        "a checkpoint has a loop without label",
    ];
    checkpoint_with_a_label: "", "fn k(n: u32) { checkpoint!(sum: u32 = 0 => 'a: for i in 0..n {}); }" => [
        "a checkpoint has a loop without label",
    ];
    checkpoint_with_two_loops: "", "fn k(n: u32) { checkpoint!(sum: u32 = 0 => for i in 0..n {} for i in 0..n {}); }" => [
        "what follows it stands behind the checkpoint",
    ];
    checkpoint_with_an_iterator: "", "fn k(x: &[u32]) { checkpoint!(sum: u32 = 0 => for v in x.iter() {}); }" => [
        "over a range, `for i in a..b { .. }`",
    ];
    checkpoint_with_an_inclusive_range: "", "fn k(n: u32) { checkpoint!(sum: u32 = 0 => for i in 0..=n {}); }" => [
        "over a range, `for i in a..b { .. }`",
    ];
    checkpoint_with_while_let: "", "fn k(x: &[u32]) { checkpoint!(n: u32 = 0 => while let Some(v) = x.get(0) {}); }" => [
        "a `while let` cannot go on",
    ];
    checkpoint_with_a_shared_array: "",
        "fn k(n: u32) { checkpoint!(sum: u32 = 0 => for i in 0..n { let s = shared_array![u32; 4]; }); }" => [
        "declare shared memory ahead of the checkpoint",
    ];
    checkpoint_twice: "",
        "fn k(n: u32) { checkpoint!(a: u32 = 0 => for i in 0..n {}); checkpoint!(b: u32 = 0 => for i in 0..n {}); }" => [
        "a kernel has one checkpoint",
    ];
    checkpoint_under_a_condition: "", "fn k(n: u32) { #[cfg(a)] checkpoint!(a: u32 = 0 => for i in 0..n {}); }" => [
        "a checkpoint has no attributes",
    ];
    checkpoint_with_a_loop_under_a_condition: "",
        "fn k(n: u32) { checkpoint!(a: u32 = 0 => #[cfg(any())] for i in 0..n {}); }" => [
        "the loop of a checkpoint has no attributes",
    ];
    checkpoint_with_a_while_loop_under_a_condition: "",
        "fn k(n: u32) { checkpoint!(a: u32 = 0 => #[cfg(any())] while a < n { a += 1; }); }" => [
        "the loop of a checkpoint has no attributes",
    ];
    checkpoint_with_an_attribute_in_the_loop: "",
        "fn k(n: u32) { checkpoint!(a: u32 = 0 => for i in 0..n { #![cfg(any())] a += 1; }); }" => [
        "the loop of a checkpoint has no attributes",
    ];
    checkpoint_at_the_end_under_a_condition: "", "fn k(n: u32) { #[cfg(a)] checkpoint!(a: u32 = 0 => for i in 0..n {}) }" => [
        "a checkpoint has no attributes",
    ];
    checkpoint_with_other_options: "yield_in_loops", "fn k(n: u32) { checkpoint!(a: u32 = 0 => for i in 0..n {}); }" => [
        "stops there and nowhere else; leave the option out",
    ];
    checkpoint_and_a_yield_point: "", "fn k(n: u32) { checkpoint!(a: u32 = 0 => for i in 0..n { yield_point!(); }); }" => [
        "leave the yield point out",
    ];
    checkpoint_for_rust_cuda: "", "#[kernel] unsafe fn k(n: u32) { checkpoint!(a: u32 = 0 => for i in 0..n {}); }" => [
        "kernels for rust-cuda have no checkpoints",
    ];
    checkpoint_that_some_reach_more_often: "",
        "fn k(n: u32) { checkpoint!(a: u32 = 0 => for i in 0..thread::thread_idx_x() {}); }" => [
        "all threads of a block have to reach",
        "this may differ between threads",
    ];
    checkpoint_that_the_state_decides_in_each_thread: "",
        "fn k(x: &[u32]) { checkpoint!(a: u32 = x[thread::index_1d() as usize] => while a > 3 { a -= 1; }); }" => [
        "all threads of a block have to reach",
        "this may differ between threads",
    ];
    checkpoint_behind_a_return: "",
        "fn k(n: u32) { if thread::thread_idx_x() > n { return; } checkpoint!(a: u32 = 0 => for i in 0..n {}); }" => [
        "threads that return here never reach `yield_point!`",
        "every thread must reach this",
    ];
    checkpoint_behind_a_write: "",
        "fn k(n: u32, x: SliceMut<u32>) { x.write(0, 1); checkpoint!(a: u32 = 0 => for i in 0..n {}); }" => [
        "this writes to `x` ahead of the checkpoint",
    ];
    checkpoint_behind_a_read_of_what_changes: "",
        "fn k(n: u32, x: SliceMut<u32>) { let v = x.read(0); checkpoint!(a: u32 = v => for i in 0..n { x.write(0, a); }); }" => [
        "are read here, ahead of the checkpoint",
        "`x` is written here",
    ];
    checkpoint_behind_an_atomic: "",
        "fn k(n: u32, x: *mut u32) { AtomicU32::from_ptr(x); checkpoint!(a: u32 = 0 => for i in 0..n {}); }" => [
        "an atomic operation takes effect again",
    ];
    checkpoint_behind_a_clock: "",
        "fn k(n: u32) { let c = time::clock64(); checkpoint!(a: u32 = 0 => for i in 0..n {}); }" => [
        "What is ahead of a checkpoint runs again",
    ];
    checkpoint_behind_a_pointer_to_a_variable: "",
        "fn k(n: u32) { let mut v = 0u32; let p = &mut v as *mut u32; checkpoint!(a: u32 = 0 => for i in 0..n { *p += 1; }); }" => [
        "through this pointer memory could be written",
    ];
    checkpoint_behind_a_cell: "",
        "fn k(n: u32) { let c = Cell::new(0); checkpoint!(a: u32 = 0 => for i in 0..n { c.set(i); }); }" => [
        "What is ahead of a checkpoint runs again",
    ];
    checkpoint_behind_a_read_of_what_a_cast_changes: "",
        "unsafe fn k(n: u32, x: *const u32) { let v = *x; checkpoint!(a: u32 = v => for i in 0..n { *(x as *mut u32) += 1; }); }" => [
        "this reads through a pointer ahead of the checkpoint",
        "through this, memory behind the pointer could be written",
    ];
    checkpoint_behind_a_read_of_what_a_method_changes: "",
        "unsafe fn k(n: u32, x: *const u32) { let v = x.add(1).read(); checkpoint!(a: u32 = v => for i in 0..n { x.cast_mut().write(1); }); }" => [
        "this reads through a pointer ahead of the checkpoint",
        "through this, memory behind the pointer could be written",
    ];
    checkpoint_behind_a_read_of_what_a_helper_changes: "",
        "unsafe fn k(n: u32, x: *const u32) { let v = *x; checkpoint!(a: u32 = v => for i in 0..n { helper((i, x)); }); }" => [
        "this reads through a pointer ahead of the checkpoint",
        "through this, memory behind the pointer could be written",
    ];
    checkpoint_behind_a_read_of_what_a_method_of_a_result_changes: "",
        "unsafe fn k(n: u32, x: *const u32) { let v = *x; checkpoint!(a: u32 = v => for i in 0..n { helper(i).method(x); }); }" => [
        "this reads through a pointer ahead of the checkpoint",
        "through this, memory behind the pointer could be written",
    ];
    checkpoint_behind_a_read_of_what_an_index_changes: "",
        "unsafe fn k(n: u32, x: *const u32) { let v = *x; checkpoint!(a: u32 = v => for i in 0..n { a += helper(i)[x]; }); }" => [
        "this reads through a pointer ahead of the checkpoint",
        "through this, memory behind the pointer could be written",
    ];
    checkpoint_behind_a_read_of_what_an_address_changes: "",
        "unsafe fn k(n: u32, x: *const u32) { let v = *x; checkpoint!(a: u32 = v => for i in 0..n { helper(x as usize); }); }" => [
        "this reads through a pointer ahead of the checkpoint",
        "through this, memory behind the pointer could be written",
    ];
    checkpoint_behind_a_read_of_what_a_cell_changes: "",
        "unsafe fn k(n: u32, x: *const u32) { let v = *x; checkpoint!(a: u32 = v => for i in 0..n { (*x.cast::<Cell<u32>>()).set(1); }); }" => [
        "this reads through a pointer ahead of the checkpoint",
        "through this, memory behind the pointer could be written",
    ];
    checkpoint_behind_a_read_of_what_a_closure_changes: "",
        "unsafe fn k(n: u32, x: *const u32) { let v = *x; let f = |p| helper(p); checkpoint!(a: u32 = v => for i in 0..n { f(x); }); }" => [
        "this reads through a pointer ahead of the checkpoint",
        "through this, memory behind the pointer could be written",
    ];
    checkpoint_behind_a_read_of_what_changes_behind_it: "",
        "unsafe fn k(n: u32, x: *const u32) { let v = *x; checkpoint!(a: u32 = v => for i in 0..n {}); helper(x); }" => [
        "this reads through a pointer ahead of the checkpoint",
        "through this, memory behind the pointer could be written",
    ];
    checkpoint_that_starts_with_a_read_of_what_changes: "",
        "unsafe fn k(n: u32, x: *const u32) { checkpoint!(a: u32 = *x => for i in 0..n { *(x as *mut u32) += 1; }); }" => [];
    checkpoint_behind_a_read_through_a_pointer: "",
        "unsafe fn k(n: u32, x: *const u32, y: *mut u32) { let v = *x; checkpoint!(a: u32 = v => for i in 0..n {
            a += *x.add(1) + helper(a, i); AtomicU32::from_ptr(y).fetch_add(thread::sm_id(), Relaxed); *y = a; }); }" => [];
    checkpoint_behind_reads_of_slices: "",
        "fn k(n: u32, x: &[u32]) { let v = x[0]; checkpoint!(a: u32 = v => for i in 0..n { a += helper(x); }); }" => [];
    yield_point_and_a_helper: "", "fn k(x: &[u32]) { helper(x[0]); yield_point!(); }" => [
        "move it into the kernel's body as a function inside it",
    ];
    yield_point_with_everything_wrong: "",
        "fn k() { if t() { yield_point!(1); } sync_threads(); || { yield_point!(2); }; }" => [
        "in a body with barriers",
        "this may differ between threads",
        "takes no arguments",
        "takes no arguments",
        "inside a closure",
        "declare it: `#[preemptible(idempotent)]`",
    ];
}

/// The messages for a yield point under a condition, in a kernel with `p` of a user's type.
fn said_of(body: &str) -> Vec<String> {
    let params = "n: u32, x: &[u32], out: SliceMut<u32>, p: Path";
    messages(expand("idempotent", &format!("fn k({params}) {{ sync_threads(); {body} }}")))
}

#[test]
fn results_of_the_users_types_may_differ_between_threads() {
    for body in [
        "for _ in 0..p.len() { yield_point!(); }",
        "for _ in p.iter() { yield_point!(); }",
        "for _ in p { yield_point!(); }",
        "for _ in (p.from..p.to).rev() { yield_point!(); }",
        "for _ in 0..p.points.len() { yield_point!(); }",
        "let k = p.min(n); while k > 0 { yield_point!(); }",
        "let q = p; for _ in 0..q.len() { yield_point!(); }",
        "let q = S { a: n }; for _ in 0..q.len() { yield_point!(); }",
        "let q; q = p; for _ in 0..q.len() { yield_point!(); }",
        "let (q, _) = (p, n); for _ in 0..q.len() { yield_point!(); }",
        "let n = p; for _ in 0..n.len() { yield_point!(); }",
        "let k: &u32 = &p; for _ in 0..k.pow(2) { yield_point!(); }",
        "for _ in 0..PATH.len() { yield_point!(); }",
        "if n.wrapping_lane() > 3 { yield_point!(); }",
        "if n.len() > 3 { yield_point!(); }",
        "if p.n > 3 { yield_point!(); }",
        "if n > p.n { yield_point!(); }",
        "if !p.flag { yield_point!(); }",
        "if p + n > 3 { yield_point!(); }",
        "if n << p > 3 { yield_point!(); }",
        "if p[0] { yield_point!(); }",
        "for _ in 0..x[p.n] { yield_point!(); }",
        "for _ in 0..u32::from(p) { yield_point!(); }",
        "let mut k = n; k += p; while k > 0 { yield_point!(); }",
        "let mut q = p; q[0] = n; for _ in 0..q.n { yield_point!(); }",
        "for q in [p, p] { for _ in 0..q.len() { yield_point!(); } }",
        "if let Some(q) = Some(p) { for _ in 0..q.len() { yield_point!(); } }",
    ] {
        let may_differ = |found: &String| found.contains("this may differ between threads");
        assert!(said_of(body).iter().any(may_differ), "{body}");
    }
}

#[test]
fn results_of_numbers_do_not_differ_between_threads() {
    for body in [
        "for _ in 0..p.steps { yield_point!(); }",
        "for i in p.from..p.to { if i > 3 { yield_point!(); } }",
        "let k: u32 = p.n; while k > 0 { yield_point!(); }",
        "let k = p.n as usize; if k.min(3) > n as usize { yield_point!(); }",
        "let (a, b): (u32, f32) = p.both; if a > 3 && b > 0.5 { yield_point!(); }",
        "for (i, &v) in x[..4].iter().enumerate().rev() { if v > 3 && i > 2 { yield_point!(); } }",
        "if let Some(k) = Some(n.min(3)) { if k.pow(2) > 3 { yield_point!(); } }",
        "let [a, b] = [n, 3]; if a.max(b) > 3 { yield_point!(); }",
        "let dim = thread::block_dim(); if dim.x * dim.y > 64 { yield_point!(); }",
        "if u32::MAX.min(n) > 3 && f32::MAX.abs() > 3.0 { yield_point!(); }",
        "if (n << 2).wrapping_add(TILE) > 3 || !x.is_empty() { yield_point!(); }",
        "let k = if n > 3 { N } else { n }; for _ in 0..k.div_ceil(4) { yield_point!(); }",
        "for _ in 0..out.len() / TABLE[x[0] as usize] { yield_point!(); }",
        "let mut sums = [0u32; 4]; sums[1] += n; if sums[1] > 3 { yield_point!(); }",
    ] {
        assert_eq!(said_of(body), [""; 0], "{body}");
    }
}

/// Returns that leave no thread waiting.
#[test]
fn harmless_returns_are_accepted() {
    for body in [
        "sync_threads(); if n == 0 { return }",
        "for _ in 0..n { sync_threads(); } while n > 3 { return }",
        "let f = |x: u32| { return x + 1; }; f(n); sync_threads();",
        "fn f(x: u32) -> u32 { return x + 1; } f(n); sync_threads();",
        "fn f(x: u32) { if x > 1 { return } } loop { f(n); sync_threads(); }",
        "if n == 0 { return }",
        "if n == 0 { return } fn unused() { sync_threads() }",
    ] {
        let found = messages(expand("", &format!("fn k(n: u32) {{ {body} }}")));
        assert_eq!(found, [""; 0], "{body}");
    }
}

#[test]
fn a_kernel_that_is_not_preemptible_is_unsafe_and_has_the_parameters_of_others() {
    refused(messages(expand_kernel("", "fn k() {}")), &["a `#[kernel]` is `unsafe`"]);
    refused(messages(expand_kernel("", "unsafe fn k(x: &mut [u32]) {}")), &["cannot take `&mut`"]);
    let dynamic = "unsafe fn k() { dynamic_shared_mem::<u8>(); }";
    refused(messages(expand_kernel("", dynamic)), &["`shared_array![T; N]`"]);
}

macro_rules! derives {
    ($($name:ident: $item:literal => [$($part:literal),* $(,)?];)*) => {
        $(#[test] fn $name() { refused(messages(derive($item)), &[$($part),*]); })*
    };
}

derives! {
    without_repr: "struct S { a: u32 }" => ["put `#[repr(C)]` on it"];
    repr_of_something_else: "#[repr(align(16))] struct S { a: u32 }" => ["put `#[repr(C)]` on it"];
    generic_struct: "#[repr(C)] struct S<T> { a: T }" => ["write one struct for each type"];
    enumeration: "#[repr(C)] enum E { A }" => ["discriminant as a number"];
    union_of_things: "#[repr(C)] union U { a: u32 }" => ["as an array"];
    unknown_derive_option: "#[repr(C)] #[kernel_arg(krate = x)] struct S { a: u32 }" => ["`crate = path`"];
}

/// A kernel that is refused for its body is still generated, so that its callers compile.
#[test]
fn a_kernel_with_a_refused_body_is_generated() {
    let expansion = expand("", "fn k() { if first() { return } sync_threads() }").to_string();
    assert!(expansion.contains("fn k () -> "), "{expansion}");
}
