//! The search for the key of an MD5 digest through all keys (SHOC, `MD5Hash`). MD5 is RFC 1321's.
//!
//! A key is `bytes` bytes, at most 7, each below `values`. Its number has the bytes as its digits in base
//! `values`, the first byte the lowest.

use preempt_device::prelude::*;

/// Threads of a block.
pub const BLOCK: u32 = 384;

/// Words of what the search finds: the key's number, its bytes in two words, and its digest.
pub const FOUND: usize = 7;

/// The most bytes of a key: one more ends the message, and eight are the two words that are not constant.
pub const MOST_BYTES: u32 = 7;

/// An MD5 digest, in little-endian words.
#[derive(Clone, Copy, PartialEq, Eq, Debug, KernelArg)]
#[repr(C)]
pub struct Digest(pub [u32; 4]);

/// Writes the key with this digest to `found`: number, bytes, digest. Each thread hashes `values`
/// consecutive keys, those that differ in their first byte; all `values.pow(bytes)` keys are tried, whether
/// or not one has been found. Digests differ, so at most one thread writes, and always the same.
#[preemptible(block = 384, idempotent)]
pub fn md5_search(digest: Digest, bytes: u32, values: u32, keys: u32, found: SliceMut<u32>) {
    assert!(found.len() >= FOUND && bytes <= MOST_BYTES);
    let thread = thread::index_1d();
    // Threads past the last key would overflow if they multiplied first.
    if thread < keys / values {
        let first = thread * values;
        let mut key = key(first, bytes, values);
        let mut i = 0;
        while i < values {
            // Two hashes take microseconds where all warps that an SM can hold do so.
            yield_point!();
            let stop = (i + 2).min(values);
            while i < stop {
                let hash = md5(key, bytes);
                if hash.0 == digest.0 {
                    let [a, b, c, d] = hash.0;
                    let words = [first + i, key[0], key[1], a, b, c, d];
                    let mut word = 0;
                    while word < FOUND {
                        // SAFETY: no other thread has this digest.
                        unsafe { found.write(word, words[word]) };
                        word += 1;
                    }
                }
                // The first byte, which ends below `values`, so nothing is carried.
                key[0] += 1;
                i += 1;
            }
        }
    }
}

/// The bytes of key `number`, in little-endian words, and the byte that ends a message.
#[inline(always)]
fn key(number: u32, bytes: u32, values: u32) -> [u32; 2] {
    let (mut rest, mut key, mut byte) = (number, 0x80 << (8 * bytes), 0);
    while byte < bytes {
        key |= u64::from(rest % values) << (8 * byte);
        rest /= values;
        byte += 1;
    }
    [key as u32, (key >> 32) as u32]
}

/// The digest of a message of `bytes` bytes that two words hold.
#[inline(always)]
fn md5(message: [u32; 2], bytes: u32) -> Digest {
    let mut block = [0; 16];
    block[0] = message[0];
    block[1] = message[1];
    block[14] = 8 * bytes;
    let mut state = START;
    // Unrolled, so that the words of the block are registers and most of them the constant 0.
    macro_rules! steps {
        ($($i:literal)*) => { $( state = step::<$i>(state, &block); )* };
    }
    steps!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15);
    steps!(16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31);
    steps!(32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47);
    steps!(48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63);
    Digest([
        state[0].wrapping_add(START[0]),
        state[1].wrapping_add(START[1]),
        state[2].wrapping_add(START[2]),
        state[3].wrapping_add(START[3]),
    ])
}

/// Step `I` of the 64.
#[inline(always)]
fn step<const I: usize>([a, b, c, d]: [u32; 4], block: &[u32; 16]) -> [u32; 4] {
    // The word that the round reads, and what it makes of the other three parts of the state.
    let (word, mixed) = match I / 16 {
        0 => (I, d ^ (b & (c ^ d))),
        1 => (5 * I + 1, c ^ (d & (b ^ c))),
        2 => (3 * I + 5, b ^ c ^ d),
        _ => (7 * I, c ^ (b | !d)),
    };
    let sum = const { SINES[I] }.wrapping_add(block[word % 16]).wrapping_add(a).wrapping_add(mixed);
    let turned = sum.rotate_left(const { TURNS[I / 16][I % 4] });
    [d, b.wrapping_add(turned), b, c]
}

const START: [u32; 4] = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];

/// Bits by which the steps of each round turn.
const TURNS: [[u32; 4]; 4] = [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];

/// Element `i` is the integer part of 2³² times the absolute value of the sine of `i + 1` radians.
#[rustfmt::skip]
const SINES: [u32; 64] = [
    0xD76A_A478, 0xE8C7_B756, 0x2420_70DB, 0xC1BD_CEEE, 0xF57C_0FAF, 0x4787_C62A, 0xA830_4613, 0xFD46_9501,
    0x6980_98D8, 0x8B44_F7AF, 0xFFFF_5BB1, 0x895C_D7BE, 0x6B90_1122, 0xFD98_7193, 0xA679_438E, 0x49B4_0821,
    0xF61E_2562, 0xC040_B340, 0x265E_5A51, 0xE9B6_C7AA, 0xD62F_105D, 0x0244_1453, 0xD8A1_E681, 0xE7D3_FBC8,
    0x21E1_CDE6, 0xC337_07D6, 0xF4D5_0D87, 0x455A_14ED, 0xA9E3_E905, 0xFCEF_A3F8, 0x676F_02D9, 0x8D2A_4C8A,
    0xFFFA_3942, 0x8771_F681, 0x6D9D_6122, 0xFDE5_380C, 0xA4BE_EA44, 0x4BDE_CFA9, 0xF6BB_4B60, 0xBEBF_BC70,
    0x289B_7EC6, 0xEAA1_27FA, 0xD4EF_3085, 0x0488_1D05, 0xD9D4_D039, 0xE6DB_99E5, 0x1FA2_7CF8, 0xC4AC_5665,
    0xF429_2244, 0x432A_FF97, 0xAB94_23A7, 0xFC93_A039, 0x655B_59C3, 0x8F0C_CC92, 0xFFEF_F47D, 0x8584_5DD1,
    0x6FA8_7E4F, 0xFE2C_E6E0, 0xA301_4314, 0x4E08_11A1, 0xF753_7E82, 0xBD3A_F235, 0x2AD7_D2BB, 0xEB86_D391,
];
