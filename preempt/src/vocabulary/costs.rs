//! The costs of a device.

use std::time::Duration;

/// Measured figures, and their sources.
const H200: &str = include_str!("../sim/h200.txt");

/// Times that a device and its host take beside the kernels' work. Every rule that decides by time takes them from here.
///
/// ```
/// use std::time::Duration;
///
/// use preempt::Costs;
///
/// // As on an H200, with a driver whose calls are slower.
/// let costs = Costs { call: Duration::from_micros(12), ..Costs::h200() };
/// assert!(costs.call > costs.follow);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Costs {
    /// The call that launches blocks, for the thread that makes it.
    pub call: Duration,
    /// From the beginning of that call until the blocks run, if there is room.
    pub launch: Duration,
    /// From the end of a launch to the start of one that was queued behind it in its stream.
    pub follow: Duration,
    /// From the signal until the last block has left, for kernels of which nothing else is known.
    pub stop: Duration,
    /// From the end of a launch on the device until the host knows.
    pub report: Duration,
    /// How long the host takes to decide.
    pub decision: Duration,
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
            stop: Duration::ZERO,
            report: Duration::ZERO,
            decision: Duration::ZERO,
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
            stop: figure("stop"),
            report: figure("report"),
            decision: figure("decision"),
            absence: figure("absence"),
        };
        MEASURED
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
    fn the_figures_of_the_file_are_those_of_the_costs() {
        let Costs { call, launch, stop, decision, absence, .. } = Costs::h200();
        assert_eq!((call, launch), (Duration::from_nanos(4_600), Duration::from_nanos(7_720)));
        assert_eq!((stop, decision), (Duration::from_nanos(9_890), Duration::from_micros(1)));
        assert_eq!(absence, Duration::from_micros(75));
    }
}
