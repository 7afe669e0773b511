//! A program that can be run again and again, each time with its result checked.

use anyhow::{Result, ensure};
use preempt::{Call, Scheduler, Stream};
use preempt_driver::{Launch, Module};
use preempt_test_kit::storm::Tally;
use preempt_workloads::{Definition, Program, Size};

use crate::experiments::PROGRAMS;

/// A program with its inputs made, on one device.
pub struct PreparedProgram {
    /// The program's name.
    pub name: &'static str,
    program: Program,
    /// Its steps in their plain form, if the device is a GPU.
    raw: Vec<Launch>,
    stream: Stream,
    /// A digest of each output after an undisturbed run.
    expected: Vec<u64>,
}

impl PreparedProgram {
    /// Allocates the program, makes its inputs, and runs it once, undisturbed.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler and the driver.
    pub fn new(
        scheduler: &Scheduler,
        definition: &Definition,
        size: Size,
        seed: u32,
    ) -> Result<PreparedProgram> {
        let mut prepared = PreparedProgram::scheduled(scheduler, definition, size, seed)?;
        if scheduler.device().properties().driver.is_some() {
            prepared.raw = raw_launches(prepared.steps())?;
        }
        Ok(prepared)
    }

    /// As [`PreparedProgram::new`], for launches through the scheduler alone.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler.
    pub fn scheduled(
        scheduler: &Scheduler,
        definition: &Definition,
        size: Size,
        seed: u32,
    ) -> Result<PreparedProgram> {
        let program = (definition.build)(scheduler.into(), size, seed)?;
        let stream = scheduler.stream(0);
        let (name, raw, expected) = (definition.name, Vec::new(), Vec::new());
        let mut prepared = PreparedProgram { name, program, raw, stream, expected };
        prepared.poison()?;
        for call in prepared.program.setup.iter().chain(&prepared.program.steps) {
            prepared.stream.launch(call.clone())?.wait()?;
        }
        prepared.expected = prepared.digests()?;
        Ok(prepared)
    }

    /// The program's launches, in order.
    pub fn steps(&self) -> &[Call<'static>] {
        &self.program.steps
    }

    /// The program's steps as raw launches; none if the device is no GPU.
    pub fn raw_steps(&self) -> &[Launch] {
        &self.raw
    }

    /// Block-tasks of all steps.
    pub fn tasks(&self) -> u64 {
        self.program.steps.iter().map(|call| call.grid_dim().count() as u64).sum()
    }

    /// Overwrites the outputs, so that a block-task that does not run shows.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler.
    pub fn poison(&self) -> Result<()> {
        for output in &self.program.outputs {
            self.stream.launch(output.poison.clone())?.wait()?;
        }
        Ok(())
    }

    /// Compares the outputs with those of an undisturbed run.
    ///
    /// # Errors
    ///
    /// Errors of the scheduler. Wrong results go to the tally.
    pub fn check(&self, arm: &str, tally: &mut Tally) -> Result<()> {
        if self.digests()? != self.expected {
            tally.mistake.get_or_insert_with(|| {
                format!("{}, {arm}: its outputs are not those of an undisturbed run", self.name)
            });
        }
        Ok(())
    }

    fn digests(&self) -> Result<Vec<u64>> {
        let outputs = self.program.outputs.iter();
        Ok(outputs.map(|output| output.digest(&self.stream)).collect::<Result<_, _>>()?)
    }
}

/// The plain entries of these calls. They are loaded when nothing runs.
fn raw_launches(calls: &[Call<'static>]) -> Result<Vec<Launch>> {
    let ptx = PROGRAMS.ptx();
    ensure!(ptx.is_some(), "this build found no compiler for PTX, so it has no kernels for a GPU");
    let module = Module::load(ptx.unwrap_or_default(), &[])?;
    let launch =
        |call: &Call<'static>| Ok(Launch::plain(module.plain(call.kernel())?, call.clone()));
    calls.iter().map(launch).collect()
}
