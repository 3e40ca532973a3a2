//! Checksums. CRC-32C everywhere; a block's checksum binds place and content.

use crate::ids::VolumeId;
use crate::units::BLOCK;

/// CRC-32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// CRC-32C continued over `bytes` from `so_far`.
pub fn crc32c_append(so_far: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(so_far, bytes)
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
    crc32c::crc32c_append(crc32c::crc32c(&place), data)
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
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    }
}
