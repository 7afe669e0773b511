//! Bodies and their verdicts. `Y` stands for a yield point, `S` for a barrier.

use super::{CarriedBack, Relaxed, Verdict, verdict};
use crate::analyze::barriers::check_barriers;
use crate::analyze::uniform::kinds::Kind;
use crate::errors::Errors;
use crate::parse::Kernel;

const PARAMS: &str = "n: u32, x: &[f32], y: &[u32], out: SliceMut<f32>, more: SliceMut<f32>, own: PerThread<f32>, \
    p: *mut f32, q: *const f32, user: User, users: &[User], rows: SliceMut<[f32; 4]>";

fn verdict_of(options: &str, body: &str) -> Verdict {
    let body = body.replace("Y;", "yield_point!();").replace("S;", "thread::sync_threads();");
    let options = format!("crate = preempt_device{options}").parse().unwrap();
    let kernel = Kernel::parse(options, format!("fn k({PARAMS}) {{ {body} }}").parse().unwrap());
    let kernel = kernel.unwrap_or_else(|error| panic!("{body}: {error}"));
    let params = kernel.params.iter().map(|param| (&param.ident, false, Kind::of_param(param)));
    let votes = check_barriers(&kernel.body, params, false, &mut Errors::default()).is_some();
    verdict(&kernel, votes)
}

fn name_of(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Strict(_) => "strict",
        Verdict::Relaxed(Relaxed { carried_back: CarriedBack(false), .. }) => "relaxed",
        Verdict::Relaxed(Relaxed { carried_back: CarriedBack(true), .. }) => {
            "relaxed, carried back"
        }
        Verdict::Never(_) => "never",
    }
}

#[track_caller]
fn all(expected: &str, bodies: &[&str]) {
    let others = bodies.iter().filter_map(|body| {
        let verdict = verdict_of("", body);
        let message = verdict.error().map(|error| error.to_string()).unwrap_or_default();
        (name_of(&verdict) != expected)
            .then(|| format!("{body}\n    {}: {message}", name_of(&verdict)))
    });
    let others: Vec<_> = others.collect();
    assert!(others.is_empty(), "not {expected}:\n{}", others.join("\n"));
}

