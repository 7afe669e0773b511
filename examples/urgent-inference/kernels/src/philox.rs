//! Philox4x32-10: random numbers by counter, without state.
//!
//! J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3", SC
//! 2011. A number depends on its counter alone, so it is the same whichever thread draws it,
//! and whenever.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
/// What the key grows by from round to round.
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: u32 = 10;

/// Four random words for `counter`.
#[inline]
pub fn philox([mut a, mut b, mut c, mut d]: [u32; 4], key: [u32; 2]) -> [u32; 4] {
    let [mut low_key, mut high_key] = key;
    for _ in 0..ROUNDS {
        let first = u64::from(MULTIPLIERS[0]) * u64::from(a);
        let second = u64::from(MULTIPLIERS[1]) * u64::from(c);
        (a, b, c, d) = (
            (second >> 32) as u32 ^ b ^ low_key,
            second as u32,
            (first >> 32) as u32 ^ d ^ high_key,
            first as u32,
        );
        low_key = low_key.wrapping_add(WEYL[0]);
        high_key = high_key.wrapping_add(WEYL[1]);
    }
    [a, b, c, d]
}
