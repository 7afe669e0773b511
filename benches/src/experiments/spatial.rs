//! The cost to a victim of yielding as many SMs as an urgent kernel needs, twice as many, or all of them, and the
//! latency of the urgent kernel (FLEP section 6.4, figures 15 and 16).

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use preempt::{LaunchReport, Scheduler, Stream};
use preempt_report::{digits, microseconds};
use preempt_test_kit::Random;
use preempt_test_kit::storm::Tally;
use preempt_workloads::{Definition, Size};
use serde_json::{Value, json};

use super::{Bench, Experiment, FLEP, LONG, Outcome, line, with_tally};
use crate::progress::Progress;
use crate::samples::{Samples, mean, ratio, show};

mod policy;
mod subject;

use policy::{ALL, SmFactor, SmSharing};
use subject::Subject;

/// A program of which a single block-task is urgent, too.
const ONE_TASK: &str = "VA";

/// Samples of each arm, of long victims, and with `--quick`.
const SAMPLES: u32 = 30;
const LONG_SAMPLES: u32 = 12;
const QUICK_SAMPLES: u32 = 2;
/// Time from which on a victim is long.
const LONG_TIME: Duration = Duration::from_millis(3);

/// Attempts at a sample in which the urgent launch has to meet the victim.
const TRIES: u32 = 10;

/// Time that `wait` spins.
const SPIN: Duration = Duration::from_millis(100);

/// Standard errors by which the cost of yielding all SMs must differ from 0 to be compared with. Chance then moves a
/// ratio to it by about a quarter.
const ERRORS: f64 = 4.0;

/// The launches of an arm, and the SMs that the victim yields. Its number is its index in [`Pair::arms`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Arm {
    VictimAlone,
    UrgentAlone,
    Enough,
    Twice,
    All,
}

const ARMS: [Arm; 5] = [Arm::VictimAlone, Arm::UrgentAlone, Arm::Enough, Arm::Twice, Arm::All];

impl Arm {
    fn name(self) -> &'static str {
        match self {
            Arm::VictimAlone => "victim alone",
            Arm::UrgentAlone => "urgent alone",
            Arm::Enough => "just enough",
            Arm::Twice => "twice",
            Arm::All => "all",
        }
    }

    /// The factor of the SMs that the urgent launch gets to those that it needs.
    fn factor(self) -> u32 {
        match self {
            Arm::VictimAlone | Arm::UrgentAlone | Arm::Enough => 1,
            Arm::Twice => 2,
            Arm::All => ALL,
        }
    }

    fn yields(self) -> bool {
        matches!(self, Arm::Enough | Arm::Twice | Arm::All)
    }
}

/// Times from launches to their ends, as the launching thread sees them.
#[derive(Default)]
struct Times {
    victim: Samples,
    urgent: Samples,
    /// Times that SMs were taken from the victims.
    yields: u64,
}

/// A victim and an urgent launch.
struct Pair {
    victim: &'static str,
    urgent: String,
    /// Set if the urgent launch is a single block-task.
    one_task: bool,
    /// The SMs that the urgent launch needs.
    sms: u32,
    arms: [Times; ARMS.len()],
}

/// The experiment `spatial`.
#[derive(Debug)]
pub struct Spatial;

/// What the suite does, and what its rows and keys mean.
const MEANING: &str = "\
Urgent kernels of FLEP's programs, and one of a single block-task, come while long ones of four of
them run, which yield just as many SMs as the urgent one needs, twice as many, or all (FLEP, section
6.4).

The victims are the dominating launches of CFD, NN, PF and PL at full size (reduced ones on the CPU
device, small ones with `--quick` on a GPU), the urgent launches those of the other seven of FLEP's
eight programs with few block-tasks, and vector addition with a single one. A policy of the suite's
own gives an urgent launch the first SMs, and the victim all others.

The arms:

- victim alone, urgent alone: nothing else runs.
- just enough: the urgent launch gets as many SMs as it can fill: `SMs needed`.
- twice: twice that number, or all if there are fewer.
- all: the victim yields the whole device.

- The arms take turns. The urgent launch comes at a random moment, after a tenth to six tenths of
  the victim's time alone. A sample in which it came too late to take anything is taken again, ten
  times at most; the table says how many there are, and the line above it if an arm has none.
