//! Each program, reduced, against its reference.

use preempt::{CpuLayout, Device, Scheduler};
use preempt_workloads::{CHECKPOINTED, Definition, Size, Values, find};

/// Runs a program twice on the CPU device, since it has to be repeatable.
fn check(definition: &Definition) {
    let name = definition.name;
    let scheduler = Scheduler::builder()
        .device(Device::cpu_with(CpuLayout::sms(2).blocks_per_sm(2)).unwrap())
        .build()
        .unwrap();
    let stream = scheduler.stream(0);
    let program = (definition.build)((&scheduler).into(), Size::Reduced, 3).unwrap();
    let run = |calls: &[preempt::Call<'static>]| {
        for call in calls {
            stream.launch(call.clone()).unwrap().wait().unwrap();
        }
    };
    run(&program.setup);
    assert!(!program.outputs.is_empty());
    let references: Vec<Values> = program.outputs.iter().map(|output| output.reference()).collect();
    for _ in 0..2 {
        for (output, reference) in program.outputs.iter().zip(&references) {
            run(std::slice::from_ref(&output.poison));
            let poisoned = output.download(&stream).unwrap();
            assert!(output.mistake(&poisoned, reference).is_some(), "{name}: poison is no result");
        }
        run(&program.steps);
        for (output, reference) in program.outputs.iter().zip(&references) {
            let found = output.download(&stream).unwrap();
            assert_eq!(output.mistake(&found, reference), None, "{name}");
        }
    }
    let tasks = program.steps[program.dominant].grid_dim().count();
    assert!(tasks >= 16, "{name}: {tasks} block-tasks are hardly enough to be preempted");
}

macro_rules! programs {
    ($($test:ident $name:literal)*) => {
        $(
            #[test]
            fn $test() {
                check(find($name).unwrap());
            }
        )*

        #[test]
        fn forms_with_checkpoints() {
            CHECKPOINTED.iter().for_each(check);
        }

        #[test]
        fn no_program_is_left_out() {
            let names = preempt_workloads::every().map(|definition| definition.name);
            assert_eq!(names.collect::<Vec<_>>(), [$($name),*]);
        }
    };
}
programs! {
    cfd "CFD"
    nn "NN"
    pf "PF"
    pl "PL"
    md "MD"
    spmv "SPMV"
    mm "MM"
    va "VA"
    bfs "BFS"
    fft "FFT"
    md5_hash "MD5Hash"
    neural_net "NeuralNet"
    reduction "Reduction"
    scan "Scan"
    sort "Sort"
    stencil_2d "Stencil2D"
    triad "Triad"
    black_scholes "BS"
    hot_spot "HS"
    kmeans "KM"
    lud "LUD"
    nw "NW"
    back_prop "BP"
    fwt "FWT"
    cp "CP"
    stencil_3d "ST"
    sad "SAD"
    heart_wall "HW"
    leukocyte "LC"
    b_plus_tree "BT"
    mummer "MUM"
}
