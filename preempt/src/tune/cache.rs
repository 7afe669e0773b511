//! The file of tuned factors.
//!
//! Text. The first line is [`HEADER`]; each other line has the fields of a [`Key`] and of a [`Tuned`], in the
//! order of [`line`](fn@line), with tabs between them.

use std::path::Path;
use std::time::Duration;
use std::{fs, io};

use preempt_device::host::Dim3;

use super::Tuned;
use crate::text::{escape, replace, unescape};

/// The start of the file in every version.
const NAME: &str = "preempt-tuned ";

/// The first line in this version.
const HEADER: &str = "preempt-tuned 1";

/// The launch that a tuned factor is for, and the code that was measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Key {
    pub launch: LaunchKey,
    /// Of the code that was measured; see [`build`].
    pub build: u64,
}

/// A key without the build: a new build's factor takes the place of the one before.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct LaunchKey {
    /// The kernel's module path and name.
    pub module: String,
    pub kernel: String,
    pub grid: Dim3,
    pub block: Dim3,
    /// What the caller calls the input.
    pub input: String,
    /// The device's name.
    pub device: String,
    /// The overhead that was allowed, as text, which can be compared.
    pub limit: String,
}

type CacheEntry = (Key, Tuned);

/// A hash of code that consists of these parts: FNV-1a (Fowler, Noll and Vo) of 64 bits, which is the same in every
/// process, as the standard library's need not be.
pub(super) fn build<'a>(parts: impl IntoIterator<Item = &'a str>) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    parts.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, part| {
        // 255 is in no UTF-8 text, so it tells where a part ends.
        mix(part.bytes().fold(hash, mix), 255)
    })
}

/// The entry for `key`, if the file has one. A missing file has none.
///
/// # Errors
///
/// The file cannot be read, or is a file of something else, which must not be overwritten.
pub(super) fn find(path: &Path, key: &Key) -> io::Result<Option<Tuned>> {
    let found = read(path)?.into_iter().find(|(other, _)| other == key);
    Ok(found.map(|(_, tuned)| Tuned { cached: true, ..tuned }))
}

/// Adds an entry to the file, or replaces the one for the same launch. A concurrent reader sees the old file or the
/// new one. If two processes add entries at the same time, one of these may be missing afterwards.
///
/// # Errors
///
/// The file cannot be read or written; it is unchanged then.
pub(super) fn keep(path: &Path, key: Key, tuned: Tuned) -> io::Result<()> {
    // Not the text that `find` has read: tuning took a while, and other processes may have added entries.
    let mut entries = read(path)?;
    entries.retain(|(other, _)| other.launch != key.launch);
    entries.push((key, tuned));
    let mut text = format!("{HEADER}\n");
    for entry in &entries {
        text.push_str(&line(entry));
        text.push('\n');
    }
    replace(path, &text)
}

fn read(path: &Path) -> io::Result<Vec<CacheEntry>> {
    match fs::read(path) {
        Ok(bytes) => entries(&bytes),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// The entries of a file, without the lines that are none.
fn entries(bytes: &[u8]) -> io::Result<Vec<CacheEntry>> {
    // Some editors end lines in their own way.
    let lines = bytes.split(|&byte| byte == b'\n').map(|line| line.trim_ascii_end());
    let mut lines = lines.map(|line| std::str::from_utf8(line).ok());
    match lines.next().flatten() {
        Some(HEADER) => Ok(lines.flatten().filter_map(entry).collect()),
        Some(header) if header.starts_with(NAME) => Ok(Vec::new()),
        _ if bytes.is_empty() => Ok(Vec::new()),
        _ => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!("it is not a file of tuned factors: its first line is not `{HEADER}`"),
        )),
    }
}

fn line((Key { launch, build }, tuned): &CacheEntry) -> String {
    let LaunchKey { module, kernel, grid, block, input, device, limit } = launch;
    let [module, kernel, input, device] = [module, kernel, input, device].map(|text| escape(text));
    // Medians of times that an `Instant` can measure: they fit.
    let (plain, preemptible) = (tuned.plain.as_nanos(), tuned.preemptible.as_nanos());
    let amortize = tuned.amortize;
    format!(
        "{module}\t{kernel}\t{grid}\t{block}\t{input}\t{device}\t{limit}\t{build:016x}\t{amortize}\t{plain}\t\
         {preemptible}"
    )
}

