use super::super::speeds::Speeds;
use super::*;
use crate::policy::ModelDevice;

const SMS: u32 = 8;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A plan of pairs and jobs alone, each with its seconds, for jobs of these seconds.
fn plan(seconds: &[f64], speeds: &Speeds, intervals: &[(&[usize], f64)]) -> CoSchedule {
    let jobs: Vec<Job> =
        seconds.iter().enumerate().map(|(at, of)| Job::new(format!("job {at}"), *of)).collect();
    let mut start = 0.0;
    let intervals = intervals.iter().map(|&(tasks, duration)| {
        let running = match *tasks {
            [i, j] => {
                let rates = [speeds.speed(0, i, j), speeds.speed(0, j, i)];
                let sharing = speeds.ways().next().expect("a way");
                Running::Pair { tasks: [i, j], sharing, speeds: rates }
            }
            _ => Running::Alone { task: tasks[0] },
        };
        let interval = Interval { start, duration, running };
        start += duration;
        interval
    });
    CoSchedule::from_intervals(&jobs, speeds, intervals.collect(), None)
}

/// An execution on a device whose launches are made by hand.
struct Desk {
    execution: Execution,
    device: ModelDevice,
    now: Duration,
}

impl Desk {
    fn new(plan: &CoSchedule) -> Desk {
        let execution = plan.execution();
        (0..plan.jobs().len()).for_each(|job| execution.bind(job, job as u32).expect("a job"));
        Desk { execution, device: ModelDevice::new(SMS), now: Duration::ZERO }
    }

    fn arrive(&mut self, stream: u32) -> LaunchId {
        let launch = self.device.launch(1000).stream(stream);
        self.execution.arrived(self.now, launch);
        launch.id
    }

    fn depart(&mut self, launch: LaunchId) {
        self.device.remove(launch);
        self.execution.departed(self.now, launch);
    }

    /// The grants, with the first and the last SM, and when it wants to be asked again.
    fn ask(&mut self) -> (Vec<(LaunchId, u32, u32)>, Option<Duration>) {
        let mut plan = Plan::default();
        self.execution.assign(self.now, &self.device, &mut plan);
        self.device.follow(&plan);
        let grants = plan.grants().iter().map(|&(id, range)| (id, range.lo(), range.hi()));
        (grants.collect(), self.execution.wake())
    }

    fn at(&mut self, millis: u64) -> &mut Desk {
        self.now = ms(millis);
        self
    }
}

fn halves(tasks: usize, speed: f64) -> Speeds {
    Speeds::from_fn(Sharing::split(1, 2), tasks, |_, _| speed).expect("speeds")
}

#[test]
fn intervals_end_by_progress_and_a_job_that_stays_keeps_its_sms() {
    // Job 0 runs beside 1, and then beside 2, which is preempted, and runs again beside 1... as the plan says.
    let speeds = halves(3, 0.5);
    let intervals: [(&[usize], f64); 3] = [(&[0, 1], 0.010), (&[0, 2], 0.020), (&[1], 0.005)];
    let mut desk = Desk::new(&plan(&[0.015, 0.010, 0.010], &speeds, &intervals));
    let [zero, one, two] = [0, 1, 2].map(|stream| desk.arrive(stream));
    assert_eq!(
        desk.ask(),
        (vec![(zero, 0, 4), (one, 4, 8)], Some(ms(10))),
        "1 leaves at 5 ms of progress"
    );
    assert_eq!(desk.at(9).ask().0, [(zero, 0, 4), (one, 4, 8)]);
    // Both are done with it, so that it ends by departures.
    assert_eq!(desk.at(10).ask(), (vec![(zero, 0, 4), (two, 4, 8)], None));
    desk.at(29).depart(two);
    desk.device.set_yield_overhead(one, Duration::ZERO, Duration::ZERO);
    assert_eq!(desk.execution.remaining()[2], 0.0);
    desk.at(31).depart(zero);
    assert_eq!(desk.ask(), (vec![(one, 0, 8)], None));
    desk.at(36).depart(one);
    let ran = desk.execution.executed();
    assert!((ran.makespan() - 0.036).abs() < 1e-9, "{ran}");
    assert_eq!(ran.preemptions_of(1), 1, "{ran}");
    assert_eq!(desk.execution.remaining(), [0.0; 3]);
}

