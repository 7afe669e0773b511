//! How measurements are written down for programs: JSON that says where, when and of what it was measured.

use std::process::Command;
use std::time::SystemTime;
use std::{env, fs, thread};

use serde_json::{Value, json};

/// What was measured.
#[derive(Clone, Debug)]
pub struct Record {
    /// What all the rows belong to.
    pub suite: &'static str,
    /// The device's name.
    pub device: String,
    /// The GPU driver's version, where there is one.
    pub driver: Option<String>,
    /// One object for each row of the table.
    pub rows: Vec<Value>,
    /// The rows in a few figures: an object.
    pub summary: Value,
}

impl Record {
    /// The record with machine, commit, date and command line of this process.
    pub fn json(self) -> Value {
        let Record { suite, device, driver, rows, summary } = self;
        json!({
            "suite": suite,
            "device": device,
            "driver": driver,
            "hardware": hardware(),
            "commit": commit(),
            "date": date(),
            "command": command(),
            "rows": rows,
            "summary": summary,
        })
    }
}

/// The processor's model, and how many of them this program may use.
pub fn hardware() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim())
    });
    let processors = thread::available_parallelism().map_or(1, usize::from);
    format!("{}, {processors} processors", model.unwrap_or(env::consts::ARCH))
}

/// The commit that this program was built from, if `PREEMPT_COMMIT` said so then; or else that of the working
/// folder is at, if it is in a repository.
fn commit() -> Option<String> {
    if let Some(commit) = option_env!("PREEMPT_COMMIT") {
        return Some(commit.to_owned());
    }
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let commit = git(&["rev-parse", "--short", "HEAD"])?;
    // Results are written here, perhaps over older ones; they are not what is measured.
    let but_results = [":(top)", ":(top,exclude)benches/results"];
    let status = ["status", "--porcelain", "--untracked-files=no", "--"];
    let dirty = git(&[&status[..], &but_results].concat()).is_none_or(|files| !files.is_empty());
    Some(if dirty { commit + "-dirty" } else { commit })
}

/// Today, in UTC.
fn date() -> String {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    now.chars().take_while(|letter| *letter != 'T').collect()
}

/// The command line, without the folders of absolute paths, since results are published. Arguments need not be
/// Unicode: files are named by them.
fn command() -> String {
    let args = env::args_os().map(|arg| without_folders(&arg.to_string_lossy()));
    args.collect::<Vec<_>>().join(" ")
}

/// An argument; of an absolute path, also behind `--option=`, the last part.
fn without_folders(arg: &str) -> String {
    let path = arg.split_once('=').map_or(arg, |(_, path)| path);
    let option = &arg[..arg.len() - path.len()];
    let name = path.trim_end_matches('/').rsplit('/').next().unwrap_or(path);
    if path.starts_with('/') { format!("{option}{name}") } else { arg.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::without_folders;

    #[test]
    fn a_command_tells_no_folders_of_the_machine() {
        let told = ["--out", "/a/b/c.json", "--out=/a/c.json", "results/c.json", "./bench", "-n=3"];
        let told = told.map(without_folders);
        assert_eq!(told, ["--out", "c.json", "--out=c.json", "results/c.json", "./bench", "-n=3"]);
    }
}
