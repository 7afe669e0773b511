//! The operations of each type and scope, one after the other and from several threads.

use std::thread;

use super::*;

/// Numbers and what each operation makes of them.
macro_rules! operations {
    ($($ty:ident $scope:ident)*) => {
        $({
            let atomic = Atomic::<$ty, $scope>::new(5 as $ty);
            let (five, seven, nine) = (5 as $ty, 7 as $ty, 9 as $ty);
            for order in [Relaxed, Acquire, Release, AcqRel, SeqCst] {
                assert_eq!(atomic.swap(seven, order), five);
                assert_eq!(atomic.fetch_add(nine, order), seven);
                assert_eq!(atomic.fetch_sub(seven, order), seven + nine);
                assert_eq!(atomic.fetch_min(five, order), nine);
                assert_eq!(atomic.fetch_min(seven, order), five);
                assert_eq!(atomic.fetch_max(five, order), five);
                assert_eq!(atomic.fetch_max(nine, order), five);
                assert_eq!(atomic.compare_exchange(five, seven, order, Relaxed), Err(nine));
                assert_eq!(atomic.compare_exchange(nine, seven, order, SeqCst), Ok(nine));
                assert_eq!(atomic.compare_exchange_weak(seven, five, order, Acquire), Ok(seven));
                assert_eq!(atomic.fetch_update(order, Relaxed, |_| None), Err(five));
                assert_eq!(atomic.fetch_update(order, SeqCst, |x| Some(x + nine)), Ok(five));
                atomic.store(five, if order == AcqRel || order == Acquire { Release } else { order });
                assert_eq!(atomic.load(if order == AcqRel || order == Release { Acquire } else { order }), five);
            }
        })*
    };
}

#[test]
fn each_operation_of_each_type_and_scope() {
    operations! {
        u32 Block u32 Device u32 System i32 Block i32 Device i32 System
        u64 Block u64 Device u64 System i64 Block i64 Device i64 System usize Device
        f32 Block f32 Device f32 System f64 Block f64 Device f64 System
    }
}

#[test]
fn bits_are_changed_by_integers_alone() {
    fn check<S: Scope>() {
        let atomic = Atomic::<u32, S>::new(0b1100);
        assert_eq!(atomic.fetch_and(0b0110, Relaxed), 0b1100);
        assert_eq!(atomic.fetch_or(0b0011, Relaxed), 0b0100);
        assert_eq!(atomic.fetch_xor(0b0101, Relaxed), 0b0111);
        assert_eq!(atomic.load(Relaxed), 0b0010);
    }
    check::<Block>();
    check::<Device>();
    check::<System>();
}

#[test]
fn signs_and_numbers_that_are_none() {
    let atomic = AtomicI32::new(-3);
    assert_eq!((atomic.fetch_min(-4, Relaxed), atomic.fetch_max(2, Relaxed)), (-3, -4));
    assert_eq!(atomic.load(Relaxed), 2);
    let atomic = AtomicI64::new(i64::MIN);
    atomic.fetch_sub(1, Relaxed);
    assert_eq!(atomic.load(Relaxed), i64::MAX);
    for order in [Relaxed, SeqCst] {
        let atomic = AtomicF32::new(f32::NAN);
        assert!(atomic.fetch_max(-1.0, order).is_nan());
        assert_eq!(atomic.fetch_max(f32::NAN, order), -1.0);
        assert_eq!(atomic.fetch_min(-2.0, order), -1.0);
        assert_eq!(atomic.load(order), -2.0);
        // Compared bit by bit: a loop around it ends.
        let atomic = AtomicF64::new(f64::NAN);
        assert!(atomic.fetch_update(order, Relaxed, |_| Some(0.0)).is_ok());
        assert!(atomic.compare_exchange(-0.0, 1.0, order, Relaxed).is_err());
    }
}

#[test]
#[should_panic(expected = "a load has no release ordering")]
fn a_load_does_not_release() {
    AtomicU32::new(0).load(Release);
}

#[test]
#[should_panic(expected = "a store has no acquire ordering")]
fn a_store_does_not_acquire() {
    AtomicU32::new(0).store(1, AcqRel);
}

#[test]
fn no_update_is_lost_between_threads() {
    let (sum, largest, least) =
        (AtomicF64::new(0.0), AtomicF32::new(f32::MIN), Atomic::<i64, System>::new(0));
    thread::scope(|scope| {
        for number in 0..4 {
            let (sum, largest, least) = (&sum, &largest, &least);
            scope.spawn(move || {
                for i in 0..1000 {
                    sum.fetch_add(1.0, Relaxed);
                    largest.fetch_max((number * 1000 + i) as f32, Relaxed);
                    least.fetch_min(-(number * 1000 + i), Relaxed);
                }
            });
        }
    });
    assert_eq!(
        (sum.load(Relaxed), largest.load(Relaxed), least.load(Relaxed)),
        (4000.0, 3999.0, -3999)
    );
}