#[test]
fn what_is_only_written_or_only_read_is_strict() {
    all(
        "strict",
        &[
            "loop { Y; }",
            "Y; out.write(0, 1.0);",
            "out.write(0, x[0]); Y; out.write(1, x[1] + 2.0);",
            "let i = thread::index_1d() as usize; if i < out.len() { Y; unsafe { out.write(i, x[i]) } }",
            "let i = thread::index_1d() as usize; let mut v = x[i]; for _ in 0..n { Y; v = GpuFloat::cos(v); } out.write(i, v);",
            "let mut v = x[0]; while v < 3.0 { Y; v = v.mul_add(2.0, 1.0).sqrt(); } out.write(0, v.abs());",
            "let p = out.as_mut_ptr(); Y; p.add(3).write(1.0); Y;",
            "let a = out; let b = a; b.write(0, 1.0); Y;",
            "let (a, b) = (out, more); a.write(0, 1.0); Y; b.write(1, x[0]);",
            "*p.add(1) = x[0]; Y;",
            "let r = p.cast::<u32>(); *r = y[0]; Y;",
            "if let Some(own) = own.own() { Y; own.set(x[own.index()]); }",
            "let Some(own) = own.own() else { return }; for _ in 0..n { Y; own.set(1.0); }",
            "match own.own() { Some(mine) => mine.set(1.0), None => return } Y;",
            "let v = out.read(0); Y; more.write(0, v);",
            "let v = unsafe { *q.add(3) } + q.read(); Y; out.write(0, v);",
            "let sum: f32 = x.iter().map(|v| v * 2.0).sum(); Y; out.write(0, sum);",
            "let f = |i: u32| { out.write(i as usize, 1.0) }; f(1); Y; f(2);",
            "fn step(v: f32) -> f32 { v * 2.0 } let mut v = x[0]; for _ in 0..n { Y; v = step(v); } out.write(0, v);",
            "fn a(v: f32) -> f32 { b(v) } fn b(v: f32) -> f32 { v + K } const K: f32 = 1.0; Y; out.write(0, a(x[0]));",
            "if n > 3 { return; } Y; out.write(0, 1.0);",
            "assert!(x.len() > 3 && n < 5, \"{n}\"); Y; if n == 7 { panic!() }",
            "let mut v = [0.0f32; 4]; v[1] += x[1]; v.swap(0, 1); Y; out.write(0, v[1]);",
            "let mut v = (0u32, 1.0f32); v.0 += n; let r = &mut v; r.1 = 2.0; Y; out.write(0, r.1);",
            "let v = users[0]; Y; let n: u32 = v.n; out.write(0, n as f32);",
            "let n: u32 = user.n; for _ in 0..n { Y; } more.write(n as usize, 1.0);",
            "rows.write(1, [x[0], x[1], 0.0, 1.0]); Y; rows.as_mut_ptr().add(1);",
            "(*rows.as_mut_ptr().add(1))[2] = x[0]; Y;",
            "let out = x; Y; more.write(0, out[0]);",
            "{ let out = y; Y; let v = out[0]; } out.write(0, 1.0);",
            "out.write(TILE, TABLE[2] as f32); Y;",
            "for (i, v) in x.iter().enumerate().skip(1).step_by(4) { Y; out.write(i, *v); }",
            "let [a, b] = [x[0], x[1]]; match n { 0 => out.write(0, a), k if k > 3 => out.write(1, b), _ => {} } Y;",
            "let v = warp::warp_shuffle_down(u32::MAX, x[0], 1, 32).0; Y; out.write(0, v);",
            "'a: loop { loop { Y; if n > 3 { break 'a; } } } out.write(0, f32::MAX.min(u32::MAX as f32));",
            "let at = thread::index_2d(); Y; out.write((at.x + at.y) as usize, 1.0);",
            "let v: f32; if n > 1 { v = x[0]; } else { v = 2.0; } Y; out.write(0, v);",
            "Y; more.write(0, if let Some(v) = x.get(n as usize) { *v } else { 0.0 });",
        ],
    );
}

#[test]
fn shared_memory_that_is_written_first_is_strict() {
    all(
        "strict",
        &[
            "let s = shared_array![f32; 256]; s.add(1).write(x[0]); S; Y; out.write(0, s.add(2).read());",
            "let (s, t) = (shared_array![f32; 256], thread::thread_idx_x() as usize); for i in 0..n { S; Y; *s.add(t) = x[t]; \
            S; if t == 0 { out.write(i as usize, (0..256).map(|k| *s.add(k)).sum()); } }",
            "let s = shared_slice![f32; n]; s.write(0, 1.0); S; Y; if n > 3 { out.write(0, s.read(1)); }",
            "let s = shared_array![f32; 4]; if n > 3 { s.write(1.0); } else { s.write(2.0); } S; Y; out.write(0, *s);",
            "let s = shared_array![f32; 4]; match n { 0 => s.write(1.0), _ => *s = 2.0 } S; Y; out.write(0, s.read() + 1.0);",
            "let s = shared_array![f32; 4]; s.write(1.0); for _ in 0..n { Y; let v = *s; S; *s = v + 1.0; S; }",
        ],
    );
}

#[test]
fn where_the_block_decides_together_what_follows_the_last_yield_point_is_strict() {
    all(
        "strict",
        &[
            "let v = out.read(0); S; Y; out.write(0, v + 1.0);",
            "for _ in 0..n { S; Y; } *p.add(1) += 1.0;",
            "S; Y; AtomicU32::from_ptr(more.as_mut_ptr()).fetch_add(1, Relaxed);",
            "S; Y; out.write(0, thread::sm_id() as f32);",
            "for _ in 0..n { S; Y; } for i in 0..4 { out.write(i, out.read(i) + 1.0); }",
        ],
    );
    // The same without barriers, where each thread decides for itself.
    all("relaxed", &["let v = out.read(0); Y; out.write(0, v + 1.0);"]);
    all(
        "relaxed, carried back",
        &[
            "for _ in 0..n { S; Y; let v = out.read(0); S; out.write(0, v + 1.0); }",
            "for _ in 0..n { for _ in 0..4 { S; Y; } *p += 1.0; }",
        ],
    );
}

