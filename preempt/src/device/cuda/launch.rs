//! Launches: cohorts and plain grids.

use std::ffi::c_void;
use std::ops::Range;
use std::ptr;

use cudarc::driver::sys::{
    CUlaunchAttribute, CUlaunchAttributeID, CUlaunchAttributeValue, CUlaunchConfig,
};
use preempt_device::abi::{Cohort, CohortFlags, Divisor, Signal};
use preempt_device::host::Args;

use super::CudaDevice;
use super::context::call;
use super::divisions::{Division, Need};
use super::events::{Ends, Event};
use super::kernels::Launchable;
use super::watch::End;
use crate::device::KernelLaunch;
use crate::device::control::PlainGrid;
use crate::error::Error;
use crate::vocabulary::{Vicinity, queue_bit};

/// Parameters: a launch with at most this number needs no allocation.
const FEW_PARAMETERS: usize = 64;

/// The cohort of a node that was never launched.
pub(super) const NO_COHORT: Cohort = Cohort {
    control: ptr::null(),
    claims: ptr::null(),
    queue: ptr::null(),
    post: ptr::null(),
    requeue_list: ptr::null(),
    progress: ptr::null(),
    signal: Signal::from_bits(0),
    after: ptr::null(),
    after_word: 0,
    left: 0,
    tasks: 0,
    grid: [0; 3],
    row: Divisor::new(1),
    layer: Divisor::new(1),
    ticket: 1,
    blocks: 0,
    amortize: 0,
    pace: 0,
    share_bits: 0,
    crowd: 0,
    longest: 0,
    clock: 0,
    handed: 0,
    flags: CohortFlags::new(0, 0),
    more_rows: 0,
    barrier: 1,
};

/// Lets a grid start while the last blocks of the grid before it in its stream end, and wait there. That hides most of
/// the time between two grids.
fn early_start() -> CUlaunchAttribute {
    CUlaunchAttribute {
        id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
    }
}

/// Which of two attributes a launch has: each of them or none.
fn asked(first: bool, second: bool) -> Range<usize> {
    usize::from(!first)..1 + usize::from(second)
}

/// Where a preemptible entry has its cohort.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum CohortPlace {
    /// Before the kernel's parameters.
    First,
    /// Behind the kernel's parameters, which stay where another compiler placed them.
    Last,
}

/// The cohort of a launch of a preemptible entry.
#[derive(Clone, Copy, Debug)]
pub(super) struct Placed<'a>(pub &'a Cohort, pub CohortPlace);

/// Calls `launch` with pointers to the parameters: the arguments and, if the entry is a preemptible one, the cohort.
#[inline]
pub(super) fn with_parameters<R>(
    cohort: Option<Placed<'_>>,
    args: &Args,
    launch: impl FnOnce(*mut *mut c_void) -> R,
) -> R {
    let at = |place| {
        let cohort = cohort.filter(|placed| placed.1 == place);
        cohort.map(|Placed(cohort, _)| ptr::from_ref(cohort).cast())
    };
    let (first, last) = (at(CohortPlace::First), at(CohortPlace::Last));
    let pointers = first.into_iter().chain(args.pointers()).chain(last);
    let mut pointers = pointers.map(|pointer| pointer.cast_mut().cast::<c_void>());
    let mut few = [ptr::null_mut(); FEW_PARAMETERS];
    for place in &mut few {
        match pointers.next() {
            Some(pointer) => *place = pointer,
            None => return launch(few.as_mut_ptr()),
        }
    }
    let mut many: Vec<_> = few.into_iter().chain(pointers).collect();
    launch(many.as_mut_ptr())
}

impl CudaDevice {
    /// Notes a grid that is put into a queue, with its blocks and what its kernel needs of an SM. Returns what to ask for, if
    /// anything.
    fn divide(
        &self,
        queue: u32,
        blocks: u32,
        need: Need,
        Vicinity { on_sm, meets, others, is_behind, may_ask }: Vicinity,
    ) -> Option<Division> {
        let there = (0..u64::BITS).filter(|&queue| others & queue_bit(queue) != 0);
        let there = there.map(|queue| self.gates.shared_on_sm(queue)).max().unwrap_or(0);
        let of = || self.divisions.of(need, on_sm, there, meets != 0);
        let division = may_ask.then(of).flatten();
        // What asks for nothing takes what is there, and SMs keep that.
        let without = || self.divisions.without(need).max(there);
        self.gates.note(queue, blocks, division.map_or_else(without, |of| of.bytes), is_behind);
        division
    }

