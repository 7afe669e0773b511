use preempt_device::prelude::*;

struct Filter;

impl Filter {
    #[preemptible(block = 32)]
    pub fn of_itself(tables: &[Self], x: &[f32]) {
        Self::helper();
    }

    fn helper() {}
}

fn main() {}
