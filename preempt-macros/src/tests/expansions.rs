//! Snapshots of the expansions. `cargo insta review` shows what changed.

use super::{derive, expand, expand_kernel, messages};

macro_rules! snapshots {
    ($($name:ident: $expansion:expr;)*) => {
        $(
            #[test]
            fn $name() {
                let expansion = $expansion;
                assert_eq!(messages(expansion.clone()), [""; 0]);
                let file = syn::parse2(expansion).unwrap();
                insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
                    insta::assert_snapshot!(stringify!($name), prettyplease::unparse(&file));
                });
            }
        )*
    };
}

snapshots! {
    slices: expand(
        "",
        r#"
        /// `out[i] = a[i] + b[i]`
        #[allow(clippy::many_single_char_names)]
        pub fn add(a: &[f32], b: &[f32], out: SliceMut<f32>) {
            let i = thread::index_1d() as usize;
            if i < out.len() {
                unsafe { out.write(i, a[i] + b[i]) }
            }
        }
        "#,
    );
    options: expand(
        "block = (16, ROWS, 2), amortize = LOOPS, crate = preempt::device",
        "#[cfg(feature = \"rows\")] pub(crate) fn rows(mut src: *const u8, dst: *mut u8) { body(src, dst) }",
    );
    values: expand("block = 256", "fn scale(scale: Scale, args: [f32; 4], n: u32) { use_them(scale, args, n) }");
    shared_arrays: expand(
        "block = (TILE, TILE)",
        r#"
        fn tiles(a: &[f32]) {
            let tile = shared_array![f32; TILE * TILE];
            for _ in 0..2 {
                let flags = { preempt_device::shared_array!(u8; 3) };
                shared_array![f64; 1];
                thread::sync_threads();
            }
            fn helper() { let not_ours = shared_array![f32; 1]; }
        }
        "#,
    );
    shared_arrays_under_conditions: expand(
        "block = 1",
        r#"
        fn sometimes() {
            #[cfg(feature = "log",)]
            let log = shared_array![LogLine; 8];
            #[cfg(a)]
            if t() {
                #[cfg_attr(b, cfg(not(c)))]
                shared_array![f32; 3];
            }
        }
        "#,
    );
    shared_slices: expand(
        "block = 32",
        r#"
        pub fn tiles(n: u32, x: &[f32], p: *const u8) {
            let first = shared_array![f32; 3];
            let tile = shared_slice![f32; n + 2];
            #[cfg(feature = "log")]
            let log = shared_slice![u8; x.len()];
        }
        "#,
    );
    instances: expand(
        "block = 2 * N, instances(8, 16)",
        r#"
        /// Some documentation.
        #[cfg(feature = "filters")]
        pub fn filter<const N: u32>(weights: [f32; N], m: u8, x: &[f32]) {
            let tile = shared_array![f32; 3 * N];
            let more = shared_slice![f32; N + u32::from(m)];
        }
        "#,
    );
    early_return: expand(
        "",
        r#"
        fn early(out: *mut u32, n: u32) {
            thread::sync_threads();
            let i = thread::index_1d();
            if i >= n {
                return;
            }
            unsafe { *out.add(i as usize) = i }
        }
        "#,
    );
    yield_points: expand(
        "idempotent, crate = preempt::device",
        r#"
        fn spin(rounds: u32, out: SliceMut<u32>) {
            let mut x = 0;
            for round in 0..rounds {
                x = step(x);
                yield_point!();
                match x {
                    0 => preempt_device::yield_point!(),
                    _ => {}
                }
            }
            #[cfg(feature = "often")]
            yield_point!();
            fn helper() { let not_ours = yield_point!(); }
            yield_point![]
        }
        "#,
    );
    yield_points_with_barriers: expand(
        "idempotent, yield_in_loops",
        r#"
        fn rotate(rounds: u32, out: SliceMut<u32>) {
            for _ in 0..rounds {
                thread::sync_threads();
                for _ in 0..thread::thread_idx_x() {}
            }
            yield_point!();
            thread::sync_threads();
            yield_point!();
            thread::sync_threads();
            #[cfg(feature = "often")]
            yield_point!();
        }
        "#,
    );
    yield_points_proved: expand(
        "",
        r#"
        /// Some documentation.
        fn settle(rounds: u32, x: &[f32], out: SliceMut<f32>) {
            assert!(x.len() == out.len());
            let mut settled = x[thread::thread_idx_x() as usize];
            for _ in 0..rounds * ROUNDS {
                yield_point!();
                settled = warp::warp_shuffle_down(ALL, GpuFloat::cos(settled), 1, 32).0;
            }
            unsafe { out.write(thread::thread_idx_x() as usize, settled) }
        }
        "#,
    );
    yield_points_until_marked: expand(
        "",
        r#"
        /// Some documentation.
        fn count(rounds: u32, counts: SliceMut<u32>) {
            for _ in 0..rounds {
                yield_point!();
                if thread::thread_idx_x() == 3 {
                    unsafe { AtomicU32::from_ptr(counts.as_mut_ptr()) }.fetch_add(1, Relaxed);
                }
            }
        }
        "#,
    );
    yield_points_until_marked_with_barriers: expand(
        "",
        r#"
        fn count(rounds: u32, counts: *mut u32) {
            for _ in 0..rounds {
                thread::sync_threads();
                yield_point!();
                *counts += 1;
                yield_point!();
            }
        }
        "#,
    );
    checkpoint_over_a_range: expand(
        "",
        r#"
        fn sums(n: u32, x: &[u32], sums: SliceMut<u32>) {
            let i = thread::index_1d() as usize;
            checkpoint!(sum: (u32, f32) = (0, 1.0) => for round in 0..n {
                thread::sync_threads();
                sum.0 += x[i] ^ round;
            });
            sums.write(i, sum.0);
        }
        "#,
    );
    checkpoint_under_a_condition: expand(
        "idempotent, block = 2 * N, instances(8)",
        "fn rounds<const N: u32>(n: u32) { preempt_device::checkpoint!(left: [u32; N] = [n; N] => while N > 3 { left[0] -= 1; }); }",
    );
    checkpoint_whose_rounds_end_with_a_barrier: expand(
        "idempotent",
        r#"
        fn rotate(n: u32, x: SliceMut<u32>) {
            let values = shared_array![u32; 256];
            checkpoint!(own: u32 = 0 => for _ in 0..n {
                own += values.read();
                thread::sync_threads();
            });
            x.write(0, own);
        }
        "#,
    );
    checkpoint_whose_rounds_end_with_what_they_bind: expand(
        "idempotent",
        "fn rounds(n: u32) { checkpoint!(left: u32 = n => while left > 3 { let r#step = || {}; left -= 1; step(); }); }",
    );
    checkpoint_whose_rounds_end_with_a_call: expand(
        "idempotent",
        "fn rounds(n: u32) { checkpoint!(left: u32 = n => while left > 3 { left -= 1; helper(); }); }",
    );
    yield_points_in_loops: expand(
        "idempotent, yield_in_loops",
        "fn spin(n: u32) { while n > t() { loop { break; } } (0..n).for_each(|_| loop {}); }",
    );
    idempotent: expand("idempotent", "fn nothing() {}");
    unsafe_kernel: expand("", "pub unsafe fn r#move(out: *mut u32) { unsafe { *out = 1 } }");
    no_parameters: expand("", "fn nothing() {}");
    // With `#[kernel]` of `cuda_std` below, which stays in the expansion.
    rust_cuda_above: expand(
        "block = 128",
        r#"
        #[cuda_std::kernel(block_dim = 1)]
        #[allow(improper_ctypes_definitions)]
        pub unsafe fn reverse(x: &[i32], d: *mut i32) {
            use cuda_std::thread::sync_threads;
            let s = shared_array![i32; 128];
            println!("{}", x.len());
            sync_threads();
        }
        "#,
    );
    // What `cuda_std`'s `#[kernel]` leaves when it is above.
    rust_cuda_below: expand(
        "idempotent, crate = preempt::device",
        r#"
        #[no_mangle]
        #[cfg_attr(any(target_arch = "nvptx", target_arch = "nvptx64"), nvvm_internal(kernel()))]
        pub unsafe extern "C" fn wait(n: usize, x: f32) {
            assert_kernel_parameter_is_copy::<f32>();
            assert_kernel_parameter_is_copy::<usize>();
            fn assert_kernel_parameter_is_copy<T: Copy>() {}
            for _ in 0..n { yield_point!(); }
        }
        "#,
    );
    // What `cuda_std`'s `#[kernel]` leaves on the host, without the attribute for its code generator.
    rust_cuda_below_on_host: expand(
        "",
        r#"
        #[no_mangle]
        pub unsafe extern "C" fn wait() {
            fn assert_kernel_parameter_is_copy<T: Copy>() {}
        }
        "#,
    );
    rust_cuda_plain: expand_kernel(
        "",
        "/// Adds.
        pub unsafe fn add(a: &[f32], c: *mut f32, n: usize) { let s = shared_array![f32; 2]; }",
    );
    rust_cuda_entry: expand_kernel(
        "",
        "unsafe fn add__preemptible(cohort: Cohort, ptr_0: *const f32, len_0: usize) {}",
    );
    rust_cuda_swapped: expand_kernel(
        "grid_dim = 1",
        "#[inline] #[preemptible(crate = a::b)] unsafe fn add() {}",
    );
    derived_struct: derive(
        r#"
        #[derive(Clone, Copy)]
        #[repr(C, align(16))]
        #[kernel_arg(crate = preempt::device)]
        pub struct Params { pub factor: f32, offsets: [u32; 4] }
        "#,
    );
    derived_newtype: derive("#[repr(transparent)] struct Index(u32);");
}

#[test]
fn a_checkpoint_at_the_end_needs_no_semicolon() {
    let expansion = |end| {
        let item = format!(
            "fn k(n: u32) {{ checkpoint!(sum: u32 = 0 => for i in 0..n {{ sum += i; }}){end} }}"
        );
        expand("", &item).to_string()
    };
    assert!(expansion(";").contains("resumed"));
    assert_eq!(expansion(""), expansion(";"));
}

#[test]
fn an_automatic_factor_is_the_default() {
    let expansion = |options| expand(options, "fn k(out: SliceMut<f32>) {}").to_string();
    assert_eq!(expansion("amortize = auto"), expansion(""));
    assert_ne!(expansion("amortize = 3"), expansion(""));
}
