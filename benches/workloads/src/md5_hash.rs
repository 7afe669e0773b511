//! The search for the key of an MD5 digest.

use preempt::Error;
use preempt_workload_kernels::input::hash;
use preempt_workload_kernels::md5_hash::{BLOCK, Digest, FOUND, md5_search};

use crate::{Definition, Memory, Output, Program, Size, blocks};

pub const DEFINITION: Definition =
    Definition { name: "MD5Hash", source: "SHOC, MD5Hash", flep_amortize: 1, build };

fn build(memory: Memory<'_>, size: Size, seed: u32) -> Result<Program, Error> {
    // Bytes of a key, and values of each; SHOC's three sizes are 7 of 10, 5 of 35 and 6 of 25.
    let (bytes, values) = match size {
        Size::Reduced => (7u32, 6u32),
        Size::Trivial => (5, 8),
        Size::Small => (5, 18),
        Size::Large => (5, 34),
    };
    let keys = values.pow(bytes);
    let digest = md5(&key(hash(seed, 0) % keys, bytes, values));
    let mut found = memory.zeroed(FOUND)?;
    let search = md5_search(Digest(digest), bytes, values, keys, &mut found);
    let steps = vec![search.grid(blocks((keys / values) as usize, BLOCK))];
    let reference = move || {
        let is_wanted = |&number: &u32| md5(&key(number, bytes, values)) == digest;
        let number = (0..keys).find(is_wanted).expect("the digest is that of a key");
        let mut message = key(number, bytes, values);
        message.push(0x80);
        message.resize(8, 0);
        [vec![number], words(&message), digest.to_vec()].concat()
    };
    let outputs = vec![Output::integers(memory, "key", found, reference)?];
    Ok(Program { setup: Vec::new(), steps, dominant: 0, outputs })
}

/// The bytes of key `number`.
fn key(mut number: u32, bytes: u32, values: u32) -> Vec<u8> {
    let mut digit = || {
        let digit = number % values;
        number /= values;
        digit as u8
    };
    (0..bytes).map(|_| digit()).collect()
}

/// The little-endian words of these bytes.
fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect()
}

/// The MD5 digest of a message of at most 55 bytes, as RFC 1321 describes it, in little-endian words.
fn md5(message: &[u8]) -> [u32; 4] {
    const TURNS: [[u32; 4]; 4] =
        [[7, 12, 17, 22], [5, 9, 14, 20], [4, 11, 16, 23], [6, 10, 15, 21]];
    let mut block = message.to_vec();
    block.push(0x80);
    block.resize(56, 0);
    block.extend((8 * message.len() as u64).to_le_bytes());
    let block = words(&block);
    let start = [0x6745_2301u32, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];
    let [mut a, mut b, mut c, mut d] = start;
    for i in 0..64 {
        let (mixed, word) = match i / 16 {
            0 => ((b & c) | (!b & d), i),
            1 => ((d & b) | (!d & c), (5 * i + 1) % 16),
            2 => (b ^ c ^ d, (3 * i + 5) % 16),
            _ => (c ^ (b | !d), 7 * i % 16),
        };
        let sine = (((i + 1) as f64).sin().abs() * 2f64.powi(32)) as u32;
        let sum = a.wrapping_add(mixed).wrapping_add(sine).wrapping_add(block[word]);
        let turned = sum.rotate_left(TURNS[i / 16][i % 4]);
        (a, b, c, d) = (d, b.wrapping_add(turned), b, c);
    }
    let sum = |i: usize, part: u32| part.wrapping_add(start[i]);
    [sum(0, a), sum(1, b), sum(2, c), sum(3, d)]
}

#[cfg(test)]
mod tests {
    use super::md5;

    fn hex(message: &[u8]) -> String {
        let bytes = md5(message).into_iter().flat_map(u32::to_le_bytes);
        bytes.map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn digests_are_those_of_the_standard() {
        assert_eq!(hex(b""), "d41d8cd98f00b204e9800998ecf8427e");
        assert_eq!(hex(b"message digest"), "f96b697d7cb7938d525a2f31aaf161d0");
    }
}
