//! A timeline of the SMs that launches had, as a file for Perfetto and Chrome.
//!
//! The format is that of trace events ("Trace Event Format", of the Chromium project): JSON, with times in
//! microseconds.

use std::collections::{BTreeSet, VecDeque};
use std::fmt::Write;
use std::time::Duration;

use preempt_device::abi::SmRange;

use super::accounts::LaunchEntry;

/// The last entries of a timeline.
#[derive(Clone, Debug)]
pub(in crate::scheduler) struct Trace {
    capacity: usize,
    records: VecDeque<Record>,
    /// Entries dropped before these.
    dropped: u64,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    launch: u64,
    stream: u32,
    name: &'static str,
    at: Duration,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// The launch had these SMs for this time.
    Slice(Duration, SmRange),
    Moment(Moment),
}

/// An event in the life of a launch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::scheduler) enum Moment {
    Queued,
    Starts,
    Yields,
    Resumes,
    Done,
    Failed,
    Cancelled,
    Refused,
}

impl Moment {
    pub fn name(self) -> &'static str {
        match self {
            Moment::Queued => "queued",
            Moment::Starts => "start",
            Moment::Yields => "yield",
            Moment::Resumes => "resume",
            Moment::Done => "done",
            Moment::Failed => "failed",
            Moment::Cancelled => "cancelled",
            Moment::Refused => "not admitted",
        }
    }
}

/// Processes of the file: groups of tracks.
const STREAMS: u32 = 1;
const SMS: u32 = 2;

/// Numbers of the first tracks. A track with the number 0, or that of its process, is the process's main thread to Perfetto,
/// which shows two such tracks as one.
const FIRST_STREAM: u32 = 1000;
const FIRST_RANGE: u32 = 100_000_000;

impl Trace {
    /// A timeline of the last `capacity` entries.
    pub fn new(capacity: usize) -> Trace {
        Trace { capacity, records: VecDeque::new(), dropped: 0 }
    }

    /// Records that a launch had these SMs from one moment to another.
    pub fn slice(&mut self, entry: &LaunchEntry, from: Duration, to: Duration, range: SmRange) {
        if from < to {
            self.push(entry, from, What::Slice(to - from, range));
        }
    }

    /// Records an event in the life of a launch.
    pub fn moment(&mut self, entry: &LaunchEntry, at: Duration, moment: Moment) {
        self.push(entry, at, What::Moment(moment));
    }

    fn push(&mut self, entry: &LaunchEntry, at: Duration, what: What) {
        if self.records.len() >= self.capacity {
            self.dropped += 1;
            if self.records.pop_front().is_none() {
                return;
            }
        }
        let LaunchEntry { launch, stream, name, .. } = *entry;
        self.records.push_back(Record { launch, stream, name, at, what });
    }

