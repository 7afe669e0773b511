//! Bodies with their markers. `Y` stands for a yield point, `S` for a barrier, `M` for a marker. What `hit` does with memory
//! that the kernel writes is not seen, so it is an obstacle; `late` is another one, where a marker is not needed.

use proc_macro2::{TokenStream, TokenTree};
use quote::ToTokens;
use syn::visit::{self, Visit};

use super::*;
use crate::analyze::barriers::check_barriers;
use crate::analyze::idempotence::verdict;
use crate::analyze::uniform::kinds::Kind;
use crate::errors::Errors;
use crate::parse::Kernel;

const PARAMS: &str =
    "n: u32, x: &[f32], out: SliceMut<f32>, more: SliceMut<f32>, own: PerThread<f32>, p: *mut f32";

/// The body with its markers, or what is said of a kernel that has to declare `idempotent`.
fn marked(body: &str) -> Result<Block, String> {
    let body = body.replace("Y;", "yield_point!();").replace("S;", "thread::sync_threads();");
    let options = "crate = preempt_device".parse().unwrap();
    let kernel = Kernel::parse(options, format!("fn k({PARAMS}) {{ {body} }}").parse().unwrap());
    let mut kernel = kernel.unwrap_or_else(|error| panic!("{body}: {error}"));
    let params = kernel.params.iter().map(|param| (&param.ident, false, Kind::of_param(param)));
    let votes = check_barriers(&kernel.body, params, false, &mut Errors::default()).is_some();
    let verdict = verdict(&kernel, votes);
    let Some((_, markers)) = verdict.proof() else {
        return Err(verdict.error().map(|error| error.to_string()).unwrap_or_default());
    };
    if let Some(markers) = markers {
        assert!(reserve(&mut kernel.body, markers), "{body}: not each statement was found");
    }
    let mut dominance = Dominance::default();
    dominance.visit_block(&kernel.body);
    assert_eq!(dominance.faults, [""; 0], "{body}");
    Ok(kernel.body)
}

/// Whether a thread comes to each call of `hit` past a marker, on every way through the body.
#[derive(Default)]
struct Dominance {
    is_marked: bool,
    closures: u32,
    faults: Vec<&'static str>,
}

impl Dominance {
    fn hit(&mut self) {
        if !self.is_marked {
            self.faults.push("a way leads to `hit` and to no marker ahead of it");
        }
    }

    /// Visits what may not run, or only in part.
    fn sometimes(&mut self, visit: impl FnOnce(&mut Self)) -> bool {
        let before = self.is_marked;
        visit(self);
        std::mem::replace(&mut self.is_marked, before)
    }

    fn tokens(&mut self, tokens: TokenStream) {
        for token in tokens {
            match token {
                TokenTree::Group(group) => self.tokens(group.stream()),
                TokenTree::Ident(name) if name == "hit" => self.hit(),
                TokenTree::Ident(name) if name == MARKER => self.faults.push("a marker in a macro"),
                _ => {}
            }
        }
    }
}

impl<'ast> Visit<'ast> for Dominance {
    fn visit_macro(&mut self, mac: &'ast syn::Macro) {
        if !is_named(mac, MARKER) {
            return self.tokens(mac.tokens.clone());
        }
        self.is_marked = true;
        if self.closures > 0 {
            self.faults.push("a marker returns from a closure");
        }
    }

    fn visit_expr_path(&mut self, path: &'ast syn::ExprPath) {
        if path.path.is_ident("hit") {
            self.hit();
        }
    }

    fn visit_local(&mut self, local: &'ast syn::Local) {
        let Some(init) = &local.init else { return };
        self.visit_expr(&init.expr);
        if let Some((_, otherwise)) = &init.diverge {
            self.sometimes(|walk| walk.visit_expr(otherwise));
        }
    }

    fn visit_expr_if(&mut self, choice: &'ast syn::ExprIf) {
        self.visit_expr(&choice.cond);
        let then = self.sometimes(|walk| walk.visit_block(&choice.then_branch));
        if let Some((_, otherwise)) = &choice.else_branch {
            let otherwise = self.sometimes(|walk| walk.visit_expr(otherwise));
            self.is_marked |= then && otherwise;
        }
    }

