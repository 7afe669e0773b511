//! TReM's evaluation on pools of devices: `simulated` in virtual time, `devices` on devices, beside virtual time.

use std::time::Duration;

use anyhow::Result;
use preempt::sim::pool::JobMix;

use super::{Bench, Experiment, Outcome};

mod devices;
mod inversion;
mod isolation;
mod occupancy;
mod opaque;
mod outcome;
mod replay;
mod simulated;
mod tasks;

pub use opaque::serve_if_worker;

/// Devices of the paper's testbed.
const DEVICES: usize = 4;
const MIXES: [(&str, JobMix); 2] = [("W1", JobMix::W1), ("W2", JobMix::W2)];
/// The paper's period of 100 ms, a tenth of it, as of all of its times.
const PERIOD: Duration = Duration::from_millis(10);
/// Jobs of a pool of four devices.
const JOBS: usize = 30;

/// The experiment `pool`.
#[derive(Debug)]
pub struct Pool;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
TReM's evaluation (figures 6 to 11): tasks that users wait for and batch tasks on pools of devices.
With `--device cuda` or `cpu` it runs on devices, and each workload beside that in virtual time; with
`--device sim` it is all in virtual time.

- elastic: user-facing tasks have as many devices as do the work outstanding within the SLA, less
  the time of a task; in the paper, within the SLA. priority: they have all. in time: the same, and
  tasks that can be within the SLA go ahead of those that cannot.
- W1 has as many user-facing as batch jobs, W2 four times as many. At a load of 1, what comes fills
  the devices. Eight tasks of a job at most are outstanding; their times count from then.
- late: the part of user-facing tasks that took longer than the SLA. wasted: what revoked tasks had
  run for, by what tasks ran for that ended. batch: the median time of batch jobs from arrival to
  end, by that of the same policy without stops (of in time, by that of priority). used: the part of
  the devices' time with a task, until the last job came.
";

/// The part that is in virtual time alone.
const MEANING_OF_SIMULATION: &str = "\
With `--device sim`, all times are a tenth of the paper's: tasks of 0.1 to 17 ms that users wait
for, batch tasks of 4.6 to 31 s, and an SLA of 20 ms.