    /// The number of entries that were dropped.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// The text of the file. A launch is on the track of its stream, and on a track of the SMs that it had.
    pub fn json(&self) -> String {
        let mut text = String::with_capacity(256 * self.records.len());
        // Writing to a string cannot fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        write!(text, "{{\"otherData\":{{\"dropped\":{}}},\n\"traceEvents\":[", self.dropped)?;
        name(text, "process_name", STREAMS, 0, "streams")?;
        text.push_str(",\n");
        name(text, "process_name", SMS, 0, "SMs")?;
        let (mut streams, mut ranges) = (BTreeSet::new(), BTreeSet::new());
        for record in &self.records {
            streams.insert(record.stream);
            if let What::Slice(_, range) = record.what {
                ranges.insert((range.lo(), range.hi()));
            }
        }
        for stream in streams {
            text.push_str(",\n");
            name(text, "thread_name", STREAMS, of_stream(stream), &format!("stream {stream}"))?;
        }
        for (lo, hi) in ranges {
            text.push_str(",\n");
            // A range past the last SM goes on with the first.
            name(text, "thread_name", SMS, of_range(lo, hi), &format!("SMs {lo}..{hi}"))?;
        }
        for Record { launch, stream, name, at, what } in &self.records {
            let (at, name) = (Micros(*at), Text(name));
            let mut event = |process: u32, track: u32, rest: &dyn std::fmt::Display| {
                write!(
                    text,
                    ",\n{{\"pid\":{process},\"tid\":{track},\"ts\":{at},{rest},\
                     \"args\":{{\"launch\":{launch},\"stream\":{stream},\"kernel\":{name}"
                )?;
                if let What::Slice(_, range) = what {
                    write!(text, ",\"sms\":[{},{}]", range.lo(), range.hi())?;
                }
                text.write_str("}}")
            };
            match what {
                What::Slice(time, range) => {
                    let time = Micros(*time);
                    let rest =
                        format_args!("\"ph\":\"X\",\"dur\":{time},\"name\":{name}").to_string();
                    event(STREAMS, of_stream(*stream), &rest)?;
                    event(SMS, of_range(range.lo(), range.hi()), &rest)?;
                }
                What::Moment(moment) => {
                    let moment = Text(moment.name());
                    let rest = format!("\"ph\":\"i\",\"s\":\"t\",\"name\":{moment}");
                    event(STREAMS, of_stream(*stream), &rest)?;
                }
            }
        }
        text.write_str("\n]}\n")
    }
}

/// Names a group of tracks, or a track.
fn name(text: &mut String, kind: &str, process: u32, track: u32, name: &str) -> std::fmt::Result {
    let name = Text(name);
    write!(
        text,
        "\n{{\"ph\":\"M\",\"pid\":{process},\"tid\":{track},\"name\":\"{kind}\",\"args\":{{\"name\":{name}}}}}"
    )
}

/// The number of a stream's track.
fn of_stream(stream: u32) -> u32 {
    FIRST_STREAM.saturating_add(stream)
}

/// The number of a range's track. SMs have numbers below 1024.
fn of_range(lo: u32, hi: u32) -> u32 {
    FIRST_RANGE + 10_000 * lo + hi
}

/// A time in the file's format.
struct Micros(Duration);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{:03}", self.0.as_micros(), self.0.as_nanos() % 1000)
    }
}

/// Text in JSON's format.
struct Text<'a>(&'a str);