    fn visit_expr_match(&mut self, choice: &'ast syn::ExprMatch) {
        self.visit_expr(&choice.expr);
        for arm in &choice.arms {
            self.sometimes(|walk| visit::visit_arm(walk, arm));
        }
    }

    fn visit_expr_binary(&mut self, binary: &'ast syn::ExprBinary) {
        self.visit_expr(&binary.left);
        match binary.op {
            syn::BinOp::And(_) | syn::BinOp::Or(_) => {
                self.sometimes(|walk| walk.visit_expr(&binary.right));
            }
            _ => self.visit_expr(&binary.right),
        }
    }

    fn visit_expr_assign(&mut self, assign: &'ast syn::ExprAssign) {
        self.visit_expr(&assign.right);
        self.visit_expr(&assign.left);
    }

    fn visit_expr_loop(&mut self, expr: &'ast syn::ExprLoop) {
        self.sometimes(|walk| walk.visit_block(&expr.body));
    }

    fn visit_expr_while(&mut self, expr: &'ast syn::ExprWhile) {
        self.visit_expr(&expr.cond);
        self.sometimes(|walk| walk.visit_block(&expr.body));
    }

    fn visit_expr_for_loop(&mut self, expr: &'ast syn::ExprForLoop) {
        self.visit_expr(&expr.expr);
        self.sometimes(|walk| walk.visit_block(&expr.body));
    }

    fn visit_expr_block(&mut self, block: &'ast syn::ExprBlock) {
        let after = self.sometimes(|walk| walk.visit_block(&block.block));
        self.is_marked |= after && block.label.is_none();
    }

    fn visit_expr_closure(&mut self, closure: &'ast syn::ExprClosure) {
        self.closures += 1;
        self.sometimes(|walk| walk.visit_expr(&closure.body));
        self.closures -= 1;
    }

