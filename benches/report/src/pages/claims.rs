//! What the papers claim, beside what is measured here: all claims in one table.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::markdown::{Table, change, percent, times};
use super::results::{Folder, Results};
use crate::papers::{CHIMERA, COSCHEDULING, EFFISHA, FLEP, TREM};
use crate::papers::{chimera, coscheduling, effisha, flep, trem};
use crate::{digits, time};

/// A figure of a paper, and where ours is.
struct Claim {
    paper: &'static str,
    /// With our figure in the place of `{}`, if there is one.
    what: String,
    ours: Option<(&'static str, Tell)>,
    theirs: f64,
    /// The name of the results.
    file: &'static str,
    here: Here,
    /// What the same policy would give if preemption cost nothing, if that is known.
    free: Option<Here>,
    better: Better,
    tell: Tell,
}

/// A figure as text.
type Tell = fn(f64) -> String;

type Here = Box<dyn Fn(&Results) -> Result<f64>>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Better {
    Less,
    More,
}

/// A number of the summary.
fn key(key: &'static str) -> Here {
    Box::new(move |results| results.number(key))
}

/// The same of a ratio to what costs nothing.
fn above_one(key: &'static str) -> Here {
    Box::new(move |results| Ok(results.number(key)? - 1.0))
}

fn factor(value: f64) -> String {
    digits(value) + "x"
}

#[derive(Deserialize)]
struct Stop {
    p50_us: f64,
    max_us: f64,
}

/// Of the stops of programs' kernels: one figure of all.
fn of_stops(figure: fn(&[Stop]) -> f64) -> Here {
    Box::new(move |results| Ok(figure(&results.rows_with::<Stop>("program")?)))
}

fn claims() -> Vec<Claim> {
    use Better::{Less, More};
    let claim = |paper, what: &str, (theirs, tell), file, here, better| Claim {
        paper,
        what: what.to_owned(),
        ours: None,
        theirs,
        file,
        here,
        free: None,
        better,
        tell,
    };
    let part = |share| (share, percent as Tell);
    let of = |times| (times, factor as Tell);
    let long = |us| (us, time as Tell);
    let mut all = vec![
        claim(
            FLEP,
            "a preemptible kernel takes longer, mean",
            part(flep::OVERHEAD),
            "overhead-gpu",
            above_one("geomean_ratio"),
            Less,
        ),
        claim(
            FLEP,
            "urgent programs are faster, mean",
            of(flep::SPEEDUP),
            "priority-gpu",
            key("mean_speedup"),
            More,
        )
        .free(key("mean_ceiling")),
        claim(
            FLEP,
            "urgent programs are faster, best",
            of(flep::BEST_SPEEDUP),
            "priority-gpu",
            key("best_speedup"),
            More,
        )
        .free(key("best_ceiling")),
        claim(
            FLEP,
            "ANTT is lower, pairs",
            of(flep::PAIRS_GAIN),
            "antt-gpu",
            key("pairs_gain"),
            More,
        )
        .free(key("pairs_ceiling")),
        claim(
            FLEP,
            "ANTT is lower, triples",
            of(flep::TRIPLES_GAIN),
            "antt-gpu",
            key("triples_gain"),
            More,
        )
        .free(key("triples_ceiling")),
        claim(
            FLEP,
            "throughput lost (here: makespan)",
            part(flep::PAIRS_LOSS),
            "antt-gpu",
            key("makespan_lost"),
            Less,
        ),
        claim(
            FLEP,
            "some SMs instead of all, overhead saved, mean",
            part(flep::SPATIAL_SAVED),
            "spatial-gpu",
            key("saved_vs_all_mean"),
            More,
        ),
        claim(
            FLEP,
            "some SMs instead of all, overhead saved, best",
            part(flep::SPATIAL_SAVED_BEST),
            "spatial-gpu",
            key("saved_vs_all_best"),
            More,
        ),
        claim(
            FLEP,
            "throughput lost where 10 % is allowed",
            part(flep::MAX_OVERHEAD),
            "fairness-gpu",
            key("throughput_lost"),
            Less,
        ),
        claim(
            FLEP,
            "error of predicted durations, mean",
            part(flep::ERROR),
            "prediction-gpu",
            key("mean_error"),
            Less,
        ),
        claim(
            FLEP,
            "error of predicted durations, worst program",
            part(flep::WORST_ERROR),
            "prediction-gpu",
            key("worst_program_error"),
            Less,
        ),
        claim(
            EFFISHA,
            "a preemptible kernel takes longer, mean",
            part(effisha::OVERHEAD),
            "overhead-gpu",
            above_one("geomean_ratio"),
            Less,
        ),
        claim(
            EFFISHA,
            "a preemptible kernel takes longer, worst",
            part(effisha::WORST_OVERHEAD),
            "overhead-gpu",
            above_one("max_ratio"),
            Less,
        ),
        claim(
            EFFISHA,
            "from the signal until the last block has left, mean",
            long(effisha::EVICTION_US),
            "latency-gpu",
            of_stops(|stops| {
                stops.iter().map(|stop| stop.p50_us).sum::<f64>() / stops.len() as f64
            }),
            Less,
        ),
        claim(
            EFFISHA,
            "from the signal until the last block has left, worst",
            long(effisha::WORST_EVICTION_US),
            "latency-gpu",
            of_stops(|stops| stops.iter().map(|stop| stop.max_us).fold(0.0, f64::max)),
            Less,
        ),
    ];
    for setting in effisha::SETTINGS {
        let effisha::Setting { name, antt_change, stp_gain } = setting;
        let number = move |key: &'static str| -> Here {
            Box::new(move |results| results.number(&format!("{name}_{key}")))
        };
        let free_antt: Here = Box::new(move |results| {
            let ours = results.number(&format!("{name}_antt_change"))?;
            Ok((1.0 + ours) * results.number(&format!("{name}_antt_over_ceiling"))? - 1.0)
        });
        let free_stp: Here = Box::new(move |results| {
            let reached = results.number(&format!("{name}_stp_over_ceiling"))?;
            Ok(results.number(&format!("{name}_stp_gain"))? / reached)
        });
        let antt = (antt_change, change as Tell);
        let what = format!("ANTT changes, {name}");
        all.push(
            claim(EFFISHA, &what, antt, "mix-gpu", number("antt_change"), Less).free(free_antt),
        );
        let what = format!("STP is higher, {name}");
        all.push(
            claim(EFFISHA, &what, of(stp_gain), "mix-gpu", number("stp_gain"), More).free(free_stp),
        );
    }
    all.extend([
        claim(
            EFFISHA,
            "scheduling takes (here: the mean of three settings)",
            part(effisha::MAX_OVERHEAD),
            "mix-gpu",
            key("scheduling_overhead"),
            Less,
        ),
        claim(
            COSCHEDULING,
            "preemptions for each task, worst setting, measured speeds",
            part(coscheduling::PREEMPTIONS),
            "coschedule-gpu",
            key("measured_preemptions_per_task_worst_mean"),
            Less,
        ),
        claim(
            CHIMERA,
            "stops later than the limit, 15 µs there and {} here",
            part(chimera::VIOLATIONS),
            "chimera-gpu",
            key("violations_mean"),
            Less,
        )
        .with("limit_us", time),
        claim(
            CHIMERA,
            "throughput lost, the choice, with 15 µs there and {} here",
            part(chimera::LOST),
            "chimera-gpu",
            key("throughput_lost_mean"),
            Less,
        )
        .with("limit_us", time),
        claim(
            CHIMERA,
            "ANTT is lower, all pairs",
            of(chimera::ANTT_GAIN),
            "chimera-gpu",
            key("antt_gain"),
            More,
        )
        .free(key("antt_ceiling")),
        claim(
            CHIMERA,
            "STP changes, all pairs",
            (chimera::STP_GAIN, change as Tell),
            "chimera-gpu",
            key("stp_gain"),
            More,
        )
        .free(key("stp_ceiling")),
        claim(
            CHIMERA,
            "ANTT is lower, pairs of LUD",
            of(chimera::SHOWN_ANTT_GAIN),
            "chimera-gpu",
            key("lud_antt_gain"),
            More,
        )
        .free(key("lud_antt_ceiling")),
        claim(
            CHIMERA,
            "STP changes, pairs of LUD",
            (chimera::SHOWN_STP_GAIN, change as Tell),
            "chimera-gpu",
            key("lud_stp_gain"),
            More,
        )
        .free(key("lud_stp_ceiling")),
        claim(
            TREM,
            "tasks within their SLA, 89 % of the time used, {} here (`InTime`)",
            part(trem::IN_TIME),
            "pool-gpu",
            Box::new(|results| Ok(1.0 - results.number("late_in_time_yielding")?)),
            More,
        )
        .with("offered_time_run", percent)
        .free(Box::new(|results| {
            let late = results.number("late_in_time_yielding")?;
            Ok(1.0 - late + results.number("late_over_simulated_points")? / 100.0)
        })),
        claim(TREM, "work wasted, as above", part(trem::WASTED), "pool-gpu", key("wasted"), Less),
        claim(
            TREM,
            "from a revocation until the next task starts",
            long(trem::REVOCATION_US),
            "pool-gpu",
            key("revocation_to_next_p50_us"),
            Less,
        ),
    ]);
    all
}