#[test]
fn a_preemption_costs_what_was_expected_when_the_job_ran_last() {
    let speeds = halves(3, 0.5);
    let mut desk = Desk::new(&plan(&[0.010; 3], &speeds, &[(&[0, 1], 0.020), (&[2], 0.010)]));
    let [zero, one, two] = [0, 1, 2].map(|stream| desk.arrive(stream));
    for (launch, micros) in [(zero, 20), (one, 300), (two, 70)] {
        desk.device.set_yield_overhead(launch, Duration::from_micros(micros), Duration::ZERO);
    }
    assert_eq!(desk.execution.preemption_seconds(), [0.0; 3]);
    desk.ask();
    // The last one has not run.
    assert_eq!(desk.execution.preemption_seconds(), [2e-5, 3e-4, 0.0]);
    desk.device.set_yield_overhead(zero, Duration::from_micros(40), Duration::ZERO);
    desk.at(1).ask();
    assert_eq!(desk.execution.preemption_seconds(), [4e-5, 3e-4, 0.0]);
    let again = plan(&[0.010; 3], &speeds, &[(&[2], 0.010)]);
    desk.execution.begin(again).expect("as many jobs");
    assert_eq!(desk.execution.preemption_seconds(), [4e-5, 3e-4, 0.0], "it is still known");
}

#[test]
fn the_side_of_a_job_is_where_it_was() {
    let speeds = Speeds::from_fn(Sharing::split(1, 4), 3, |_, _| 0.7).expect("speeds");
    let intervals: [(&[usize], f64); 2] = [(&[0, 2], 0.010), (&[1, 2], 0.010)];
    let mut desk = Desk::new(&plan(&[0.007, 0.007, 0.014], &speeds, &intervals));
    let [zero, one, two] = [0, 1, 2].map(|stream| desk.arrive(stream));
    assert_eq!(desk.ask().0, [(zero, 0, 2), (two, 2, 8)]);
    desk.at(10).depart(zero);
    assert_eq!(desk.ask().0, [(one, 0, 2), (two, 2, 8)]);
    // The first one may be on the upper side.
    let intervals: [(&[usize], f64); 2] = [(&[0, 1], 0.010), (&[1, 2], 0.010)];
    let mut desk = Desk::new(&plan(&[0.007, 0.014, 0.007], &speeds, &intervals));
    let [zero, one, two] = [0, 1, 2].map(|stream| desk.arrive(stream));
    assert_eq!(desk.ask().0, [(zero, 0, 2), (one, 2, 8)]);
    desk.at(10).depart(zero);
    assert_eq!(desk.ask().0, [(one, 6, 8), (two, 0, 6)], "a quarter, on its side");
}

#[test]
fn all_sms_are_for_both() {
    let speeds = Speeds::from_fn(Sharing::AllSms, 2, |_, _| 0.7).expect("speeds");
    let intervals: [(&[usize], f64); 1] = [(&[0, 1], 0.010)];
    let mut desk = Desk::new(&plan(&[0.007, 0.007], &speeds, &intervals));
    let [zero, one] = [0, 1].map(|stream| desk.arrive(stream));
    assert_eq!(desk.ask().0, [(zero, 0, SMS), (one, 0, SMS)]);
}

