//! What it costs to be preemptible, to launch, and to yield.

use anyhow::{Context, Result};
use serde::Deserialize;
use serde_json::Value;

use super::markdown::{Table, percent, time_or_dash, times};
use super::results::{Folder, Results};
use crate::pictures::distinct;
use crate::{digits, time};

#[derive(Deserialize)]
struct Overhead {
    program: String,
    arm: String,
    p50_us: Option<f64>,
    p50_to_plain: f64,
    registers: u32,
    blocks_per_sm: u32,
    longest_task_us: f64,
    stop_p50_us: Option<f64>,
    stop_p99_us: Option<f64>,
    yield_points: bool,
    is_plain: Option<bool>,
}

impl Overhead {
    fn stop(&self) -> String {
        let stop = self.stop_p50_us.zip(self.stop_p99_us);
        stop.map_or_else(|| "-".to_owned(), |(p50, p99)| times(p50, p99))
    }
}

pub fn overhead(folder: &Folder) -> Result<String> {
    Ok(format!(
        "The dominating kernel of each program of the papers, between events, to its plain grid. *preempt* is in the \
         form that costs least, as by default: from the launch until the host knows of the end, to plain grids \
         through the scheduler. FLEP's own loop reads its flag in the host's memory, with the factors of its paper, \
         which were chosen for other GPUs. *Slices* are plain grids in parts: the largest that stop no later than \
         preemptible kernels. Where a block-task alone takes longer, they are halved as long as that makes the stop a \
         tenth shorter. *Stop* is from the signal until the host knows that the preemptible kernel's last block is \
         out, p50 / p99.\n\n{}\nIn kernels with yield points the look at the signal costs time, in short kernels the \
         first claims do. Blocks of MD5Hash and SPMV end late because they stay.\n",
        overhead_of(&folder.get("overhead-gpu")?)?
    ))
}

pub fn overhead_older(folder: &Folder) -> Result<String> {
    overhead_of(&folder.get("overhead-rust-1.95-gpu")?)
}

fn overhead_of(results: &Results) -> Result<String> {
    let rows: Vec<Overhead> = results.rows()?;
    let mut table = Table::new([
        "kernel",
        "plain",
        "preempt",
        "all preemptible",
        "FLEP's loop",
        "slices",
        "stop of slices",
        "registers, plain / preemptible",
        "blocks per SM",
        "longest block-task",
        "stop",
    ]);
    let is_plain = |row: &Overhead| row.is_plain == Some(true);
    for program in distinct(rows.iter().map(|row| &row.program)) {
        let of = |arm: &str| {
            let row = rows.iter().find(|row| row.program == *program && row.arm == arm);
            row.with_context(|| format!("{}: no row `{arm}` of {program}", results.file))
        };
        let (plain, default, ours) =
            (of("plain")?, of("preempt")?, of("preempt, all preemptible")?);
        let (flep, slices) = (of("FLEP's loop")?, of("slices")?);
        let yields = if plain.yield_points { ", yield points" } else { "" };
        table.row([
            format!("{program}{yields}"),
            plain.p50_us.map(time).context("a plain kernel has no time")?,
            format!(
                "{:.3}{}",
                default.p50_to_plain,
                if is_plain(default) { ", plain" } else { "" }
            ),
            format!("{:.3}", ours.p50_to_plain),
            digits(flep.p50_to_plain),
            format!("{:.3}", slices.p50_to_plain),
            slices.stop(),
            format!("{} / {}", plain.registers, ours.registers),
            format!("{} / {}", plain.blocks_per_sm, ours.blocks_per_sm),
            time(ours.longest_task_us),
            ours.stop(),
        ]);
    }
    Ok(format!(
        "{}\nThe geometric mean of preemptible kernels is {:.3}, that of slices {:.3}, that of FLEP's loop {}. From \
         the launch until the host knows of the end, preemptible kernels take {:.3} times as long through the \
         scheduler. Of {} kernels, {} lose a resident block. By default {} are plain grids, and the geometric mean is \
         {:.3}.\n\n{}",
        table.text(),
        results.number("geomean_ratio")?,
        results.number("slices_geomean_ratio")?,
        digits(results.number("flep_geomean_ratio")?),
        results.number("geomean_done_ratio")?,
        results.number("kernels")?,
        results.number("kernels_losing_a_block")?,
        rows.iter().filter(|row| is_plain(row)).count(),
        results.number("geomean_ratio_default")?,
        results.source(),
    ))
}

