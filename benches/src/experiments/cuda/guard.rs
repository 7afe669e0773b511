//! What it costs an urgent kernel that it can be armed: its preemptible entry against the plain one, a program that is
//! launched behind its gate, and how long the gate has the device after it was disarmed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use preempt::{Preemption, Scheduler};
use preempt_microkernels::count;
use preempt_report::microseconds;
use preempt_test_kit::Random;
use preempt_test_kit::storm::Tally;
use serde_json::{Value, json};

use super::super::{Bench, line, random_time};
use super::spin_until;
use crate::progress::Progress;
use crate::samples::{Samples, show};

/// Samples of each form, with `--quick` and without.
const SAMPLES: (u32, u32) = (20, 500);

/// Threads of the one block.
const THREADS: u32 = 32;

/// The least and the most time from arming a program to its launch: less than it stays armed.
const ANNOUNCED: (Duration, Duration) = (Duration::from_micros(50), Duration::from_micros(600));

/// The time of one form.
pub struct Row {
    form: &'static str,
    samples: Samples,
}

/// The rows, and how many of the armed programs began so.
pub struct Guard {
    plain: Row,
    preemptible: Row,
    program: Row,
    armed: Row,
    set: Row,
    disarmed: Row,
    began_armed: u32,
}

/// One short kernel on an idle device, in each form in turn, from the call to the return of `wait`.
pub fn measure(bench: &Bench, scheduler: &Scheduler, tally: &mut Tally) -> Result<Guard> {
    let row = |form| Row { form, samples: Samples::default() };
    let mut guard = Guard {
        plain: row("plain launch"),
        preemptible: row("preemptible launch"),
        program: row("program, not armed"),
        armed: row("program, armed"),
        set: row("program, set until idle"),
        disarmed: row("program, disarmed until idle"),
        began_armed: 0,
    };
    let stream = scheduler.stream(1);
    let mut counts = scheduler.zeroed::<u32>(1)?;
    let mut place = None;
    let mut program = stream.program("count", |program| {
        program.preemption(Preemption::Preemptible);
        place = Some(program.launch(count(&mut counts).grid(1).block(THREADS))?);
        Ok(())
    })?;
    let place = place.context("recorded")?;
    let mut random = Random(bench.seed);
    let mut announced = || {
        let after = ANNOUNCED.0 + random_time(&mut random, ANNOUNCED.1 - ANNOUNCED.0);
        let start = Instant::now();
        spin_until(|| Ok(start.elapsed() >= after))
    };
    let samples = bench.amount(SAMPLES.0, SAMPLES.1);
    let progress = Progress::new("guard", u64::from(samples));
    for _ in 0..samples {
        for (form, row) in [
            (Preemption::Plain, &mut guard.plain),
            (Preemption::Preemptible, &mut guard.preemptible),
        ] {
            // `wait` returns before the last block has left its SM.
            scheduler.synchronize()?;
            let call = count(&mut counts).grid(1).block(THREADS).preemption(form);
            let start = Instant::now();
            let report = stream.launch(call)?.wait()?;
            row.samples.push(start.elapsed());
            tally.report(&report);
        }
        for (arms, row) in [(false, &mut guard.program), (true, &mut guard.armed)] {
            scheduler.synchronize()?;
            if arms {
                program.arm()?;
            }
            // Without a gate, too, so that the host comes from the same pause.
            announced()?;
            let start = Instant::now();
            let report = program.launch()?.wait()?;
            let took = start.elapsed();
            tally.report(&report);
            guard.began_armed += u32::from(report.armed);
            // A launch that found its gate gone, or not yet there, is of neither form.
            if report.armed == arms {
                row.samples.push(took);
            }
        }
        for (arms, row) in [(false, &mut guard.set), (true, &mut guard.disarmed)] {
            scheduler.synchronize()?;
            if arms {
                program.arm()?;
            }
            announced()?;
            let call = count(&mut counts).grid(1).block(THREADS);
            let start = Instant::now();
            program.set(place, call)?;
            scheduler.synchronize()?;
            row.samples.push(start.elapsed());
        }
        progress.step();
    }
    tally.count("guarded kernels", &stream.download(&counts)?.wait()?, &[4 * samples]);
    Ok(guard)
}

impl Guard {
    fn rows(&self) -> [&Row; 6] {
        let Guard { plain, preemptible, program, armed, set, disarmed, .. } = self;
        [plain, preemptible, program, armed, set, disarmed]
    }

    /// The figures that have keys.
    pub fn summary(&self) -> Value {
        let p50 = |row: &Row| (row.samples.len() > 0).then(|| microseconds(row.samples.p50()));
        let more = |of: &Row, than: &Row| p50(of).zip(p50(than)).map(|(of, than)| of - than);
        json!({
            "guard_preemptible_us": more(&self.preemptible, &self.plain),
            "guard_armed_us": more(&self.armed, &self.plain),
            "guard_disarm_us": more(&self.disarmed, &self.set),
            "guard_began_armed": self.began_armed,
        })
    }

    /// The lines of the rows in the table of the suite.
    pub fn lines(&self) -> Vec<Vec<String>> {
        let line = |row: &Row| {
            let summary = row.samples.summary();
            line([
                "guard",
                &format!("count, 1 block of {THREADS} threads, {}", row.form),
                "preempt",
                &row.samples.len().to_string(),
                &show(summary.p50),
                &show(summary.p99),
                &show(summary.max),
                "-",
            ])
        };
        self.rows().into_iter().map(line).collect()
    }

    /// The same as JSON.
    pub fn json(&self) -> Vec<Value> {
        let json = |row: &Row| {
            let summary = row.samples.summary();
            json!({
                "form": row.form,
                "samples": row.samples.len(),
                "p50_us": microseconds(summary.p50),
                "p99_us": microseconds(summary.p99),
                "max_us": microseconds(summary.max),
            })
        };
        self.rows().into_iter().map(json).collect()
    }
}
