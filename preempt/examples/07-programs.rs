//! Many short kernels, recorded once and launched as one; and a program that is armed before its request comes.

use preempt::prelude::*;

#[preemptible(block = 32)]
fn scale(factor: u32, x: &[u32], y: PerThread<u32>) {
    if let Some(own) = y.own() {
        own.set(factor * x[own.index()]);
    }
}

fn main() -> Result<(), preempt::Error> {
    let scheduler = Scheduler::builder().device(Device::cpu()?).build()?;
    let stream = scheduler.stream(10);

    let (mut hidden, mut answer) = (scheduler.zeroed::<u32>(4)?, scheduler.zeroed::<u32>(4)?);
    let (mut question, mut last) = (None, None);
    // Arguments are checked here, and the device makes ready what it launches.
    let mut network = stream.program("network", |program| {
        let question = question.insert(program.input::<u32>(4)?);
        program.launch(scale(2, &*question, &mut hidden).threads(4))?;
        last = Some(program.launch(scale(5, &hidden, &mut answer).threads(4))?);
        Ok(())
    })?;
    let (question, last) = (question.expect("recorded"), last.expect("recorded"));

    for request in 1..=3 {
        // A request is on its way. The program now waits on the device, for a millisecond at most.
        network.arm()?;
        network.write(&question)?.fill(request);
        // A store lets it go. After that millisecond it is a launch like any other.
        let report = network.launch()?.wait()?;
        assert_eq!(stream.download(&answer)?.wait()?, [10 * request; 4]);
        println!("{} kernels, one report: {:?}", 2, report.running());
    }

    // Other arguments of one call, from now on.
    network.set(last, scale(6, &hidden, &mut answer).threads(4))?;
    network.launch()?.wait()?;
    assert_eq!(stream.download(&answer)?.wait()?, [36; 4]);
    Ok(())
}
