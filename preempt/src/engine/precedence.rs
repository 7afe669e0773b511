//! Which submissions are taken in before others that came earlier.
//!
//! To take a message in takes the host some microseconds, and a long program is a burst of them. A launch that may preempt
//! what is in front of it would be late by all of these, so it goes first where the order makes no difference to results.
//! That is looked for once for each message, which costs less than to take one in.

use super::order::Use;
use crate::policy::Priority;

/// A submission that waits to be taken in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waiting<'a> {
    pub stream: u32,
    pub priority: Priority,
    pub uses: &'a [Use],
    pub kind: Kind,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Kind {
    /// A launch of a kernel.
    Launch,
    /// A launch of a program, which may have to wait for the last one of that program.
    Program,
    /// An operation that is not looked for.
    Other,
}

/// Whether a launch goes before all submissions that are in front of it, in order of arrival; `None` of them is a message
/// that stays where it is among all others. `may_preempt` says whether a launch of one priority may take SMs from one of
/// another.
///
/// The first in front has to be less urgent. No launch there may preempt it, or be ahead of it by its arrival where both are as
/// urgent. No submission may be of the launch's stream, or use memory that it uses, where one of them writes.
pub(crate) fn goes_first<'a>(
    mut in_front: impl Iterator<Item = Option<Waiting<'a>>>,
    launch: Waiting<'_>,
    may_preempt: impl Fn(Priority, Priority) -> bool,
) -> bool {
    let is_apart = |other: Waiting<'_>| {
        other.stream != launch.stream
            && (other.kind, launch.kind) != (Kind::Program, Kind::Program)
            && !other.uses.iter().any(|other| launch.uses.iter().any(|own| own.conflicts(other)))
    };
    let preempts = |other: Waiting<'_>| {
        // Where each may preempt the other one, as where the shortest goes first, the order of arrival is as good.
        may_preempt(launch.priority, other.priority)
            && !may_preempt(other.priority, launch.priority)
    };
    let is_no_more_urgent = |other: Waiting<'_>| {
        other.kind == Kind::Other || !may_preempt(other.priority, launch.priority)
    };
    launch.kind != Kind::Other
        && in_front.next().flatten().is_some_and(|next| is_apart(next) && preempts(next))
        && in_front
            .all(|other| other.is_some_and(|other| is_apart(other) && is_no_more_urgent(other)))
}

#[cfg(test)]
mod tests {
    use preempt_device::host::Access;

    use super::*;
    use crate::vocabulary::{BufferId, ByteRange};

    fn used(buffer: BufferId, start: u64, access: Access) -> Use {
        Use { buffer, bytes: ByteRange { start, end: start + 8 }, access, overwrites: false }
    }

    #[test]
    fn a_launch_goes_before_less_urgent_submissions_that_it_shares_nothing_with() {
        let (one, two) = (BufferId::Own(1), BufferId::Own(2));
        let (reads, writes) = ([used(one, 0, Access::Read)], [used(one, 0, Access::Write)]);
        let (behind, elsewhere) = ([used(one, 8, Access::Write)], [used(two, 0, Access::Write)]);
        let on = |stream, priority, kind, uses| Waiting {
            stream,
            priority: Priority(priority),
            uses,
            kind,
        };
        let long = |uses| Some(on(0, 0, Kind::Launch, uses));
        let urgent = |uses| on(1, 5, Kind::Launch, uses);
        let goes = |in_front: &[Option<Waiting<'_>>], launch| {
            goes_first(in_front.iter().copied(), launch, |by, of| by > of)
        };
        assert!(goes(&[long(&writes), long(&writes)], urgent(&elsewhere)));
        assert!(goes(&[long(&reads)], urgent(&reads)) && goes(&[long(&writes)], urgent(&behind)));
        for (front, own) in [(&reads, &writes), (&writes, &reads), (&writes, &writes)] {
            assert!(
                !goes(&[long(front)], urgent(own)) && !goes(&[long(&[]), long(front)], urgent(own))
            );
        }
        // Its stream keeps its order, and no order of messages of other kinds changes.
        assert!(!goes(&[long(&[]), Some(urgent(&[]))], urgent(&[])));
        assert!(!goes(&[None], urgent(&[])) && !goes(&[long(&[]), None], urgent(&[])));
        assert!(goes(&[long(&[]), Some(on(2, 9, Kind::Other, &[]))], urgent(&[])));
        assert!(!goes(&[long(&[])], on(1, 5, Kind::Other, &[])));
        // The launch before it of the same program may be in front.
        let program = |stream, priority| on(stream, priority, Kind::Program, &[]);
        assert!(goes(&[long(&[])], program(1, 5)) && goes(&[Some(program(0, 0))], urgent(&[])));
        assert!(!goes(&[long(&[]), Some(program(2, 0))], program(1, 5)));
        // A launch that is as urgent, or more, came earlier.
        let by_arrival = |in_front: &[Option<Waiting<'_>>]| {
            goes_first(in_front.iter().copied(), urgent(&[]), |by, of| by >= of)
        };
        for kind in [Kind::Launch, Kind::Program] {
            assert!([5, 9].iter().all(|&of| !by_arrival(&[long(&[]), Some(on(2, of, kind, &[]))])));
        }
        assert!(by_arrival(&[long(&[]), Some(on(2, 4, Kind::Launch, &[]))]));
        // Nothing is gained.
        assert!(
            !goes(&[], urgent(&[])) && !goes(&[Some(on(2, 5, Kind::Launch, &[]))], urgent(&[]))
        );
        let each = |_: Priority, _: Priority| true;
        assert!(!goes_first([long(&[])].into_iter(), urgent(&[]), each));
    }
}