#[test]
fn what_is_overwritten_after_it_may_be_read_is_relaxed() {
    all(
        "relaxed",
        &[
            "out.write(0, out.read(0) + 1.0); Y;",
            "let a = out; let v = a.read(0); Y; out.write(0, v);",
            "let (a, b) = (out, out.as_mut_ptr()); Y; b.write(a.read(1));",
            "if let Some(own) = own.own() { let v = own.get(); Y; own.set(v + 1.0); }",
            "*p += 1.0; Y;",
            "*p.add(1) = *p.add(0); Y;",
            "Y; if n > 3 { out.write(0, 1.0); } let v = out.read(2);",
            "let f = |v: f32| { out.write(0, v) }; let v = out.read(0); Y; f(v);",
            "let v = p.cast::<u32>().read(); Y; p.write(1.0);",
            "(*rows.as_mut_ptr())[1] += 1.0; Y;",
            "let v = (*rows.as_mut_ptr())[1]; Y; rows.write(0, [v; 4]);",
            "if let Some(out) = x.first() { let v = *out; } else { out.write(0, 1.0); } let v = out.read(0); Y;",
            "{ let out = x; let v = out[0]; } let v = out.read(0); Y; out.write(0, v);",
        ],
    );
    all(
        "relaxed, carried back",
        &[
            "for i in 0..4 { Y; let v = out.read(i); out.write(i, v + 1.0); }",
            "loop { Y; out.write(0, 1.0); let v = out.read(1); }",
            "while out.read(0) < 3.0 { Y; out.write(0, 4.0); }",
            "for i in 0..n { if i > 3 { Y; } for j in 0..n { p.add(1).write(*p); } }",
        ],
    );
}

#[test]
fn memory_that_gets_elsewhere_is_relaxed() {
    all(
        "relaxed",
        &[
            "Y; helper(out, 1.0);",
            "Y; store(p);",
            "Y; helper((1, out));",
            "Y; helper(own.own());",
            "let r = &mut *out.as_mut_ptr(); Y; *r = 1.0;",
            "let ref mut r = *p; Y; *r += 1.0;",
            "let s = core::slice::from_raw_parts_mut(out.as_mut_ptr(), 4); Y; s[0] += 1.0;",
            "Y; out.add_to(3);",
            "Y; out.add(3);",
            "Y; out.cast::<u32>();",
            "Y; out.own();",
            "Y; p.len();",
            "Y; own.read(3);",
            "Y; p.swap(p.add(1));",
            "Y; p.copy_from(q, 3);",
            "Y; core::ptr::write(p, 1.0);",
            "let a = p as usize; Y; *(a as *mut f32) = 1.0;",
            "Y; *(q as *mut f32) += 1.0;",
            "let a = [p, p]; Y; *a[0] = 1.0;",
            "let f = || out; Y; f().write(0, 1.0);",
            "let a = if n > 3 { out } else { more }; Y; a.write(0, 1.0);",
            "Y; (*rows.as_mut_ptr()).swap(0, 1);",
            "Y; for v in (*rows.as_mut_ptr()).iter_mut() { *v += 1.0; }",
            "Y; AtomicU32::from_ptr(out.as_mut_ptr().cast()).fetch_add(1, Relaxed);",
            "let r = p as *const f32; let v = *r; Y; *p = v + 1.0;",
        ],
    );
    // What is done with what has got elsewhere is known even less.
    all(
        "never",
        &[
            "Y; own.own().map(|own| own.set(1.0));",
            "let r = &*p; Y; helper(r);",
            "Y; let a = &out; atomic::add(a, 1);",
            "let h = Holder { out }; h.out.write(0, 1.0); Y;",
        ],
    );
}

