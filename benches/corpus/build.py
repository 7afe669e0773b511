#!/usr/bin/env python3
"""Builds a corpus of PTX that other compilers wrote, for `preempt-bench foreign --corpus` and for the tests of
preempt-ptx-text. Only `own/` is kept in the repository: the rest is other projects' work.

    build.py fetch [GROUP..]     sources and compilers, from the registries of Rust and Python packages
    build.py build [GROUP..]     PTX, as <corpus>/<group>/<architecture>/<file>.ptx
    build.py own                 the PTX beside this script, from own.cu

Groups: candle (crate candle-kernels), ggml (CUDA kernels of llama.cpp, crate llama-cpp-sys-2), own (own.cu), triton
(triton_kernels.py). Without one, all. `build` compiles what is not there yet.
"""
import argparse
import concurrent.futures
import glob
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
DEFAULT = HERE.parent.parent / "target" / "corpus"

CRATES = {"candle": ("candle-kernels", "0.11.1"), "ggml": ("llama-cpp-sys-2", "0.1.161")}
WHEELS = [
    "nvidia-cuda-nvcc==13.0.88", "nvidia-nvvm==13.0.88", "nvidia-cuda-crt==13.0.88", "nvidia-cuda-runtime==13.0.88",
    "nvidia-cuda-cccl==13.0.85", "nvidia-curand==10.4.0.35", "nvidia-cublas==13.0.2.14",
]
TRITON = ["triton==3.9.0", "numpy"]

# Template instances that stand for the many that differ in their types alone.
MMQ_OF_CANDLE = ("q4_0", "q4_k", "q8_0")
INSTANCES_OF_GGML = [
    "fattn-mma-f16-instance-ncols1_8-ncols2_8", "fattn-vec-instance-f16-f16", "fattn-vec-instance-q4_0-q4_0",
    "fattn-tile-instance-dkq128-dv128", "mmq-instance-q4_0", "mmf-instance-ncols_8",
]
# Pairs of element types that ggml's dispatcher of attention asks for, each with or without an instance.
TYPES_OF_GGML = ["F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "BF16"]
# The suite runs entries of candle's for the architecture that candle would compile for here; ggml's are judged alone.
ARCHITECTURES = {"candle": ["sm_80", "sm_90a"], "ggml": ["sm_90a"], "own": ["sm_80", "sm_90a"], "triton": ["sm_90a"]}
FLAGS = ["-O3", "-std=c++17", "--expt-relaxed-constexpr", "-w"]
LIMIT = 900


def fetch(corpus, groups):
    tools = corpus / "tools"
    tools.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "install", "-q", "--upgrade", "--target"]
    if not shutil.which(os.environ.get("NVCC", "nvcc")):
        subprocess.run([*pip, tools / "cuda", "--no-deps", *WHEELS], check=True)
    if "triton" in groups:
        subprocess.run([*pip, tools / "triton", *TRITON], check=True)
    crates = {group: CRATES[group] for group in groups if group in CRATES}
    if crates:
        # A package that is never built, so that Cargo fetches what it depends on.
        package = tools / "sources"
        (package / "src").mkdir(parents=True, exist_ok=True)
        (package / "src" / "lib.rs").touch()
        depends = "".join(f'{name} = "={version}"\n' for name, version in crates.values())
        head = '[package]\nname = "sources"\nversion = "0.0.0"\nedition = "2021"\n\n[workspace]\n\n[dependencies]\n'
        (package / "Cargo.toml").write_text(head + depends)
        cargo = ["cargo", "metadata", "--format-version", "1", "--manifest-path", package / "Cargo.toml"]
        found = json.loads(subprocess.run(cargo, check=True, capture_output=True, text=True).stdout)
        for group, (name, _) in crates.items():
            manifest = next(p["manifest_path"] for p in found["packages"] if p["name"] == name)
            source = pathlib.Path(manifest).parent
            shutil.copytree(source / FOLDERS[group], package / group, dirs_exist_ok=True)


FOLDERS = {"candle": "src", "ggml": "llama.cpp/ggml"}


def nvcc(corpus):
    name = os.environ.get("NVCC", "nvcc")
    if found := shutil.which(name):
        return found
    found = glob.glob(str(corpus / "tools" / "cuda" / "nvidia" / "*" / "bin" / "nvcc"))
    if not found:
        sys.exit("no nvcc: run `build.py fetch` first, or name one in NVCC")
    return found[0]


