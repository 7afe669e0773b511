//! What is measured of each kernel: its time in each form, and its results over stops.

use std::time::{Duration, Instant};

use anyhow::Result;
use preempt::{Buffer, Call, Footprint, ForeignKernel, Preemption, Scheduler};
use preempt_microkernels::answer;
use preempt_report::microseconds;
use preempt_test_kit::Random;
use serde_json::{Value, json};

use super::cases::Case;
use super::name;
use super::subject::{Subject, task_time};
use crate::experiments::corun::LEARNING;
use crate::experiments::{line, random_time};
use crate::samples::{Samples, ratio, show};

/// A kernel's row.
pub struct Measured {
    pub name: String,
    pub case: &'static Case,
    pub tasks: u32,
    pub kernel: ForeignKernel,
    pub footprint: Footprint,
    pub original: Samples,
    /// In the order of [`Form`]. That with yield points has none if the kernel has none.
    pub forms: [Samples; 5],
    pub is_plain: bool,
    pub yield_points: usize,
    /// Without yield points, and with them.
    pub storms: [Storm; 2],
    pub is_equal: bool,
}

/// How a kernel is launched through the scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    Plain,
    Preemptible,
    Default,
    Yielding,
    Coarse,
}

/// The block-tasks that [`Form::Coarse`] runs between two looks at the signal.
const COARSE: u32 = 16;

impl Form {
    const ALL: [Form; 5] =
        [Form::Plain, Form::Preemptible, Form::Default, Form::Yielding, Form::Coarse];

    fn preemption(self) -> Preemption {
        match self {
            Form::Plain => Preemption::Plain,
            Form::Default => Preemption::Auto,
            Form::Preemptible | Form::Yielding | Form::Coarse => Preemption::Preemptible,
        }
    }
}

/// Runs that urgent launches interrupt.
#[derive(Default)]
pub struct Storm {
    pub runs: u32,
    /// How often the kernel lost its SMs in mid-kernel.
    pub stops: u32,
    pub urgent: Samples,
    /// Runs whose outputs differ from the original's.
    pub wrong: u32,
}

impl Measured {
    /// The time in a form to that of the plain one.
    pub fn ratio_of(&self, form: Form) -> Option<f64> {
        let samples = &self.forms[form as usize];
        let time = (samples.len() > 0).then(|| samples.p50())?;
        ratio(time, self.plain())
    }

    pub fn ratio(&self) -> Option<f64> {
        self.ratio_of(Form::Preemptible)
    }

    pub fn plain(&self) -> Duration {
        self.forms[Form::Plain as usize].p50()
    }

    pub fn stops(&self) -> u32 {
        self.storms.iter().map(|storm| storm.stops).sum()
    }

    fn task(&self, sms: u32) -> Duration {
        let resident = sms * self.footprint.plain.blocks_per_sm;
        task_time(self.plain(), self.tasks, resident)
    }

    pub fn line(&self, sms: u32) -> Vec<String> {
        let Footprint { plain, preemptible, .. } = self.footprint;
        let shown = |form| {
            self.ratio_of(form).map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.3}"))
        };
        let [urgent, beside_points] = self.storms.each_ref().map(|storm| storm.urgent.summary());
        let has_points = self.yield_points > 0;
        line([
            &self.name,
            self.case.group,
            &self.tasks.to_string(),
            &show(self.task(sms)),
            &show(self.original.p50()),
            &show(self.plain()),
            &shown(Form::Preemptible),
            &shown(Form::Default),
            &shown(Form::Yielding),
            &format!("{} → {}", plain.registers, preemptible.registers),
            &format!("{} → {}", plain.blocks_per_sm, preemptible.blocks_per_sm),
            &self.stops().to_string(),
            &show(urgent.p50),
            &show(urgent.p99),
            &(if has_points { show(beside_points.p99) } else { "-".to_owned() }),
            if self.is_equal { "yes" } else { "NO" },
        ])
    }

    pub fn json(&self, sms: u32) -> Value {
        let Footprint { plain, preemptible, .. } = self.footprint;
        let urgent = self.storms.each_ref().map(|storm| storm.urgent.summary());
        let times = self.forms.each_ref().map(|samples| microseconds(samples.p50()));
        let [plain_p50, preemptible_p50, default_p50, _, coarse_p50] = times;
        let mut row = json!({
            "kernel": self.name,
            "group": self.case.group,
            "verdict": self.kernel.verdict().to_string(),
            "block_tasks": self.tasks,
            "task_us": microseconds(self.task(sms)),
            "samples": self.original.len(),
            "original_p50_us": microseconds(self.original.p50()),
            "plain_p50_us": plain_p50,
            "preemptible_p50_us": preemptible_p50,
            "default_p50_us": default_p50,
            "coarse_p50_us": coarse_p50,
            "ratio": self.ratio(),
            "ratio_to_original": ratio(self.forms[1].p50(), self.original.p50()),
            "ratio_default": self.ratio_of(Form::Default),
            "ratio_yielding": self.ratio_of(Form::Yielding),
            "ratio_coarse": self.ratio_of(Form::Coarse),
            "default_is_plain": self.is_plain,
            "yield_points": self.yield_points,
            "registers": [plain.registers, preemptible.registers],
            "local_bytes": [plain.local_bytes, preemptible.local_bytes],
            "blocks_per_sm": [plain.blocks_per_sm, preemptible.blocks_per_sm],
            "runs": self.storms.iter().map(|storm| storm.runs).sum::<u32>(),
            "stops": self.storms[0].stops,
            "urgent_p50_us": microseconds(urgent[0].p50),
            "urgent_p99_us": microseconds(urgent[0].p99),
            "equal": self.is_equal,
        });
        if self.yield_points > 0 {
            row["stops_yielding"] = json!(self.storms[1].stops);
            row["urgent_yielding_p50_us"] = json!(microseconds(urgent[1].p50));
            row["urgent_yielding_p99_us"] = json!(microseconds(urgent[1].p99));
        }
        row
    }
}