impl std::fmt::Display for Text<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_char('"')?;
        for character in self.0.chars() {
            match character {
                '"' | '\\' => write!(f, "\\{character}")?,
                control if control < ' ' => write!(f, "\\u{:04x}", u32::from(control))?,
                other => f.write_char(other)?,
            }
        }
        f.write_char('"')
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::PathBuf;

    use preempt_device::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::engine::Grant;
    use crate::error::SchedulerError;
    use crate::policy::StaticPriority;
    use crate::scheduler::observed::accounts::Accounts;
    use crate::{CpuLayout, Device, Error, LaunchReport, Priority, Scheduler};

    #[preemptible(block = 32)]
    fn squares(out: SliceMut<u32>) {
        let i = thread::index_1d() as usize;
        if i < out.len() {
            // SAFETY: each thread writes its own element.
            unsafe { out.write(i, (i as u32).wrapping_mul(i as u32)) }
        }
    }

    /// A file of a test's own, removed on drop.
    struct File(PathBuf);

    impl File {
        fn new(test: &str) -> File {
            let name = format!("preempt-trace-{test}-{}.json", std::process::id());
            File(std::env::temp_dir().join(name))
        }

        fn read(&self) -> Value {
            let text = std::fs::read_to_string(&self.0).expect("a file");
            serde_json::from_str(&text).expect("JSON")
        }
    }

    impl Drop for File {
        fn drop(&mut self) {
            let _ = std::fs::remove_file(&self.0);
        }
    }

    fn events<'a>(json: &'a Value, phase: &str) -> Vec<&'a Value> {
        let events = json["traceEvents"].as_array().expect("events");
        events.iter().filter(|event| event["ph"] == phase).collect()
    }

    fn nanos(value: &Value) -> u64 {
        (1000.0 * value.as_f64().expect("microseconds")).round() as u64
    }

    /// Runs a batch launch, with urgent launches beside it until it has yielded; returns the reports of all.
    fn preempted(scheduler: &Scheduler) -> Vec<LaunchReport> {
        let (batch, urgent) = (scheduler.stream(0), scheduler.stream(1));
        let mut large = scheduler.zeroed::<u32>(32 * 4000).expect("memory");
        let mut small = scheduler.zeroed::<u32>(32).expect("memory");
        let mut reports = Vec::new();
        loop {
            let long = batch.launch(squares(&mut large).grid(4000)).expect("accepted");
            while !long.is_done() {
                let short = urgent.launch(squares(&mut small).grid(1)).expect("accepted");
                reports.push(short.wait().expect("done"));
            }
            reports.push(long.wait().expect("done"));
            if reports.last().is_some_and(|report| report.yields > 0) {
                return reports;
            }
        }
    }

    fn scheduler(capacity: usize) -> Scheduler {
        let device = Device::cpu_with(CpuLayout::sms(2)).expect("a device");
        let policy = StaticPriority::whole_device();
        let builder = Scheduler::builder().device(device).policy(policy).trace(capacity);
        builder.build().expect("a scheduler")
    }

    #[test]
    fn slices_do_not_overlap_and_add_up_to_the_reports() {
        let scheduler = scheduler(1 << 20);
        let reports = preempted(&scheduler);
        scheduler.synchronize().expect("nothing went wrong");
        let file = File::new("slices");
        assert_eq!(scheduler.write_trace(&file.0).expect("written"), 0);
        let json = file.read();

        let mut tracks = BTreeMap::<(u64, u64), Vec<(u64, u64)>>::new();
        let mut sm_times = BTreeMap::<u64, u64>::new();
        for slice in events(&json, "X") {
            let (start, length) = (nanos(&slice["ts"]), nanos(&slice["dur"]));
            let track = [&slice["pid"], &slice["tid"]].map(|id| id.as_u64().expect("a number"));
            tracks.entry(track.into()).or_default().push((start, start + length));
            let sms = &slice["args"]["sms"];
            let count = sms[1].as_u64().expect("an SM") - sms[0].as_u64().expect("an SM");
            if slice["pid"] == STREAMS {
                let launch = slice["args"]["launch"].as_u64().expect("a number");
                *sm_times.entry(launch).or_default() += length * count;
            }
        }
        for (track, mut slices) in tracks {
            slices.sort_unstable();
            for pair in slices.windows(2) {
                assert!(pair[0].1 <= pair[1].0, "{track:?}: {pair:?}");
            }
        }
        let sorted = |times: &mut dyn Iterator<Item = u64>| {
            let mut times: Vec<u64> = times.filter(|&time| time > 0).collect();
            times.sort_unstable();
            times
        };
        let reported = sorted(&mut reports.iter().map(|report| report.sm_time.as_nanos() as u64));
        assert_eq!(sorted(&mut sm_times.values().copied()), reported);

        let moments = |name: &str| {
            events(&json, "i").into_iter().filter(|event| event["name"] == name).count()
        };
        assert_eq!(moments("queued"), reports.len());
        assert_eq!((moments("start"), moments("done")), (reports.len(), reports.len()));
        assert!(moments("yield") > 0 && moments("resume") > 0);
        let named = events(&json, "M").into_iter().filter(|event| event["name"] == "thread_name");
        let mut numbers: Vec<_> =
            named.map(|event| event["tid"].as_u64().expect("a number")).collect();
        assert!(numbers.iter().all(|&number| number > u64::from(SMS)), "{numbers:?}");
        let count = numbers.len();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), count, "tracks of one number: {numbers:?}");
        let names: Vec<_> =
            events(&json, "M").iter().map(|event| event["args"]["name"].clone()).collect();
        for name in ["streams", "SMs", "stream 0", "stream 1", "SMs 0..2"] {
            assert!(names.contains(&name.into()), "{name} in {names:?}");
        }

        // The same from the other side.
        let stats = scheduler.stats();
        let whole: Duration = reports.iter().map(|report| report.sm_time).sum();
        assert_eq!((stats.total.done, stats.total.sm_time), (reports.len() as u64, whole));
        assert_eq!(stats.streams.len(), 2);
        assert_eq!(stats.streams[0].stream, 0);
        assert!(stats.streams[0].launches.yields > 0 && stats.streams[1].launches.yields == 0);
        let priorities: Vec<_> = stats.priorities.iter().map(|(priority, _)| *priority).collect();
        assert_eq!(priorities, [Priority(0), Priority(1)]);
        assert!(stats.total.antt.is_some() && stats.total.stp.is_some());
        assert!(stats.decisions.count >= reports.len() as u64);
        assert!(
            stats.decisions.mean > Duration::ZERO && stats.decisions.p99 <= stats.decisions.max
        );
        assert!(stats.busy > Duration::ZERO && stats.busy <= stats.elapsed);
        assert!(stats.decisions.overhead > 0.0);
    }

    #[test]
    fn the_last_entries_are_kept_and_the_others_counted() {
        for capacity in [0, 1, 5] {
            let mut trace = Trace::new(capacity);
            let mut accounts = Accounts::new(4, None);
            let entry = accounts.submitted(Duration::ZERO, 3, "model", Priority(0), None);
            for nanos in 0..8 {
                trace.moment(&entry, Duration::from_nanos(nanos), Moment::Yields);
            }
            assert_eq!(trace.dropped(), 8 - capacity as u64);
            let json: Value = serde_json::from_str(&trace.json()).expect("JSON");
            let kept: Vec<_> = events(&json, "i").iter().map(|event| nanos(&event["ts"])).collect();
            assert_eq!(kept, (8 - capacity as u64..8).collect::<Vec<_>>());
            assert_eq!(json["otherData"]["dropped"], trace.dropped());
        }
    }

    #[test]
    fn running_launches_are_on_the_timeline_until_now() {
        let mut accounts = Accounts::new(4, Some(10));
        let at = Duration::from_nanos;
        let mut entry = accounts.submitted(at(1), 3, "a \"kernel\"\n", Priority(0), None);
        let range = SmRange::new(1, 4);
        let grant =
            Grant { op: Default::default(), at: at(1_500), range, shares: false, is_over: false };
        accounts.granted(&mut entry, grant);
        let trace = accounts.trace(at(1_002_501), [&entry].into_iter()).expect("kept");
        let json: Value = serde_json::from_str(&trace.json()).expect("JSON");
        let slices = events(&json, "X");
        assert_eq!(slices.len(), 2, "a slice for the stream, a slice for the SMs");
        assert_eq!(
            (&slices[0]["name"], nanos(&slices[0]["ts"])),
            (&"a \"kernel\"\n".into(), 1_500)
        );
        assert_eq!(nanos(&slices[1]["dur"]), 1_001_001);
    }

    #[test]
    fn a_timeline_has_to_be_kept_and_to_be_written_somewhere() {
        let device = Device::cpu_with(CpuLayout::sms(1)).expect("a device");
        let without = Scheduler::builder().device(device).build().expect("a scheduler");
        let file = File::new("none");
        assert!(matches!(
            without.write_trace(&file.0),
            Err(Error::Scheduler(SchedulerError::NoTrace))
        ));
        assert!(!file.0.exists());
        let error = scheduler(1).write_trace(std::env::temp_dir()).expect_err("a folder");
        assert!(
            matches!(error, Error::Scheduler(SchedulerError::TraceNotWritten { .. })),
            "{error:?}"
        );
    }
}
