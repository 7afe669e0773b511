//! A crowd: many threads, many launches, priorities and cancellations at random. Every block-task is accounted for, and
//! all memory is given back.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use preempt::error::LaunchError;
use preempt::policy::DynamicPriority;
use preempt::{CpuLayout, Device, Error, Scheduler};
use preempt_test_kernels as kernels;
use preempt_test_kit::Random;

/// Counts the bytes that are in use.
struct Counting;

static IN_USE: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = IN_USE.fetch_add(layout.size(), Relaxed) + layout.size();
        MOST.fetch_max(now, Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const THREADS: u32 = 64;
const LAUNCHES: u32 = 100_000;
/// Parts of the test, after each of which everything has ended.
const PARTS: u32 = 10;

/// The ends of a thread's launches.
#[derive(Clone, Copy, Default, Debug)]
struct Ends {
    done: u32,
    cancelled: u32,
    /// Block-tasks in reports and cancellations.
    tasks: u32,
}

/// One thread's part: launches of up to 4 block-tasks, each of which adds 1 to an element of `counts`.
fn submit(scheduler: &Scheduler, number: u32, launches: u32) -> Ends {
    let mut random = Random(number.into());
    let mut ends = Ends::default();
    let stream = scheduler.stream(0);
    let mut counts = scheduler.zeroed::<u32>(4).expect("memory");
    let mut writes = scheduler.zeroed::<u32>(4).expect("memory");
    let mut waiting = Vec::new();
    for launch in 0..launches {
        stream.set_priority(random.below(20) as i32 - 5);
        let call = kernels::count_1d(&mut counts, &mut writes).grid(1 + random.below(4)).block(1);
        let handle = stream.launch(call).expect("accepted");
        if random.below(4) == 0 {
            handle.cancel();
        }
        waiting.push(handle);
        if waiting.len() == 32 || launch + 1 == launches {
            for handle in waiting.drain(..) {
                match handle.wait() {
                    Ok(report) => {
                        ends.done += 1;
                        ends.tasks += report.tasks;
                    }
                    Err(Error::Launch(LaunchError::Cancelled { done, .. })) => {
                        ends.cancelled += 1;
                        ends.tasks += done;
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        }
    }
    let counts = stream.download(&counts).and_then(|copy| copy.wait()).expect("copied");
    assert_eq!(counts.iter().sum::<u32>(), ends.tasks, "thread {number}");
    ends
}

/// Lets every thread submit its part.
fn crowd(scheduler: &Scheduler, launches: u32) -> Ends {
    let part = |number| launches / THREADS + u32::from(number < launches % THREADS);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS)
            .map(|number| scope.spawn(move || submit(scheduler, number, part(number))))
            .collect();
        let ends = threads.into_iter().map(|thread| thread.join().expect("no panic"));
        ends.fold(Ends::default(), |sum, ends| Ends {
            done: sum.done + ends.done,
            cancelled: sum.cancelled + ends.cancelled,
            tasks: sum.tasks + ends.tasks,
        })
    })
}

#[test]
fn a_crowd_is_accounted_for_and_its_memory_is_bounded() {
    let device = Device::cpu_with(CpuLayout::sms(4).blocks_per_sm(2)).expect("a device");
    let builder = Scheduler::builder().device(device).policy(DynamicPriority::new());
    let scheduler = builder.build().expect("a scheduler");
    let mut sum = Ends::default();
    let (mut in_use, mut most) = (Vec::new(), Vec::new());
    for _ in 0..PARTS {
        let ends = crowd(&scheduler, LAUNCHES / PARTS);
        sum.done += ends.done;
        sum.cancelled += ends.cancelled;
        scheduler.synchronize().expect("the policy is still there");
        in_use.push(IN_USE.load(Relaxed));
        most.push(MOST.load(Relaxed));
    }
    assert_eq!(sum.done + sum.cancelled, LAUNCHES);
    assert!(sum.cancelled > 0, "no launch was cancelled");
    // The threads decide how much is under way at once, and its memory is kept for the next part. But 10,000 launches
    // that leak ten bytes each leak a hundred thousand in every part.
    let growth = in_use.windows(2).map(|two| two[1].saturating_sub(two[0])).min();
    assert!(growth.is_some_and(|bytes| bytes < 1 << 16), "{in_use:?} bytes after each part");
    assert!(most[PARTS as usize - 1] <= 2 * most[0], "{most:?} bytes at once");
}
