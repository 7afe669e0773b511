//! The costs of a device.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Measured figures, and their sources.
const H200: &str = include_str!("../sim/h200.txt");

/// Times that a device and its host take beside the kernels' work. What the engine decides by time it decides by these. How long
/// a thread waits at most, for the driver or for another thread, is a constant where it waits: such a limit trades nothing.
///
/// ```
/// use std::time::Duration;
///
/// use preempt::Costs;
///
/// // As on an H200, with a driver that launches blocks later.
/// let costs = Costs { launch: Duration::from_micros(12), ..Costs::h200() };
/// assert!(costs.launch > costs.follow);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Costs {
    /// The call that launches blocks, for the thread that makes it. The simulator alone uses this.
    pub call: Duration,
    /// From the beginning of that call until the blocks run, if there is room.
    pub launch: Duration,
    /// From the end of a launch to the start of the launch that was queued behind it in its stream.
    pub follow: Duration,
    /// From the end of a kernel of a plain program to the start of the next one. The simulator alone uses this.
    pub graph: Duration,
    /// From the signal until the last block has left, for kernels of which nothing else is known.
    pub stop: Duration,
    /// From the end of a launch on the device until the host knows.
    pub report: Duration,
    /// How long the host takes to take in a message: a launch that was submitted, or a change. The simulator alone uses
    /// this.
    #[serde(default)]
    pub take_in: Duration,
    /// How long the host takes to decide.
    pub decision: Duration,
    /// Between two claims of block-tasks, of all blocks together, below which blocks wait for each other.
    pub claim: Duration,
    /// How long the host is elsewhere, but for one time in a hundred: the device needs work for as long.
    pub absence: Duration,
}

impl Costs {
    /// No costs: the best that a policy can reach.
    pub const fn free() -> Costs {
        Costs {
            call: Duration::ZERO,
            launch: Duration::ZERO,
            follow: Duration::ZERO,
            graph: Duration::ZERO,
            stop: Duration::ZERO,
            report: Duration::ZERO,
            take_in: Duration::ZERO,
            decision: Duration::ZERO,
            claim: Duration::ZERO,
            absence: Duration::ZERO,
        }
    }

    /// As measured on an NVIDIA H200; `sim/h200.txt` in the sources says where each figure is from.
    pub const fn h200() -> Costs {
        // At compile time: a file that lacks a figure does not compile.
        const MEASURED: Costs = Costs {
            call: figure("call"),
            launch: figure("launch"),
            follow: figure("follow"),
            graph: figure("graph"),
            stop: figure("stop"),
            report: figure("report"),
            take_in: figure("take_in"),
            decision: figure("decision"),
            claim: figure("claim"),
            absence: figure("absence"),
        };
        MEASURED
    }
}

/// What a device takes for launches and signals of a kernel without a worker loop.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bare {
    pub launch: Duration,
    pub follow: Duration,
    pub stop: Duration,
    pub report: Duration,
    /// A thousand claims.
    pub claims: Duration,
}

impl Bare {
    /// On the device of [`Costs::h200`].
    const H200: Bare = Bare {
        launch: figure("bare_launch"),
        follow: figure("bare_follow"),
        stop: figure("bare_stop"),
        report: figure("bare_report"),
        claims: figure("bare_claims"),
    };
}

impl Costs {
    /// The costs of a device with this call and these bare costs. Each is to that on an H200 as the bare ones are.
    pub(crate) fn measured(call: Duration, bare: Bare) -> Costs {
        let usual = Costs::h200();
        let scaled = |usual: Duration, bare: Duration, of_h200: Duration| {
            let ratio = bare.as_secs_f64() / of_h200.as_secs_f64();
            // Otherwise something else runs on the device, and this is no cost of ours.
            let is_own = (0.1..10.0).contains(&ratio);
            if is_own { usual.mul_f64(ratio) } else { usual }
        };
        Costs {
            call: scaled(usual.call, call, usual.call),
            launch: scaled(usual.launch, bare.launch, Bare::H200.launch),
            follow: scaled(usual.follow, bare.follow, Bare::H200.follow),
            stop: scaled(usual.stop, bare.stop, Bare::H200.stop),
            report: scaled(usual.report, bare.report, Bare::H200.report),
            claim: scaled(usual.claim, bare.claims, Bare::H200.claims),
            ..usual
        }
    }
}

