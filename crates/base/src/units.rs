//! Sizes: the sector, the block, and sizes as people write them.

/// Reference-counted bytes; cloning and slicing never copy.
pub use bytes::Bytes;

/// One KiB in bytes.
pub const KIB: u64 = 1 << 10;
/// One MiB in bytes.
pub const MIB: u64 = 1 << 20;
/// One GiB in bytes.
pub const GIB: u64 = 1 << 30;
/// One TiB in bytes.
pub const TIB: u64 = 1 << 40;

/// The unit of atomicity and of addresses that a client uses, in bytes: the register of the contract.
pub const SECTOR: u64 = 512;
/// The unit of the index and of padding in files, in bytes.
pub const BLOCK: u64 = 4 * KIB;

/// `value` rounded up to a multiple of `unit`, a power of two.
pub const fn round_up(value: u64, unit: u64) -> u64 {
    (value + unit - 1) & !(unit - 1)
}

/// `value` rounded down to a multiple of `unit`, a power of two.
pub const fn round_down(value: u64, unit: u64) -> u64 {
    value & !(unit - 1)
}

/// Whether `value` is a multiple of `unit`, a power of two.
pub const fn is_aligned(value: u64, unit: u64) -> bool {
    value & (unit - 1) == 0
}

/// Reads a size as people write it: `4096`, `10G`, `10GiB`, `1.5T`, `512 KiB`. Suffixes are powers of 1,024.
///
/// # Errors
/// A sentence that says what was wrong and what a size looks like.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let wrong =
        || format!("'{text}' is not a size; write a number with an optional unit, such as 4096, 512M, 10G or 1.5TiB");
    let trimmed = text.trim();
    let digits_end = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
    let (number, unit) = trimmed.split_at(digits_end);
    let unit = unit.trim().to_ascii_lowercase();
    let factor = match unit.strip_suffix("ib").or_else(|| unit.strip_suffix('b')).unwrap_or(&unit) {
        "" => 1,
        "k" => KIB,
        "m" => MIB,
        "g" => GIB,
        "t" => TIB,
        _ => return Err(wrong()),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let whole: u64 = whole.parse().map_err(|_| wrong())?;
    let mut size = whole.checked_mul(factor).ok_or_else(|| format!("'{text}' is larger than any disk"))?;
    if !fraction.is_empty() {
        if fraction.len() > 9 || factor == 1 {
            return Err(wrong());
        }
        let numerator: u64 = fraction.parse().map_err(|_| wrong())?;
        let part = u128::from(numerator) * u128::from(factor) / 10u128.pow(fraction.len() as u32);
        size = size.checked_add(part as u64).ok_or_else(|| format!("'{text}' is larger than any disk"))?;
    }
    Ok(size)
}

/// A size for people: `1.5 GiB`, `512 B`.
pub fn format_size(bytes: u64) -> String {
    let (unit, name) = match bytes {
        TIB.. => (TIB, "TiB"),
        GIB.. => (GIB, "GiB"),
        MIB.. => (MIB, "MiB"),
        KIB.. => (KIB, "KiB"),
        _ => return format!("{bytes} B"),
    };
    let tenths = (u128::from(bytes) * 10 / u128::from(unit)) as u64;
    match tenths % 10 {
        0 => format!("{} {name}", tenths / 10),
        rest => format!("{}.{rest} {name}", tenths / 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_as_people_write_them() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("10G"), Ok(10 * GIB));
        assert_eq!(parse_size("512 KiB"), Ok(512 * KIB));
        assert_eq!(parse_size("1.5t"), Ok(TIB + TIB / 2));
        assert_eq!(parse_size("2gb"), Ok(2 * GIB));
        for bad in ["", "G", "-1", "1.5", "10X", "1e9", "99999999999999999999", "16777216T"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_for_people() {
        assert_eq!(format_size(0), "0 B");
        assert_eq!(format_size(1536 * MIB), "1.5 GiB");
        assert_eq!(format_size(64 * TIB), "64 TiB");
    }

    #[test]
    fn rounding() {
        assert_eq!((round_up(1, 4096), round_up(4096, 4096), round_down(4097, 4096)), (4096, 4096, 4096));
        assert!(is_aligned(8192, 4096) && !is_aligned(512, 4096));
    }
}
