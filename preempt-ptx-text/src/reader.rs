//! Reads PTX without a loss: what is known becomes a tree, and what is not is refused.

use std::collections::HashSet;

use thiserror::Error;

use super::lex::{Kind, Token, Tokens};
use super::tree::{Body, Declaration, Declared, FunctionItem, Item, ItemKind, Module, Place, Span};

mod statements;

/// Scopes within scopes of a function, and brackets within brackets of an operand. Compilers stay below 10.
const DEPTH_LIMIT: usize = 64;

/// Text that is not PTX as it is known here.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
#[error("the PTX is not understood at {place}: {what}; {cure}")]
pub struct PtxError {
    /// Where in the text.
    pub place: Place,
    /// What is there.
    pub what: String,
    /// What to do about it.
    pub cure: &'static str,
}

const CURE_COMPILER: &str = "give the text as the compiler wrote it, whole";
const CURE_UNKNOWN: &str =
    "if it is valid PTX, compile for an older version of it, or run the kernel without preemption";

const CURE_NAMES: &str = "give it a name of its own";

/// Reads the text of a PTX file.
///
/// Directives, declarations and the form of statements must be known; operations need not be. That takes time in
/// proportion to the length of the text, whatever it is.
///
/// ```
/// let module = preempt_ptx_text::read(".version 8.0\n.target sm_90\n.address_size 64\n.entry k() { ret; }")?;
/// assert_eq!(module.entries().collect::<Vec<_>>(), ["k"]);
/// # Ok::<(), preempt_ptx_text::PtxError>(())
/// ```
///
/// # Errors
///
/// [`PtxError`] names the first place that is not understood.
pub fn read(text: &str) -> Result<Module<'_>, PtxError> {
    let tokens = Tokens::of(text).filter(|token| token.kind != Kind::Blank).collect();
    let mut reader = Reader { text, tokens, at: 0 };
    let mut items = Vec::new();
    while reader.at < reader.tokens.len() {
        let start = reader.tokens[reader.at].start;
        let kind = reader.item()?;
        items.push(Item { span: Span { start, end: reader.end() }, kind });
    }
    let is_version = |item: &&Item<'_>| matches!(item.kind, ItemKind::Directive { name, .. } if name == ".version");
    if items.iter().find(is_version).is_none() {
        let what = "there is no .version".to_owned();
        return Err(PtxError { place: Place::of(text, 0), what, cure: CURE_COMPILER });
    }
    let module = Module { text, items };
    match hidden_name(&module) {
        Some(name) => {
            let what = format!("`{name}` names something of a function and something outside");
            let at = name.as_ptr().addr() - text.as_ptr().addr();
            Err(PtxError { place: Place::of(text, at), what, cure: CURE_NAMES })
        }
        None => Ok(module),
    }
}

/// A name of something outside of functions that a parameter has, too, or that may be a register's: a copy of a function may mean
/// the other one, and the assembler itself can fail over it.
fn hidden_name<'a>(module: &Module<'a>) -> Option<&'a str> {
    let functions = module.functions().map(|function| function.name);
    let variables = module.variables().flat_map(|variable| &variable.names).map(|of| of.name);
    let outside: HashSet<_> = functions.chain(variables).collect();
    let defined = module.functions().filter(|function| function.body.is_some());
    let parameters =
        defined.flat_map(|function| function.returns.iter().chain(&function.parameters));
    let mut names = parameters.flat_map(|parameter| &parameter.names).map(|of| of.name);
    let hidden = names.find(|name| outside.contains(name));
    hidden.or(outside.into_iter().filter(|name| name.starts_with('%')).min())
}

