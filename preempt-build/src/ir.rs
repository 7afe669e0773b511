//! What is changed in a kernels crate's LLVM IR, by its text: what no flag of the compiler does, or of some releases only.

use preempt_device::abi::Cohort;

/// The function in each entry that holds the kernel's body, as symbols of the compiler's mangling end.
const BODY: &str = "14___preempt_body";

/// IR from the compiler, ready to be optimised.
pub(super) fn prepared(ir: &str) -> String {
    params_in_memory(&without_mutable_noalias(ir))
}

/// Takes `noalias` from what was `&mut`. With it LLVM keeps what a `&mut` points to in registers across barriers, where
/// other threads write it. What stays is that of `&`, and of a function's result that its caller makes room for.
fn without_mutable_noalias(ir: &str) -> String {
    const ATTRIBUTE: &str = "noalias ";
    const KEPT: [&str; 4] = ["readonly", "readnone", "sret", "byval"];
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ' ';
    let mut out = String::with_capacity(ir.len());
    let mut rest = ir;
    while let Some(at) = rest.find(ATTRIBUTE) {
        let (before, after) = (&rest[..at], &rest[at + ATTRIBUTE.len()..]);
        // The other attributes without arguments stand around it: `ptr noalias noundef align 4 dereferenceable(4) %x`.
        let start = before.rfind(|c| !is_word(c)).map_or(0, |at| at + 1);
        let end = after.find(|c| !is_word(c)).unwrap_or(after.len());
        let mut words = before[start..].split(' ').chain(after[..end].split(' '));
        // Quotes within a string are written as numbers.
        let at = ir.len() - after.len();
        let line = ir[..at].rfind('\n').map_or(0, |at| at + 1);
        let is_quoted = ir[line..at].matches('"').count() % 2 == 1;
        let is_param = !is_quoted && before[start..].trim_start().starts_with("ptr ");
        out.push_str(before);
        if !is_param || words.any(|word| KEPT.contains(&word)) {
            out.push_str(ATTRIBUTE);
        }
        rest = after;
    }
    out + rest
}

/// Has entries take structs and arrays where they are, in constant memory. The compiler takes them as values, and copies
/// them to the stack: a loop around the body keeps the assembler from seeing through that, so that each read at an index
/// is one of local memory. The parameter of the worker loop stays a value, since all its reads are at known places.
fn params_in_memory(ir: &str) -> String {
    let mut out = String::with_capacity(ir.len());
    let mut in_memory: Vec<Value> = Vec::new();
    for line in ir.lines() {
        if line.starts_with("define ptx_kernel ") {
            in_memory.clear();
            out.push_str(&with_pointers(line, &mut in_memory));
        } else if let Some(copy) = stored(line).and_then(|(value, to)| {
            let known = in_memory.iter().find(|known| known.name == value.name)?;
            Some(known.copied_to(&to))
        }) {
            out.push_str(&copy);
        } else {
            out.push_str(line);
        }
        out.push('\n');
        if line == "}" {
            in_memory.clear();
        }
    }
    out
}

/// A value of `count` integers of `bits` bits, as `[count x ibits] %name` in the IR.
#[derive(Clone, Copy)]
struct Value<'a> {
    count: usize,
    bits: usize,
    name: &'a str,
}