#[test]
fn what_may_differ_in_another_run_is_never_droppable() {
    all(
        "never",
        &[
            "Y; out.write(0, clock64() as f32);",
            "let t = time::global_timer(); Y; out.write((t % 4) as usize, 1.0);",
            "if thread::sm_id() > 3 { out.write(0, 1.0); } Y;",
            "Y; out.write(0, warp::activemask() as f32);",
            "use thread::sm_id as block; if block() > 3 { out.write(0, 1.0); } Y;",
            "use thread::block_idx_x as sm; out.write(sm() as usize, 1.0); Y;",
            "use crate::helpers::*; Y;",
            "static COUNT: AtomicU32 = AtomicU32::new(0); Y; COUNT.load(Relaxed);",
            "COUNT = 3; Y;",
            "COUNT.fetch_add(1, Relaxed); Y;",
            "fn now() -> u32 { clock() } Y; out.write(0, now() as f32);",
            "Y; out.write(0, helper(x[0]));",
            "Y; count();",
            "Y; out.write(0, user.value());",
            "Y; out.write(0, users[0].n + 1.0);",
            "Y; out.write(0, (users[0] + users[1]) as f32);",
            "Y; for _ in users[0] {}",
            "Y; if user == users[0] {}",
            "Y; assert!(user == users[0]);",
            "Y; let v: f32 = *user; out.write(0, v);",
            "Y; let guard = Guard { n };",
            "Y; let guard = Guard(n);",
            "let block_idx_x = |i: u32| clock(); out.write(block_idx_x(0), 1.0); Y;",
            "let f = clock; Y; out.write(0, f() as f32);",
            "Y; x.iter().map(helper).sum::<f32>();",
            "Y; x.iter().for_each(|v| helper(*v));",
            "Y; macro_rules! own { () => {} }",
            "Y; impl Trait for u32 {}",
            "#[cfg(feature = \"fast\")] let out = more; Y;",
            "#[rewrite] fn f() {} Y;",
            "Y; u32::later(n);",
            "Y; n.later();",
            "Y; async {};",
            "let a = &raw mut n; Y;",
            "Y; out = more;",
            "let mut last = None; last = Some(users[0]); Y; out.write(0, last.unwrap().value());",
            "let f = |v: &u32| *v; Y; out.write(f(&user) as usize, 1.0);",
            "let n: &u32 = &user; Y; out.write(*n as usize, 1.0);",
            "let mut v = &n; v = &user; Y; out.write(*v as usize, 1.0);",
            "const GUARD: Guard = Guard; Y; let guard = GUARD;",
            "fn f() { yield_point!(); } Y; f();",
            "fn f() -> *mut f32 { shared_array![f32; 4] } Y; f();",
            "let v = [users[0]; 4]; v.fill(users[1]); Y;",
            "Y; let f = async || clock();",
            "{ fn f() {} } Y;",
            "Y; bump!(out);",
            "Y; hidden!();",
            "Y; println!(\"{n}\");",
            "Y; assert!(other!(n));",
            "Y; own::assert!(n > 3);",
            "Y; core::arch::asm!(\"\");",
        ],
    );
}