/// Job 0 should run beside job 1, which is over at once; job 2 comes later.
#[test]
fn a_job_joins_another_one_if_that_gains_more_than_the_stop_costs() {
    let speeds = halves(3, 0.75);
    let intervals: [(&[usize], f64); 2] = [(&[0, 1], 0.010), (&[2], 0.010)];
    // It would gain half of the time that job 0 takes at its speed beside it: 5 ms of 7.5 / 0.75.
    for (overhead, joins) in [(ms(4), true), (ms(6), false)] {
        let mut desk = Desk::new(&plan(&[0.0075, 0.0075, 0.010], &speeds, &intervals));
        let [zero, one, two] = [0, 1, 2].map(|stream| desk.arrive(stream));
        desk.device.set_yield_overhead(two, overhead, Duration::ZERO);
        desk.depart(one);
        let alone = vec![(zero, 0, 8)];
        let expected = if joins { vec![(zero, 0, 4), (two, 4, 8)] } else { alone };
        assert_eq!(desk.ask().0, expected);
        desk.at(7).depart(zero);
        assert_eq!(desk.ask().0, [(two, 0, 8)]);
    }
    // Of several, the one with the greatest gain.
    let row = |i, j| if i + j == 2 { 0.6 } else { 0.9 };
    let speeds = Speeds::from_fn(Sharing::split(1, 2), 4, row).expect("speeds");
    let intervals: [(&[usize], f64); 3] = [(&[0, 1], 0.010), (&[2], 0.010), (&[3], 0.010)];
    let mut desk = Desk::new(&plan(&[0.009, 0.009, 0.010, 0.010], &speeds, &intervals));
    let [zero, _, three] = [0, 2, 3].map(|stream| desk.arrive(stream));
    assert_eq!(desk.ask().0, [(zero, 0, 4), (three, 4, 8)]);
}

#[test]
fn a_job_that_comes_later_runs_its_first_interval_then() {
    let speeds = halves(3, 0.4);
    let intervals: [(&[usize], f64); 3] = [(&[0], 0.010), (&[1], 0.010), (&[2], 0.010)];
    let mut desk = Desk::new(&plan(&[0.010; 3], &speeds, &intervals));
    let two = desk.arrive(2);
    assert_eq!(desk.ask().0, [(two, 0, 8)], "nothing else is there");
    let one = desk.at(3).arrive(1);
    assert_eq!(desk.ask().0, [(one, 0, 8)]);
    let zero = desk.at(5).arrive(0);
    assert_eq!(desk.ask().0, [(zero, 0, 8)]);
    let remaining = desk.execution.remaining();
    for (left, expected) in remaining.into_iter().zip([0.010, 0.008, 0.007]) {
        assert!((left - expected).abs() < 1e-9, "{left}, {expected}");
    }
    // It fails, or is cancelled.
    desk.at(6).depart(zero);
    assert_eq!(desk.ask().0, [(one, 0, 8)]);
    desk.at(14).depart(one);
    assert_eq!(desk.ask().0, [(two, 0, 8)]);
}

#[test]
fn progress_is_what_the_device_says_once_the_blocks_have_left() {
    let speeds = halves(3, 0.5);
    // Job 0 is preempted for job 1 after half of its work.
    let intervals: [(&[usize], f64); 3] = [(&[0], 0.010), (&[1], 0.010), (&[0], 0.010)];
    let mut desk = Desk::new(&plan(&[0.020, 0.010, 0.0], &speeds, &intervals));
    let [zero, one] = [0, 1].map(|stream| desk.arrive(stream));
    desk.device.set_remaining(zero, ms(20));
    assert_eq!(desk.ask(), (vec![(zero, 0, 8)], Some(ms(10))));
    assert_eq!(desk.at(10).ask().0, [(one, 0, 8)]);
    // It was slower than its speed said, or block-tasks were dropped: 3 ms more to do. That is for its last interval.
    desk.device.set_remaining(zero, ms(13));
    desk.execution.yielded(desk.now, zero);
    assert_eq!(desk.at(11).ask().0, [(one, 0, 8)]);
    assert!((desk.execution.remaining()[0] - 0.013).abs() < 1e-9);
}