impl Claim {
    /// With what the same policy would give.
    fn free(self, free: Here) -> Claim {
        Claim { free: Some(free), ..self }
    }

    /// With a figure of ours in its text.
    fn with(self, key: &'static str, tell: Tell) -> Claim {
        Claim { ours: Some((key, tell)), ..self }
    }

    /// Whether ours is as good.
    fn is_reached(&self, here: f64) -> bool {
        match self.better {
            Better::Less => here <= self.theirs,
            Better::More => here >= self.theirs,
        }
    }

    /// Whether the same policy would not be as good as the paper's figure with free preemption either.
    fn is_beyond(&self, free: Option<f64>) -> bool {
        free.is_some_and(|free| !self.is_reached(free))
    }
}

pub fn claims_beside_ours(folder: &Folder) -> Result<String> {
    let mut table = Table::new([
        "paper and hardware",
        "claim",
        "there",
        "here",
        "the same policy, if preemption were free",
        "as good",
        "measured on",
    ]);
    let all = claims();
    let mut reached = 0;
    for claim in &all {
        let Some(results) = folder.find(claim.file)? else {
            let [paper, theirs] = [claim.paper.to_owned(), (claim.tell)(claim.theirs)];
            let what = claim.what.replace("{}", "-");
            let none = || "-".to_owned();
            table.row([paper, what, theirs, none(), none(), "not measured".to_owned(), none()]);
            continue;
        };
        let here = (claim.here)(&results)?;
        ensure!(here.is_finite(), "{}: `{}` is no number", results.file, claim.what);
        let free = claim.free.as_ref().map(|free| free(&results)).transpose()?;
        let what = match claim.ours {
            Some((key, tell)) => claim.what.replace("{}", &tell(results.number(key)?)),
            None => claim.what.clone(),
        };
        let is_reached = claim.is_reached(here);
        reached += usize::from(is_reached);
        let verdict = match is_reached {
            true => "yes",
            false if claim.is_beyond(free) => "no, nor if it were free",
            false => "no",
        };
        table.row([
            claim.paper.to_owned(),
            what,
            (claim.tell)(claim.theirs),
            (claim.tell)(here),
            free.map_or_else(|| "-".to_owned(), claim.tell),
            verdict.to_owned(),
            results.gpu()?.to_owned(),
        ]);
    }
    Ok(format!(
        "The main claims of the five papers, beside the same figures here. Programs, sizes and GPUs differ, so a figure \
         says what a user gets and not which system is better. What can be gained depends on how long programs are to each \
         other. So the fifth column has what the same policy would give here if preemption cost nothing, where that is known. Of {} \
         claims, {reached} are reached. The sections below have the experiments, and more figures of the papers.\n\n{}\n{}",
        all.len(),
        table.text(),
        peers(folder)?,
    ))
}

