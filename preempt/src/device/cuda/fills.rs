//! Fills in graphs: the nodes that set memory to an element.

/// Memory that a node sets to a value of 1, 2 or 4 bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Fill {
    pub to: u64,
    pub value: u32,
    /// Bytes of the value.
    pub unit: usize,
    /// Values in a row.
    pub width: usize,
    pub height: usize,
    /// Bytes from one row to the next.
    pub pitch: usize,
}

/// Columns, at most, that are set one by one. Each takes as long as a pass over all memory, and copies that double what is
/// there take one pass in all, but twenty nodes for a million elements.
const COLUMNS: usize = 4;

/// The nodes that write `count` elements of these bytes, and whether they write the first one alone. Values that are alike
/// and lie side by side share a node; the others are columns, as many as an element has different values in a row.
pub(super) fn fills(to: u64, element: &[u8], count: usize) -> (Vec<Fill>, bool) {
    let all = columns(to, element, count);
    match all.len() > COLUMNS && count > 1 {
        true => (columns(to, element, 1), true),
        false => (all, false),
    }
}

/// The copies that write the rest of `all` bytes, if the first element, of this length, is there: bytes from the start to
/// where each goes, and how many it takes from the start. None is longer than `most`, which is more than an element.
pub(super) fn doublings(
    element: usize,
    all: usize,
    most: usize,
) -> impl Iterator<Item = (usize, usize)> {
    // Each copy begins where an element does.
    let most = most / element.max(1) * element;
    let next = move |(filled, last): (usize, usize)| {
        let filled = filled + last;
        (filled < all).then(|| (filled, filled.min(all - filled).min(most)))
    };
    std::iter::successors(next((element, 0)), move |&copy| next(copy))
}

fn columns(to: u64, element: &[u8], count: usize) -> Vec<Fill> {
    let bytes = element.len();
    if bytes == 0 || count == 0 {
        return Vec::new();
    }
    let divides = |unit: &usize| bytes.is_multiple_of(*unit) && to.is_multiple_of(*unit as u64);
    let unit = [4, 2].into_iter().find(divides).unwrap_or(1);
    let values = element
        .chunks(unit)
        .map(|value| value.iter().rev().fold(0, |all, &byte| all << 8 | u32::from(byte)));
    let mut fills: Vec<Fill> = Vec::new();
    for (at, value) in values.enumerate() {
        match fills.last_mut() {
            Some(fill) if fill.value == value => fill.width += 1,
            _ => {
                let to = to + (at * unit) as u64;
                fills.push(Fill { to, value, unit, width: 1, height: count, pitch: bytes });
            }
        }
    }
    if let [fill] = &mut *fills {
        // One value: a single row.
        (fill.width, fill.height) = (fill.width * count, 1);
    }
    // A single row has none.
    fills.iter_mut().filter(|fill| fill.height == 1).for_each(|fill| fill.pitch = 0);
    fills
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What fills write into 64 bytes.
    fn written(fills: &[Fill]) -> Vec<u8> {
        let mut memory = vec![0xEE; 64];
        for fill in fills {
            let bytes = fill.value.to_le_bytes();
            assert!(fill.to.is_multiple_of(fill.unit as u64), "{fill:?}");
            assert!(fill.pitch.is_multiple_of(fill.unit), "{fill:?}");
            for row in 0..fill.height {
                for column in 0..fill.width {
                    let at = fill.to as usize + row * fill.pitch + column * fill.unit;
                    memory[at..at + fill.unit].copy_from_slice(&bytes[..fill.unit]);
                }
            }
        }
        memory
    }

    #[test]
    fn fills_write_each_element() {
        for element in [
            &[7][..],
            &[1, 2],
            &[1, 2, 3],
            &[1, 2, 3, 4],
            &[0, 0, 0, 0, 0, 0, 0xF0, 0x3F],
            &[5; 8],
            &[1, 2, 3, 4, 1, 2, 3, 4, 9, 9, 9, 9],
            &[1, 2, 3, 4, 5, 6],
        ] {
            for (to, count) in [(0, 0), (0, 1), (0, 4), (12, 2), (6, 3), (5, 2)] {
                let mut expected = vec![0xEE; 64];
                let end = to + element.len() * count;
                expected[to..end].copy_from_slice(&element.repeat(count));
                let fills = columns(to as u64, element, count);
                assert_eq!(written(&fills), expected, "{fills:?}");
            }
        }
    }

    #[test]
    fn copies_double_whole_elements() {
        for (element, count, most) in
            [(24, 1, 64), (24, 2, 64), (24, 37, 64), (5, 100, 7), (8, 16, 64)]
        {
            let value: Vec<u8> = (1..=element as u8).collect();
            let mut memory = vec![0; element * count];
            memory[..element].copy_from_slice(&value);
            for (to, bytes) in doublings(element, memory.len(), most) {
                assert!(bytes <= most);
                memory.copy_within(..bytes, to);
            }
            assert_eq!(memory, value.repeat(count), "{element} {count} {most}");
        }
        assert_eq!(doublings(0, 0, 64).count(), 0);
    }

    #[test]
    fn an_element_of_one_value_is_one_row() {
        let (fills, doubled) = fills(8, &1f64.to_ne_bytes(), 10);
        assert!(fills.len() == 2 && !doubled, "{fills:?}");
        let (one, _) = super::fills(8, &0u64.to_ne_bytes(), 10);
        let row = Fill { to: 8, value: 0, unit: 4, width: 20, height: 1, pitch: 0 };
        assert_eq!(one, [row]);
        assert!(super::fills(8, &[], 3).0.is_empty());
    }

    #[test]
    fn an_element_of_many_values_is_written_once() {
        let element: Vec<u8> = (0..40).collect();
        let (fills, doubled) = fills(8, &element, 1000);
        assert!(doubled && fills.len() == 10, "{fills:?}");
        assert!(fills.iter().all(|fill| fill.height == 1 && fill.width == 1));
        let (fills, doubled) = super::fills(8, &element, 1);
        assert!(!doubled && fills.len() == 10, "a single one needs no copy");
    }
}
