//! What a PTX file consists of.

use std::fmt;

/// A PTX file that was read. Displayed, it is the text that was read, byte for byte.
#[derive(Clone, Debug)]
pub struct Module<'a> {
    pub(crate) text: &'a str,
    pub(crate) items: Vec<Item<'a>>,
}

impl<'a> Module<'a> {
    /// The version of PTX that the file is written in, major and minor.
    pub fn version(&self) -> (u32, u32) {
        let word = self.directive(".version").unwrap_or_default();
        let (major, minor) = word.split_once('.').unwrap_or((word, "0"));
        (major.parse().unwrap_or(0), minor.parse().unwrap_or(0))
    }

    /// The GPU that the file is for, such as `sm_90a`.
    pub fn target(&self) -> &'a str {
        self.directive(".target").unwrap_or_default()
    }

    /// The number of the target, 90 of `sm_90a`.
    pub(crate) fn architecture(&self) -> Option<u32> {
        let digits = self.target().strip_prefix("sm_")?;
        digits.trim_end_matches(|c: char| c.is_ascii_lowercase()).parse().ok()
    }

    pub(crate) fn address_bits(&self) -> Option<&'a str> {
        self.directive(".address_size")
    }

    pub(crate) fn directive(&self, name: &str) -> Option<&'a str> {
        self.items.iter().find_map(|item| match &item.kind {
            ItemKind::Directive { name: of, arguments } if *of == name => {
                arguments.first().copied()
            }
            _ => None,
        })
    }

    /// The names of the entries, in the order of the file.
    pub fn entries(&self) -> impl Iterator<Item = &'a str> {
        self.functions().filter(|f| f.is_entry && f.body.is_some()).map(|f| f.name)
    }

    pub(crate) fn functions(&self) -> impl Iterator<Item = &FunctionItem<'a>> {
        self.items.iter().filter_map(|item| match &item.kind {
            ItemKind::Function(function) => Some(function),
            _ => None,
        })
    }

    pub(crate) fn variables(&self) -> impl Iterator<Item = &Declaration<'a>> {
        self.items.iter().filter_map(|item| match &item.kind {
            ItemKind::Variable(variable) => Some(variable),
            _ => None,
        })
    }

    /// Where in the text a byte is.
    pub(crate) fn place(&self, at: usize) -> Place {
        Place::of(self.text, at)
    }

    /// Where a piece of the text starts in it.
    pub(crate) fn offset(&self, piece: &str) -> usize {
        piece.as_ptr() as usize - self.text.as_ptr() as usize
    }

    /// The pieces that the tree consists of, in the order of the text. Between two of them there are but blanks and comments.
    pub(crate) fn leaves(&self) -> Vec<&'a str> {
        let piece = |span: &Span| &self.text[span.start..span.end];
        let mut leaves = Vec::new();
        for item in &self.items {
            match &item.kind {
                ItemKind::Function(FunctionItem { body: Some(body), .. }) => {
                    leaves.push(&self.text[item.span.start..body.start]);
                    leaves.extend(body.statements.iter().map(|s| piece(&s.span)));
                }
                _ => leaves.push(piece(&item.span)),
            }
        }
        leaves
    }
}

impl fmt::Display for Module<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Each leaf with what is in front of it, so that a part of the text that the tree lacks would be missing.
        let mut at = 0;
        for leaf in self.leaves() {
            let start = self.offset(leaf);
            f.write_str(&self.text[at..start])?;
            f.write_str(leaf)?;
            at = start + leaf.len();
        }
        f.write_str(&self.text[at..])
    }
}

/// A place in a PTX file, both counted from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// Lines from the start of the file.
    pub line: usize,
    /// Characters from the start of the line.
    pub column: usize,
}

impl Place {
    pub(crate) fn of(text: &str, at: usize) -> Place {
        let before = &text.as_bytes()[..at.min(text.len())];
        let line_start = before.iter().rposition(|&c| c == b'\n').map_or(0, |at| at + 1);
        let line = 1 + before.iter().filter(|&&c| c == b'\n').count();
        let column = 1 + String::from_utf8_lossy(&before[line_start..]).chars().count();
        Place { line, column }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}, column {}", self.line, self.column)
    }
}

/// From a byte of the text to before another one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub start: usize,
    pub end: usize,
}

#[derive(Clone, Debug)]
pub(crate) struct Item<'a> {
    pub span: Span,
    pub kind: ItemKind<'a>,
}

#[derive(Clone, Debug)]
pub(crate) enum ItemKind<'a> {
    /// `.version`, `.target`, `.file` and others, with the words and numbers that follow.
    Directive {
        name: &'a str,
        arguments: Vec<&'a str>,
    },
    Variable(Declaration<'a>),
    Function(FunctionItem<'a>),
    /// Debug information.
    Section,
}

/// An entry or a function, with or without a body.
#[derive(Clone, Debug)]
pub(crate) struct FunctionItem<'a> {
    pub is_entry: bool,
    pub name: &'a str,
    /// Where the name is.
    pub at: usize,
    pub returns: Vec<Declaration<'a>>,
    pub parameters: Vec<Declaration<'a>>,
    /// What follows the parameters: `.maxntid` with its numbers, and so on.
    pub directives: Vec<(&'a str, Vec<&'a str>)>,
    pub body: Option<Body<'a>>,
}

/// One declaration: of a parameter, of variables of a state space, or of registers.
#[derive(Clone, Debug)]
pub(crate) struct Declaration<'a> {
    pub is_extern: bool,
    /// `.reg`, `.param`, `.shared`, ..
    pub space: &'a str,
    /// `.b32`, `.pred`, ..
    pub ty: &'a str,
    /// Elements of a vector type.
    pub vector: u64,
    /// Bytes, if it is said.
    pub align: Option<u64>,
    pub names: Vec<Declared<'a>>,
}

