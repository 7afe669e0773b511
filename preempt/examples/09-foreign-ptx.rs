//! Kernels that another compiler made: what their PTX says of them, and both forms compared on a GPU.

use preempt::prelude::*;
use preempt::ptx::{Verdict, transform};

/// As nvcc writes it: `y[i] = 2 * x[i]` for each thread, and a kernel in which blocks wait for each other.
const PTX: &str = "
.version 8.0
.target sm_80
.address_size 64

.visible .entry twice(.param .u64 twice_x, .param .u64 twice_y)
{
    .reg .b32 %r<6>;
    .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [twice_x];
    ld.param.u64 %rd2, [twice_y];
    cvta.to.global.u64 %rd3, %rd1;
    cvta.to.global.u64 %rd4, %rd2;
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.s32 %r4, %r1, %r2, %r3;
    mul.wide.s32 %rd5, %r4, 4;
    add.s64 %rd6, %rd3, %rd5;
    add.s64 %rd7, %rd4, %rd5;
    ld.global.u32 %r5, [%rd6];
    add.s32 %r5, %r5, %r5;
    st.global.u32 [%rd7], %r5;
    ret;
}

.visible .entry waits(.param .u64 waits_flag)
{
    .reg .pred %p<2>;
    .reg .b32 %r<2>;
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [waits_flag];
    cvta.to.global.u64 %rd2, %rd1;
AGAIN:
    ld.volatile.global.u32 %r1, [%rd2];
    setp.eq.s32 %p1, %r1, 0;
    @%p1 bra AGAIN;
    ret;
}
";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Text to text, without a GPU.
    let transformed = transform(PTX, &["twice", "waits"])?;
    for kernel in &transformed.kernels {
        println!("{}: {}", kernel.name, kernel.verdict);
    }
    let [twice, waits] = &transformed.kernels[..] else { panic!("two entries") };
    assert!(!matches!(twice.verdict, Verdict::Refused(_)));
    assert!(matches!(waits.verdict, Verdict::Refused(_)), "its block may wait for a later block");

    // The CPU device runs kernels in Rust alone.
    let Ok(device) = Device::cuda(0) else { return Ok(()) };
    let scheduler = Scheduler::builder().device(device).ptx("mine", PTX).build()?;
    let (stream, twice) = (scheduler.stream(0), scheduler.foreign("mine", "twice")?);
    let (x, mut y) = (scheduler.buffer(&[21_u32; 256])?, scheduler.zeroed::<u32>(256)?);
    // SAFETY: `twice` reads an element of `x` for each thread, and writes one of `y`.
    let call = unsafe { twice.call() }.read(&x).write(&mut y).block(64).grid(4);
    // Both forms, on copies of `y`.
    assert!(scheduler.verify(call.clone())?.is_equal());
    stream.launch(call)?.wait()?;
    assert_eq!(stream.download(&y)?.wait()?, [42; 256]);
    Ok(())
}
