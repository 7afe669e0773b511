//! The guide: from a first launch to pools of devices, a page for each topic, each with a program that runs.
//!
//! | page | its program | |
//! | --- | --- | --- |
//! | [`first_launch`] | `01-first-launch` | a kernel, buffers, and a launch that is waited for |
//! | [`shared_memory`] | `02-shared-memory` | a block's threads work together |
//! | [`yield_points`] | `03-yield-points` | long block-tasks are stopped in their midst |
//! | [`policies`] | `04-policies` | which launch has which SMs |
//! | [`latency_limits`] | `05-latency-limits` | how soon blocks leave, and what that may cost |
//! | [`memory`] | `06-memory` | buffers, ranges, copies |
//! | [`programs`] | `07-programs` | many short kernels as one launch, and launches that are announced |
//! | [`futures`] | `08-async` | code that must not block a thread |
//! | [`foreign_ptx`] | `09-foreign-ptx` | kernels that nvcc, NVRTC or Triton compiled |
//! | [`coscheduling`] | `10-coscheduling` | jobs two at a time, by the shortest plan |
//! | [`pools`] | `11-pools` | services and batch jobs on several devices |
//! | [`traces`] | `12-trace` | reading a timeline |
//! | [`gpu_build`] | on the page | the same source, compiled for a GPU |
//! | [`other_processes`] | on the page | two processes on one GPU, and other code in this one |
//! | [`from_cuda_cpp`] | on the page | words of CUDA C++, and what they are called here |
//! | [`from_rust_cuda`] | on the page | for applications on rust-cuda: `cust` and `cuda_std` |
//! | [`from_cudarc`] | on the page | for applications on `cudarc` |
//! | [`expansion`] | on the page | what `#[preemptible]` makes of a kernel |
//!
//! The numbered programs are in `preempt/examples`; `cargo run --example 01-first-launch` runs one. They need no GPU.

/// A page with the text of a file, and the program of another one.
macro_rules! pages {
    ($($page:ident, $text:literal, $program:literal;)*) => {
        $(
            #[doc = include_str!($text)]
            #[doc = "\n# The example\n\n```"]
            #[doc = include_str!(concat!("../../examples/", $program))]
            #[doc = "```"]
            pub mod $page {}
        )*
    };
    ($($page:ident, $text:literal;)*) => {
        $(
            #[doc = include_str!($text)]
            pub mod $page {}
        )*
    };
}

pages! {
    first_launch, "first_launch.md", "01-first-launch.rs";
    shared_memory, "shared_memory.md", "02-shared-memory.rs";
    yield_points, "yield_points.md", "03-yield-points.rs";
    policies, "policies.md", "04-policies.rs";
    latency_limits, "latency_limits.md", "05-latency-limits.rs";
    memory, "memory.md", "06-memory.rs";
    programs, "programs.md", "07-programs.rs";
    futures, "futures.md", "08-async.rs";
    foreign_ptx, "foreign_ptx.md", "09-foreign-ptx.rs";
    coscheduling, "coscheduling.md", "10-coscheduling.rs";
    pools, "pools.md", "11-pools.rs";
    traces, "traces.md", "12-trace.rs";
}

pages! {
    gpu_build, "gpu_build.md";
    other_processes, "other_processes.md";
    from_cuda_cpp, "from_cuda_cpp.md";
    from_rust_cuda, "from_rust_cuda.md";
    from_cudarc, "from_cudarc.md";
    expansion, "expansion.md";
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    #[test]
    fn each_numbered_program_is_on_a_page() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
        let files = folder.read_dir().expect("the package has examples");
        let mut files: Vec<_> =
            files.map(|file| file.expect("a file").file_name().into_string()).collect();
        files.sort();
        assert!(files.len() >= 12);
        for file in files {
            let file = file.expect("a name in UTF-8");
            assert!(include_str!("mod.rs").contains(&format!("\"{file}\";")), "{file}");
        }
    }
}