    /// Puts a cohort into a queue.
    ///
    /// # Safety
    ///
    /// As [`Backend::launch`](crate::device::Backend::launch).
    pub(super) unsafe fn launch_cohort(
        &self,
        queue: u32,
        launch: &KernelLaunch,
        cohort: Cohort,
        vicinity: Vicinity,
    ) -> Result<(), Error> {
        let context = self.context();
        let _entered = context.enter()?;
        let launchable = self.kernels.of(launch)?;
        let Launchable { function, cohort: place, cooperates, waits, need, .. } = launchable;
        let division = self.divide(queue, cohort.blocks, need, vicinity);
        let barrier = u32::from(cooperates);
        let cohort = Cohort { queue: self.queues.word(queue), barrier, ..cohort };
        let mut attributes = [early_start(), Division::attribute(division)];
        // An early start is asked for even if the queue is empty: the driver takes less time for it.
        let attributes = &mut attributes[asked(waits, division.is_some())];
        let config = CUlaunchConfig {
            gridDimX: cohort.blocks,
            gridDimY: 1,
            gridDimZ: 1,
            blockDimX: launch.block.x,
            blockDimY: launch.block.y,
            blockDimZ: launch.block.z,
            sharedMemBytes: launch.shared_bytes() + launchable.added_shared,
            hStream: self.queues.stream(queue).raw(),
            attrs: attributes.as_mut_ptr(),
            numAttrs: attributes.len() as u32,
        };
        with_parameters(Some(Placed(&cohort, place)), &launch.args, |parameters| {
            let (config, function) = (&raw const config, function.0);
            // SAFETY: these are the parameters of the entry. The cohort has the size of the entry's, and a `Call` promises
            // the others; the driver copies them.
            unsafe {
                call!(context, cuLaunchKernelEx(config, function, parameters, ptr::null_mut()))
            }
        })?;
        // SAFETY: the control blocks keep their posts as long as the device lives.
        unsafe { self.shared.watch.add(queue, cohort.post, cohort.ticket) };
        Ok(())
    }

    /// Puts a plain grid into a queue, and an event behind it.
    ///
    /// # Safety
    ///
    /// As [`Backend::launch`](crate::device::Backend::launch).
    pub(super) unsafe fn launch_plain(
        &self,
        queue: u32,
        launch: &KernelLaunch,
        plain: PlainGrid,
        vicinity: Vicinity,
    ) -> Result<(), Error> {
        let context = self.context();
        let _entered = context.enter()?;
        let shared = launch.shared_bytes();
        let Launchable { plain: entry, need_of_plain, .. } =
            self.kernels.get(launch.kernel, launch.block, shared)?;
        let division = self.divide(queue, plain.tasks, need_of_plain, vicinity);
        let mut attribute = Division::attribute(division);
        let [x, y, z] = plain.extents;
        let config = CUlaunchConfig {
            gridDimX: x,
            gridDimY: y,
            gridDimZ: z,
            blockDimX: launch.block.x,
            blockDimY: launch.block.y,
            blockDimZ: launch.block.z,
            sharedMemBytes: shared,
            hStream: self.queues.stream(queue).raw(),
            attrs: &raw mut attribute,
            numAttrs: u32::from(division.is_some()),
        };
        let event = self.events.take()?;
        let launched = with_parameters(None, &launch.args, |parameters| {
            let (config, function) = (&raw const config, entry.0);
            // SAFETY: these are the parameters of the entry, as a `Call` promises; the driver copies them.
            unsafe {
                call!(context, cuLaunchKernelEx(config, function, parameters, ptr::null_mut()))
            }
        });
        if let Err(error) = launched {
            self.events.give_back(event);
            return Err(error);
        }
        // SAFETY: the caller's promise.
        unsafe { self.post_after(queue, plain, event) };
        Ok(())
    }

    /// Records the event behind what is in a queue, and has the post of a plain grid written once it has completed. The
    /// context is entered.
    ///
    /// # Safety
    ///
    /// The control blocks have the grid's post.
    pub(super) unsafe fn post_after(&self, queue: u32, plain: PlainGrid, event: Event) {
        let (context, stream) = (self.context(), self.queues.stream(queue));
        // Without the event nothing would show that the grid is over. The loss of the context is reported for all
        // operations together.
        let _ = context.must(|| self.events.record(&event, stream));
        let PlainGrid { post, ticket, .. } = plain;
        let end = End::new(event, plain.last_word());
        // SAFETY: the control blocks keep their posts as long as the device lives.
        unsafe { self.shared.watch.add_plain(queue, post, ticket, end) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_launch_has_the_attributes_that_are_asked_for() {
        let of = |first, second| &['a', 'b'][asked(first, second)];
        assert_eq!([of(false, false), of(true, false)], [&[][..], &['a'][..]]);
        assert_eq!([of(false, true), of(true, true)], [&['b'][..], &['a', 'b'][..]]);
    }

    fn parameters(values: u32, place: CohortPlace) -> Vec<usize> {
        let mut args = Args::default();
        (0..values).for_each(|value| args.push_value(value));
        let cohort = NO_COHORT;
        let mut expected: Vec<_> = args.pointers().map(|pointer| pointer.addr()).collect();
        let at = if place == CohortPlace::First { 0 } else { expected.len() };
        expected.insert(at, ptr::from_ref(&cohort).addr());
        let given = with_parameters(Some(Placed(&cohort, place)), &args, |parameters| {
            // SAFETY: there is one for the cohort and one for each value.
            let given = |index| unsafe { *parameters.add(index) }.addr();
            (0..=values as usize).map(given).collect::<Vec<_>>()
        });
        assert_eq!(given, expected);
        given
    }

    #[test]
    fn the_cohort_is_at_its_place_however_many_parameters_there_are() {
        for values in [0, 1, 62, 63, 64, 200] {
            for place in [CohortPlace::First, CohortPlace::Last] {
                assert_eq!(parameters(values, place).len(), values as usize + 1);
            }
        }
    }
}
