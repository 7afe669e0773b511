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
    /// Whether memory could be written there that the kernel has as data, through a pointer of type `*const T`.
    writes_data: bool,
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
    /// Reads through pointers of type `*const T`.
    data_reads: Vec<(Span, Position)>,
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

    /// Sets the innermost statement that the walk is in, and returns the previous one.
    pub fn in_statement(&mut self, statement: Option<StatementId>) -> Option<StatementId> {
        std::mem::replace(&mut self.statement, statement)
    }

    pub fn statement(&self) -> Option<StatementId> {
        self.statement
    }

    /// Something that cannot be taken back, like an atomic operation on global memory.
    pub fn effect(&mut self, span: Span, message: impl Into<String>) {
        self.add(span, message.into(), true);
    }

    /// A value that may be another one when the block-task runs again, or code that is not seen.
    pub fn unrepeatable(&mut self, span: Span, message: impl Into<String>) {
        self.add(span, message.into(), false);
    }

    /// Until it is [said](Findings::spares_data) that it does not, an obstacle may write any memory.
    fn add(&mut self, span: Span, message: String, until_here: bool) {
        let (other, position) = (None, self.position());
        let writes_data = true;
        self.obstacles.push(Obstacle { span, message, other, until_here, writes_data, position });
    }

    /// Says that at the last obstacle no pointer to data gets out of sight.
    pub fn spares_data(&mut self) {
        if let Some(last) = self.obstacles.last_mut() {
            last.writes_data = false;
        }
    }

    /// Notes a read through a pointer of type `*const T`.
    pub fn data_read(&mut self, span: Span) {
        let position = self.position();
        self.data_reads.push((span, position));
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
    /// memory that outlives the block-task, and read none that any of all places writes. A pointer of type `*const T` becomes
    /// one to write through by a cast, or by a function; where it gets out of sight, what is behind all of them may change.
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
                writes_data: false,
                position: access.position.clone(),
            })
        });
        let hidden = self.obstacles.iter().find(|obstacle| obstacle.writes_data);
        let reads = self.data_reads.iter().filter(|(_, position)| starts(position));
        let reads = reads.zip(std::iter::repeat(hidden)).filter_map(|((span, position), hidden)| {
            let message = "this reads through a pointer ahead of the checkpoint, and what is there may have changed when \
                threads come here again";
            let other = "through this, memory behind the pointer could be written; what this does is not seen";
            Some(Obstacle {
                span: *span,
                message: message.to_owned(),
                other: Some((hidden?.span, other.to_owned())),
                until_here: false,
                writes_data: false,
                position: position.clone(),
            })
        });
        obstacles
            .cloned()
            .chain(accesses)
            .chain(reads)
            .min_by_key(|obstacle| obstacle.position.number)
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
                    writes_data: false,
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