- Times are from the call of `launch` to the return of `wait`, which spins. Where both run, the
  victim is waited for after the urgent launch.
- cost: the victim's median less that alone. It contains the time for which the urgent launch has
  the SMs. In the JSON, `cost_error_us` is how far chance may have moved it: the standard error of
  the difference of both medians, by the distance of their quartiles.
- `saved_vs_all` of a pair is 1 less the cost of just enough by that of all. It is given only where
  the cost of all is positive and more than four such errors: `pairs_compared` of the `pairs` of
  programs. `saved_vs_all_mean` and `saved_vs_all_best` are of these, `saved_vs_all_one_task_mean`
  is of the urgent launch of a single block-task. Where an urgent kernel needs all SMs anyway,
  nothing can be saved.
- `urgent_vs_all`: for that single block-task, the median latency with just enough SMs to that with
  all, the largest of the four victims.
- Before each sample everything that the two launches write is overwritten, and after it compared
  with what an undisturbed launch writes, by a digest of all bits. On the CPU device with two
  samples for each arm, or with SMs that share processors, the costs mean little.
";

impl Experiment for Spatial {
    fn name(&self) -> &'static str {
        "spatial"
    }

    fn about(&self) -> &'static str {
        "The cost to a victim of yielding just enough SMs, twice that number, or all of them."
    }

    fn meaning(&self) -> &'static [&'static str] {
        &[MEANING]
    }

    /// Enough SMs that one, two and all of them are different numbers.
    fn shape(&self, processors: u32) -> (u32, u32) {
        (processors.saturating_sub(1).clamp(4, 8), 1)
    }

    fn run(&self, bench: &Bench) -> Result<Outcome> {
        run(bench)
    }
}

/// Measures all pairs.
fn run(bench: &Bench) -> Result<Outcome> {
    let victims = bench.programs_among(&LONG)?;
    let (policy, factor) = SmSharing::new();
    let scheduler = bench.spinning_scheduler(policy, SPIN)?;
    let [size, _] = bench.sizes();
    let seed = bench.seed as u32;
    let urgent = |definition: &Definition, grid| {
        Subject::new(&scheduler, definition, Size::Trivial, grid, seed)
    };
    let definitions: Vec<_> = FLEP.into_iter().filter_map(preempt_workloads::find).collect();
    let mut urgents = Vec::new();
    for definition in &definitions {
        urgents.push((definition.name, urgent(definition, None)?));
        if definition.name == ONE_TASK {
            urgents.push((definition.name, urgent(definition, Some(1))?));
        }
    }

    let mut session = Session {
        scheduler: &scheduler,
        factor,
        low: scheduler.stream(0),
        high: scheduler.stream(1),
        random: Random(bench.seed),
        tally: Tally::default(),
    };
    let mut pairs = Vec::new();
    for definition in victims {
        // One at a time, because their buffers take gigabytes.
        let mut victim = Subject::new(&scheduler, definition, size, None, seed)?;
        let alone = session.estimate(&mut victim)?;
        let samples = match (bench.quick, alone > LONG_TIME) {
            (true, _) => QUICK_SAMPLES,
            (false, true) => LONG_SAMPLES,
            (false, false) => SAMPLES,
        };
        let progress = Progress::new(definition.name, urgents.len() as u64);
        for (name, urgent) in &mut urgents {
            let one_task = urgent.call.grid_dim().count() == 1;
            if *name != definition.name || one_task {
                let times = session.pair(&mut victim, urgent, alone, samples)?;
                let sms = session.factor.needed();
                let (victim, urgent) = (definition.name, urgent.name.clone());
                pairs.push(Pair { victim, urgent, one_task, sms, arms: times });
            }
            progress.step();
        }
    }
    let tally = session.tally;
    scheduler.synchronize()?;
    Ok(outcome(&pairs, tally))
}

/// The state that all pairs share.
struct Session<'a> {
    scheduler: &'a Scheduler,
    factor: Arc<SmFactor>,
    low: Stream,
    high: Stream,
    random: Random,
    tally: Tally,
}

/// The time of a launch, and its report.
type Done = (Duration, LaunchReport);

