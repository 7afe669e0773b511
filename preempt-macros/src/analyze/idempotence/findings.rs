//! What a walk through a body has found, and where.

use std::collections::HashSet;

use proc_macro2::Span;

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

/// A place in the order of the text.
#[derive(Clone, Debug)]
struct Position {
    number: usize,
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
    /// The number of the last yield point.
    last_yield: Option<usize>,
    yielding_loops: HashSet<usize>,
    /// The loops around, and the number of loops so far.
    around: Vec<usize>,
    loops: usize,
    count: usize,
    /// The number of functions around that are items of the body, and run wherever they are called.
    functions: usize,
}

impl Findings {
    fn position(&mut self) -> Position {
        self.count += 1;
        let number = if self.functions > 0 { 0 } else { self.count };
        Position { number, loops: self.around.clone() }
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
        self.last_yield = Some(self.position().number);
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

    /// The first obstacle that counts, a final one if there is one. `names` are those of the parameters. If the block
    /// `votes` at yield points, no thread runs again once one is behind the last of them.
    pub fn obstacle(&self, names: &[String], votes: bool) -> Option<Obstacle> {
        let overwrites = names.iter().enumerate().filter_map(|(param, name)| {
            let of_param = || self.accesses.iter().filter(|access| access.param == param);
            let read = of_param().find(|access| !access.writes)?;
            let write = of_param()
                .filter(|access| access.writes)
                .find(|access| self.counts(&access.position, votes))?;
            Some(Obstacle {
                span: write.span,
                message: format!(
                    "this may overwrite elements of `{name}` that the block-task reads; read one buffer and write \
                     another"
                ),
                other: Some((read.span, format!("`{name}` is read here"))),
                until_here: true,
                position: write.position.clone(),
            })
        });
        let counting = |obstacle: &Obstacle| self.counts(&obstacle.position, votes);
        let obstacles = self.obstacles.iter().filter(|obstacle| counting(obstacle)).cloned();
        obstacles
            .chain(overwrites)
            .min_by_key(|obstacle| (obstacle.until_here, obstacle.position.number))
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
