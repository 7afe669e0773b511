//! The machine, the time and the commit of a result, for the JSON.

use std::process::Command;
use std::time::SystemTime;
use std::{env, fs, thread};

/// The processor's model, and the number of processors that this program may use.
pub fn hardware() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = info.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == "model name").then(|| value.trim())
    });
    let processors = thread::available_parallelism().map_or(1, usize::from);
    format!("{}, {processors} processors", model.unwrap_or(env::consts::ARCH))
}

/// The commit in `PREEMPT_COMMIT` at build time, or else that of the working folder.
pub fn commit() -> Option<String> {
    if let Some(commit) = option_env!("PREEMPT_COMMIT") {
        return Some(commit.to_owned());
    }
    let output = Command::new("git").args(["describe", "--always", "--dirty"]).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Today, in UTC.
pub fn date() -> String {
    let now = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    now.chars().take_while(|letter| *letter != 'T').collect()
}

/// The command line, without the folders of absolute paths, since results are published.
pub fn command() -> String {
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
    fn a_command_has_no_folders_of_the_machine() {
        let args = ["--out", "/a/b/c.json", "--out=/a/c.json", "results/c.json", "-n=3"];
        let written = args.map(without_folders);
        assert_eq!(written, ["--out", "c.json", "--out=c.json", "results/c.json", "-n=3"]);
    }
}