    fn visit_item(&mut self, _: &'ast Item) {}
}

/// Each body gets the markers that stand in it.
#[track_caller]
fn all(bodies: &[&str]) {
    let others = bodies.iter().filter_map(|body| {
        let written: Block = syn::parse_str(&format!(
            "{{ {} }}",
            body.replace("M;", &format!("{MARKER}!();"))
                .replace("Y;", "yield_point!();")
                .replace("S;", "thread::sync_threads();")
        ))
        .unwrap();
        let written = written.to_token_stream().to_string();
        match marked(&body.replace("M;", "")) {
            Ok(block) if block.to_token_stream().to_string() == written => None,
            Ok(block) => Some(format!("{body}\n    {}", block.to_token_stream())),
            Err(message) => Some(format!("{body}\n    {message}")),
        }
    });
    let others: Vec<_> = others.collect();
    assert!(others.is_empty(), "other markers:\n{}", others.join("\n"));
}

#[track_caller]
fn refused(part: &str, bodies: &[&str]) {
    for body in bodies {
        match marked(body) {
            Ok(block) => panic!("{body}: {}", block.to_token_stream()),
            Err(message) => assert!(message.contains(part), "{body}: {message}"),
        }
    }
}

#[test]
fn a_marker_stands_ahead_of_the_innermost_statement_with_an_obstacle() {
    all(&[
        "Y; M; hit(out);",
        "Y; M; hit(out)",
        "Y; let v = x[0]; M; let w = hit(out); more.write(0, v);",
        "Y; unsafe { M; hit(out); }",
        "Y; unsafe { let v = x[0]; { M; hit(out) } }",
        "Y; { { M; hit(out); } more.write(0, 1.0); }",
        "Y; if n > 3 { M; hit(out); } more.write(0, 1.0);",
        "Y; if n > 3 { more.write(0, 1.0); } else { M; hit(out); }",
        "Y; if n > 3 { M; hit(out); } else if n > 2 { M; hit(out); } else { more.write(0, 1.0); }",
        "Y; if n > 3 { return; } M; hit(out);",
        "Y; match n { 0 => { M; hit(out); } _ => more.write(0, 1.0) }",
        "Y; for i in 0..n { more.write(0, 1.0); M; hit(out); }",
        "for i in 0..n { Y; more.write(0, 1.0); } M; hit(out);",
        "for i in 0..n { Y; if i == 7 { M; hit(out); } }",
        "Y; loop { if n > 3 { break; } M; hit(out); }",
        "Y; while n > 3 { M; hit(out); continue; }",
        "'a: for i in 0..n { Y; for j in 0..i { if j > 3 { continue 'a; } M; hit(out); } }",
        "'a: { Y; if n > 3 { break 'a; } M; hit(out); } more.write(0, 1.0);",
        "let Some(v) = x.first() else { Y; M; hit(out); return }; Y; more.write(0, *v);",
        "let v = if n > 3 { Y; M; hit(out); 1.0 } else { 2.0 }; more.write(0, v);",
        "Y; let v = { M; hit(out); 1.0 }; M; hit(out);",
        "Y; more.write({ M; hit(out); 0 }, x[0]);",
        "Y; n > 3 && { M; hit(out); true };",
        "Y; n > 3 || { M; hit(out); true } || { more.write(0, 1.0); false };",
        "Y; if n > 3 && { M; hit(out); true } { more.write(0, 1.0); }",
        "Y; while { M; hit(out); n > 3 } {}",
        "Y; for i in { M; hit(out); 0..n } {}",
        "Y; match { M; hit(out); n } { k if { M; hit(out); k > 3 } => { M; hit(out); } _ => {} }",
        "Y; let v = [{ M; hit(out); 1.0 }; 2]; more.write(0, v[0]);",
    ]);
}

#[test]
fn a_marker_stands_ahead_of_the_whole_statement_where_a_thread_cannot_return_closer_to_the_obstacle()
 {
    all(&[
        "Y; M; match n { 0 => hit(out), _ => more.write(0, 1.0) };",
        "Y; M; while hit(out) {}",
        "Y; M; if hit(out) { more.write(0, 1.0); }",
        "Y; M; if n > 3 { more.write(0, 1.0); } else if hit(out) {}",
        "Y; M; for i in 0..hit(out) {}",
        "Y; M; n > 3 && hit(out);",
        "Y; M; let f = || hit(out); if n > 3 { f(); }",
        "Y; M; let f = || { more.write(0, 1.0); { hit(out); } }; f();",
        "Y; M; x.iter().for_each(|v| { hit(out); });",
        "Y; if n > 3 { M; let f = || { hit(out); }; f(); }",
        "Y; M; assert!(hit(out));",
        "Y; M; assert!({ hit(out); true }, \"{}\", { hit(out); 3 });",
        "Y; M; if let ref mut v = *p { more.write(0, 1.0); }",
        "Y; more.write(0, { M; let f = || { hit(out); }; 1.0 });",
    ]);
}

#[test]
fn each_obstacle_has_its_marker() {
    all(&[
        "Y; let v = out.read(0); M; out.write(0, v); M; out.write(1, v);",
        "Y; M; out.write(0, 1.0); Y; let v = out.read(0);",
        "for i in 0..n { Y; let v = x[0]; M; *p += v; } M; *p.add(1) = 3.0;",
        "Y; if let Some(own) = own.own() { let v = own.get(); M; own.set(v); }",
        "Y; M; AtomicU32::from_ptr(out.as_mut_ptr().cast()).fetch_add(1, Relaxed);",
        "for i in 0..n { Y; if i > 3 { M; AtomicU32::from_ptr(p.cast()).fetch_add(1, Relaxed); } else { M; hit(out); } }",
        "Y; M; let r = &mut *p; *r = 1.0;",
        "for i in 0..n { Y; } let q = p; M; *q = *q.add(1);",
        // An obstacle ahead of some of the yield points alone.
        "for i in 0..n { Y; } M; hit(out); for i in 0..n { Y; more.write(0, 1.0); }",
    ]);
}

#[test]
fn where_the_block_decides_together_what_follows_the_last_yield_point_needs_no_marker() {
    all(&[
        "for i in 0..n { S; Y; M; *p += 1.0; }",
        "for i in 0..n { S; Y; } M; hit(out); S; Y; late(more);",
        "for i in 0..n { S; Y; } late(out);",
        "for i in 0..n { S; Y; for j in 0..4 { M; hit(out); } } late(out);",
        "S; Y; if x[0] > 3.0 { M; hit(out); } S; Y; *p += 1.0;",
    ]);
}

/// Bodies of random shape.
struct Shapes(u64);

impl Shapes {
    /// A number below `bound`.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn statements(&mut self, depth: u32) -> String {
        (0..=self.below(3)).map(|_| self.statement(depth) + " ").collect()
    }