- figure 7-9: four devices. Each row is the mean over the seeds. killed: a task is revoked in 2.2 ms
  (the paper's 22 ms) and runs again from its start; yielding: it leaves after 50 us and goes on
  where it was; for free: it leaves at once.
- figure 11: the mean of W1 and W2 at load 1, with elastic: `devices` varies, killed in 2.2 ms and
  yielding in 50 us; then the time of a revocation varies on four devices.
- `million`: tasks, devices, and seconds that this machine took to simulate them.
";

/// The part on devices.
const MEANING_OF_DEVICES: &str = "\
On devices, user-facing tasks and the SLA are a tenth of the paper's: tasks of 0.1 to 17 ms, and
20 ms. Batch tasks and their jobs are a two-hundredth: tasks of 0.23, 0.65 and 1.56 s, jobs of 3 s.
Users' jobs are a fiftieth, 0.1 s: a 30th of a batch job, a 120th in the paper. So a run lasts as
long as its load says, 5 to 12 s at load 1. There is a workload of 30 jobs for each mix and load, by
`--seed`; `--mix` and `--load` choose some. A single GPU is split into four parts, which are the
devices; several are the devices themselves. Their pollers spin (`SchedulerBuilder::poller_spin`), in
all arms. The CPU device stands for a device with its layout, and takes its time. The host's allocator
keeps what is freed, as in a service that runs for long: new pages for an output of 6 MB take as long
as the rest of its task (6 ms of Hot Spot 3D, every other time).

- tasks: those of table III. User-facing ones are programs of this repository, with the name of the
  paper's in brackets: Monte Carlo is MD, Darkgray is VA, and Hot Spot 3D is in two dimensions. Each
  makes its inputs on the device, runs its launches as often as it takes to last as long, and
  downloads its output, which must be that of the program alone, bit by bit, which was compared with
  a sequential reference. Batch tasks are one launch of the kernel `hold_in_rounds` each, whose
  block-tasks hold all SMs, last 1 ms and have a checkpoint each 2 us; each must have ended once.
  `alone_us`: the time on a device alone, median; workloads are drawn from these, and virtual time
  has them.
- yielding: ours; a batch task yields, and goes on where it was. revoked: its kernel leaves at a
  checkpoint, and it runs again from its start. killed: the same, and its device stays empty for
  2.2 ms more (the paper's 22 ms): TReM. Without stops, priority is measured at load 2 alone.
- figure 6: the response of a user-facing task that comes to one device with a batch task, by its
  time alone, with the duration of the batch task; the median. `batch_delayed_us`, beside the
  shortest of those that yield: what the batch task takes more than its time alone and that
  response together, and at least 0. `batch_delayed_over_alone_max`: the most, by its time alone.
- isolation: a program on one device, from its launch until its end is known, with idle devices
  beside it, with such that compute (MD5Hash) and that move memory (Triad). `isolation_compute_p50`:
  MD5Hash beside MD5Hash, by itself beside idle devices.
- figure 7-9: `simulated` is the same arm in virtual time, where each job comes when it came and each
  task takes what it had its device for: devices that are parts of one GPU share its memory, and slow
  each other down.
  What yields take is in the time of the task that takes the place. Other stops take
  `revocation_to_next_p50_us`. `late_simulated_undisturbed`: tasks take what they take alone, and
  yields as long as other stops. `slowed`: what user-facing tasks took, by their time alone, all
  together.
- figure 10: `over_time` of W1 at load 1, in time, yielding: devices with a user-facing task, and
  others with a batch task, every 10 ms.
- `late_over_simulated_points`: in time, yielding at load 1, less the simulation, where yields take no
  time, in points of a percent. `late_over_trem_arm`: its late tasks by those of elastic, killed,
  and by 1 where that has none; `late_two_gpus_over_trem_arm`: the same of two GPUs.
  `offered_time_run`: used, of the same. All of both mixes.
- `wasted`: the most of in time, yielding. Arms that yield waste the time of block-tasks that are
  requeued. `batch_over_no_revocation`: its batch at load 2 by that of priority without stops, the
  most of both mixes.
  `elastic_over_priority_revocations_max`: revocations of elastic, killed by those of priority,
  killed, the most. `sim_late_error_points`: from late in virtual time to late on devices, each the
  mean of both mixes at load 1; the most of all arms.
- `revocation_p50_us`, `.._p99_us`: from the call that cancels a batch task's launch until its kernel
  has left all SMs, as a thread sees it that asks all the time. `revocation_to_next_p50_us`,
  `.._p99_us`: from the call that cancels a batch task until the body of the next task begins, which
  waits in the pool. Revoked tasks leave in the same way, but have no answer that is given first.
- `opaque_..`: a batch task whose worker, a process of its own, fills the GPU with grids and has
  20 GiB of its memory; from when a user-facing task is submitted for each part, or for the first
  of several devices.
  `opaque_revocation_p50_ms`, `.._p99_ms`: until that task's first kernel, which fills its device,
  has run, and its output is on the host. `opaque_begins_..`: until its body begins.
  `opaque_memory_free_..`: until the worker's memory is free. `opaque_standby_mib`: what a worker
  that waits has of the GPU's memory.
- `tasks_lost`: tasks without an answer. `tasks_twice`: answers beyond the first of a task.
";

impl Experiment for Pool {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn about(&self) -> &'static str {
        "User-facing and batch tasks on pools of devices, as in TReM's evaluation."
    }

    fn meaning(&self) -> &'static [&'static str] {
        &[MEANING, MEANING_OF_SIMULATION, MEANING_OF_DEVICES]
    }

    fn is_simulated(&self) -> bool {
        true
    }

    fn has_model(&self) -> bool {
        false
    }

    fn shape(&self, _processors: u32) -> (u32, u32) {
        // Four devices share the processors.
        (1, 1)
    }

    fn run(&self, bench: &Bench) -> Result<Outcome> {
        match bench.device {
            Some(_) => devices::run(bench),
            None => simulated::run(bench),
        }
    }
}

/// The arm that an arm's batch jobs are compared with: the same policy without stops. `in time` is not measured so, and
/// priority has as many devices.
fn without_stops(arm: &str) -> &str {
    match arm.split(',').next() {
        Some("in time") => "priority",
        policy => policy.unwrap_or(arm),
    }
}

fn median(times: &[Duration]) -> f64 {
    let mut times = times.to_vec();
    times.sort_unstable();
    times.get(times.len() / 2).map_or(0.0, Duration::as_secs_f64)
}