#[derive(Clone, Debug)]
pub(crate) struct Declared<'a> {
    pub name: &'a str,
    /// Of `%r<9>`: registers `%r0` to `%r8`.
    pub count: Option<u64>,
    /// Elements of an array; `None` if it is none. An array whose size is open has 0.
    pub elements: Option<u64>,
}

impl Declaration<'_> {
    /// Bytes of one element; `None` for types that have no size, such as `.texref`.
    pub fn element_bytes(&self) -> Option<u64> {
        let digits = self.ty.trim_start_matches(|c: char| !c.is_ascii_digit());
        let bits: u64 = match self.ty {
            ".f16x2" | ".bf16x2" => 32,
            ".pred" | ".texref" | ".samplerref" | ".surfref" => return None,
            _ => digits.parse().ok()?,
        };
        (bits / 8).checked_mul(self.vector)
    }

    /// Bytes of all that is declared.
    pub fn bytes(&self) -> Option<u64> {
        let one = self.element_bytes()?;
        self.names.iter().try_fold(0u64, |sum, name| {
            sum.checked_add(one.checked_mul(name.elements.unwrap_or(1))?)
        })
    }

    /// Bytes that its address is a multiple of.
    pub fn alignment(&self) -> u64 {
        self.align.or_else(|| self.element_bytes()).unwrap_or(1).max(1)
    }
}

/// What is between the braces of a function, with the braces.
#[derive(Clone, Debug)]
pub(crate) struct Body<'a> {
    /// Where the first brace is.
    pub start: usize,
    /// In the order of the text, those of inner scopes too. The braces are the first and the last.
    pub statements: Vec<Statement<'a>>,
    /// The scope around each scope. The first is the body's own, around which there is none.
    pub scopes: Vec<Option<usize>>,
}

impl Body<'_> {
    /// Where the text behind the last brace starts.
    pub fn end(&self) -> usize {
        self.statements.last().map_or(self.start, |brace| brace.span.end)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Statement<'a> {
    pub span: Span,
    /// Index of the scope that it is in; of the scope itself for its braces.
    pub scope: usize,
    pub kind: StatementKind<'a>,
}

#[derive(Clone, Debug)]
pub(crate) enum StatementKind<'a> {
    Open,
    Close,
    Label(&'a str),
    Declaration(Declaration<'a>),
    /// `.pragma`, `.loc`, ..
    Directive,
    /// Labels that an indexed branch can go to, by the name of the list.
    BranchTargets {
        name: &'a str,
        labels: Vec<&'a str>,
    },
    /// `.callprototype` or `.calltargets`.
    CallTargets,
    Instruction(Instruction<'a>),
}

#[derive(Clone, Debug)]
pub(crate) struct Instruction<'a> {
    pub guard: Option<Guard<'a>>,
    /// With its modifiers.
    pub opcode: &'a str,
    pub operands: Vec<Operand<'a>>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Guard<'a> {
    pub is_negated: bool,
    pub register: &'a str,
}

#[derive(Clone, Debug)]
pub(crate) struct Operand<'a> {
    pub kind: OperandKind,
    pub text: &'a str,
    /// Registers and symbols in it, in the order of the text.
    pub names: Vec<&'a str>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum OperandKind {
    /// A register, a symbol or a number, perhaps with a sign or negated, or two destinations (`%r1|%p1`).
    Plain,
    /// `{%r1, %r2}`
    Vector,
    /// `[%rd1+8]`
    Address,
    /// `(retval0)`, of a call.
    List,
}

impl<'a> Instruction<'a> {
    /// Whether it names, as its last operand, the lanes of the warp that wait in it for each other.
    pub fn has_member_mask(&self) -> bool {
        let masked = ["shfl", "vote", "match", "redux", "elect", "bar"];
        masked.contains(&self.root())
            && self.has("sync")
            && (self.root() != "bar" || self.has("warp"))
    }

    /// The operation, without modifiers.
    pub fn root(&self) -> &'a str {
        self.opcode.split('.').next().unwrap_or_default()
    }

    /// Whether the operation has the modifier, which comes without its point.
    pub fn has(&self, modifier: &str) -> bool {
        self.opcode.split('.').skip(1).any(|of| of == modifier)
    }

    pub fn has_any(&self, modifiers: &[&str]) -> bool {
        modifiers.iter().any(|modifier| self.has(modifier))
    }

    pub fn operand(&self, at: usize) -> Option<&Operand<'a>> {
        self.operands.get(at)
    }
}

impl<'a> Operand<'a> {
    /// The register or symbol that it is, if it is just that.
    pub fn name(&self) -> Option<&'a str> {
        self.names.first().copied().filter(|&name| name == self.text)
    }

    /// The integer that it is.
    pub fn integer(&self) -> Option<i64> {
        let (sign, digits) = match self.text.strip_prefix('-') {
            Some(digits) => (-1, digits.trim_start()),
            None => (1, self.text),
        };
        let digits = digits.trim_end_matches(['u', 'U']);
        let number = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
            Some(hex) => u64::from_str_radix(hex, 16).ok()? as i64,
            None if digits.starts_with('0') && digits.len() > 1 => {
                i64::from_str_radix(digits, 8).ok()?
            }
            None => digits.parse::<u64>().ok()? as i64,
        };
        Some(number.wrapping_mul(sign))
    }
}