#[test]
fn other_launches_run_when_no_job_has_any() {
    let intervals: [(&[usize], f64); 1] = [(&[0], 0.010)];
    // Job 1 has nothing to do by the plan, and is there all the same.
    let mut desk = Desk::new(&plan(&[0.010, 0.0], &halves(2, 0.5), &intervals));
    let other = desk.arrive(7);
    assert_eq!(desk.ask().0, [(other, 0, 8)]);
    let [zero, one] = [0, 1].map(|stream| desk.arrive(stream));
    assert_eq!(desk.ask().0, [(zero, 0, 8)]);
    desk.depart(zero);
    assert_eq!(desk.ask(), (vec![(one, 0, 8)], None));
    desk.depart(one);
    assert_eq!(desk.ask().0, [(other, 0, 8)]);
    // A launch that no device knows, of a simulation that stopped.
    desk.device.remove(other);
    let next = desk.arrive(7);
    assert_eq!(desk.ask().0, [(next, 0, 8)]);
}

#[test]
fn a_job_runs_its_launches_one_after_the_other_and_another_plan_goes_on() {
    let intervals: [(&[usize], f64); 2] = [(&[0], 0.010), (&[1], 0.010)];
    let speeds = halves(2, 0.5);
    let before = plan(&[0.010, 0.010], &speeds, &intervals);
    let mut desk = Desk::new(&before);
    desk.execution.bind(0, 9).expect("a job");
    let [first, second, one] = [0, 9, 1].map(|stream| desk.arrive(stream));
    assert_eq!(desk.ask().0, [(first, 0, 8)]);
    desk.at(4).depart(first);
    assert_eq!(desk.ask().0, [(second, 0, 8)]);
    // What is left, the other way round.
    let again = plan(&[0.006, 0.010], &speeds, &[(&[1], 0.010), (&[0], 0.006)]);
    desk.execution.replan(again).expect("as many jobs");
    assert_eq!(desk.ask().0, [(one, 0, 8)]);
    desk.at(14).depart(one);
    assert_eq!(desk.ask().0, [(second, 0, 8)]);
    desk.at(20).depart(second);
    let ran = desk.execution.executed();
    assert_eq!((ran.intervals().len(), ran.preemptions()), (3, 1), "{ran}");
    desk.execution.begin(before).expect("as many jobs");
    assert_eq!(desk.execution.executed().intervals(), []);
    assert_eq!(desk.execution.remaining(), [0.010, 0.010]);

    let error = desk.execution.bind(2, 0).expect_err("no such job").to_string();
    assert!(error.contains("there is no job 2: the plan has 2 jobs"), "{error}");
    let three = plan(&[0.0; 3], &halves(3, 0.5), &[]);
    assert!(desk.execution.replan(three).is_err());
}

/// On a device with less than two SMs there are no ranges for two.
#[test]
fn one_sm_is_not_split() {
    let intervals: [(&[usize], f64); 1] = [(&[0, 1], 0.010)];
    let mut desk = Desk::new(&plan(&[0.005, 0.005], &halves(2, 0.5), &intervals));
    desk.device = ModelDevice::new(1);
    let [zero, one] = [0, 1].map(|stream| desk.arrive(stream));
    assert_eq!(desk.ask().0, [(zero, 0, 1)]);
    desk.depart(zero);
    assert_eq!(desk.ask().0, [(one, 0, 1)]);
}

#[test]
fn one_sm_is_not_split_for_a_job_that_joins() {
    let speeds = halves(3, 0.9);
    let intervals: [(&[usize], f64); 2] = [(&[0, 1], 0.010), (&[2], 0.010)];
    let mut desk = Desk::new(&plan(&[0.009, 0.009, 0.010], &speeds, &intervals));
    desk.device = ModelDevice::new(1);
    let [zero, two] = [0, 2].map(|stream| desk.arrive(stream));
    assert_eq!(desk.ask().0, [(zero, 0, 1)]);
    desk.depart(zero);
    assert_eq!(desk.ask().0, [(two, 0, 1)]);
}

