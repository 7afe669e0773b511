//! Kernels that were written for rust-cuda, on every available device, while SMs are taken from them and given back.

use preempt::error::DeviceError;
use preempt::{
    Buffer, CpuLayout, Device, Error, Handle, KernelArg, LaunchReport, Preemption, Scheduler,
    Stream,
};
use preempt_rust_cuda_kernels as kernels;
use preempt_test_kit::Random;
use preempt_test_kit::storm::Chaos;

/// The amount of work. A GPU finishes the second's work of an emulated device before a launch could interrupt it.
struct Size {
    elements: usize,
    rounds: usize,
}

/// Runs `test` on the CPU device, and on a GPU if there is one.
fn on_every_device(test: impl Fn(&Scheduler, Size)) {
    let run = |device: Device, size: Size| {
        let scheduler = Scheduler::builder()
            .device(device)
            .kernels(preempt_test_kit::RUST_CUDA_KERNELS)
            .policy(Chaos::new(11))
            .build()
            .expect("a scheduler");
        test(&scheduler, size);
    };
    run(
        Device::cpu_with(CpuLayout::sms(3).blocks_per_sm(2)).expect("a device"),
        Size { elements: 10_000, rounds: 3 },
    );
    let size = match std::env::var_os("PREEMPT_SMALL_STORM") {
        None => Size { elements: 40_000_000, rounds: 20 },
        // For `compute-sanitizer`, under which everything takes a hundred times longer.
        Some(_) => Size { elements: 500_000, rounds: 10 },
    };
    match Device::cuda(0) {
        Ok(gpu) => run(gpu, size),
        Err(
            error @ (Error::Device(DeviceError::NoDriver { .. })
            | Error::Device(DeviceError::NoGpu { .. })),
        ) => println!("SKIP: {error}"),
        Err(error) => panic!("{error}"),
    }
}

fn download<T: KernelArg>(stream: &Stream, buffer: &Buffer<T>) -> Vec<T> {
    stream.download(buffer).and_then(|copy| copy.wait()).expect("copied")
}

/// Waits for all launches; with enough of them that some must have been interrupted, checks that.
fn wait(scheduler: &Scheduler, handles: Vec<Handle<LaunchReport>>) {
    let is_storm = handles.len() > 5 && scheduler.device().properties().driver.is_some();
    let mut yields = 0;
    for handle in handles {
        yields += handle.wait().expect("runs").yields;
    }
    println!("{yields} yields");
    assert!(yields > 0 || !is_storm, "nothing was interrupted");
}

#[test]
fn vectors_are_added() {
    on_every_device(|scheduler, Size { elements, rounds }| {
        let mut random = Random(1);
        let mut numbers = || (0..elements).map(|_| random.unit()).collect::<Vec<f32>>();
        let (a, b) = (numbers(), numbers());
        let on_device = |data: &[f32]| scheduler.buffer(data).expect("memory");
        let (device_a, device_b) = (on_device(&a), on_device(&b));
        let mut sums: Vec<_> = (0..rounds).map(|_| on_device(&vec![f32::NAN; elements])).collect();
        let streams: Vec<_> = sums.iter().map(|_| scheduler.stream(0)).collect();
        let grid = elements.div_ceil(256) as u32;
        let launch = |(sum, stream): (&mut Buffer<f32>, &Stream)| {
            // SAFETY: all three are of one length.
            let call = unsafe { kernels::add(&device_a, &device_b, sum) }.grid(grid).block(256);
            stream.launch(call).expect("accepted")
        };
        wait(scheduler, sums.iter_mut().zip(&streams).map(launch).collect());
        let expected: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        for sum in &sums {
            assert!(download(&streams[0], sum) == expected);
        }
    });
}

