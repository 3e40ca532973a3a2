//! Checksums. CRC-32C everywhere; a block's checksum binds place and content.

use crc_fast::{CrcAlgorithm, Digest};

use crate::ids::VolumeId;
use crate::units::BLOCK;

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c_append(0, bytes)
}

/// CRC-32C continued over `bytes` from `so_far`.
pub fn crc32c_append(so_far: u32, bytes: &[u8]) -> u32 {
    let mut digest = continued(so_far);
    digest.update(bytes);
    finish(&digest)
}

/// The state whose checksum is `so_far`: the register, which the checksum is the complement of.
fn continued(so_far: u32) -> Digest {
    Digest::new_with_init_state(CrcAlgorithm::Crc32Iscsi, u64::from(!so_far))
}

fn finish(digest: &Digest) -> u32 {
    digest.finalize() as u32
}

/// The checksum of one 4 KiB block, over volume id, block number in the volume's segment space and content.
///
/// A block that was misdirected, lost or swapped with another one's has the wrong checksum for its place. `block`
/// is `segment index << 32 | block in the segment`, so that it is unique in the volume.
pub fn block_checksum(volume: VolumeId, block: u64, data: &[u8]) -> u32 {
    debug_assert_eq!(data.len() as u64, BLOCK);
    let mut place = [0u8; 16];
    place[..8].copy_from_slice(&volume.0.to_le_bytes());
    place[8..].copy_from_slice(&block.to_le_bytes());
    let mut digest = continued(0);
    digest.update(&place);
    digest.update(data);
    finish(&digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_is_part_of_it() {
        let data = [7u8; BLOCK as usize];
        let here = block_checksum(VolumeId(1), 2, &data);
        assert_ne!(here, block_checksum(VolumeId(2), 2, &data));
        assert_ne!(here, block_checksum(VolumeId(1), 3, &data));
        assert_eq!(here, block_checksum(VolumeId(1), 2, &data));
    }

    /// The definition, bit by bit.
    fn plain_crc32c(bytes: &[u8]) -> u32 {
        let register = bytes.iter().fold(u32::MAX, |register, &byte| {
            (0..8).fold(register ^ u32::from(byte), |r, _| if r & 1 == 1 { r >> 1 ^ 0x82f6_3b78 } else { r >> 1 })
        });
        !register
    }

    #[test]
    fn it_is_the_castagnoli_checksum_however_it_is_cut() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(b""), 0);
        let bytes: Vec<u8> = (0..3 * BLOCK as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        for len in [0, 1, 15, 16, 17, 255, 256, 512, 1000, 4095, 4096, 4097, bytes.len()] {
            let all = plain_crc32c(&bytes[..len]);
            assert_eq!(crc32c(&bytes[..len]), all, "{len} bytes");
            for cut in [0, 1, 8, 100, 512, 4096].into_iter().filter(|&cut| cut <= len) {
                assert_eq!(crc32c_append(crc32c(&bytes[..cut]), &bytes[cut..len]), all, "{len} bytes, cut at {cut}");
            }
        }
    }
}
