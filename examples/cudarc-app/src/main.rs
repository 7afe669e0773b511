//! Long walks and urgent scores on one GPU: with cudarc alone, and with preempt.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use cudarc::driver::CudaContext;
use cudarc::nvrtc::Ptx;
use cudarc_app::{COMMITTED, WINDOWS, compile, with_source};
use preempt::Device;

mod after;
mod before;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => {}
        ["--write-ptx"] => {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/walk_and_score.ptx");
            let text = with_source(&compile()?);
            return std::fs::write(&file, text).with_context(|| file.display().to_string());
        }
        _ => bail!("usage: cudarc-app [--write-ptx]"),
    }
    let none = match Device::count() {
        Ok(0) => "there is no GPU".to_owned(),
        Err(error) => error.to_string(),
        Ok(_) => return on_gpu(),
    };
    println!(
        "Nothing was run: {none}.\nOn a GPU this scores {WINDOWS} windows of data, each 2 ms after the last, while another thread \
         has long walks made: in two streams of cudarc, in two with priorities, and in two of preempt. It prints how \
         long a score takes from the arrival of its window."
    );
    Ok(())
}

fn on_gpu() -> Result<()> {
    let context = CudaContext::new(0)?;
    let ptx = match compile() {
        // An NVRTC that is newer than the driver writes PTX that the driver does not take.
        Ok(ptx) if context.load_module(Ptx::from_src(&*ptx)).is_ok() => {
            println!("{}: kernels by NVRTC", context.name()?);
            ptx
        }
        Ok(_) => {
            println!("{}: committed kernels; the driver refuses NVRTC's", context.name()?);
            COMMITTED.to_owned()
        }
        Err(error) => {
            println!("{}: committed kernels; {error}", context.name()?);
            COMMITTED.to_owned()
        }
    };
    before::run("cudarc", &context, &ptx, false)?;
    before::run("cudarc, stream priorities", &context, &ptx, true)?;
    after::run("cudarc and preempt", &context, &ptx)
}
