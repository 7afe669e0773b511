//! A ring buffer whose parts are taken and given back in the same order.

/// Bytes: places start at multiples of this.
const ALIGNMENT: u64 = 256;

/// Positions count for ever; a place in the buffer is a position modulo the size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ring {
    size: u64,
    /// The position of the next place.
    head: u64,
    /// The position of the oldest place in use.
    tail: u64,
}

/// A place in the buffer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RingSlot {
    /// The index of its first byte.
    pub offset: usize,
    /// The position behind it.
    end: u64,
}

impl Ring {
    /// A ring for a buffer of `size` bytes.
    pub fn new(size: usize) -> Ring {
        Ring { size: size as u64, head: 0, tail: 0 }
    }

    /// A place for `bytes`, at most half of the buffer, in one piece; `None` if there is no room now.
    pub fn take(&mut self, bytes: usize) -> Option<RingSlot> {
        let bytes = (bytes as u64).next_multiple_of(ALIGNMENT);
        let mut start = self.head;
        if start % self.size + bytes > self.size {
            start = start.next_multiple_of(self.size);
        }
        let end = start + bytes;
        (end - self.tail <= self.size).then(|| {
            self.head = end;
            RingSlot { offset: (start % self.size) as usize, end }
        })
    }

    /// Gives the oldest place back.
    pub fn give_back(&mut self, place: RingSlot) {
        self.tail = place.end;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    #[test]
    fn places_are_in_one_piece_and_apart() {
        let mut ring = Ring::new(1024);
        let places: Vec<_> = (0..3).filter_map(|_| ring.take(300)).collect();
        assert_eq!(places.iter().map(|place| place.offset).collect::<Vec<_>>(), [0, 512]);
        assert_eq!(ring.take(1), None);
        ring.give_back(places[0]);
        assert_eq!(ring.take(512).map(|place| place.offset), Some(0));
    }

    #[test]
    fn an_empty_ring_has_room_for_half() {
        let mut ring = Ring::new(1024);
        for bytes in [256, 512, 512, 256, 512, 1, 512] {
            let place = ring.take(bytes).expect("it is empty");
            assert!(place.offset + bytes <= 1024);
            ring.give_back(place);
        }
    }

    #[test]
    fn no_two_places_overlap() {
        let mut ring = Ring::new(4096);
        let mut taken: VecDeque<(RingSlot, usize)> = VecDeque::new();
        let mut random = 1u32;
        for _ in 0..10_000 {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let bytes = (random >> 16) as usize % 2048 + 1;
            match ring.take(bytes) {
                Some(place) => {
                    let range = place.offset..place.offset + bytes;
                    assert!(range.end <= 4096);
                    for (other, bytes) in &taken {
                        assert!(range.end <= other.offset || other.offset + bytes <= range.start);
                    }
                    taken.push_back((place, bytes));
                }
                None => ring.give_back(taken.pop_front().expect("a copy has the room").0),
            }
        }
    }
}