impl Session<'_> {
    /// The time of a launch that is not preempted.
    fn estimate(&mut self, victim: &mut Subject) -> Result<Duration> {
        let mut times = Samples::default();
        for round in 0..4 {
            if let (Some((time, _)), _) =
                self.sample(Arm::VictimAlone, victim, None, Duration::ZERO)?
                && round > 0
            {
                times.push(time);
            }
        }
        Ok(times.p50())
    }

    /// Measures all arms, each of which goes first in turn.
    fn pair(
        &mut self,
        victim: &mut Subject,
        urgent: &mut Subject,
        alone: Duration,
        samples: u32,
    ) -> Result<[Times; ARMS.len()]> {
        let mut times: [Times; ARMS.len()] = Default::default();
        for round in 0..samples as usize {
            for turn in 0..ARMS.len() {
                let arm = ARMS[(round + turn) % ARMS.len()];
                for _ in 0..TRIES {
                    let share = 0.1 + 0.5 * f64::from(self.random.below(1000)) / 1000.0;
                    let moment = alone.mul_f64(share);
                    let (of_victim, of_urgent) =
                        self.sample(arm, victim, Some(&mut *urgent), moment)?;
                    let yields = of_victim.map_or(0, |(_, report)| report.yields);
                    if arm.yields() && yields == 0 {
                        // The victim was over.
                        continue;
                    }
                    let times = &mut times[arm as usize];
                    of_victim.into_iter().for_each(|(time, _)| times.victim.push(time));
                    of_urgent.into_iter().for_each(|(time, _)| times.urgent.push(time));
                    times.yields += u64::from(yields);
                    break;
                }
            }
        }
        Ok(times)
    }

    /// Launches the kernels of the arm, the urgent one at this moment of the victim's run, and checks the results.
    fn sample(
        &mut self,
        arm: Arm,
        victim: &mut Subject,
        urgent: Option<&mut Subject>,
        moment: Duration,
    ) -> Result<(Option<Done>, Option<Done>)> {
        let urgent = urgent.filter(|_| arm != Arm::VictimAlone);
        let victim = (arm != Arm::UrgentAlone).then_some(victim);
        victim.as_deref().map_or(Ok(()), Subject::poison)?;
        urgent.as_deref().map_or(Ok(()), Subject::poison)?;
        // Also an error if the policy was refused.
        self.scheduler.synchronize()?;
        self.factor.set(arm.factor());

        let calls = [&victim, &urgent].map(|who| who.as_ref().map(|who| who.call.clone()));
        let [victim_call, urgent_call] = calls;
        let start = Instant::now();
        let handle = victim_call.map(|call| self.low.launch(call)).transpose()?;
        let mut of_urgent = None;
        if let Some(call) = urgent_call {
            while handle.is_some() && start.elapsed() < moment {
                std::hint::spin_loop();
            }
            let start = Instant::now();
            let report = self.high.launch(call)?.wait()?;
            of_urgent = Some((start.elapsed(), report));
        }
        let mut of_victim = None;
        if let Some(handle) = handle {
            let report = handle.wait()?;
            of_victim = Some((start.elapsed(), report));
        }

        for (who, done) in [(victim, &of_victim), (urgent, &of_urgent)] {
            if let (Some(who), Some((_, report))) = (who, done) {
                who.check(report, arm.name(), &mut self.tally)?;
            }
        }
        Ok((of_victim, of_urgent))
    }
}

impl Pair {
    fn times(&self, arm: Arm) -> &Times {
        &self.arms[arm as usize]
    }

    /// The cost of yielding to the victim, in microseconds, and its standard error. Chance may make it negative. `None`
    /// without samples.
    fn cost(&self, arm: Arm) -> Option<(f64, f64)> {
        let [with, alone] = [arm, Arm::VictimAlone].map(|arm| &self.times(arm).victim);
        (arm.yields() && with.len() > 0 && alone.len() > 0).then(|| {
            let [error, other] = [with, alone].map(|samples| microseconds(samples.p50_error()));
            (microseconds(with.p50()) - microseconds(alone.p50()), error.hypot(other))
        })
    }

    /// The part of the cost of yielding all SMs that is saved by yielding just enough; `None` where all cost too little
    /// to tell.
    fn saved(&self) -> Option<f64> {
        let ((enough, _), (all, error)) = (self.cost(Arm::Enough)?, self.cost(Arm::All)?);
        (all > 0.0 && all > ERRORS * error).then(|| 1.0 - enough / all)
    }

