//! Which kernels run two at a time, for how long, and in which order: the shortest schedule, with few preemptions
//! (Eyraud-Dubois and Bentes, *Algorithms for Preemptive Co-scheduling of Kernels on GPUs*, HiPC 2020).
//!
//! Two kernels that need different parts of a GPU run faster beside each other than one after the other. Given how long
//! each job takes alone, and how fast it is beside each other job, [`CoSchedule::plan`] computes a plan.
//!
//! ```
//! use preempt::coschedule::{CoRun, CoSchedule, Job, Sharing, Speeds};
//!
//! // Seconds alone, and of the runs beside the other job.
//! let sort = CoRun { alone: 4.0, together: 4.4, overlap: 3.6 };
//! let blur = CoRun { alone: 2.0, together: 3.6, overlap: 3.6 };
//! let [sort, blur] = [sort.speed(0.1)?, blur.speed(0.1)?];
//! let speeds = Speeds::new(Sharing::AllSms, vec![vec![1.0, sort], vec![blur, 1.0]])?;
//!
//! let plan = CoSchedule::plan(&[Job::new("sort", 4.0), Job::new("blur", 2.0)], &speeds)?;
//! for interval in plan.intervals() {
//!     println!("from {} s for {} s: {:?}", interval.start, interval.duration, interval.running);
//! }
//! println!("{plan}");
//! assert!(plan.makespan() < 4.5 && plan.preemptions() == 0);
//! # Ok::<(), preempt::Error>(())
//! ```
//!
//! | | | paper |
//! | --- | --- | --- |
//! | [`Speeds`], [`CoRun`], [`Sharing`] | how fast jobs are beside each other: measured, checked, kept in a file | sections III and V-A |
//! | [`CoSchedule::plan`] | the shortest plan: a linear program, and then an order of its intervals | section IV |
//! | [`caterpillars`] | the order with the fewest preemptions | section IV-B, algorithms 1 and 2 |
//! | [`CoSchedule::max_pair`], [`CoSchedule::sequential`] | what the paper compares with | section V-B |
//! | [`CoSchedule::plan`] | tasks of one kernel: they run in the kernel's places one after the other | not in the paper |
//! | [`Planner`] | preemptions that cost time, jobs that arrive later | not in the paper |
//! | [`Execution`] | the policy that carries a plan out, and measures jobs for one | section V-A, and not in the paper |
//!
//! The plan is the shortest one, and no order of its intervals has fewer preemptions. Another plan of the same length may
//! have fewer; to find it is NP-hard (theorem 2).
//!
//! # Where this differs from the paper
//!
//! Each has a test with the counterexample.
//!
//! - *Preemptions* (section III) are counted by X_i, which is not defined there. It is the union of the intervals in
//!   which task i runs. A task without intervals has no preemptions, and not -1.
//! - *PLP* has `>=`, so a task may do more than its duration where its companion is not slower for it. What it does too
//!   much is cut off its last intervals, and the companion goes on alone. That adds no preemption.
//! - *Theorem 1* holds for vertices of PLP, and not for any optimal solution: of four equal tasks at full speed, all six
//!   pairs for a third of the time are optimal. A solution that is no vertex is moved to one. Loops and ways of sharing
//!   for one pair count as cycles there.
//! - *Equal tasks*, such as those of one kernel, have many optimal solutions (section IV-C says so of any tasks), of which
//!   the solver gives one with a place for each task. Here PLP is solved for their kernels, and the tasks of a kernel
//!   run in its places one after the other. Of this plan and the one without kernels, the one with fewer preemptions
//!   counts.
//! - *Several ways of sharing* for one pair are columns of PLP each. They are parallel edges of the graph, run one after
//!   the other, and count as one edge for the split.
//! - *Algorithm 1* returns what is left of the tree also if nothing is left, one caterpillar too many.
//! - *Algorithm 2*, lemmas 5 and 6: two vertices with one leg each both take "the next edge of the cycle". If nothing is
//!   between them on the other side, that is one edge, which one of them takes. Nothing is left for line 12 then.
//! - *Algorithm 2*, lemma 7, merges down to one vertex whose cycle edges are loops. Which caterpillar has which edge is
//!   said in the code: a gap that no pair of legs crosses is leaves of the vertices at its ends.
//!
//! With these, the numbers of caterpillars are minimal: so says a search over all splits of every tree and pseudo-tree
//! with up to nine vertices.

mod assignment;
mod chart;
mod execution;
mod forest;
#[cfg(test)]
mod kit;
mod matching;
mod measure;
mod plan;
mod planner;
mod program;
mod sharing;
mod speeds;
mod split;
mod twins;

pub use execution::Execution;
pub use plan::{CoSchedule, Interval, Job, Running};
pub use planner::Planner;
pub use sharing::Sharing;
pub use speeds::{CoRun, Speeds};
pub use split::{Caterpillar, caterpillars};
