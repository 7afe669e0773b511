use preempt_device::prelude::*;

#[preemptible(instances(8))]
fn without_parameters() {}

#[preemptible(instances())]
fn without_values<const N: usize>() {}

#[preemptible(instances(8, 16, 8))]
fn twice<const N: usize>() {}

#[preemptible(instances(8, 16))]
fn too_few<const N: usize, const M: usize>() {}

#[preemptible(instances((8, 16)))]
fn too_many<const N: usize>() {}

#[preemptible(instances("8"))]
fn of_another_type<const N: usize>() {}

#[preemptible(instances = 8)]
fn without_parentheses<const N: usize>() {}

fn main() {}