fn entry(line: &str) -> Option<CacheEntry> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [module, kernel, grid, block, input, device, limit, build, amortize, plain, preemptible] =
        fields.try_into().ok()?;
    let [module, kernel, input, device] = [module, kernel, input, device].map(unescape);
    limit.parse::<f64>().ok()?;
    let launch = LaunchKey {
        module: module?,
        kernel: kernel?,
        grid: extents(grid)?,
        block: extents(block)?,
        input: input?,
        device: device?,
        limit: limit.to_owned(),
    };
    let key = Key { launch, build: u64::from_str_radix(build, 16).ok()? };
    // A launch would refuse 0.
    let amortize = amortize.parse().ok().filter(|&amortize| amortize > 0)?;
    let time = |text: &str| text.parse().ok().map(Duration::from_nanos);
    Some((key, Tuned::new(amortize, time(plain)?, time(preemptible)?)))
}

/// What [`Dim3`] displays.
fn extents(text: &str) -> Option<Dim3> {
    let mut extents = text.split('x').map(|extent| extent.parse().ok());
    let (x, y, z) = (extents.next()??, extents.next()??, extents.next()??);
    extents.next().is_none().then_some(Dim3 { x, y, z })
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A folder for one test.
    struct Folder(PathBuf);

    impl Folder {
        fn new(test: &str) -> Folder {
            let name = format!("preempt-tune-{test}-{}", std::process::id());
            let folder = Folder(std::env::temp_dir().join(name));
            let _ = fs::remove_dir_all(&folder.0);
            fs::create_dir(&folder.0).expect("a new folder");
            folder
        }

        fn file(&self) -> PathBuf {
            self.0.join("tuned.tsv")
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn key(kernel: &str) -> Key {
        let launch = LaunchKey {
            module: "kernels::algebra".into(),
            kernel: kernel.into(),
            grid: (1000, 2).into(),
            block: (16, 8, 2).into(),
            input: "large".into(),
            device: "CPU device, SMs: 4".into(),
            limit: "0.04".into(),
        };
        Key { launch, build: 0x0123_4567_89ab_cdef }
    }

    fn tuned(amortize: u32) -> Tuned {
        Tuned::new(amortize, Duration::from_nanos(1_000_003), Duration::from_nanos(1_020_001))
    }

    fn cached(amortize: u32) -> Option<Tuned> {
        Some(Tuned { cached: true, ..tuned(amortize) })
    }

    #[test]
    fn what_is_kept_is_found_again() {
        let folder = Folder::new("round-trip");
        let file = folder.file();
        assert_eq!(find(&file, &key("mm")).expect("no file is no error"), None);
        let mut odd = key("mm");
        odd.launch.input = " a\ttab, a\nline, \\t, and \r ".into();
        keep(&file, key("mm"), tuned(4)).expect("written");
        keep(&file, odd.clone(), tuned(8)).expect("written");
        assert_eq!(find(&file, &key("mm")).expect("read"), cached(4));
        assert_eq!(find(&file, &odd).expect("read"), cached(8));
        let names = fs::read_dir(&folder.0).expect("a folder").count();
        assert_eq!(names, 1, "nothing but the file is left behind");
    }

    #[test]
    fn every_field_of_the_key_counts() {
        let folder = Folder::new("key");
        keep(&folder.file(), key("mm"), tuned(4)).expect("written");
        let changes: [fn(&mut Key); 8] = [
            |key| key.launch.module.push('x'),
            |key| key.launch.kernel.push('x'),
            |key| key.launch.grid.y += 1,
            |key| key.launch.block.z += 1,
            |key| key.launch.input.push('x'),
            |key| key.launch.device.push('x'),
            |key| key.launch.limit.push('1'),
            |key| key.build ^= 1,
        ];
        for change in changes {
            let mut other = key("mm");
            change(&mut other);
            assert_eq!(find(&folder.file(), &other).expect("read"), None, "{other:?}");
        }
        assert_eq!(find(&folder.file(), &key("mm")).expect("read"), cached(4));
    }

    #[test]
    fn two_kernels_share_a_file() {
        let folder = Folder::new("two");
        keep(&folder.file(), key("mm"), tuned(4)).expect("written");
        keep(&folder.file(), key("va"), tuned(128)).expect("written");
        keep(&folder.file(), key("mm"), tuned(2)).expect("written");
        assert_eq!(find(&folder.file(), &key("mm")).expect("read"), cached(2));
        assert_eq!(find(&folder.file(), &key("va")).expect("read"), cached(128));
        let text = fs::read_to_string(folder.file()).expect("a file");
        assert_eq!(text.lines().count(), 3, "{text}");
    }

    #[test]
    fn another_build_takes_the_place_of_the_one_before() {
        let folder = Folder::new("build");
        let (old, new) = (key("mm"), Key { build: 7, ..key("mm") });
        keep(&folder.file(), old.clone(), tuned(4)).expect("written");
        assert_eq!(find(&folder.file(), &new).expect("read"), None);
        keep(&folder.file(), new.clone(), tuned(8)).expect("written");
        assert_eq!(find(&folder.file(), &new).expect("read"), cached(8));
        assert_eq!(find(&folder.file(), &old).expect("read"), None);
    }

    #[test]
    fn lines_that_cannot_be_read_are_passed_over_and_left_out_of_the_next_file() {
        let folder = Folder::new("damaged");
        let good = line(&(key("mm"), tuned(4)));
        let mut bytes = format!("{HEADER}\r\n").into_bytes();
        let damaged = [
            "".into(),
            "what is this".into(),
            good.replace("1000x2x1", "1000x2"),
            good.replace("16x8x2", "16x8x2x1"),
            good.replace("large", "lar\\ge"),
            good.replace("0.04", "little"),
            good.replace("0123456789abcdef", "no number"),
            good.replace("\t4\t", "\t0\t"),
            good.replace("\t4\t", "\t-4\t"),
            good.replace("1020001", ""),
            format!("{good}\tmore"),
            good[..good.len() / 2].into(),
        ];
        for line in &damaged {
            assert_ne!(*line, good);
            assert_eq!(entry(line), None, "{line}");
            bytes.extend_from_slice(format!("{line}\n").as_bytes());
        }
        bytes.extend_from_slice(b"\xff\xfe\n");
        bytes.extend_from_slice(format!("{good}\r\n").as_bytes());
        fs::write(folder.file(), bytes).expect("written");
        assert_eq!(find(&folder.file(), &key("mm")).expect("read"), cached(4));

        keep(&folder.file(), key("va"), tuned(8)).expect("written");
        let expected = format!("{HEADER}\n{good}\n{}\n", line(&(key("va"), tuned(8))));
        assert_eq!(fs::read_to_string(folder.file()).expect("a file"), expected);
    }

    #[test]
    fn another_versions_file_has_nothing_and_is_replaced() {
        let folder = Folder::new("version");
        let other = format!("preempt-tuned 0\n{}\n", line(&(key("mm"), tuned(4))));
        fs::write(folder.file(), other).expect("written");
        assert_eq!(find(&folder.file(), &key("mm")).expect("read"), None);
        keep(&folder.file(), key("va"), tuned(8)).expect("written");
        assert_eq!(find(&folder.file(), &key("va")).expect("read"), cached(8));
        assert_eq!(find(&folder.file(), &key("mm")).expect("read"), None);
    }

    #[test]
    fn a_file_of_something_else_is_left_alone() {
        let folder = Folder::new("foreign");
        fs::write(folder.file(), "my notes\n").expect("written");
        let error = find(&folder.file(), &key("mm")).expect_err("it is none of ours");
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
        keep(&folder.file(), key("mm"), tuned(4)).expect_err("as before");
        assert_eq!(fs::read_to_string(folder.file()).expect("a file"), "my notes\n");
        fs::write(folder.file(), "").expect("written");
        keep(&folder.file(), key("mm"), tuned(4)).expect("an empty file can be taken");
    }

    #[test]
    fn parts_of_a_build_do_not_run_into_each_other() {
        assert_eq!(build(["0.1.0", "ptx"]), build(["0.1.0", "ptx"]));
        assert_ne!(build(["0.1.0", "ptx"]), build(["0.1.0p", "tx"]));
        assert_ne!(build(["0.1.0", "ptx"]), build(["0.1.0"]));
        assert_ne!(build(["0.1.0"]), build(["0.1.0", ""]));
    }
}