struct Reader<'a> {
    text: &'a str,
    /// Without blanks.
    tokens: Vec<Token<'a>>,
    at: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).copied()
    }

    fn ahead(&self, by: usize) -> Option<Token<'a>> {
        self.tokens.get(self.at + by).copied()
    }

    fn next(&mut self) -> Result<Token<'a>, PtxError> {
        let token = self.peek().ok_or_else(|| self.ended())?;
        self.at += 1;
        Ok(token)
    }

    /// Where the last token ends.
    fn end(&self) -> usize {
        self.at.checked_sub(1).map_or(0, |last| self.tokens[last].end())
    }

    fn ended(&self) -> PtxError {
        let what = "the text ends inside a statement".to_owned();
        PtxError { place: Place::of(self.text, self.text.len()), what, cure: CURE_COMPILER }
    }

    fn refuse(&self, token: Token<'_>, expected: &str, cure: &'static str) -> PtxError {
        const SHOWN: usize = 40;
        let shown: String = token.text.chars().take(SHOWN).collect();
        let what = match token.kind {
            Kind::Unended => "a comment or a quotation does not end".to_owned(),
            _ => format!("`{shown}` stands where {expected} is expected"),
        };
        PtxError { place: Place::of(self.text, token.start), what, cure }
    }

    fn is(&self, mark: char) -> bool {
        self.peek().is_some_and(|token| token.is(mark))
    }

    /// Takes the mark if it is next.
    fn take(&mut self, mark: char) -> bool {
        let is_next = self.is(mark);
        self.at += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, mark: char) -> Result<(), PtxError> {
        let token = self.next()?;
        match token.is(mark) {
            true => Ok(()),
            false => Err(self.refuse(token, &format!("`{mark}`"), CURE_COMPILER)),
        }
    }

    fn name(&mut self) -> Result<Token<'a>, PtxError> {
        let token = self.next()?;
        match token.kind == Kind::Word && !token.text.starts_with('.') {
            true => Ok(token),
            false => Err(self.refuse(token, "a name", CURE_COMPILER)),
        }
    }

    fn number(&mut self) -> Result<u64, PtxError> {
        let token = self.next()?;
        let digits = token.text.trim_end_matches(['u', 'U']);
        let number = match digits.strip_prefix("0x").or(digits.strip_prefix("0X")) {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => digits.parse().ok(),
        };
        let number = number.filter(|_| token.kind == Kind::Number);
        number.ok_or_else(|| self.refuse(token, "a number", CURE_COMPILER))
    }

    /// Goes on to behind the `;` and gives the words and numbers before it.
    fn through_semicolon(&mut self) -> Result<Vec<&'a str>, PtxError> {
        let mut words = Vec::new();
        loop {
            let token = self.next()?;
            match token.kind {
                Kind::Mark(';') => return Ok(words),
                Kind::Mark('{' | '}') | Kind::Unended => {
                    return Err(self.refuse(token, "`;`", CURE_COMPILER));
                }
                Kind::Word | Kind::Number => words.push(token.text),
                _ => {}
            }
        }
    }

    /// Goes on to the end of the line that the last token is on.
    fn through_line(&mut self) -> Vec<&'a str> {
        let from = self.end();
        let end = self.text[from..].find('\n').map_or(self.text.len(), |at| from + at);
        let mut words = Vec::new();
        while let Some(token) = self.peek().filter(|token| token.start < end) {
            words.push(token.text);
            self.at += 1;
        }
        words
    }

    /// Takes what is between a brace, which is next, and the one that closes it.
    fn braced(&mut self) -> Result<(), PtxError> {
        self.expect('{')?;
        let mut depth = 1usize;
        while depth > 0 {
            let token = self.next()?;
            match token.kind {
                Kind::Mark('{') => depth += 1,
                Kind::Mark('}') => depth -= 1,
                Kind::Unended => return Err(self.refuse(token, "`}`", CURE_COMPILER)),
                _ => {}
            }
        }
        Ok(())
    }

    fn item(&mut self) -> Result<ItemKind<'a>, PtxError> {
        let token = self.next()?;
        if token.kind != Kind::Word {
            return Err(self.refuse(token, "a directive", CURE_COMPILER));
        }
        match token.text {
            ".version" | ".address_size" => {
                let number = self.next()?;
                if number.kind != Kind::Number {
                    return Err(self.refuse(number, "a number", CURE_COMPILER));
                }
                Ok(ItemKind::Directive { name: token.text, arguments: vec![number.text] })
            }
            ".target" => {
                let mut arguments = vec![self.name()?.text];
                while self.take(',') {
                    arguments.push(self.name()?.text);
                }
                Ok(ItemKind::Directive { name: token.text, arguments })
            }
            ".file" | ".loc" => {
                let arguments = self.through_line();
                Ok(ItemKind::Directive { name: token.text, arguments })
            }
            ".pragma" | ".alias" => {
                let arguments = self.through_semicolon()?;
                Ok(ItemKind::Directive { name: token.text, arguments })
            }
            ".section" => {
                self.next()?;
                self.braced()?;
                Ok(ItemKind::Section)
            }
            _ => {
                self.at -= 1;
                self.function_or_variable()
            }
        }
    }

    fn function_or_variable(&mut self) -> Result<ItemKind<'a>, PtxError> {
        let mut is_extern = false;
        loop {
            let token = self.next()?;
            match token.text {
                ".extern" => is_extern = true,
                ".visible" | ".weak" | ".common" => {}
                ".entry" => return self.function(true),
                ".func" => return self.function(false),
                ".global" | ".const" | ".shared" | ".tex" => {
                    self.at -= 1;
                    let mut declaration = self.declaration()?;
                    declaration.is_extern = is_extern;
                    self.expect(';')?;
                    return Ok(ItemKind::Variable(declaration));
                }
                _ => return Err(self.refuse(token, "a directive of a module", CURE_UNKNOWN)),
            }
        }
    }

    fn function(&mut self, is_entry: bool) -> Result<ItemKind<'a>, PtxError> {
        let mut directives = Vec::new();
        if self.peek().is_some_and(|token| token.text == ".attribute") {
            self.at += 1;
            directives.push((".attribute", self.in_parentheses()?));
        }
        let returns = match self.is('(') {
            true => self.parameters()?,
            false => Vec::new(),
        };
        let name = self.name()?;
        let parameters = match self.is('(') {
            true => self.parameters()?,
            false => Vec::new(),
        };
        let body = loop {
            let token = self.next()?;
            match (token.kind, token.text) {
                (Kind::Mark(';'), _) => break None,
                (Kind::Mark('{'), _) => {
                    self.at -= 1;
                    break Some(self.body()?);
                }
                (_, ".pragma") => {
                    self.through_semicolon()?;
                }
                (_, ".attribute") => directives.push((".attribute", self.in_parentheses()?)),
                (
                    _,
                    ".maxntid"
                    | ".reqntid"
                    | ".minnctapersm"
                    | ".maxnctapersm"
                    | ".maxnreg"
                    | ".noreturn"
                    | ".maxclusterrank"
                    | ".reqnctapercluster"
                    | ".explicitcluster"
                    | ".blocksareclusters"
                    | ".unique"
                    | ".abi_preserve"
                    | ".abi_preserve_control",
                ) => {
                    let mut numbers = Vec::new();
                    while let Some(number) = self.peek().filter(|t| t.kind == Kind::Number) {
                        numbers.push(number.text);
                        self.at += 1;
                        // With a comma or without one.
                        self.take(',');
                    }
                    directives.push((token.text, numbers));
                }
                (_, ".loc" | ".file") => {
                    self.through_line();
                }
                _ => return Err(self.refuse(token, "a directive of a function", CURE_UNKNOWN)),
            }
        };
        let (at, name) = (name.start, name.text);
        let function = FunctionItem { is_entry, name, at, returns, parameters, directives, body };
        Ok(ItemKind::Function(function))
    }

    fn in_parentheses(&mut self) -> Result<Vec<&'a str>, PtxError> {
        self.expect('(')?;
        let mut words = Vec::new();
        let mut depth = 1usize;
        while depth > 0 {
            let token = self.next()?;
            match token.kind {
                Kind::Mark('(') => depth += 1,
                Kind::Mark(')') => depth -= 1,
                Kind::Word | Kind::Number | Kind::Mark(',') => words.push(token.text),
                _ => return Err(self.refuse(token, "`)`", CURE_COMPILER)),
            }
        }
        Ok(words)
    }

    fn parameters(&mut self) -> Result<Vec<Declaration<'a>>, PtxError> {
        self.expect('(')?;
        let mut parameters = Vec::new();
        while !self.take(')') {
            if !parameters.is_empty() {
                self.expect(',')?;
            }
            parameters.push(self.declared(false)?);
        }
        Ok(parameters)
    }

    fn declaration(&mut self) -> Result<Declaration<'a>, PtxError> {
        self.declared(true)
    }

    /// Of a state space, with all that is declared in one statement if there can be `several`.
    fn declared(&mut self, several: bool) -> Result<Declaration<'a>, PtxError> {
        let space = self.next()?;
        let known = [".reg", ".param", ".shared", ".local", ".global", ".const", ".tex", ".sreg"];
        if !known.contains(&space.text) {
            return Err(self.refuse(space, "a state space", CURE_UNKNOWN));
        }
        let mut declaration = Declaration {
            is_extern: false,
            space: space.text,
            ty: "",
            vector: 1,
            align: None,
            names: Vec::new(),
        };
        let mut is_pointer = false;
        while let Some(token) = self.peek().filter(|token| token.text.starts_with('.')) {
            self.at += 1;
            match token.text {
                // Behind `.ptr` it is of what the parameter points to.
                ".align" if is_pointer => drop(self.number()?),
                ".align" => declaration.align = Some(self.number()?),
                ".attribute" => drop(self.in_parentheses()?),
                ".v2" => declaration.vector = 2,
                ".v4" => declaration.vector = 4,
                ".v8" => declaration.vector = 8,
                // What a parameter points to.
                ".ptr" if space.text == ".param" => is_pointer = true,
                ".shared" | ".global" | ".local" | ".const" if is_pointer => {}
                ty if is_type(ty) => declaration.ty = ty,
                _ => return Err(self.refuse(token, "a type", CURE_UNKNOWN)),
            }
        }
        loop {
            let name = self.name()?.text;
            let mut declared = Declared { name, count: None, elements: None };
            if self.take('<') {
                declared.count = Some(self.number()?);
                self.expect('>')?;
            }
            while self.take('[') {
                let elements = if self.is(']') { 0 } else { self.number()? };
                self.expect(']')?;
                let all = declared.elements.unwrap_or(1).saturating_mul(elements);
                declared.elements = Some(all);
            }
            let is_open = declared.elements == Some(0);
            if self.take('=') {
                let given = self.initial_value()?;
                if is_open {
                    declared.elements = Some(given);
                }
            }
            declaration.names.push(declared);
            if !(several && self.take(',')) {
                return Ok(declaration);
            }
        }
    }

    /// Takes what a variable starts with, and counts the elements of an array.
    fn initial_value(&mut self) -> Result<u64, PtxError> {
        let mut depth = 0usize;
        let mut elements = 1;
        while let Some(token) = self.peek() {
            match token.kind {
                Kind::Mark('{') => depth += 1,
                Kind::Mark('}') if depth > 0 => depth -= 1,
                Kind::Mark(',') if depth > 0 => elements += 1,
                Kind::Mark(',' | ';') if depth == 0 => return Ok(elements),
                Kind::Word | Kind::Number | Kind::Quoted => {}
                Kind::Mark('+' | '-' | '*' | '(' | ')' | '~' | '&' | '|' | '^' | '<' | '>') => {}
                _ => return Err(self.refuse(token, "a value", CURE_COMPILER)),
            }
            self.at += 1;
        }
        Err(self.ended())
    }

    fn body(&mut self) -> Result<Body<'a>, PtxError> {
        statements::body(self)
    }
}

fn is_type(word: &str) -> bool {
    let known = [".pred", ".f16x2", ".bf16x2", ".texref", ".samplerref", ".surfref"];
    let numbered = |prefix: &str| {
        word.strip_prefix(prefix)
            .is_some_and(|bits| matches!(bits, "8" | "16" | "32" | "64" | "128"))
    };
    known.contains(&word) || [".b", ".u", ".s", ".f", ".bf", ".tf"].into_iter().any(numbered)
}

#[cfg(test)]
mod tests;
