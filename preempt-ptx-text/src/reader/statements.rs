//! The statements of a function's body.

use super::{CURE_COMPILER, CURE_UNKNOWN, DEPTH_LIMIT, PtxError, Reader};
use crate::lex::Kind;
use crate::tree::{Body, Guard, Instruction, Operand, OperandKind, Span, Statement, StatementKind};

const CURE_DEPTH: &str = "give the text as a compiler writes it: it nests at most a few levels";

/// Reads a body, whose first brace is next.
pub(super) fn body<'a>(reader: &mut Reader<'a>) -> Result<Body<'a>, PtxError> {
    let start = reader.peek().map_or(0, |token| token.start);
    let mut body = Body { start, statements: Vec::new(), scopes: Vec::new() };
    let mut open: Vec<usize> = Vec::new();
    loop {
        let token = reader.peek().ok_or_else(|| reader.ended())?;
        let mut scope = open.last().copied();
        let kind = if token.is('{') {
            if open.len() == DEPTH_LIMIT {
                return Err(reader.refuse(token, "no further scope", CURE_DEPTH));
            }
            reader.at += 1;
            body.scopes.push(scope);
            scope = Some(body.scopes.len() - 1);
            open.extend(scope);
            StatementKind::Open
        } else if token.is('}') {
            reader.at += 1;
            open.pop();
            StatementKind::Close
        } else {
            statement(reader)?
        };
        let span = Span { start: token.start, end: reader.end() };
        body.statements.push(Statement { span, scope: scope.unwrap_or_default(), kind });
        if open.is_empty() {
            return Ok(body);
        }
    }
}

fn statement<'a>(reader: &mut Reader<'a>) -> Result<StatementKind<'a>, PtxError> {
    let token = reader.next()?;
    if token.is('@') {
        let is_negated = reader.take('!');
        let register = reader.name()?.text;
        let opcode = reader.name()?;
        let guard = Some(Guard { is_negated, register });
        return instruction(reader, guard, opcode.text);
    }
    if token.is(';') {
        return Ok(StatementKind::Directive);
    }
    if token.kind != Kind::Word {
        return Err(reader.refuse(token, "a statement", CURE_COMPILER));
    }
    match token.text {
        ".reg" | ".param" | ".shared" | ".local" | ".global" | ".const" => {
            reader.at -= 1;
            let declaration = reader.declaration()?;
            reader.expect(';')?;
            Ok(StatementKind::Declaration(declaration))
        }
        ".extern" => {
            let mut declaration = reader.declaration()?;
            declaration.is_extern = true;
            reader.expect(';')?;
            Ok(StatementKind::Declaration(declaration))
        }
        ".loc" | ".file" => {
            reader.through_line();
            Ok(StatementKind::Directive)
        }
        ".pragma" => {
            reader.through_semicolon()?;
            Ok(StatementKind::Directive)
        }
        name if name.starts_with('.') => {
            Err(reader.refuse(token, "a directive of a function's body", CURE_UNKNOWN))
        }
        name if reader.is(':') => {
            let is = |of: &str| reader.ahead(1).is_some_and(|token| token.text == of);
            if is(".branchtargets") {
                reader.at += 2;
                let labels = reader.through_semicolon()?;
                Ok(StatementKind::BranchTargets { name, labels })
            } else if is(".calltargets") || is(".callprototype") {
                reader.at += 2;
                reader.through_semicolon()?;
                Ok(StatementKind::CallTargets)
            } else {
                reader.at += 1;
                Ok(StatementKind::Label(name))
            }
        }
        opcode => instruction(reader, None, opcode),
    }
}

fn instruction<'a>(
    reader: &mut Reader<'a>,
    guard: Option<Guard<'a>>,
    opcode: &'a str,
) -> Result<StatementKind<'a>, PtxError> {
    // Of what leaves or branches the transformation makes other instructions.
    let most = match opcode.split('.').next() {
        Some("ret" | "exit" | "trap") => 0,
        Some("bra") => 1,
        _ => usize::MAX,
    };
    let mut operands = Vec::new();
    while !reader.take(';') {
        if operands.len() == most {
            reader.expect(';')?;
        }
        if !operands.is_empty() {
            reader.expect(',')?;
        }
        operands.push(operand(reader)?);
    }
    Ok(StatementKind::Instruction(Instruction { guard, opcode, operands }))
}

fn operand<'a>(reader: &mut Reader<'a>) -> Result<Operand<'a>, PtxError> {
    let first = reader.peek().ok_or_else(|| reader.ended())?;
    let kind = match first.kind {
        Kind::Mark('{') => OperandKind::Vector,
        Kind::Mark('[') => OperandKind::Address,
        Kind::Mark('(') => OperandKind::List,
        _ => OperandKind::Plain,
    };
    let mut names = Vec::new();
    let mut open = Vec::new();
    let mut before = None;
    loop {
        let token = reader.peek().ok_or_else(|| reader.ended())?;
        let is_piece = |kind| matches!(kind, Kind::Word | Kind::Number);
        match token.kind {
            // Two without a separator.
            kind if is_piece(kind) && before.is_some_and(is_piece) => {
                return Err(reader.refuse(token, "`,` or `;`", CURE_COMPILER));
            }
            Kind::Mark(',' | ';') if open.is_empty() => break,
            Kind::Mark(mark @ ('{' | '[' | '(')) => {
                if open.len() == DEPTH_LIMIT {
                    return Err(reader.refuse(token, "no further bracket", CURE_DEPTH));
                }
                open.push(mark);
            }
            Kind::Mark(mark @ ('}' | ']' | ')')) => {
                let expected = match mark {
                    '}' => '{',
                    ']' => '[',
                    _ => '(',
                };
                if open.pop() != Some(expected) {
                    return Err(reader.refuse(token, "an operand", CURE_COMPILER));
                }
            }
            Kind::Word if !token.text.starts_with('.') => names.push(token.text),
            // The parts of a register's name that is given as a vector.
            Kind::Number | Kind::Word => {}
            Kind::Mark(
                ',' | '+' | '-' | '*' | '|' | '!' | '~' | '&' | '^' | '<' | '>' | '%' | '=' | '?'
                | ':' | '/',
            ) => {}
            _ => return Err(reader.refuse(token, "an operand", CURE_COMPILER)),
        }
        reader.at += 1;
        before = Some(token.kind);
    }
    if before.is_none() {
        return Err(reader.refuse(first, "an operand", CURE_COMPILER));
    }
    let text = &reader.text[first.start..reader.end()];
    Ok(Operand { kind, text, names })
}
