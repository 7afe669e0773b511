//! Operations that use ranges of one buffer.

use super::world::World;
use super::*;

/// The use of a range of one buffer.
fn used(start: u64, end: u64, access: Access) -> Use {
    let bytes = ByteRange { start, end };
    Use { buffer: BufferId::Own(0), bytes, access, overwrites: false }
}

fn write(start: u64, end: u64) -> Use {
    used(start, end, Access::Write)
}

fn read(start: u64, end: u64) -> Use {
    used(start, end, Access::Read)
}

/// A copy that is submitted to a stream of its own.
fn copy(world: &mut World, uses: &[Use]) -> OpKey {
    let stream = world.ops.len() as u32;
    world.submit(stream, 0, 0, uses)
}

/// Ends a copy that has started.
fn end(world: &mut World, op: OpKey) {
    let index = world.copies.iter().position(|&other| other == op).expect("it has started");
    world.step_copy(index);
}

#[test]
fn operations_wait_for_those_whose_range_overlaps_and_for_no_others() {
    let mut world = World::new(1, 1, StaticPriority::new());
    let (low, high) = (copy(&mut world, &[write(0, 4)]), copy(&mut world, &[write(4, 8)]));
    assert_eq!(world.copies, [low, high], "they share no byte");
    let (inside, across) = (copy(&mut world, &[read(1, 2)]), copy(&mut world, &[read(3, 5)]));
    assert_eq!(world.copies, [low, high]);
    end(&mut world, low);
    assert_eq!(world.copies, [high, inside]);
    let beside = copy(&mut world, &[write(2, 3)]);
    let under = copy(&mut world, &[write(1, 3)]);
    assert_eq!(world.copies, [high, inside, beside], "no other one uses that byte");
    end(&mut world, high);
    end(&mut world, inside);
    assert_eq!(world.copies, [beside, across], "one of two is not over");
    end(&mut world, beside);
    assert_eq!(world.copies, [across, under]);
    world.run_out();
}

/// What a later write covers in part is still waited for by those that use the rest.
#[test]
fn a_write_stands_for_no_more_than_its_range() {
    let mut world = World::new(1, 1, StaticPriority::new());
    let first = copy(&mut world, &[write(0, 4), read(4, 8)]);
    let part = copy(&mut world, &[write(2, 6)]);
    let before = copy(&mut world, &[read(0, 2)]);
    let behind = copy(&mut world, &[write(6, 8)]);
    assert_eq!(world.copies, [first]);
    end(&mut world, first);
    assert_eq!(world.copies, [part, before, behind]);
    world.run_out();
}

/// Ranges without a byte, and launches with several ranges.
#[test]
fn an_empty_range_keeps_nothing_waiting() {
    let mut world = World::new(1, 1, StaticPriority::new());
    let (all, none) = (copy(&mut world, &[write(0, 8)]), copy(&mut world, &[write(4, 4)]));
    assert_eq!(world.copies, [all, none]);
    end(&mut world, all);
    let halves = copy(&mut world, &[write(0, 4), write(4, 8)]);
    assert_eq!(world.copies, [none, halves]);
    world.run_out();
    assert_eq!(world.engine.order.kept(), (0, 0));
}

#[test]
fn uses_that_a_write_covers_are_kept_by_it_alone() {
    let mut world = World::new(1, 1, StaticPriority::new());
    for byte in 0..8 {
        copy(&mut world, &[write(byte, byte + 1)]);
        copy(&mut world, &[read(byte, byte + 1)]);
    }
    assert_eq!(world.engine.order.kept(), (16, 0));
    copy(&mut world, &[write(1, 8)]);
    assert_eq!(world.engine.order.kept(), (3, 0), "it, and the uses of the first byte");
    copy(&mut world, &[write(0, 8)]);
    assert_eq!(world.engine.order.kept(), (1, 0));
    world.run_out();
    assert_eq!(world.engine.order.kept(), (0, 0), "nothing is kept of what is over");
}

#[test]
fn a_range_that_a_failed_kernel_wrote_is_lost_and_the_rest_is_not() {
    let mut world = World::new(1, 1, StaticPriority::new());
    let lose = |world: &mut World, uses: &[Use]| {
        let failing = world.submit(0, 0, 1, uses);
        world.op(failing).failed = true;
        world.handle(Event::Fault { op: failing });
        world.run_out();
    };
    let outcome = |world: &mut World, used: Use| {
        let op = copy(world, &[used]);
        world.run_out();
        world.op(op).finished
    };
    let done = Some(Outcome::Done(LaunchReport::default()));
    let lost = Some(Outcome::InputLost { kernel: "model" });
    lose(&mut world, &[write(2, 4), read(4, 6)]);
    for (used, expected) in [
        (read(0, 2), done),
        (read(1, 3), lost),
        (read(2, 4), lost),
        (read(4, 6), done),
        (read(0, 8), lost),
    ] {
        assert_eq!(outcome(&mut world, used), expected, "{used:?}");
    }
    // One range with those beside it, however often kernels fail.
    lose(&mut world, &[write(4, 6)]);
    lose(&mut world, &[write(1, 5)]);
    assert_eq!(world.engine.order.kept(), (0, 1));
    // What replaces a part of it brings back that part.
    let upload = |start, end| Use { overwrites: true, ..write(start, end) };
    assert_eq!(outcome(&mut world, upload(2, 3)), done);
    assert_eq!(world.engine.order.kept(), (0, 2));
    for (used, expected) in [(read(2, 3), done), (read(1, 2), lost), (read(3, 6), lost)] {
        assert_eq!(outcome(&mut world, used), expected, "{used:?}");
    }
    // An upload of nothing, where it could be mistaken for the end of the lost range.
    assert_eq!(outcome(&mut world, upload(4, 4)), done);
    assert_eq!(world.engine.order.kept(), (0, 2));
    assert_eq!(outcome(&mut world, upload(0, 8)), done);
    assert_eq!(world.engine.order.kept(), (0, 0));
}

/// Borrowed memory: what is lost is forgotten once no operation uses that range, whatever uses the rest of the
/// allocation.
#[test]
fn a_lost_range_of_borrowed_memory_is_forgotten_with_its_last_operation() {
    let borrowed = |used: Use| Use { buffer: BufferId::Borrowed(4096), ..used };
    let mut world = World::new(1, 1, StaticPriority::new());
    let beside = copy(&mut world, &[borrowed(write(4, 8))]);
    let failing = copy(&mut world, &[borrowed(write(0, 4))]);
    let reads = copy(&mut world, &[borrowed(read(2, 4))]);
    world.op(failing).failed = true;
    world.handle(Event::Fault { op: failing });
    end(&mut world, failing);
    assert_eq!(world.op(reads).finished, Some(Outcome::InputLost { kernel: "model" }));
    let later = copy(&mut world, &[borrowed(read(0, 4))]);
    assert_eq!(world.copies, [beside, later]);
    world.run_out();
}