/// Times the forms in turn, after the rounds in which the scheduler learns what they cost.
pub fn timed(scheduler: &Scheduler, subject: &Subject, samples: u32) -> Result<Measured> {
    let stream = scheduler.stream(0);
    let mut row = Measured {
        name: name(subject.case),
        case: subject.case,
        tasks: subject.tasks(),
        kernel: subject.kernel,
        footprint: subject.footprint,
        original: Samples::default(),
        forms: Default::default(),
        is_plain: false,
        yield_points: subject.yield_points(),
        storms: Default::default(),
        is_equal: true,
    };
    for round in 0..samples + LEARNING {
        let original = subject.original()?;
        // In another order in each round.
        for turn in 0..Form::ALL.len() {
            let form = Form::ALL[(turn + round as usize) % Form::ALL.len()];
            let call = match form {
                Form::Yielding => subject.yielding.as_ref(),
                _ => Some(&subject.call),
            };
            let Some(call) = call else { continue };
            let coarse = (form == Form::Coarse).then(|| call.clone().amortize(COARSE));
            let call = coarse.as_ref().unwrap_or(call);
            let is_checked = round < 2;
            if is_checked {
                subject.reset(&stream)?;
            }
            let (time, report) = subject.scheduled(&stream, call, form.preemption())?;
            if is_checked {
                row.is_equal &= subject.is_equal(&stream)?;
            }
            scheduler.synchronize()?;
            if round >= LEARNING {
                row.forms[form as usize].push(time);
            }
            if form == Form::Default {
                row.is_plain = report.plain;
            }
        }
        if round >= LEARNING {
            row.original.push(original);
        }
    }
    Ok(row)
}

/// Runs a kernel while urgent launches take the device.
pub struct Storming<'a> {
    pub scheduler: &'a Scheduler,
    pub subject: &'a Subject,
    pub ticks: &'a mut Buffer<u32>,
    pub random: &'a mut Random,
}

impl Storming<'_> {
    /// Stops it this often, in this many launches at most. `time` is that of the kernel.
    pub fn run(
        &mut self,
        call: &Call<'static>,
        time: Duration,
        (stops, launches): (u32, u32),
    ) -> Result<Storm> {
        let (batch, urgent) = (self.scheduler.stream(0), self.scheduler.stream(1));
        let mut storm = Storm::default();
        while storm.stops < stops && storm.runs < launches {
            self.subject.reset(&batch)?;
            let launched = batch.launch(call.clone().preemption(Preemption::Preemptible))?;
            for _ in 0..2 {
                let pause = random_time(self.random, time / 2);
                let start = Instant::now();
                while start.elapsed() < pause {
                    std::hint::spin_loop();
                }
                let start = Instant::now();
                // As many blocks of 1024 threads as the device holds.
                let blocks = self.ticks.len() as u32;
                urgent.launch(answer(storm.runs + 1, &mut *self.ticks).grid(blocks))?.wait()?;
                storm.urgent.push(start.elapsed());
            }
            storm.stops += launched.wait()?.yields;
            storm.runs += 1;
            if !self.subject.is_equal(&batch)? {
                storm.wrong += 1;
            }
        }
        Ok(storm)
    }
}
