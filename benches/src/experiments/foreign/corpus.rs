//! Texts of PTX: those of this program, and those of a folder that `benches/corpus/build.py` has filled.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;

use anyhow::{Context, Result, bail};
use preempt::SchedulerBuilder;
use preempt::ptx::{Options, Verdict, read};
use serde_json::Value;

use super::cases::Case;

/// The PTX of `benches/corpus/own.cu`.
const OWN: &str = include_str!("../../../corpus/own.ptx");

/// The architecture whose texts run on the GPU.
const ARCHITECTURE: &str = "sm_90a";

/// Behind the name of a text whose kernels have yield points.
const WITH_POINTS: &str = " with yield points";

/// What a launch has to know beside its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    pub block: [u32; 3],
    pub shared: u32,
}

/// A file of PTX.
#[derive(Clone, Debug)]
pub struct Text(Arc<str>);

impl Text {
    /// The entry of a case.
    pub fn entry(&self, case: &Case) -> Result<String> {
        let module = read(&self.0)?;
        let mut entries = module.entries();
        let found = entries.find(|entry| match case.entry.starts_with("_Z") {
            true => entry.starts_with(case.entry),
            false => *entry == case.entry,
        });
        let Case { entry, file, .. } = case;
        Ok(found.with_context(|| format!("{file}.ptx has no entry `{entry}`"))?.to_owned())
    }

    /// The text without other entries.
    pub fn only(&self, entry: &str) -> Result<String> {
        let module = read(&self.0)?;
        Ok(module.only(&module.together(entry)))
    }
}

/// The texts that there are.
#[derive(Debug)]
pub struct Corpus {
    folder: Option<PathBuf>,
    texts: HashMap<String, Text>,
}

impl Corpus {
    /// Reads the files of these cases.
    pub fn read(folder: Option<&Path>, cases: &[&Case]) -> Result<Corpus> {
        let mut texts = HashMap::new();
        for case in cases {
            let name = Corpus::module(case);
            if texts.contains_key(&name) {
                continue;
            }
            let text = match (case.group, folder) {
                ("own", _) => OWN.to_owned(),
                (_, None) => {
                    bail!("`{name}` is in no corpus; build one by `benches/corpus/build.py`")
                }
                (_, Some(folder)) => {
                    let path = path(folder, case, "ptx");
                    fs::read_to_string(&path).with_context(|| {
                        format!(
                            "cannot read {}; build it by `benches/corpus/build.py`",
                            path.display()
                        )
                    })?
                }
            };
            texts.insert(name, Text(text.into()));
        }
        Ok(Corpus { folder: folder.map(Path::to_owned), texts })
    }

    /// The name under which a scheduler has the text of a case.
    pub fn module(case: &Case) -> String {
        format!("{}/{}", case.group, case.file)
    }

    /// The same with yield points.
    pub fn module_with_points(case: &Case) -> String {
        Corpus::module(case) + WITH_POINTS
    }

    /// Gives a scheduler all texts, with yield points and without.
    pub fn given_to(&self, builder: SchedulerBuilder) -> SchedulerBuilder {
        self.texts.iter().fold(builder, |builder, (name, Text(text))| {
            let with_points = Options::default().yields(true);
            let builder = builder.ptx(&**name, text.clone());
            builder.ptx_with(format!("{name}{WITH_POINTS}"), text.clone(), with_points)
        })
    }

    pub fn text(&self, case: &Case) -> Result<Text> {
        self.texts
            .get(&Corpus::module(case))
            .cloned()
            .context("the corpus was read for other cases")
    }

    /// Block and shared memory of a case: its own, or those that a file beside the PTX has.
    pub fn facts(&self, case: &Case) -> Result<Facts> {
        let file = self.folder.as_deref().map(|folder| path(folder, case, "json"));
        let Some(file) = file.filter(|file| case.group != "own" && file.exists()) else {
            return Ok(Facts { block: case.block, shared: case.shared });
        };
        let facts: Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
        let number = |key: &str| {
            let number = facts[key].as_u64().and_then(|number| u32::try_from(number).ok());
            number.with_context(|| format!("{} has no `{key}`", file.display()))
        };
        Ok(Facts { block: [number("block")?, 1, 1], shared: number("shared")? })
    }

    /// How many entries of a group of the corpus are accepted, and how many there are, over all architectures.
    pub fn accepted(&self, group: &str) -> Result<Option<(usize, usize)>> {
        let Some(folder) = &self.folder else { return Ok(None) };
        let mut files = Vec::new();
        for architecture in fs::read_dir(folder.join(group)).into_iter().flatten() {
            for file in fs::read_dir(architecture?.path())? {
                files.push(file?.path());
            }
        }
        files.retain(|path| path.extension().is_some_and(|extension| extension == "ptx"));
        let (next, counts) = (AtomicUsize::new(0), [const { AtomicUsize::new(0) }; 2]);
        let judge = || {
            while let Some(path) = files.get(next.fetch_add(1, Relaxed)) {
                let text = fs::read_to_string(path)?;
                let module = read(&text).with_context(|| path.display().to_string())?;
                for verdict in module.entries().filter_map(|entry| module.verdict(entry)) {
                    let is_accepted = matches!(verdict, Verdict::Accepted(_));
                    counts[0].fetch_add(usize::from(is_accepted), Relaxed);
                    counts[1].fetch_add(1, Relaxed);
                }
            }
            Ok::<(), anyhow::Error>(())
        };
        let processors = thread::available_parallelism().map_or(1, usize::from);
        thread::scope(|scope| {
            let threads: Vec<_> = (0..processors).map(|_| scope.spawn(judge)).collect();
            let joined = |thread: thread::ScopedJoinHandle<'_, Result<()>>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().try_for_each(joined)
        })?;
        let [accepted, all] = counts.map(AtomicUsize::into_inner);
        Ok((all > 0).then_some((accepted, all)))
    }
}

fn path(folder: &Path, case: &Case, extension: &str) -> PathBuf {
    folder.join(case.group).join(ARCHITECTURE).join(format!("{}.{extension}", case.file))
}

#[cfg(test)]
mod tests {
    use super::super::cases::OWN as CASES;
    use super::*;

    #[test]
    fn each_own_kernel_is_there_and_accepted() {
        let cases: Vec<_> = CASES.iter().collect();
        let corpus = Corpus::read(None, &cases).expect("it is in the program");
        for case in &cases {
            let text = corpus.text(case).expect("read");
            let entry = text.entry(case).expect("it is there");
            let module = read(&text.0).expect("PTX");
            let verdict = module.verdict(&entry).expect("it is there");
            assert!(matches!(verdict, Verdict::Accepted(_)), "{verdict}");
            let shape = module.shape(&entry).expect("it is there");
            assert_eq!(shape.parameters.len(), case.arguments.len(), "{entry}");
        }
        let (entries, cases) = (read(OWN).expect("PTX").entries().count(), cases.len());
        assert_eq!(entries, cases, "each kernel of `own.cu` is measured");
    }
}
