//! The priorities of the streams that there are.

use std::collections::BTreeMap;

use crate::policy::Priority;
use crate::sync::{Mutex, lock};

/// How many streams there are of each priority. A stream counts until its last clone is dropped; launches that it has in
/// flight then do not count.
#[derive(Debug, Default)]
pub(in crate::scheduler) struct Priorities(Mutex<BTreeMap<Priority, usize>>);

impl Priorities {
    pub fn enter(&self, priority: Priority) {
        *lock(&self.0).entry(priority).or_default() += 1;
    }

    pub fn leave(&self, priority: Priority) {
        let mut counts = lock(&self.0);
        if let Some(count) = counts.get_mut(&priority) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&priority);
            }
        }
    }

    /// Writes down the priorities of all streams but one of priority `own`.
    pub fn others(&self, own: Priority, others: &mut Vec<Priority>) {
        others.clear();
        let counts = lock(&self.0);
        let is_other = |priority, count| priority != own || count > 1;
        let of = |(&priority, &count)| is_other(priority, count).then_some(priority);
        others.extend(counts.iter().filter_map(of));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_count_until_they_are_gone() {
        let priorities = Priorities::default();
        let others = |own| {
            let mut others = Vec::new();
            priorities.others(Priority(own), &mut others);
            others.into_iter().map(|Priority(priority)| priority).collect::<Vec<_>>()
        };
        [0, 5, 5].into_iter().for_each(|priority| priorities.enter(Priority(priority)));
        assert_eq!((others(0), others(5), others(7)), (vec![5], vec![0, 5], vec![0, 5]));
        priorities.leave(Priority(5));
        assert_eq!((others(0), others(5)), (vec![5], vec![0]), "it is the only one");
        priorities.leave(Priority(5));
        assert!(others(0).is_empty());
    }
}