#[derive(Deserialize)]
struct Launch {
    name: String,
    kernel: String,
    side: String,
    p50_us: f64,
    p99_us: f64,
    p50_to_driver: f64,
}

/// Calls that make, change or destroy graphs and programs.
#[derive(Deserialize)]
struct GraphCall {
    call: String,
    of: String,
    side: String,
    beside: bool,
    samples: u32,
    waited: u32,
    p50_us: f64,
    p99_us: f64,
    max_us: f64,
}

/// One short kernel in one form.
#[derive(Deserialize)]
struct Guarded {
    form: String,
    p50_us: f64,
    p99_us: f64,
}

pub fn launch(folder: &Folder) -> Result<String> {
    let results = folder.get("launch-gpu")?;
    let mut table = Table::new(["", "kernel", "side", "p50", "p99", "to the driver's"]);
    for row in results.rows_with::<Launch>("p50_to_driver")? {
        let ratio = format!("{:.2}x", row.p50_to_driver);
        table.row([row.name, row.kernel, row.side, time(row.p50_us), time(row.p99_us), ratio]);
    }
    Ok(format!(
        "*Submit* is the time inside `launch`. Of a stream of kernels, the time is for each kernel.\n\n{}{}{}{}\n{}",
        table.text(),
        graph_calls(&results)?,
        guards(&results)?,
        calibration(&results)?,
        results.source(),
    ))
}

fn graph_calls(results: &Results) -> Result<String> {
    let rows: Vec<GraphCall> = results.rows_with_any("beside")?;
    if rows.is_empty() {
        return Ok(String::new());
    }
    let mut table =
        Table::new(["call", "of", "side", "idle GPU", "beside a kernel", "the longest", "waited"]);
    for (call, of, side) in distinct(rows.iter().map(|row| (&row.call, &row.of, &row.side))) {
        let find = |beside| {
            let of_call = |row: &&GraphCall| {
                (&row.call, &row.of, &row.side, row.beside) == (call, of, side, beside)
            };
            rows.iter().find(of_call).filter(|row| row.samples > 0)
        };
        let told = |row: Option<&GraphCall>| {
            row.map_or_else(|| "-".to_owned(), |row| times(row.p50_us, row.p99_us))
        };
        let beside = find(true);
        table.row([
            call.clone(),
            of.clone(),
            side.clone(),
            told(find(false)),
            told(beside),
            time_or_dash(beside.map(|row| row.max_us)),
            beside
                .map_or_else(|| "-".to_owned(), |row| format!("{} of {}", row.waited, row.samples)),
        ]);
    }
    Ok(format!(
        "\nGraphs of 50 kernels, and programs of 50 launches, are made, changed and given up on an idle GPU and beside a \
         kernel of 20 ms that has all SMs, p50 / p99. *Waited* are the calls that returned after its end.\n\n{}",
        table.text(),
    ))
}

fn guards(results: &Results) -> Result<String> {
    let rows: Vec<Guarded> = results.rows_with_any("form")?;
    if rows.is_empty() {
        return Ok(String::new());
    }
    let mut table = Table::new(["one short kernel on an idle GPU", "p50", "p99"]);
    for row in rows {
        table.row([row.form, time(row.p50_us), time(row.p99_us)]);
    }
    Ok(format!(
        "\nA kernel that can be armed is guarded: it is preemptible, and its program waits behind a gate. From the call to \
         the return of `wait`; where it is only set, to that of `synchronize`.\n\n{}",
        table.text(),
    ))
}