#[test]
fn code_of_the_users_that_types_and_names_hide_is_never_droppable() {
    all(
        "never",
        &[
            "let f = || -> *mut f32 { q as _ }; Y; let r = &mut *f(); *r += 1.0;",
            "let (w,): (*mut f32,) = (q as _,); Y; let r = &mut *w; *r += 1.0;",
            "let (a,): (&f32,) = (&user,); Y; out.write(0, *a);",
            "let f = || -> &f32 { return &user }; Y; out.write(0, *f());",
            "let f = || { return users[0]; }; Y; out.write(0, f() + f());",
            "let f = || return users[0]; Y; out.write(0, f() + f());",
            "let r: &f32 = loop { break &user; }; Y;",
            "let v = 1.0; let r: &f32 = if n > 3 { &user } else { &v }; Y;",
            "fn g(r: &f32) -> f32 { *r } let v = 1.0; Y; out.write(0, g(if n > 3 { &user } else { &v }));",
            "let r: R = &user; Y;",
            "Y; out.write(0, *(&user as &f32));",
            "Y; if x.contains(&user) { out.write(0, 1.0); }",
            "Y; let o = x[0].total_cmp(&user);",
            "Y; out.write(0, *x.first().unwrap_or(&user));",
            "let o: Option<&f32> = Some(&user); Y;",
            "Y; own.own().expect({ helper(); \"m\" }).set(1.0);",
            "Y; [].iter().chain(users.iter()).for_each(|u| { out.write(0, *u + *u) });",
            "Y; let u = [].first().unwrap_or(&users[0]); out.write(0, *u + *u);",
            "match x.first() { None => { let u = None.or(users.first()).unwrap(); out.write(0, *u + *u) } Some(_) => {} } Y;",
            "Y; x.iter().chain(user).for_each(|v| out.write(0, *v));",
            "Y; let u: User = x.iter().sum();",
            "Y; out.write(0, x.iter().sum::<User>() + 1.0);",
            "Y; out.write(0, x.iter().product::<User>() + 1.0);",
            "Y; let c = n.checked_clock().unwrap(); out.write(0, c as f32);",
            "Y; let c = n.overflowing_clock().0; out.write(0, c as f32);",
            "Y; let c = n.from(); out.write(0, c as f32);",
            "use crate::User as u32; let v: u32 = users[0]; Y; out.write(0, v + v);",
            "use crate::mine::Some; Y; let v = Some(1.0);",
            "let g = const { Guard }; Y;",
            "let g = q.cast::<Guard>().read(); Y;",
            "let g = p.cast::<Guard>().read(); Y;",
            "let g = (q as *const Guard).read_volatile(); Y;",
            "let s = shared_array![Guard; 4]; s.write(1.0); S; let g = s.read(); S; Y;",
            "let v = warp::warp_shuffle_down(u32::MAX, users[0], 1, 32).0; Y; out.write(0, 1.0); S; Y;",
            "let mut v = [0.0f32; 4]; v[users[0]] = 1.0; Y;",
            "let v = n; Y; out.write(0, (&v as *const u32 as usize) as f32);",
            "let v = 1.0; Y; if (&v as *const f32) < q { out.write(0, 1.0); }",
            "let v = n; Y; p.cast::<&u32>().write(&v);",
            "let v = n; Y; *p.cast::<&u32>() = &v;",
            "Y; out.write(0, TABLE[users[0]]);",
            "let (v, r) = (n, &n); Y; out.write(0, (&r as *const &u32).cast::<usize>().read() as f32);",
            "let r = &n; Y; out.write(0, *(&r as *const &u32 as *const usize) as f32);",
            "let o: Option<&u32> = Some(&n); Y; out.write(0, (&o as *const _).cast::<usize>().read() as f32);",
            "let a = &n as *const u32; Y; if [y.as_ptr()].contains(&a) { out.write(0, 1.0); }",
            "let a = &n as *const u32; Y; if (a, 1) < (y.as_ptr(), 1) { out.write(0, 1.0); }",
        ],
    );
    all("relaxed", &["Y; own.own().expect({ *p += 1.0; \"m\" }).set(1.0);"]);
    all(
        "strict",
        &[
            "let f = |v: f32| { if v > 1.0 { return v; } v + 1.0 }; Y; out.write(0, f(x[0]));",
            "let (a, (b, o)): (f32, (&f32, SliceMut<f32>)) = (x[0], (&x[1], out)); Y; o.write(0, a + *b);",
            "Y; let sum: f32 = unsafe { x.iter().sum() }; *p = sum + x.iter().product::<f32>();",
            "const { assert!(TILE > 3) }; Y; out.write(0, n.checked_add(1).unwrap_or(2) as f32);",
            "let v = x.iter().chain(x.iter()).fold(0.0, |a, b| a + b); Y; if let None = x.first() { return } out.write(0, v);",
        ],
    );
}