    fn statement(&mut self, depth: u32) -> String {
        if depth == 0 {
            return ["hit(out);", "more.write(0, 1.0);", "let v = x[0];"][self.below(3) as usize]
                .to_owned();
        }
        let (kind, depth) = (self.below(16), depth - 1);
        let mut inner = || self.statements(depth);
        match kind {
            0 => format!("if n > 3 {{ {} }}", inner()),
            1 => format!("if n > 3 {{ {} }} else {{ {} }}", inner(), inner()),
            2 => format!(
                "if n > 3 && {{ {} true }} {{ {} }} else if n > 2 {{ {} }}",
                inner(),
                inner(),
                inner()
            ),
            3 => format!("match n {{ 0 => {{ {} }} 1 => {{ {} }} _ => {{}} }}", inner(), inner()),
            4 => format!("match {{ {} n }} {{ 0 => hit(out), _ => {{ {} }} }};", inner(), inner()),
            5 => format!("for i in 0..n {{ yield_point!(); {} }}", inner()),
            6 => format!("while {{ {} n > 3 }} {{ {} continue; }}", inner(), inner()),
            7 => format!("loop {{ {} if n > 3 {{ break; }} {} }}", inner(), inner()),
            8 => format!("let f = |w: u32| {{ {} }}; if n > 3 {{ f(1); }}", inner()),
            9 => format!("'a: {{ {} if n > 3 {{ break 'a; }} {} }}", inner(), inner()),
            10 => format!("n > 3 || {{ {} false }};", inner()),
            11 => format!("assert!({{ {} true }});", inner()),
            12 => format!("let Some(v) = x.first() else {{ {} return }};", inner()),
            13 => format!("let v = {{ {} 1.0 }};", inner()),
            14 => format!("unsafe {{ {} }}", inner()),
            _ => format!("x.iter().for_each(|v| {{ {} }});", inner()),
        }
    }
}

#[test]
fn a_marker_is_on_every_way_to_an_obstacle_in_bodies_of_random_shape() {
    let mut shapes = Shapes(1);
    let bodies = (0..400).map(|_| format!("yield_point!(); {}", shapes.statements(3)));
    // `marked` looks at the ways.
    let is_marked = bodies.filter(|body| marked(body).is_ok_and(|block| contains_marker(&block)));
    let count = is_marked.count();
    assert!(count > 200, "{count} bodies have markers");
}

fn contains_marker(block: &Block) -> bool {
    block.to_token_stream().to_string().contains(MARKER)
}

#[test]
fn an_obstacle_without_a_yield_point_ahead_of_it_is_refused() {
    refused(
        "no yield point is ahead of that; put one there",
        &[
            "hit(out); Y;",
            "*p += 1.0; Y; hit(out);",
            "let f = || hit(out); Y; f();",
            "for i in 0..n { *p += 1.0; Y; }",
            "let r = &mut *p; Y; *r += 1.0;",
        ],
    );
}

#[test]
fn an_obstacle_where_no_marker_can_stand_is_refused() {
    refused(
        "but not from here on. If it gives the same result",
        &["Y; fn f(q: *const f32) { let w = q as *mut f32; } f(x.as_ptr());"],
    );
    refused(
        "may give another result",
        &[
            "Y; { fn f() { hit(out); } f(); }",
            "Y; M_of_the_users!(hit(out));",
            "Y; async { hit(out) };",
            "Y; #[cfg(feature = \"hits\")] hit(out);",
            "Y; hit(out); clock();",
        ],
    );
}
