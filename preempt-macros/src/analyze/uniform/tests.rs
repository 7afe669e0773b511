use super::*;

/// Analyzes the body of a kernel with the parameters `n`, `x`, `out`, `mut own`, and `p` of a user's type.
fn of(body: &Block) -> Uniformity {
    let kinds = [
        ("n", Kind::Integer),
        ("x", Kind::Slice(Box::new(Kind::Integer))),
        ("out", Kind::SliceMut),
        ("own", Kind::Integer),
        ("p", Kind::Unknown),
    ];
    let params = kinds.map(|(name, kind)| (Ident::new(name, Span::call_site()), kind));
    Uniformity::of(body, params.iter().map(|(name, kind)| (name, name == "own", kind.clone())))
}

/// The number of yield points of a body that some threads may miss.
fn missed(body: &str) -> usize {
    let body: Block = syn::parse_str(&format!("{{ {body} }}")).expect("a body");
    of(&body).divergent_points.len()
}

#[test]
fn points_that_only_the_block_decides_are_reached_together() {
    for body in [
        "yield_point!();",
        "for i in 0..n { yield_point!(); }",
        "for (i, part) in x.iter().enumerate().skip(2) { if *N > 3 || i > 4 { yield_point!(); } }",
        "for tile in (0..n.div_ceil(TILE)).rev().step_by(2) { yield_point!(); }",
        "let rows = thread::grid_dim_x() as usize * 4; let mut i = 0; while i < rows { yield_point!(); i += 1; }",
        "let first = x[thread::block_idx_x() as usize]; if first > 3 { yield_point!(); } else { yield_point!() }",
        "let mut changed = 1; while changed != 0 { yield_point!(); changed = sync_threads_or(t()); }",
        "let mut i = 0; loop { yield_point!(); i += 1; if i == n { break; } }",
        "'outer: loop { loop { if n > 3 { break 'outer; } yield_point!(); } }",
        "match n { 0 => yield_point!(), k if k > 3 => yield_point!(), _ => {} }",
        "if let Some(k) = Some(n) { if k > 3 { yield_point!(); } }",
        "let (a, [b, c]) = (n, [1, 2]); if a > b + c { yield_point!(); }",
        "let tile = shared_array![f32; 3]; if tile.is_null() {} yield_point!();",
        // Threads leave the inner loop at different times, and meet behind it.
        "for i in 0..n { yield_point!(); for j in 0..i { if t() { break; } } }",
        "for i in 0..n { yield_point!(); while t() { continue; } }",
        "out.write(0, x.get_unchecked(t())); for _ in 0..out.len() + x[0] { yield_point!(); }",
        "let k = if n > 3 { 1 } else if n > 4 { let j = 2; j } else { x[3] }; for _ in 0..k { yield_point!(); }",
        "let k = { let j = n; j + 1 }; for _ in 0..k { yield_point!(); }",
        "let k = S { a: n, ..S::NONE }; for _ in 0..k.a { yield_point!(); }",
        "'block: { if n > 3 { break 'block; } yield_point!(); }",
        "let Some(k) = Some(n) else { return }; for _ in 0..k { yield_point!(); }",
        "let a = f32::from(n).sqrt(); for _ in (0..n).take(3) { yield_point!(); }",
        "for i in 0..n { assert_ne!(t(), i, \"{}\", n); yield_point!(); }",
        "let a = u32::from(n).min(MAX).max(2u32.pow(3)); for _ in 0..a { yield_point!(); }",
        "let t = thread_idx_x(); let mut acc = [0; 4]; acc[1] = n; for _ in 0..acc[1] { yield_point!(); }",
        "assert!(n > 3); for _ in 0..n { yield_point!(); }",
        "let n = n as usize; if n.is_multiple_of(3) { yield_point!(); }",
        "let mut f = || { let own = t(); own }; for _ in 0..n { yield_point!(); }",
    ] {
        // `*N` is the target of a pointer, which other threads may write.
        let expected = usize::from(body.contains("*N"));
        assert_eq!(missed(body), expected, "{body}");
    }
}