#[test]
fn runs_are_reversed_and_summed_in_shared_memory() {
    on_every_device(|scheduler, Size { elements, rounds }| {
        let mut random = Random(2);
        let blocks = elements / kernels::BLOCK / 4;
        let x: Vec<u32> = (0..blocks * kernels::BLOCK).map(|_| random.bits() as u32 >> 8).collect();
        let device_x = scheduler.buffer(&x).expect("memory");
        let mut d =
            scheduler.buffer(&x.iter().map(|&x| x as i32).collect::<Vec<_>>()).expect("memory");
        let mut sums = scheduler.buffer(&vec![u32::MAX; blocks]).expect("memory");
        let (stream, other) = (scheduler.stream(0), scheduler.stream(0));
        let mut handles = Vec::new();
        // An odd number of times.
        for _ in 0..2 * rounds + 1 {
            // SAFETY: an element for each thread.
            let call = unsafe { kernels::reverse(&mut d) }.grid(blocks as u32);
            handles.push(stream.launch(call).expect("accepted"));
            // SAFETY: an element for each block.
            let call = unsafe { kernels::block_sums(&device_x, &mut sums) }.grid(blocks as u32);
            handles.push(other.launch(call).expect("accepted"));
        }
        wait(scheduler, handles);
        let reversed = x.chunks(kernels::BLOCK).flat_map(|run| run.iter().rev());
        let reversed: Vec<i32> = reversed.map(|&x| x as i32).collect();
        assert!(download(&stream, &d) == reversed);
        let expected: Vec<u32> = x.chunks(kernels::BLOCK).map(|run| run.iter().sum()).collect();
        assert!(download(&stream, &sums) == expected);
    });
}

#[test]
fn a_grid_of_two_dimensions_and_lanes() {
    on_every_device(|scheduler, _| {
        let (width, height) = (1000u32, 77u32);
        let len = (width * height) as usize;
        let filled = || scheduler.buffer(&vec![u32::MAX; len]).expect("memory");
        let stream = scheduler.stream(0);
        for preemption in [Preemption::Preemptible, Preemption::Plain] {
            let (mut out, mut lanes) = (filled(), filled());
            // SAFETY: an element for each.
            let call = unsafe { kernels::coordinates(width, height, &mut out, &mut lanes) };
            let call = call.threads((width, height)).block((32, 4)).preemption(preemption);
            wait(scheduler, vec![stream.launch(call).expect("accepted")]);
            let (out, lanes) = (download(&stream, &out), download(&stream, &lanes));
            for (i, (out, lane)) in (0..).zip(out.into_iter().zip(lanes)) {
                let (x, y) = (i % width, i / width);
                assert_eq!((out, lane), (y * 1000 + x, x % 32));
            }
        }
    });
}

/// A plain launch passes its arguments to the entry that `#[kernel]` makes.
#[test]
fn a_launch_passes_what_the_plain_entry_takes() {
    const PTX: &str = include_str!("../rust-cuda-kernels/kernels.ptx");
    on_every_device(|scheduler, _| {
        let floats = scheduler.zeroed::<f32>(1).expect("memory");
        let mut sum = scheduler.zeroed::<f32>(1).expect("memory");
        let words = || scheduler.zeroed::<u32>(1).expect("memory");
        // SAFETY: they are not launched.
        let calls = unsafe {
            [
                kernels::add(&floats, &floats, &mut sum),
                kernels::block_sums(&words(), &mut words()),
                kernels::coordinates(1, 1, &mut words(), &mut words()),
                kernels::by_helper(&mut words()),
            ]
        };
        for call in calls {
            let plain = call.kernel().plain;
            let (_, entry) = PTX.split_once(&format!(".entry {plain}(")).expect("an entry");
            let (parameters, _) = entry.split_once(')').expect("its parameters");
            let parameters = parameters.matches(".param").count();
            assert_eq!(call.args().pointers().count(), parameters, "{plain}");
        }
    });
}

/// With `cuda_std` itself, a helper outside of the kernel asks the hardware, which the host does not have.
#[test]
fn a_helper_sees_the_tasks_indices_or_says_that_it_cannot() {
    on_every_device(|scheduler, _| {
        let mut out = scheduler.buffer(&[u32::MAX; 64]).expect("memory");
        let stream = scheduler.stream(0);
        // SAFETY: an element for each thread.
        let call = unsafe { kernels::by_helper(&mut out) }.grid(2).block(32);
        let result = stream.launch(call).expect("accepted").wait();
        let is_cpu = scheduler.device().properties().driver.is_none();
        if cfg!(feature = "cuda-std") && is_cpu {
            let error = result.expect_err("the host has no block index");
            assert!(error.to_string().contains("can only be used on the GPU"), "{error}");
        } else {
            result.expect("runs");
            assert!(download(&stream, &out).into_iter().eq(0..64));
        }
    });
}
