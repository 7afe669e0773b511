//! An MPS server of our own, for as long as it is measured.

use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::{env, fs, process};

use anyhow::Result;

/// The driver's program that starts and ends servers.
const CONTROL: &str = "nvidia-cuda-mps-control";

/// Where clients find the server, and where it writes.
const VARIABLES: [&str; 2] = ["CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"];

/// A server with a folder of its own, so that no other process becomes its client.
pub struct Mps {
    folder: PathBuf,
}

impl Mps {
    /// Starts a server; `None` where the driver's program for that is not there, or refuses.
    ///
    /// # Errors
    ///
    /// Errors of the file system.
    pub fn start() -> Result<Option<Mps>> {
        let folder = env::temp_dir().join(format!("preempt-mps-{}", process::id()));
        fs::create_dir_all(&folder)?;
        let mps = Mps { folder };
        match mps.control().arg("-d").status() {
            Ok(status) if status.success() => Ok(Some(mps)),
            Ok(status) => {
                eprintln!("without MPS: {CONTROL} has ended with {status}");
                Ok(None)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Makes a process that is to be started a client.
    pub fn client(&self, process: &mut Command) {
        // The server has the GPUs that this process sees, and numbers them anew for clients.
        process.envs(self.variables()).env_remove("CUDA_VISIBLE_DEVICES");
    }

    fn variables(&self) -> [(&'static str, &Path); 2] {
        VARIABLES.map(|name| (name, self.folder.as_path()))
    }

    fn control(&self) -> Command {
        let mut command = Command::new(CONTROL);
        command.envs(self.variables()).stdout(Stdio::null());
        command
    }
}

impl Drop for Mps {
    fn drop(&mut self) {
        // Where it was never started, there is no such program, or nothing to end.
        if let Ok(mut control) = self.control().stdin(Stdio::piped()).stderr(Stdio::null()).spawn()
        {
            if let Some(mut questions) = control.stdin.take() {
                let _ = writeln!(questions, "quit");
            }
            let _ = control.wait();
        }
        let _ = fs::remove_dir_all(&self.folder);
    }
}