#[test]
fn points_that_a_thread_may_decide_are_not() {
    for body in [
        "if thread::thread_idx_x() == 0 { yield_point!(); }",
        "if thread_idx_x() == 0 {} else { yield_point!(); }",
        "let i = thread::index_1d(); if i < n { yield_point!(); }",
        "for _ in 0..unknown() { yield_point!(); }",
        "while *out > 3 { yield_point!(); }",
        "while out.read(0) > 3 { yield_point!(); }",
        "for i in 0..n { if t() { break; } yield_point!(); }",
        "for i in 0..n { yield_point!(); if t() { continue; } work(); }",
        "'outer: for i in 0..n { yield_point!(); loop { if t() { break 'outer; } } }",
        "let mut k = n; if t() { k = 3; } while k > 0 { yield_point!(); k -= 1; }",
        "let mut k = n; k += t(); while k > 0 { yield_point!(); }",
        "let mut k = n; let p = &mut k; *p = t(); while k > 0 { yield_point!(); }",
        "let mut k = n; k.set(t()); while k > 0 { yield_point!(); }",
        "let mut k = n; fill!(k); while k > 0 { yield_point!(); }",
        "let mut k = n; let mut f = || k = t(); f(); while k > 0 { yield_point!(); }",
        "let mut k; k = t(); if k > 0 { yield_point!(); }",
        "let mut a = [0; 4]; a[t()] = 1; if a[0] > 0 { yield_point!(); }",
        "let mut a = S { b: n }; a.b = t(); if a.b > 0 { yield_point!(); }",
        // The value that differs comes after the value that depends on it, in a loop around both.
        "let mut k = n; loop { if k > 3 { yield_point!(); } k = l; let l = t(); }",
        "let (a, b) = (n, t()); if a > 3 { yield_point!(); }",
        "match t() { 0 => yield_point!(), _ => {} }",
        "match n { k if t() => {} _ => yield_point!() }",
        "if n > 3 && t() { yield_point!(); }",
        "t() && { yield_point!(); true };",
        "if let Some(k) = find() { yield_point!(); }",
        "let k = if t() { 1 } else { 2 }; if k > 1 { yield_point!(); }",
        "let n = t(); if n > 1 { yield_point!(); }",
        "(k, l) = (t(), n); if k > 1 { yield_point!(); }",
        "for i in 0..n { for ref mut k in a { *k = t(); } if k > 3 { yield_point!(); } }",
        "'block: { if t() { break 'block; } yield_point!(); }",
        "'block: for i in 0..n { 'inner: { if t() { break 'block; } } yield_point!(); }",
        "for i in 0..n { let Some(k) = t() else { break; }; yield_point!(); }",
        "let mut k = n; let ref mut p = k; *p = t(); if k > 0 { yield_point!(); }",
        "let mut k = n; match k { ref mut p => *p = t() } if k > 0 { yield_point!(); }",
        "let mut k = n; if let ref mut p = k { *p = t() } if k > 0 { yield_point!(); }",
        "let mut k = n; let p = &raw mut k; *p = t(); if k > 0 { yield_point!(); }",
        "let mut k = n; [k, _] = [t(), 1]; if k > 0 { yield_point!(); }",
        "let mut k = n; S { k, .. } = t(); if k > 0 { yield_point!(); }",
        "let mut k = n; (Some(k), _) = (t(), 3); if k > 0 { yield_point!(); }",
        "let mut k = Some(n); if t() { k.take(); } if let Some(_) = k { yield_point!(); }",
        "let mut k = n; assert!({ k = t(); true }); if k > 0 { yield_point!(); }",
        "let mut k = n; assert!(k.change()); if k > 0 { yield_point!(); }",
        "let mut k = n; macro_rules! f { () => { k = t() } } f!(); if k > 0 { yield_point!(); }",
        "for i in 0..n { leave_if!(t()); yield_point!(); }",
        "let k = if t() { 1 } else { 1 }; if k > 0 { yield_point!(); }",
        "let k = if n > 3 { t() } else { 1 }; if k > 0 { yield_point!(); }",
        "let k = if n > 3 { 1 } else if n > 4 { t() } else { 1 }; if k > 0 { yield_point!(); }",
        "let k = { let n = 3; t() }; if k > 0 { yield_point!(); }",
        "let k = { let j = t(); j }; if k > 0 { yield_point!(); }",
        "let k = 'block: { if t() { break 'block 3; } 4 }; if k > 0 { yield_point!(); }",
        "let k = S { a: t(), b: n }; if k.b > 0 { yield_point!(); }",
        "let k = S { b: n, ..t() }; if k.b > 0 { yield_point!(); }",
        "own.set(t()); for _ in 0..own { yield_point!(); }",
        "let mut n = n; n.set(t()); for _ in 0..n { yield_point!(); }",
        "let mut k = n; r#k = t(); if k > 0 { yield_point!(); }",
        "fn block_idx_x() -> u32 { t() } if block_idx_x() > 0 { yield_point!(); }",
        "use own::index as block_idx_x; if block_idx_x() > 0 { yield_point!(); }",
        "static mut K: u32 = 0; set(); if K > 0 { yield_point!(); }",
        "declare!(k); if k > 0 { yield_point!(); }",
        "let p = &n as *const u32 as usize; if p > 0 { yield_point!(); }",
        "let warp_size = || t(); if warp_size() > 0 { yield_point!(); }",
    ] {
        assert_eq!(missed(body), 1, "{body}");
    }
}

#[test]
fn loops_are_in_the_order_of_the_text() {
    let body: Block = syn::parse_quote! {{
        for _ in 0..n {
            while t() {}
            loop { break; }
        }
        (0..n).for_each(|_| loop {});
        for _ in { loop { break 0..3; } } {}
    }};
    let loops = of(&body).loops;
    assert_eq!(loops, [Some(true), Some(false), Some(true), None, Some(true), Some(false)]);
}

#[test]
fn loops_after_the_end_of_some_threads_are_not_run_together() {
    for (body, expected) in [
        ("for _ in 0..n {} if t() { return; } for _ in 0..n {}", vec![Some(true), Some(false)]),
        ("loop { for _ in 0..n {} if t() { return; } }", vec![Some(false), Some(false)]),
        ("if n > 3 { return; } for _ in 0..n {}", vec![Some(true)]),
        ("leave_if!(t()); for _ in 0..n {}", vec![Some(false)]),
        ("let f = || return; for _ in 0..n {}", vec![Some(true)]),
    ] {
        let body = syn::parse_str(&format!("{{ {body} }}")).expect("a body");
        assert_eq!(of(&body).loops, expected);
    }
}

#[test]
fn loops_that_get_no_yield_points_are_not_counted() {
    let body: Block = syn::parse_quote! {{
        assert!(loop { break true; });
        const { loop { break; } };
        let a: [u32; { loop { break 3; } }] = of::<{ loop { break 3; } }>();
        match n { N::<{ loop { break 3; } }> if loop { break true; } => {} _ => {} }
        for _ in 0..n {}
    }};
    assert_eq!(of(&body).loops, [None, Some(true), Some(true)]);
}