#[derive(Deserialize)]
struct Urgent {
    arm: String,
    block_task_us: f64,
    yield_points: bool,
    p50_us: f64,
    p99_us: f64,
}

/// Systems of today that publish how long urgent work waits.
fn peers(folder: &Folder) -> Result<String> {
    let results = folder.get("latency-gpu")?;
    let rows = results.rows_with::<Urgent>("block_task_us")?;
    let ours = |arm: &str, block_task_us: f64| {
        let row = rows
            .iter()
            .find(|row| row.arm == arm && row.yield_points && row.block_task_us == block_task_us);
        let told = || format!("{}: no row of `{arm}` at {block_task_us} µs", results.file);
        row.map(|row| times(row.p50_us, row.p99_us)).with_context(told)
    };
    let mut table = Table::new([
        "system",
        "its own figure",
        "hardware",
        "blocks of 100 µs, here",
        "blocks of 1 ms, here",
    ]);
    let peers = [
        (
            "XSched (OSDI 2025), between kernels",
            "p99 148 µs beside kernels of 0.1 ms, 1,277 µs of 1 ms",
            "GV100",
            "preempt",
        ),
        ("XSched, with a trap handler", "p99 34 to 41 µs", "GV100", "preempt"),
        ("GPreempt (ATC 2025), a patched driver", "about 100 µs", "A100", "preempt"),
        ("GPreempt, with a hint", "below 40 µs", "A100", "preempt, armed"),
    ];
    for (system, figure, hardware, arm) in peers {
        let here = [ours(arm, 100.0)?, ours(arm, 1000.0)?];
        let [short, long] = here.map(|here| format!("{here} ({arm})"));
        table.row([system.to_owned(), figure.to_owned(), hardware.to_owned(), short, long]);
    }
    Ok(format!(
        "Systems of today say how long urgent work waits, each on its hardware and by its own clock. Ours is from the call of \
         `launch` until the host knows of the end, p50 / p99, beside kernels with yield points.\n\n{}\n{}",
        table.text(),
        results.source(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_is_reached_where_ours_is_no_worse() {
        let claim = |theirs, better| Claim {
            paper: FLEP,
            what: String::new(),
            ours: None,
            theirs,
            file: "",
            here: key("a"),
            free: None,
            better,
            tell: percent,
        };
        let less = claim(0.1, Better::Less);
        assert!(less.is_reached(0.1) && less.is_reached(-1.0) && !less.is_reached(0.11));
        let more = claim(5.0, Better::More);
        assert!(more.is_reached(5.0) && more.is_reached(9.0) && !more.is_reached(4.9));
        assert!(more.is_beyond(Some(4.9)) && !more.is_beyond(Some(5.1)) && !more.is_beyond(None));
    }
}