    /// The ratio of the urgent launch's times with just enough SMs and with all.
    fn urgent_vs_all(&self) -> Option<f64> {
        let [enough, all] = [Arm::Enough, Arm::All].map(|arm| &self.times(arm).urgent);
        (enough.len() > 0).then(|| ratio(enough.p50(), all.p50())).flatten()
    }

    fn lines(&self) -> impl Iterator<Item = Vec<String>> {
        ARMS.into_iter().map(|arm| {
            let times = self.times(arm);
            let time = |samples: &Samples, time: Duration| match samples.len() {
                0 => "-".to_owned(),
                _ => show(time),
            };
            let cost = self.cost(arm).map_or("-".into(), |(cost, _)| format!("{cost:.1} µs"));
            line([
                self.victim,
                &self.urgent,
                arm.name(),
                &self.sms.to_string(),
                &times.victim.len().max(times.urgent.len()).to_string(),
                &time(&times.victim, times.victim.p50()),
                &time(&times.victim, times.victim.summary().p99),
                &cost,
                &time(&times.urgent, times.urgent.p50()),
                &time(&times.urgent, times.urgent.summary().p99),
            ])
        })
    }

    fn json(&self) -> impl Iterator<Item = Value> {
        ARMS.into_iter().map(|arm| {
            let times = self.times(arm);
            let told =
                |samples: &Samples, time: Duration| (samples.len() > 0).then(|| microseconds(time));
            json!({
                "victim": self.victim,
                "urgent": self.urgent,
                "arm": arm.name(),
                "sms": self.sms,
                "samples": times.victim.len().max(times.urgent.len()),
                "victim_p50_us": told(&times.victim, times.victim.p50()),
                "victim_p99_us": told(&times.victim, times.victim.summary().p99),
                "urgent_p50_us": told(&times.urgent, times.urgent.p50()),
                "urgent_p99_us": told(&times.urgent, times.urgent.summary().p99),
                "cost_us": self.cost(arm).map(|(cost, _)| cost),
                "cost_error_us": self.cost(arm).map(|(_, error)| error),
                "yields": times.yields,
            })
        })
    }
}

fn outcome(pairs: &[Pair], tally: Tally) -> Outcome {
    let saved = |one_task: bool| -> Vec<f64> {
        pairs.iter().filter(|pair| pair.one_task == one_task).filter_map(Pair::saved).collect()
    };
    let (programs, one_task) = (saved(false), saved(true));
    let slowest = pairs.iter().filter(|pair| pair.one_task).filter_map(Pair::urgent_vs_all);
    let arms = || pairs.iter().flat_map(|pair| ARMS.map(|arm| (arm, pair.times(arm))));
    let summary = with_tally(
        json!({
            "pairs": pairs.iter().filter(|pair| !pair.one_task).count(),
            "pairs_compared": programs.len(),
            "saved_vs_all_mean": mean(&programs),
            "saved_vs_all_best": programs.iter().copied().reduce(f64::max),
            "saved_vs_all_one_task_mean": mean(&one_task),
            "urgent_vs_all": slowest.reduce(f64::max),
            "yields": arms().map(|(_, times)| times.yields).sum::<u64>(),
        }),
        &tally,
    );
    let mut about = format!(
        "A victim yields as many SMs as an urgent launch needs, twice as many, or all. Times are from \
         launch to done, and the cost is what the victim takes longer than alone. Just enough saves {} of \
         the cost of all, in the mean over {} pairs of programs in which that can be told.",
        mean(&programs).map_or("-".into(), |saved| digits(100.0 * saved) + " %"),
        programs.len(),
    );
    let empty = arms().filter(|(arm, times)| arm.yields() && times.victim.len() == 0).count();
    if empty > 0 {
        about += &format!(
            " In {empty} rows every urgent launch came after the victim had ended: nothing was taken."
        );
    }
    let mut table = vec![line([
        "victim",
        "urgent",
        "yields",
        "SMs needed",
        "samples",
        "victim p50",
        "victim p99",
        "cost",
        "urgent p50",
        "urgent p99",
    ])];
    table.extend(pairs.iter().flat_map(Pair::lines));
    let rows = pairs.iter().flat_map(Pair::json).collect();
    Outcome { about, table, text_columns: 3, rows, summary, mistake: tally.mistake }
}