def sources(corpus, group):
    """Each file to compile, with its flags."""
    folder = corpus / "tools" / "sources" / group
    if group == "own":
        yield HERE / "own.cu", []
    if group == "candle":
        flags = [f"-I{folder / inner}" for inner in (".", "moe", "mmq_gguf")]
        for source in sorted([*folder.glob("*.cu"), *folder.glob("moe/*.cu"), *folder.glob("mmq_gguf/*.cu")]):
            if "mmq_instance" not in source.name or any(kind in source.name for kind in MMQ_OF_CANDLE):
                yield source, flags
    if group == "ggml":
        flags = [f"-I{folder / inner}" for inner in ("src/ggml-cuda", "include", "src")]
        flags += ["-extended-lambda", "-DGGML_CUDA_USE_GRAPHS"]
        pairs = [(key, value) for key in TYPES_OF_GGML for value in TYPES_OF_GGML]
        is_built = lambda pair: f"fattn-vec-instance-{pair[0]}-{pair[1]}".lower() in INSTANCES_OF_GGML
        flags += [f"-DGGML_CUDA_FA_{pair[0]}_{pair[1]}={int(is_built(pair))}" for pair in pairs]
        kernels = folder / "src" / "ggml-cuda"
        instances = [kernels / "template-instances" / f"{name}.cu" for name in INSTANCES_OF_GGML]
        # The longest first: they are what a build ends with otherwise.
        for source in sorted([*kernels.glob("*.cu"), *instances], key=lambda source: -source.stat().st_size):
            yield source, flags


def compile_one(compiler, architecture, source, flags, out):
    if out.exists():
        return True
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_suffix(".part")
    start = time.monotonic()
    command = [compiler, "-ptx", f"-arch={architecture}", *FLAGS, *flags, "-o", part, source]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        print(f"FAILED: {source.name} for {architecture} takes longer than {LIMIT} s", flush=True)
        return False
    if run.returncode != 0:
        errors = [line for line in run.stderr.splitlines() if "error" in line]
        print(f"FAILED: {source.name} for {architecture}: {' | '.join(errors)[:300]}", flush=True)
        return False
    part.rename(out)
    print(f"{source.name} for {architecture}: {out.stat().st_size} bytes, {time.monotonic() - start:.0f} s", flush=True)
    return True


def build(corpus, groups, jobs):
    tasks, is_whole = [], True
    for group in groups:
        if group == "triton":
            environment = dict(os.environ, PYTHONPATH=str(corpus / "tools" / "triton"))
            script = [sys.executable, HERE / "triton_kernels.py", corpus / "triton" / ARCHITECTURES["triton"][0]]
            is_whole &= subprocess.run(script, env=environment).returncode == 0
            continue
        for architecture in ARCHITECTURES[group]:
            for source, flags in sources(corpus, group):
                out = corpus / group / architecture / f"{source.stem}.ptx"
                tasks.append((nvcc(corpus), architecture, source, flags, out))
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        # A list, so that all are compiled although one fails.
        is_whole &= all(list(pool.map(lambda task: compile_one(*task), tasks)))
    return is_whole


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["fetch", "build", "own"])
    parser.add_argument("groups", nargs="*", metavar="GROUP")
    parser.add_argument("--corpus", type=pathlib.Path, default=DEFAULT, help="where it is built (target/corpus)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="files that are compiled at a time")
    args = parser.parse_args()
    groups = args.groups or list(ARCHITECTURES)
    if unknown := [group for group in groups if group not in ARCHITECTURES]:
        sys.exit(f"no group {', '.join(unknown)}: there are {', '.join(ARCHITECTURES)}")
    if args.step == "fetch":
        fetch(args.corpus, groups)
    elif args.step == "build":
        sys.exit(0 if build(args.corpus, groups, args.jobs) else 1)
    else:
        is_whole = build(args.corpus, ["own"], args.jobs)
        shutil.copy(args.corpus / "own" / "sm_90a" / "own.ptx", HERE / "own.ptx")
        sys.exit(0 if is_whole else 1)


if __name__ == "__main__":
    main()
