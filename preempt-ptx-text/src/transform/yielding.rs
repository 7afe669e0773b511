//! Yield points within the loops of a body.

use super::body::TAIL;
use super::template::{self, Filling, Template};
use crate::drops::Point;
use crate::text::Edit;
use crate::tree::Body;
use crate::verdict::SLOT_BYTES;

/// Bytes of shared memory that the loop adds where there are yield points: those of its slot, and of the watch behind it.
pub(super) const YIELDING_BYTES: u64 =
    SLOT_BYTES + template::YIELDING_SLOT_BYTES - template::SLOT_BYTES;

/// Instructions of a thread from one look at the signal to the next, at yield points that are no barriers: more of them cost
/// less, and make an urgent launch wait longer. A look takes about 20, and each round of a loop 3 that count its own.
const LOOK: usize = 512;

/// The yield points of a body, ready to be put into it.
#[derive(Debug)]
pub(super) struct Yielding<'a> {
    pub template: &'a Template,
    pub filling: Filling<'a>,
    pub points: &'a [Point],
    /// Whether all threads of a block vote.
    pub votes: bool,
}

impl Yielding<'_> {
    fn counts(&self) -> bool {
        self.points.iter().any(|point| matches!(point, Point::Ahead { .. }))
    }

    /// At the start of the body's scope.
    pub fn start(&self) -> String {
        match self.counts() {
            true => "\n\t.reg .b32 %preempt_passed;\n\tmov.b32 %preempt_passed, 0;".to_owned(),
            false => String::new(),
        }
    }

    /// Ahead of the body's scope.
    pub fn ahead(&self) -> String {
        self.template.point.as_ref().map_or(String::new(), |point| point.start())
    }

    /// Behind what all threads do that have ended the block-task, or have left it.
    pub fn end(&self) -> String {
        self.template.point.as_ref().map_or(String::new(), |point| point.end())
    }

    pub fn edits(&self, body: &Body<'_>) -> Vec<Edit> {
        let Some(point) = &self.template.point else { return Vec::new() };
        // A vote is one instruction for all lanes of a warp, which come there, but perhaps one after the other.
        let meets = if self.votes { "bar.warp.sync -1;\n\t" } else { "" };
        let text = format!("{meets}{}", point.text(&self.filling, TAIL));
        let edit = |of: &Point| match *of {
            Point::Ahead { at, round } => {
                let round = round.clamp(1, LOOK);
                let text = format!(
                    "{{\n\t.reg .pred %preempt_is_early;\n\tadd.u32 %preempt_passed, %preempt_passed, {round};\n\tsetp.lt.u32 %preempt_is_early, %preempt_passed, {LOOK};\n\t@%preempt_is_early bra $preempt_on;\n\tmov.b32 %preempt_passed, 0;\n\t{text}$preempt_on:\n\t{{ }}\n\t}}\n\t"
                );
                Edit { place: at..at, text }
            }
            Point::Barrier { at } => {
                let place = body.statements.partition_point(|of| of.span.start < at);
                let end = body.statements.get(place).map_or(at, |of| of.span.end);
                Edit { place: at..end, text: text.clone() }
            }
        };
        self.points.iter().map(edit).collect()
    }
}
