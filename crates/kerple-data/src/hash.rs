//! Checksums of large data and fingerprints of small data, both as hexadecimal text.

use sha2::Digest;
use twox_hash::xxhash3_128::Hasher;

/// SHA-256 as hexadecimal text.
pub fn fingerprint(bytes: &[u8]) -> String {
    let mut sum = Sha256::default();
    sum.add(bytes);
    sum.finish()
}

/// SHA-256 of streamed bytes.
#[derive(Clone, Debug, Default)]
pub struct Sha256(sha2::Sha256);

impl Sha256 {
    /// Takes the next bytes.
    pub fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The sum of all bytes taken, as hexadecimal text.
    pub fn finish(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// XXH3-128 of bytes as they pass: finds damage and exchange, not forgery.
#[derive(Default)]
pub(crate) struct Checksum(Hasher);

impl Checksum {
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    pub(crate) fn finish(&self) -> u128 {
        self.0.finish_128()
    }
}

/// A checksum as text.
pub(crate) fn hex(checksum: u128) -> String {
    format!("{checksum:032x}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use twox_hash::XxHash3_128;

    #[test]
    fn sums_do_not_depend_on_the_parts() {
        let bytes: Vec<u8> = (0..100_000u32).map(|at| (at * 7 / 3) as u8).collect();
        for part in [1, 7, 240, 65_536] {
            let mut sum = Checksum::default();
            bytes.chunks(part).for_each(|bytes| sum.add(bytes));
            assert_eq!(sum.finish(), XxHash3_128::oneshot(&bytes), "parts of {part}");
        }
        assert_eq!(hex(1).len(), 32);
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(fingerprint(b"abc"), abc, "FIPS 180-2, appendix B.1");
    }
}