/// What follows from the costs. Each weighs two of them against each other.
impl Costs {
    /// Time for the block-tasks between two looks at the signal. A block's view of the signal is as old as the chunk, so a
    /// yield waits for one and a half chunks on average: as long as the rest of a stop takes. With shorter chunks blocks
    /// look more often, and a stop still takes half as long at least.
    pub(crate) fn chunk(&self) -> Duration {
        self.stop * 2 / 3
    }

    /// From the signal until the last block has left, for a kernel that was not seen to stop: the stop, and what is left
    /// of the [chunks](Costs::chunk).
    pub(crate) fn whole_stop(&self) -> Duration {
        self.stop + self.chunk() * 3 / 2
    }

    /// Its longest time. What follows from times of up to a day can be computed.
    pub(crate) fn longest(&self) -> Duration {
        let Costs { call, launch, follow, graph, stop, report, take_in, decision, claim, absence } =
            *self;
        [call, launch, follow, graph, stop, report, take_in, decision, claim, absence]
            .into_iter()
            .max()
            .unwrap_or_default()
    }

    /// What it costs to overturn a decision: the launch that was started stops, and another one is launched in its place.
    pub(crate) fn overturn(&self) -> Duration {
        self.stop + self.launch
    }

    /// From the end of a launch to the start of another one by the host, which only then launches it.
    pub(crate) fn gap(&self) -> Duration {
        self.report + self.decision + self.launch
    }

    /// Whether a launch is long: the gap before it is less than a tenth of its time. Then it loses more among blocks of
    /// others than by waiting for its turn.
    pub(crate) fn is_long(&self, took: Duration) -> bool {
        took >= 10 * self.gap()
    }

    /// Whether SMs that a launch needs again after this time are worth more to itself. Another launch would have to start
    /// there, and to stop, for which it takes `stop`; then this one would have to be launched again.
    pub(crate) fn is_short(&self, time: Duration, stop: Duration) -> bool {
        time < self.launch + stop + self.gap()
    }

    /// Whether enough is queued behind a running launch: work that takes `work`, in `launches`. The device has something
    /// to do then while the host is elsewhere. More of it would only have to leave where SMs are taken.
    pub(crate) fn is_enough_ahead(&self, work: Duration, launches: u32) -> bool {
        launches > 0 && work + launches * self.follow >= self.absence
    }

    /// Whether SMs are chosen by how far block-tasks are that take this time. It costs the host a look at the words of all blocks
    /// ahead of a decision, which took 10 µs on an H200's host for two blocks on each SM, and gains up to half of a block-task where
    /// an SM is taken. Of shorter block-tasks that is less than what a stop takes on any SM.
    pub(crate) fn is_worth_a_look(&self, block_task: Duration) -> bool {
        block_task / 2 > self.whole_stop()
    }

    /// Whether the gap before a launch is less than a hundredth of its time. A plain launch then waits rather for the host
    /// than behind another one, from where nothing takes it back. A preemptible one waits for the path of its signals; beside
    /// latency limits also a shorter one, if it is [long](Costs::is_long).
    pub(crate) fn can_wait(&self, took: Duration) -> bool {
        took > 100 * self.gap()
    }

    /// Time until a policy is asked again at the earliest. A policy that always wants to be asked takes a tenth of the
    /// host's time.
    pub(crate) fn shortest_wait(&self) -> Duration {
        // Time has to pass.
        (10 * self.decision).max(Duration::from_nanos(1))
    }
}

impl Default for Costs {
    /// [`Costs::h200`].
    fn default() -> Costs {
        Costs::h200()
    }
}

/// The figure in the file's line that starts with this word.
const fn figure(name: &str) -> Duration {
    let (text, name) = (H200.as_bytes(), name.as_bytes());
    let mut line = 0;
    while line < text.len() {
        let mut at = 0;
        while at < name.len() && line + at < text.len() && text[line + at] == name[at] {
            at += 1;
        }
        if at == name.len() && text[line + at] == b' ' {
            return microseconds(text, line + at);
        }
        while line < text.len() && text[line] != b'\n' {
            line += 1;
        }
        line += 1;
    }
    panic!("h200.txt lacks a figure")
}