impl<'a> Value<'a> {
    /// The value that `text` starts with.
    fn parse(text: &'a str) -> Option<Value<'a>> {
        let (count, rest) = text.strip_prefix('[')?.split_once(" x i")?;
        let (bits, rest) = rest.split_once("] ")?;
        let end = rest.find([',', ')']).unwrap_or(rest.len());
        let name = Some(&rest[..end]).filter(|name| name.starts_with('%'))?;
        Some(Value { count: count.parse().ok()?, bits: bits.parse().ok()?, name })
    }

    fn bytes(self) -> usize {
        self.count * self.bits / 8
    }

    fn pointer(self) -> String {
        let Value { count, bits, name } = self;
        format!("ptr noalias readonly byval([{count} x i{bits}]) align {} {name}", bits / 8)
    }

    /// `to` is a pointer with its alignment, `ptr %to, align 8`.
    fn copied_to(self, to: &str) -> String {
        let (place, align) = to.split_once(", ").unwrap_or((to, "align 1"));
        let place = place.strip_prefix("ptr ").unwrap_or(place);
        let (from, own, bytes) = (self.name, self.bits / 8, self.bytes());
        format!(
            "  call void @llvm.memcpy.p0.p0.i64(ptr {align} {place}, ptr align {own} {from}, i64 {bytes}, i1 false)"
        )
    }
}

/// The head of an entry with pointers in the place of its values, which are added to `in_memory`.
fn with_pointers<'a>(head: &'a str, in_memory: &mut Vec<Value<'a>>) -> String {
    let mut out = String::with_capacity(head.len());
    let mut rest = head;
    while let Some(at) = rest.find('[') {
        let (before, text) = rest.split_at(at);
        out.push_str(before);
        let is_first = before.ends_with('(');
        rest = match Value::parse(text) {
            Some(value) if !(is_first && value.bytes() == size_of::<Cohort>()) => {
                in_memory.push(value);
                out.push_str(&value.pointer());
                &text[text.find(value.name).map_or(1, |at| at + value.name.len())..]
            }
            _ => {
                out.push('[');
                &text[1..]
            }
        };
    }
    out + rest
}

/// What a line stores, if that is such a value, and where.
fn stored(line: &str) -> Option<(Value<'_>, String)> {
    let text = line.trim_start().strip_prefix("store ")?;
    let value = Value::parse(text)?;
    let (_, to) = text.split_once(", ")?;
    Some((value, to.to_owned()))
}

/// Has the bodies, which were optimised on their own, inlined into their entries whatever that costs: only there are the
/// registers of the task's indices.
///
/// On their own, since LLVM unrolls loops and takes arrays apart in a small function that it leaves in memory where they
/// are a part of the worker loop.
pub(super) fn with_bodies_inlined(ir: &str) -> String {
    let groups: Vec<(&str, &str)> = ir
        .lines()
        .filter_map(|line| line.strip_prefix("attributes #")?.split_once(" = "))
        .collect();
    let mut out = String::with_capacity(ir.len());
    let mut used = Vec::new();
    for line in ir.lines() {
        match line.contains(BODY).then(|| group_of_body(line, &groups)).flatten() {
            Some((at, group)) => {
                let number = &line[at..at + group.len()];
                out.push_str(&line[..at]);
                out.push_str(INLINED);
                out.push_str(number);
                out.push_str(&line[at + group.len()..]);
                used.push(group);
            }
            None => out.push_str(line),
        }
        out.push('\n');
    }
    used.sort_unstable();
    used.dedup();
    for (number, attributes) in groups.iter().filter(|(number, _)| used.contains(number)) {
        let attributes = attributes.replace("noinline", "alwaysinline");
        out.push_str(&format!("attributes #{INLINED}{number} = {attributes}\n"));
    }
    out
}

/// Precedes the number of a group of attributes in that of its copy; higher than any number of the compiler's.
const INLINED: &str = "9000";

/// Where in the line of a body's definition or call the number of its attributes is, if those keep it from being inlined.
fn group_of_body<'a>(line: &str, groups: &[(&'a str, &str)]) -> Option<(usize, &'a str)> {
    let name = line.find('@').map(|at| &line[at + 1..])?;
    let name = &name[..name.find('(')?];
    let (_, suffix) = name.split_once(BODY)?;
    // Copies that LLVM makes have a suffix; closures in the body have names that go on.
    if !suffix.is_empty() && !suffix.starts_with('.') {
        return None;
    }
    let at = line.rfind(" #")? + 2;
    let end = line[at..].find(|c: char| !c.is_ascii_digit()).map_or(line.len(), |len| at + len);
    let (number, attributes) = groups.iter().find(|(number, _)| *number == &line[at..end])?;
    attributes.contains("noinline").then_some((at, *number))
}

#[cfg(test)]
mod tests;
