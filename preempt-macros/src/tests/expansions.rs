//! Snapshots of the expansions. `cargo insta review` shows what changed.

use super::{derive, expand, messages};

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
    idempotent: expand("idempotent", "fn nothing() {}");
    unsafe_kernel: expand("", "pub unsafe fn r#move(out: *mut u32) { unsafe { *out = 1 } }");
    no_parameters: expand("", "fn nothing() {}");
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