#[test]
fn a_job_that_takes_longer_than_planned_is_in_the_next_plan() {
    let speeds = halves(2, 0.5);
    let before = plan(&[0.010, 0.010], &speeds, &[(&[0], 0.010), (&[1], 0.010)]);
    let mut desk = Desk::new(&before);
    let zero = desk.arrive(0);
    assert_eq!(desk.ask().0, [(zero, 0, 8)]);
    assert_eq!(desk.at(25).ask().0, [(zero, 0, 8)], "until it is done");
    let remaining = desk.execution.remaining();
    assert!(remaining[0] > 0.0 && remaining[1] == 0.010, "{remaining:?}");
    // Also if a plan says that there is nothing to do, and a launch that was there before has an interval now.
    desk.execution.replan(plan(&[0.0, 0.0], &speeds, &[])).expect("as many jobs");
    assert_eq!(desk.ask().0, [(zero, 0, 8)]);
    let one = desk.arrive(1);
    desk.execution.replan(plan(&[0.0, 0.010], &speeds, &[(&[1], 0.010)])).expect("as many jobs");
    assert_eq!(desk.ask().0, [(one, 0, 8)]);
    desk.at(36).depart(one);
    assert_eq!(desk.ask().0, [(zero, 0, 8)]);
}

#[test]
fn what_ran_keeps_its_way_when_the_next_plan_has_others() {
    let all = Speeds::from_fn(Sharing::AllSms, 2, |_, _| 0.6).expect("speeds");
    let two = all.with(Sharing::split(1, 4), vec![vec![1.0, 0.6], vec![0.6, 1.0]]).expect("speeds");
    let mut first = plan(&[0.010, 0.010], &two, &[]);
    let sharing = Sharing::split(1, 4);
    let running = Running::Pair { tasks: [0, 1], sharing, speeds: [0.6; 2] };
    let interval = Interval { start: 0.0, duration: 0.010, running };
    first = CoSchedule::from_intervals(first.jobs(), &two, vec![interval], None);
    let mut desk = Desk::new(&first);
    let [zero, one] = [0, 1].map(|stream| desk.arrive(stream));
    assert_eq!(desk.ask().0, [(zero, 0, 2), (one, 2, 8)]);
    let next = plan(&[0.004, 0.004], &halves(2, 0.6), &[(&[0, 1], 0.010)]);
    desk.at(5).ask();
    desk.execution.replan(next).expect("as many jobs");
    assert_eq!(desk.ask().0, [(zero, 0, 4), (one, 4, 8)]);
    desk.at(9).depart(zero);
    desk.depart(one);
    let ran = desk.execution.executed();
    let ways = ran.intervals().iter().filter_map(|interval| match interval.running {
        Running::Pair { sharing, .. } => Some(sharing),
        _ => None,
    });
    assert_eq!(ways.collect::<Vec<_>>(), [Sharing::split(1, 4), Sharing::split(1, 2)], "{ran}");
}

#[test]
fn a_time_without_sms_is_no_progress() {
    let speeds = halves(2, 0.5);
    let mut desk = Desk::new(&plan(&[0.010, 0.010], &speeds, &[(&[0], 0.010), (&[1], 0.010)]));
    let zero = desk.arrive(0);
    assert_eq!(desk.ask().0, [(zero, 0, 8)]);
    // Opaque work has the device from 4 ms to 60 ms.
    desk.at(4).execution.yielded(ms(4), zero);
    desk.at(60).ask();
    assert!((desk.execution.remaining()[0] - 0.006).abs() < 1e-9);
    assert!((desk.execution.executed().intervals()[0].duration - 0.004).abs() < 1e-9);
}

#[test]
fn a_companion_that_runs_stays_to_the_end() {
    let speeds = halves(3, 0.75);
    let intervals: [(&[usize], f64); 2] = [(&[0, 1], 0.010), (&[2], 0.010)];
    let mut desk = Desk::new(&plan(&[0.0075, 0.0075, 0.010], &speeds, &intervals));
    let [zero, two] = [0, 2].map(|stream| desk.arrive(stream));
    desk.device.set_yield_overhead(two, ms(4), Duration::ZERO);
    let both = [(zero, 0, 4), (two, 4, 8)];
    assert_eq!(desk.ask().0, both);
    // What is left of the gain is less than the stop costs now.
    assert_eq!(desk.at(8).ask().0, both);
}