fn calibration(results: &Results) -> Result<String> {
    if results.value()["summary"].get("calibration_ms").is_none_or(Value::is_null) {
        return Ok(String::new());
    }
    let costs = &results.value()["summary"]["costs_us"];
    let told = |name: &str| {
        let cost = costs[name].as_f64();
        let cost = cost.with_context(|| format!("{}: no cost `{name}`", results.file))?;
        Ok(format!("{name} {}", time(cost)))
    };
    let measured = ["call", "launch", "follow", "stop", "report", "claim"].map(told);
    Ok(format!(
        "\nIts costs were measured in {} when the device was opened: {}.\n",
        time(1e3 * results.number("calibration_ms")?),
        measured.into_iter().collect::<Result<Vec<_>>>()?.join(", "),
    ))
}

#[derive(Deserialize)]
struct Spatial {
    victim: String,
    urgent: String,
    arm: String,
    sms: u32,
    cost_us: Option<f64>,
    urgent_p50_us: Option<f64>,
}

pub fn spatial(folder: &Folder) -> Result<String> {
    let results = folder.get("spatial-gpu")?;
    let rows: Vec<Spatial> = results.rows()?;
    let mut table = Table::new([
        "victim",
        "urgent kernel",
        "SMs needed",
        "cost: just enough",
        "twice",
        "all",
        "urgent p50: just enough",
        "twice",
        "all",
    ]);
    for pair in distinct(rows.iter().map(|row| (&row.victim, &row.urgent))) {
        let of = |arm: &str| {
            let row = rows.iter().find(|row| (&row.victim, &row.urgent) == pair && row.arm == arm);
            row.with_context(|| format!("{}: no row `{arm}` of {pair:?}", results.file))
        };
        let [enough, twice, all] = ["just enough", "twice", "all"].map(of);
        let (enough, twice, all) = (enough?, twice?, all?);
        let told = |time_us: Option<f64>| time_us.map_or_else(|| "-".to_owned(), time);
        table.row([
            pair.0.clone(),
            pair.1.clone(),
            enough.sms.to_string(),
            told(enough.cost_us),
            told(twice.cost_us),
            told(all.cost_us),
            told(enough.urgent_p50_us),
            told(twice.urgent_p50_us),
            told(all.urgent_p50_us),
        ]);
    }
    Ok(format!(
        "A long kernel yields just as many SMs as an urgent one needs, twice as many, or all (FLEP, section 6.4). \
         *Cost* is what the long kernel takes longer than alone, in the median.\n\n{}\nTo yield just enough costs {} less \
         than to yield all: the mean of the {} of {} pairs that differ by more than noise. An urgent kernel of one \
         block-task then takes up to {:.2} times as long as with all SMs.\n\n{}",
        table.text(),
        percent(results.number("saved_vs_all_mean")?),
        results.number("pairs_compared")?,
        results.number("pairs")?,
        results.number("urgent_vs_all")?,
        results.source(),
    ))
}

#[derive(Deserialize)]
struct Choice {
    yield_points: bool,
    arm: String,
    sms: u32,
    urgent_p50_us: f64,
    urgent_p99_us: f64,
    lost_mean_us: f64,
}

pub fn choice(folder: &Folder) -> Result<String> {
    let Some(results) = folder.find("choice-gpu")? else {
        return Ok("Not measured yet: `preempt-bench choice --device cuda`.\n".to_owned());
    };
    let rows: Vec<Choice> = results.rows()?;
    let mut table = Table::new(["yield points", "SMs", "takes", "urgent p50", "p99", "work lost"]);
    for row in &rows {
        table.row([
            (if row.yield_points { "yes" } else { "no" }).to_owned(),
            row.sms.to_string(),
            row.arm.clone(),
            time(row.urgent_p50_us),
            time(row.urgent_p99_us),
            if row.yield_points { time(row.lost_mean_us) } else { "-".to_owned() },
        ]);
    }
    Ok(format!(
        "An urgent launch takes SMs from a kernel whose block-tasks take from 250 to 750 µs: the first SMs, or those that cost \
         least by how far the block-tasks there are (Chimera, algorithm 1). Without yield points it waits for the blocks that \
         are there; with them, *work lost* is what block-tasks had done that are done again, summed over blocks.\n\n{}\nFor \
         one SM, the wait is {:.2} of that for the first SM, and the work that is lost {:.2}.\n\n{}",
        table.text(),
        results.number("cheapest_over_first_urgent")?,
        results.number("cheapest_over_first_lost")?,
        results.source(),
    ))
}
