use std::time::Duration;

use super::*;
use crate::policy::{ModelDevice, Plan, Policy};

/// Runs jobs of these seconds at speeds in a way of sharing, with a policy's decisions, by a clock of its own.
struct Bench {
    execution: Execution,
    seconds: Vec<f64>,
    /// Of each job beside another one, by the SMs that it has.
    speed: fn(usize, u32) -> f64,
    now: f64,
    /// By how much the next runs are slower.
    slower: f64,
}

impl Bench {
    fn run(&mut self, these: &[usize]) -> Result<(), Error> {
        let (mut device, mut plan) = (ModelDevice::new(8), Plan::default());
        let mut left: Vec<_> = these
            .iter()
            .map(|&job| {
                let launch = device.launch(1000).stream(job as u32);
                self.execution.arrived(Duration::from_secs_f64(self.now), launch);
                (job, launch.id, self.seconds[job] * self.slower)
            })
            .collect();
        while !left.is_empty() {
            plan.clear();
            self.execution.assign(Duration::from_secs_f64(self.now), &device, &mut plan);
            device.follow(&plan);
            let speed = |(job, id, _): &(usize, _, f64)| match plan.grants().len() {
                1 => plan.grants().iter().map(|(of, _)| f64::from(of == id)).sum(),
                _ => {
                    let range = plan.grants().iter().find(|(of, _)| of == id).expect("granted").1;
                    (self.speed)(*job, range.hi() - range.lo())
                }
            };
            let speeds: Vec<f64> = left.iter().map(speed).collect();
            let next = left.iter().zip(&speeds).map(|((.., left), speed)| left / speed);
            let step = next.fold(f64::INFINITY, f64::min);
            self.now += step;
            for ((.., left), speed) in left.iter_mut().zip(&speeds) {
                *left -= step * speed;
            }
            left.retain(|&(_, id, left)| {
                if left < 1e-9 {
                    device.remove(id);
                    self.execution.departed(Duration::from_secs_f64(self.now), id);
                }
                left >= 1e-9
            });
        }
        // A pause between runs is no part of them.
        self.now += 3.0;
        Ok(())
    }
}

fn bench(seconds: &[f64], speed: fn(usize, u32) -> f64) -> Bench {
    let names: Vec<String> = (0..seconds.len()).map(|job| format!("job {job}")).collect();
    let execution = Execution::unplanned(names);
    (0..seconds.len()).for_each(|job| execution.bind(job, job as u32).expect("a job"));
    Bench { execution, seconds: seconds.to_vec(), speed, now: 1.0, slower: 1.0 }
}

#[test]
fn seconds_and_speeds_are_those_of_the_runs() {
    // Job 0 is as fast as its SMs, the others keep most of their speed.
    let speed = |job: usize, sms: u32| {
        if job == 0 { f64::from(sms) / 8.0 } else { 0.6 + f64::from(sms) / 80.0 }
    };
    let mut bench = bench(&[0.4, 0.2, 0.3], speed);
    let execution = bench.execution.clone();
    let ways = [Sharing::split(1, 4), Sharing::AllSms, Sharing::split(1, 2)];
    let (jobs, speeds) = execution.measure(&ways, 5, |these| bench.run(these)).expect("measured");
    for (job, seconds) in jobs.iter().zip([0.4, 0.2, 0.3]) {
        assert!((job.seconds - seconds).abs() < 1e-6, "{job:?}");
    }
    assert_eq!(speeds.ways().collect::<Vec<_>>(), ways);
    for (way, parts) in [[2, 6], [8, 8], [4, 4]].into_iter().enumerate() {
        for (i, j) in [(0, 1), (0, 2), (1, 2)] {
            let expected = [speed(i, parts[0]), speed(j, parts[1])];
            let measured = [speeds.speed(way, i, j), speeds.speed(way, j, i)];
            for (measured, expected) in measured.into_iter().zip(expected) {
                assert!(
                    (measured - expected).abs() < 1e-6,
                    "{i} {j} in {way}: {measured}, {expected}"
                );
            }
        }
    }
}

#[test]
fn both_speeds_are_of_one_run_and_the_first_run_alone_does_not_count() {
    let mut bench = bench(&[0.4, 0.4], |_, _| 0.5);
    let execution = bench.execution.clone();
    let mut runs = Vec::new();
    let (jobs, speeds) = execution
        .measure(&[Sharing::AllSms], 3, |these| {
            runs.push(these.to_vec());
            bench.slower = match runs.len() {
                1 | 5 => 0.1,
                2 | 6 => 0.9,
                4 | 8 => 1.5,
                _ => 1.0,
            };
            // Each job is fast in a run in which the other one is slow.
            bench.speed = match runs.len() {
                9 => |job, _| [0.9, 0.05][job],
                10 => |job, _| [0.1, 0.8][job],
                _ => |_, _| 0.4,
            };
            bench.run(these)
        })
        .expect("measured");
    assert_eq!(runs.len(), 2 * 4 + 3);
    assert!((jobs[0].seconds - 0.4).abs() < 1e-6 && (jobs[1].seconds - 0.4).abs() < 1e-6);
    let measured = [speeds.speed(0, 0, 1), speeds.speed(0, 1, 0)];
    assert!((measured[0] - 0.1).abs() < 1e-6 && (measured[1] - 0.8).abs() < 1e-6, "{measured:?}");
}

#[test]
fn too_short_an_overlap_is_speed_zero() {
    let mut bench = bench(&[4.0, 0.2], |_, _| 1.0);
    let execution = bench.execution.clone();
    let (_, speeds) = execution
        .measure(&[Sharing::AllSms], 1, |these| match these {
            [first, second] => {
                // The second one begins when the first one is over.
                bench.run(&[*first])?;
                bench.run(&[*second])
            }
            these => bench.run(these),
        })
        .expect("measured");
    assert_eq!([speeds.speed(0, 0, 1), speeds.speed(0, 1, 0)], [0.0, 0.0]);
}

#[test]
fn what_cannot_be_measured_is_refused() {
    let execution = Execution::unplanned(["a", "b"]);
    let measure = |ways: &[Sharing]| execution.measure(ways, 1, |_| Ok(())).map(|_| ());
    for (result, says) in [
        (measure(&[Sharing::AllSms]), "job 0 `a` launched nothing"),
        (measure(&[]), "no way of sharing"),
        (measure(&[Sharing::AllSms, Sharing::AllSms]), "twice"),
        (measure(&[Sharing::split(3, 3)]), "a part of the SMs"),
    ] {
        let error = result.expect_err(says).to_string();
        assert!(error.contains(says), "{error}");
    }
    let (jobs, speeds) = Execution::unplanned(Vec::<String>::new())
        .measure(&[Sharing::AllSms], 5, |_| Ok(()))
        .expect("nothing to measure");
    assert_eq!((jobs.len(), speeds.tasks()), (0, 0));
}
