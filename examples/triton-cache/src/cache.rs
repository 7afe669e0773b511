//! What Triton keeps of the kernels that it has compiled.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use preempt::ForeignCall;
use serde::Deserialize;

/// A compiled kernel: its text, and what Triton's launcher knows of it.
#[derive(Debug)]
pub struct Cached {
    /// The folder in the cache, by which kernels of one name are told apart.
    pub key: String,
    /// The text that the driver compiles.
    pub ptx: String,
    facts: Facts,
}

/// What a launch needs of a kernel's `.json`.
#[derive(Debug, Deserialize)]
struct Facts {
    name: String,
    target: Target,
    num_warps: u32,
    warp_size: u32,
    /// Bytes of dynamic shared memory.
    shared: u32,
    /// Blocks of a cluster.
    num_ctas: u32,
    /// Whether all blocks of the grid wait for each other.
    launch_cooperative_grid: bool,
    /// Bytes of memory for each block that the launcher allocates.
    global_scratch_size: u64,
    profile_scratch_size: u64,
}

#[derive(Debug, Deserialize)]
struct Target {
    backend: String,
    /// 80 for a compute capability of 8.0. A number for CUDA, a name for others.
    arch: serde_json::Value,
}

impl Cached {
    /// Reads all kernels for NVIDIA GPUs in a folder of Triton's, `~/.triton/cache` or `$TRITON_CACHE_DIR`. A kernel that
    /// cannot be read is an error in its place.
    ///
    /// # Errors
    ///
    /// If the folder cannot be read.
    pub fn all(folder: &Path) -> Result<Vec<Result<Cached>>> {
        let folders =
            entries(folder).with_context(|| format!("{} is no cache", folder.display()))?;
        let mut found = Vec::new();
        for folder in folders.iter().filter(|path| path.is_dir()) {
            for path in entries(folder)?
                .iter()
                .filter(|path| path.extension().is_some_and(|end| end == "json"))
            {
                // Other files say what a folder holds, and kernels of other GPUs have no PTX.
                let text = path.with_extension("ptx");
                if text.exists() {
                    found.push(Cached::read(path, &text));
                }
            }
        }
        Ok(found)
    }

    fn read(path: &Path, text: &Path) -> Result<Cached> {
        let facts = fs::read_to_string(path)?;
        let facts: Facts = serde_json::from_str(&facts)
            .with_context(|| format!("{} is not what Triton 3.9 writes", path.display()))?;
        let Facts { name, target, num_ctas, launch_cooperative_grid, .. } = &facts;
        ensure!(target.backend == "cuda", "{name} is for {}", target.backend);
        ensure!(
            *num_ctas <= 1,
            "{name} is launched in clusters of {num_ctas} blocks, which stay together"
        );
        ensure!(
            !launch_cooperative_grid,
            "blocks of {name} wait for each other, so all have to run at once"
        );
        let key = path.parent().and_then(Path::file_name).unwrap_or_default();
        Ok(Cached {
            key: key.to_string_lossy().into_owned(),
            ptx: fs::read_to_string(text)?,
            facts,
        })
    }

    /// The name of the function in Python, and of the entry.
    pub fn name(&self) -> &str {
        &self.facts.name
    }

    /// The compute capability that it was compiled for: 80 for 8.0.
    pub fn capability(&self) -> u64 {
        self.facts.target.arch.as_u64().unwrap_or_default()
    }

    /// The threads of a block.
    pub fn threads(&self) -> u32 {
        self.facts.num_warps * self.facts.warp_size
    }

    /// Completes a call that has the arguments of the Python function which are no constants: the block, shared memory, and the
    /// two pointers that Triton appends to the parameters.
    ///
    /// # Errors
    ///
    /// If the kernel needs memory that Triton's launcher allocates for it, as tensor descriptors do: with a buffer of that
    /// size for each block in the place of the null, it would run.
    pub fn completed<'a>(&self, call: ForeignCall<'a>) -> Result<ForeignCall<'a>> {
        let Facts { name, shared, global_scratch_size, profile_scratch_size, .. } = &self.facts;
        let needs = global_scratch_size + profile_scratch_size;
        ensure!(needs == 0, "{name} needs {needs} bytes of memory for each block");
        Ok(call.value(0u64).value(0u64).block(self.threads()).dynamic_shared(*shared))
    }
}

/// The paths in a folder, in order.
fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let paths = fs::read_dir(folder)?.map(|entry| Ok(entry?.path()));
    let mut paths = paths.collect::<Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// The sample.
    pub fn sample() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("cache")
    }

    #[test]
    fn a_kernel_has_the_facts_that_triton_wrote() {
        let kernels = Cached::all(&sample()).unwrap();
        let [Ok(kernel)] = &kernels[..] else { panic!("{kernels:?}") };
        let facts = (kernel.name(), kernel.capability(), kernel.threads(), kernel.facts.shared);
        assert_eq!(facts, ("softmax", 80, 128, 16));
        assert!(kernel.ptx.contains(".entry softmax("));
    }

    #[test]
    fn what_cannot_be_launched_is_an_error_that_says_why() {
        let error = Cached::all(&sample().join("nowhere")).unwrap_err();
        assert!(format!("{error:#}").contains("nowhere is no cache"), "{error:#}");
        let kernel = Cached::all(&sample()).unwrap().pop().unwrap().unwrap();
        let json = sample().join(&kernel.key).join("softmax.json");
        let facts = fs::read_to_string(&json).unwrap();
        let path = std::env::temp_dir().join(format!("triton-cache-{}.json", std::process::id()));
        let read = |from: &str, to: &str| {
            assert!(facts.contains(from), "{facts}");
            fs::write(&path, facts.replace(from, to)).unwrap();
            format!("{:#}", Cached::read(&path, &json.with_extension("ptx")).unwrap_err())
        };
        let missing = read("num_warps", "warps");
        assert!(missing.contains("is not what Triton 3.9 writes"), "{missing}");
        assert_eq!(read("\"cuda\", \"arch\"", "\"hip\", \"arch\""), "softmax is for hip");
        let cluster = read("\"num_ctas\": 1", "\"num_ctas\": 2");
        assert!(cluster.contains("clusters of 2 blocks"), "{cluster}");
        let grid = read("\"launch_cooperative_grid\": false", "\"launch_cooperative_grid\": true");
        assert!(grid.contains("wait for each other"), "{grid}");
        fs::remove_file(&path).unwrap();
    }
}