/// The number behind the spaces at `at`.
const fn microseconds(text: &[u8], mut at: usize) -> Duration {
    while text[at] == b' ' {
        at += 1;
    }
    let (mut nanos, mut unit, mut digits) = (0, 1000, 0);
    let mut is_fraction = false;
    while at < text.len() && text[at] != b'\n' {
        match text[at] {
            b'.' if !is_fraction => is_fraction = true,
            digit @ b'0'..=b'9' if is_fraction => {
                unit /= 10;
                nanos += (digit - b'0') as u64 * unit;
                digits += 1;
            }
            digit @ b'0'..=b'9' => {
                nanos = nanos * 10 + (digit - b'0') as u64 * 1000;
                digits += 1;
            }
            _ => panic!("h200.txt has something other than a number behind a name"),
        }
        at += 1;
    }
    assert!(digits > 0, "h200.txt has a name without a number");
    Duration::from_nanos(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_to_those_of_an_h200_as_the_bare_ones_are() {
        let (usual, bare) = (Costs::h200(), Bare::H200);
        assert_eq!(Costs::measured(usual.call, bare), usual);
        let twice = Bare { stop: 2 * bare.stop, claims: 3 * bare.claims, ..bare };
        let costs = Costs::measured(3 * usual.call, twice);
        let (stop, claim) = (2 * usual.stop, 3 * usual.claim);
        assert_eq!(costs, Costs { call: 3 * usual.call, stop, claim, ..usual });
        // Others use the device, or a clock stands still.
        let strange = Bare { launch: 11 * bare.launch, report: Duration::ZERO, ..bare };
        assert_eq!(Costs::measured(Duration::ZERO, strange), usual);
    }

    fn us(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    /// Costs that differ from one another.
    fn costs() -> Costs {
        let (launch, report, decision) = (us(8), us(2), us(1));
        Costs { call: us(5), launch, stop: us(12), report, decision, ..Costs::free() }
    }

    #[test]
    fn half_of_a_stop_is_a_wait_for_chunks() {
        assert_eq!((costs().chunk(), costs().whole_stop()), (us(8), us(24)));
        assert_eq!(Costs::free().whole_stop(), Duration::ZERO);
    }

    #[test]
    fn a_long_launch_takes_ten_times_the_gap_before_it() {
        assert_eq!(costs().gap(), us(11));
        assert_eq!([109, 110].map(|took| costs().is_long(us(took))), [false, true]);
    }

    #[test]
    fn a_short_time_ends_before_another_launch_could_use_it() {
        assert_eq!([38, 39].map(|time| costs().is_short(us(time), us(20))), [true, false]);
        assert!(!Costs::free().is_short(Duration::ZERO, Duration::ZERO));
    }

    #[test]
    fn work_is_queued_ahead_for_as_long_as_the_host_is_elsewhere() {
        let costs = Costs { follow: us(3), absence: us(60), ..costs() };
        let is_enough = |work, launches| costs.is_enough_ahead(us(work), launches);
        assert!(!is_enough(1000, 0), "one is always queued");
        assert_eq!([56, 57].map(|work| is_enough(work, 1)), [false, true]);
        assert_eq!(
            [19, 20].map(|launches| is_enough(0, launches)),
            [false, true],
            "they leave one by one"
        );
    }

    #[test]
    fn a_plain_launch_waits_for_the_host_if_a_gap_costs_it_little() {
        assert_eq!([1100, 1101].map(|took| costs().can_wait(us(took))), [false, true]);
    }

    #[test]
    fn how_far_block_tasks_are_counts_where_half_of_one_takes_longer_than_a_stop() {
        assert_eq!([48, 49].map(|time| costs().is_worth_a_look(us(time))), [false, true]);
    }

    #[test]
    fn a_policy_takes_a_tenth_of_the_time_at_most() {
        assert_eq!(costs().shortest_wait(), us(10));
    }

    #[test]
    fn the_figures_of_the_file_are_those_of_the_costs() {
        let Costs { call, launch, graph, stop, decision, absence, .. } = Costs::h200();
        assert_eq!((call, launch), (Duration::from_nanos(4_600), Duration::from_nanos(7_720)));
        assert_eq!(graph, Duration::from_nanos(1_080));
        assert_eq!((stop, decision), (Duration::from_nanos(9_890), Duration::from_micros(1)));
        assert_eq!(absence, Duration::from_micros(75));
    }
}
