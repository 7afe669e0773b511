//! What a walk through a body has found, and where.

use std::collections::HashSet;

use proc_macro2::Span;
use syn::Stmt;

/// What keeps a block-task from being run again.
#[derive(Clone, Debug)]
pub struct Obstacle {
    /// The token that the message points at.
    pub span: Span,
    /// What is wrong, and what to write instead.
    pub message: String,
    /// Another token that belongs to it, with a message.
    pub other: Option<(Span, String)>,
    /// Whether the block-task can be dropped until a thread gets here. Otherwise it never can.
    pub until_here: bool,
    position: Position,
}

/// A statement of the body, by its address, which it has until the body is rewritten.
pub type StatementId = usize;

/// The same as long as nothing is added to the block of the statement.
pub fn statement_id(stmt: &Stmt) -> StatementId {
    std::ptr::from_ref(stmt).addr()
}

/// A place in the order of the text.
#[derive(Clone, Debug)]
struct Position {
    number: usize,
    /// The innermost statement around it ahead of which a thread can return. A thread that gets to the place has come to
    /// the start of that statement before. Functions inside the body are called from anywhere, and have none.
    statement: Option<StatementId>,
    /// The numbers of the loops around it.
    loops: Vec<usize>,
}

#[derive(Debug)]
struct Access {
    param: usize,
    writes: bool,
    span: Span,
    position: Position,
}

#[derive(Default, Debug)]
pub struct Findings {
    obstacles: Vec<Obstacle>,
    accesses: Vec<Access>,
    /// The numbers of the first and the last yield point.
    first_yield: Option<usize>,
    last_yield: Option<usize>,
    yielding_loops: HashSet<usize>,
    /// The loops around, and the number of loops so far.
    around: Vec<usize>,
    loops: usize,
    count: usize,
    statement: Option<StatementId>,
    /// The number of functions around that are items of the body, and run wherever they are called.
    functions: usize,
}

impl Findings {
    fn position(&mut self) -> Position {
        self.count += 1;
        let (number, statement) =
            if self.functions > 0 { (0, None) } else { (self.count, self.statement) };
        Position { number, statement, loops: self.around.clone() }
    }

    /// Sets the innermost statement around, and returns the one that was it before.
    pub fn in_statement(&mut self, statement: Option<StatementId>) -> Option<StatementId> {
        std::mem::replace(&mut self.statement, statement)
    }

    pub fn statement(&self) -> Option<StatementId> {
        self.statement
    }

    /// Something that cannot be taken back, like an atomic operation on global memory.
    pub fn effect(&mut self, span: Span, message: impl Into<String>) {
        let (message, position) = (message.into(), self.position());
        self.obstacles.push(Obstacle { span, message, other: None, until_here: true, position });
    }

    /// A value that may be another one when the block-task runs again, or code that is not seen.
    pub fn unrepeatable(&mut self, span: Span, message: impl Into<String>) {
        let (message, position) = (message.into(), self.position());
        self.obstacles.push(Obstacle { span, message, other: None, until_here: false, position });
    }

    pub fn access(&mut self, param: usize, writes: bool, span: Span) {
        let position = self.position();
        self.accesses.push(Access { param, writes, span, position });
    }

    pub fn yield_point(&mut self) {
        let number = self.position().number;
        self.first_yield.get_or_insert(number);
        self.last_yield = Some(number);
        self.yielding_loops.extend(&self.around);
    }

    pub fn in_loop(&mut self, enter: bool) {
        if enter {
            self.around.push(self.loops);
            self.loops += 1;
        } else {
            self.around.pop();
        }
    }

    pub fn in_function(&mut self, enter: bool) {
        if enter { self.functions += 1 } else { self.functions -= 1 }
    }

    pub fn is_in_function(&self) -> bool {
        self.functions > 0
    }

    /// The first obstacle that counts, a final one if there is one.
    pub fn obstacle(&self, names: &[String], votes: bool) -> Option<Obstacle> {
        let obstacles = self.obstacles(names, votes);
        obstacles.min_by_key(|obstacle| (obstacle.until_here, obstacle.position.number))
    }

    /// The statements with an obstacle, if a thread can return ahead of each of them.
    pub fn marked(&self, names: &[String], votes: bool) -> Option<HashSet<StatementId>> {
        self.obstacles(names, votes).map(|obstacle| obstacle.position.statement).collect()
    }

    /// Whether there is a yield point ahead of the obstacle.
    pub fn yields_ahead_of(&self, obstacle: &Obstacle) -> bool {
        self.first_yield.is_some_and(|first| first < obstacle.position.number)
    }

    /// The number of places so far.
    pub fn count(&self) -> usize {
        self.count
    }

    /// What keeps the first `count` places from running again behind those that follow them, if anything does: they write no
    /// memory that outlives the block-task, and read none that any of all places writes.
    pub fn start_obstacle(&self, count: usize, names: &[String]) -> Option<Obstacle> {
        let starts = |position: &Position| position.number <= count;
        let obstacles = self.obstacles.iter().filter(|obstacle| starts(&obstacle.position));
        let accesses = self.accesses.iter().filter(|access| starts(&access.position));
        let accesses = accesses.filter_map(|access| {
            let of_param = |other: &&Access| other.param == access.param && other.writes;
            let write = self.accesses.iter().find(of_param)?;
            let name = names.get(access.param)?;
            let message = match access.writes {
                true => format!("this writes to `{name}` ahead of the checkpoint, where threads come again"),
                false => format!("elements of `{name}` are read here, ahead of the checkpoint, and may have changed when \
                    threads come here again"),
            };
            Some(Obstacle {
                span: access.span,
                message,
                other: (!access.writes).then(|| (write.span, format!("`{name}` is written here"))),
                until_here: false,
                position: access.position.clone(),
            })
        });
        obstacles.cloned().chain(accesses).min_by_key(|obstacle| obstacle.position.number)
    }

    /// All obstacles that count. `names` are those of the parameters. If the block `votes` at yield points, no thread runs
    /// again once one is behind the last of them.
    fn obstacles(&self, names: &[String], votes: bool) -> impl Iterator<Item = Obstacle> {
        let overwrites = names.iter().enumerate().flat_map(move |(param, name)| {
            let of_param = move || self.accesses.iter().filter(move |access| access.param == param);
            let read = of_param().find(|access| !access.writes);
            let writes = of_param()
                .filter(move |access| access.writes && self.counts(&access.position, votes));
            writes.zip(std::iter::repeat(read)).filter_map(move |(write, read)| {
                let other = (read?.span, format!("`{name}` is read here"));
                Some(Obstacle {
                    span: write.span,
                    message: format!(
                        "this may overwrite elements of `{name}` that the block-task reads; read one buffer and write \
                         another"
                    ),
                    other: Some(other),
                    until_here: true,
                    position: write.position.clone(),
                })
            })
        });
        let counting = move |obstacle: &&Obstacle| self.counts(&obstacle.position, votes);
        self.obstacles.iter().filter(counting).cloned().chain(overwrites)
    }

    /// Whether a thread may be dropped after it was there.
    fn counts(&self, position: &Position, votes: bool) -> bool {
        !votes
            || Some(position.number) < self.last_yield
            || position.loops.iter().any(|number| self.yielding_loops.contains(number))
    }

    /// Whether a yield point ahead of the obstacle is reached again after it.
    pub fn is_carried_back(&self, obstacle: &Obstacle) -> bool {
        obstacle.position.loops.iter().any(|number| self.yielding_loops.contains(number))
    }
}
