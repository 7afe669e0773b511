use preempt_device::prelude::*;

#[preemptible]
fn one(table: [u8; 80 << 10]) {}

#[preemptible]
fn together(first: [u32; 600], x: &[f32], second: [u32; 400]) {}

#[preemptible]
fn as_much_as_there_is_room_for(first: [u32; 600], x: &[f32], second: [u32; 350]) {}

fn main() {}