#[test]
fn stale_shared_memory_is_never_droppable() {
    all(
        "never",
        &[
            "let s = shared_array![f32; 4]; out.write(0, *s); Y; s.write(1.0);",
            "let s = shared_array![f32; 4]; if n > 3 { s.write(1.0); } S; out.write(0, s.read()); S; Y;",
            "let s = shared_array![f32; 4]; for _ in 0..n { s.write(1.0); } S; out.write(0, s.read()); S; Y;",
            "let s = shared_array![f32; 4]; for i in 0..n { if i > 0 { out.write(0, *s); } S; *s = 1.0; S; Y; }",
            "let s = shared_array![f32; 4]; let f = || s.write(1.0); S; out.write(0, *s); S; Y;",
            "let s = shared_array![f32; 4]; let r = shared_array![f32; 4]; s.write(1.0); S; out.write(0, *r); S; Y;",
            "let s = shared_array![f32; 4]; *s += 1.0; S; Y;",
            "let s = shared_array![f32; 4]; s.write(*s); S; Y;",
            "let s = shared_array![f32; 4]; n > 3 && { s.write(1.0); true }; S; out.write(0, *s); S; Y;",
            "let s = shared_array![f32; 4]; 'a: { if n > 3 { break 'a; } s.write(1.0); } S; out.write(0, *s); S; Y;",
            "let s = shared_array![f32; 4]; debug_assert!({ s.write(1.0); true }); S; out.write(0, *s); S; Y;",
            "let s = shared_array![u32; 4]; AtomicU32::from_ptr(s).fetch_add(1, Relaxed); S; Y;",
            "let s = shared_slice![f32; n]; out.write(0, s.read(1)); S; Y;",
            "let s = shared_array![f32; 4]; helper(s); S; Y;",
            "let s = shared_array![f32; 4]; match n { 0 => s.write(1.0), _ => {} } S; out.write(0, *s); S; Y;",
        ],
    );
}

#[test]
fn yield_points_that_an_option_adds_count() {
    let verdict = |body| name_of(&verdict_of(", yield_in_loops", body));
    assert_eq!(verdict("for _ in 0..n { S; } *p += 1.0;"), "strict");
    assert_eq!(verdict("for _ in 0..n { S; *p += 1.0; }"), "relaxed, carried back");
    assert_eq!(verdict("for _ in 0..n { out.write(0, 1.0); }"), "strict");
}

#[test]
fn messages_say_what_is_wrong_and_what_to_write() {
    for (body, parts) in [
        (
            "*p += 1.0; Y;",
            ["overwrite elements of `p`", "read one buffer and write another", "from here on"],
        ),
        ("Y; helper(x[0]);", ["not seen", "function inside it", "`#[preemptible(idempotent)]`"]),
        (
            "Y; out.write(thread::sm_id(), 1.0);",
            ["on another SM", "from parameters and indices", "may give another result"],
        ),
        ("Y; AtomicU32::from_ptr(p);", ["an atomic operation", "its own element", "from here on"]),
    ] {
        let message =
            verdict_of("", body).error().map(|error| error.to_string()).unwrap_or_default();
        assert!(parts.iter().all(|part| message.contains(part)), "{body}: {message}");
    }
}

#[test]
fn what_is_declared_is_told_as_no_proof() {
    let relaxed = "for _ in 0..n { Y; *p += 1.0; }";
    for (body, is_declared, expected, reason) in [
        ("Y;", false, "Strict", "(strict)"),
        ("Y;", true, "Declared", "finds nothing against it"),
        (relaxed, false, "Relaxed", "(relaxed): "),
        (relaxed, true, "Declared", "not proved from here on: "),
        ("Y; clock();", true, "Declared", "not proved: "),
    ] {
        let proof = verdict_of("", body).proof_of(is_declared);
        assert_eq!(proof.idempotence, expected, "{body}");
        assert!(proof.reason.contains(reason), "{body}: {}", proof.reason);
    }
}

#[test]
fn the_verdict_says_until_when_a_block_task_may_be_dropped_and_whether_that_is_declared() {
    let (relaxed, declared) = ("for _ in 0..n { Y; *p += 1.0; }", "is declared, and not proved");
    for (body, is_declared, parts) in [
        ("Y;", false, ["This is proved.", "at each of its yield points (strict)"]),
        (
            relaxed,
            false,
            ["proved until one of its threads gets to", "not where the loop leads back (relaxed)"],
        ),
        (relaxed, true, [declared, "but not from here on (relaxed)"]),
        ("*p += 1.0; Y;", true, [declared, "but not from here on (relaxed)"]),
        ("Y; clock();", true, [declared, "is not proved"]),
    ] {
        let verdict = verdict_of("", body);
        let said = [verdict.summary(is_declared), verdict.explanation(is_declared)];
        assert!(said.iter().zip(parts).all(|(said, part)| said.contains(part)), "{body}: {said:?}");
    }
}
