//! What a volume or a server may be called, how large it may be, and what it may be promised: each refusal says what would be
//! accepted.

use base::levels::{BASE_IOPS_MAX, BURST_IOPS_MAX, Levels};
use base::limits::{DATA_SECTOR_DEFAULT, SERVER_NAME_MAX, VOLUME_NAME_MAX, VOLUME_SIZE_MAX, VOLUME_SIZE_MIN};
use base::units::{format_size, is_aligned};
use base::{BLOCK, Error, Result, SECTOR};
use wire::Layout;

/// Longest label of an owner, in bytes.
pub const OWNER_MAX: usize = base::limits::VOLUME_OWNER_MAX;

/// Checks a volume's name. It becomes an NBD export name and a part of URIs and metrics, so it needs no escaping in
/// any of them.
///
/// # Errors
/// `Invalid`.
pub fn check_name(name: &str) -> Result<()> {
    check(name, "a volume name", VOLUME_NAME_MAX)
}

/// Checks a name that a table has: a volume's, or that of a hidden one.
///
/// # Errors
/// `Invalid`.
pub fn check_recorded(name: &str) -> Result<()> {
    check_name(name.strip_prefix('.').unwrap_or(name))
}

/// Checks the name of a server, an agent or a manager.
///
/// # Errors
/// `Invalid`.
pub fn check_server(name: &str) -> Result<()> {
    check(name, "a name", SERVER_NAME_MAX)
}

fn check(name: &str, kind: &str, longest: usize) -> Result<()> {
    let wrong = |what: &str| {
        Err(Error::invalid(format!(
            "{name:?} is not {kind}: {what}; use 1 to {longest} of a-z, A-Z, 0-9, '-', '_' and '.', beginning with a \
             letter or digit"
        )))
    };
    match name.chars().next() {
        None => wrong("it is empty"),
        Some(first) if !first.is_ascii_alphanumeric() => wrong("it does not begin with a letter or digit"),
        Some(_) if name.len() > longest => wrong("it is too long"),
        Some(_) => match name.chars().find(|c| !(c.is_ascii_alphanumeric() || "-_.".contains(*c))) {
            Some(odd) => wrong(&format!("it contains {odd:?}")),
            None => Ok(()),
        },
    }
}

/// Checks a volume's size in bytes.
///
/// # Errors
/// `Invalid`.
pub fn check_size(size: u64) -> Result<()> {
    if !(VOLUME_SIZE_MIN..=VOLUME_SIZE_MAX).contains(&size) {
        return Err(Error::invalid(format!(
            "a volume cannot have {size} bytes ({}): choose from {} to {}",
            format_size(size),
            format_size(VOLUME_SIZE_MIN),
            format_size(VOLUME_SIZE_MAX)
        )));
    }
    if !is_aligned(size, SECTOR) {
        return Err(Error::invalid(format!("a volume's size is a multiple of {SECTOR} bytes, which {size} is not")));
    }
    Ok(())
}

/// Checks a volume's data sector (its stripe unit) in bytes.
///
/// # Errors
/// `Invalid`.
pub fn check_data_sector(bytes: u64) -> Result<()> {
    match Layout::is_data_sector(bytes) {
        true => Ok(()),
        false => Err(Error::invalid(format!(
            "a data sector cannot have {bytes} bytes: choose a power of two from {} on, such as {}",
            format_size(BLOCK),
            format_size(DATA_SECTOR_DEFAULT)
        ))),
    }
}

/// Checks the label that says whose volume it is.
///
/// # Errors
/// `Invalid`.
pub fn check_owner(owner: &str) -> Result<()> {
    match owner.len() <= OWNER_MAX && !owner.chars().any(char::is_control) {
        true => Ok(()),
        false => Err(Error::invalid(format!("an owner is at most {OWNER_MAX} bytes without control characters"))),
    }
}

/// Checks a volume's levels. Zeros are what is not given, and fit everything.
///
/// # Errors
/// `Invalid`.
pub fn check_levels(levels: &Levels) -> Result<()> {
    let (base, burst, percent) = (levels.base, levels.burst, levels.credits.percent);
    let wrong = |message: String| Err(Error::invalid(message));
    if base.iops > BASE_IOPS_MAX {
        return wrong(format!("a base level cannot promise {} IOPS: choose up to {BASE_IOPS_MAX}", base.iops));
    }
    if burst.iops > BURST_IOPS_MAX {
        return wrong(format!("a burst level cannot allow {} IOPS: choose up to {BURST_IOPS_MAX}", burst.iops));
    }
    if burst.iops > 0 && burst.iops < base.iops {
        return wrong(format!(
            "a burst level of {} IOPS is below the base level of {}: choose {} or more, or 0 for no bound",
            burst.iops, base.iops, base.iops
        ));
    }
    if burst.bytes_per_sec > 0 && burst.bytes_per_sec < base.bytes_per_sec {
        let [burst, base] = [burst.bytes_per_sec, base.bytes_per_sec];
        return wrong(format!(
            "a burst level of {burst} bytes per second ({}) is below the base level of {base} ({}): choose that or more, \
             or 0 for no bound",
            format_size(burst),
            format_size(base)
        ));
    }
    match percent <= 100 {
        true => Ok(()),
        false => wrong(format!("of what a volume does not use, {percent} percent cannot be saved: choose 0 to 100")),
    }
}

/// The known word that is nearest to `word`, if one is near enough to be what was meant.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|candidate| (strsim::damerau_levenshtein(word, candidate), candidate))
        .min()
        .filter(|(distance, candidate)| *distance <= candidate.len().max(3) / 2)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use base::levels::{Credits, Rate};
    use base::{GIB, KIB, MIB, TIB};

    use super::*;

    #[test]
    fn names_that_need_no_escaping() {
        for good in ["a", "vm-1", "db.prod_7", "0", &"x".repeat(63)] {
            assert!(check_name(good).is_ok() && check_recorded(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", ".hidden", "a b", "a/b", "a?b", "ü", "a\n", "a\0", &"x".repeat(64)] {
            let error = check_name(bad).unwrap_err();
            assert_eq!(error.kind, base::ErrorKind::Invalid, "{bad}");
            assert!(error.message.contains("beginning with a letter or digit"), "{error}");
            assert_eq!(check_recorded(bad).is_ok(), bad == ".hidden", "{bad}");
        }
    }

    #[test]
    fn sizes_within_the_limits() {
        for good in [MIB, GIB, GIB + 512, 64 * TIB] {
            assert!(check_size(good).is_ok(), "{good}");
        }
        for bad in [0, 512, MIB - 512, GIB + 1, 64 * TIB + 512, u64::MAX] {
            assert!(check_size(bad).is_err(), "{bad}");
        }
        assert!(check_data_sector(128 * KIB).is_ok() && check_data_sector(2 * MIB).is_ok());
        assert!(check_data_sector(3 * KIB).is_err() && check_data_sector(0).is_err());
    }

    #[test]
    fn levels_within_the_limits() {
        let levels = |base: (u64, u64), burst: (u64, u64), percent| Levels {
            base: Rate { iops: base.0, bytes_per_sec: base.1 },
            burst: Rate { iops: burst.0, bytes_per_sec: burst.1 },
            credits: Credits { cap_seconds: u32::MAX, percent },
        };
        for good in [
            levels((0, 0), (0, 0), 0),
            levels((BASE_IOPS_MAX, MIB), (1_000_000, MIB), 100),
            levels((BASE_IOPS_MAX, GIB), (0, 0), 0),
            levels((0, 0), (1, 1), 0),
            // A bound in one dimension says nothing of the other.
            levels((200_000, 0), (0, 1), 0),
            levels((7, u64::MAX), (7, u64::MAX), 1),
        ] {
            assert!(check_levels(&good).is_ok(), "{good:?}");
        }
        for (bad, part) in [
            (levels((200_001, 0), (0, 0), 0), "choose up to 200000"),
            (levels((0, 0), (1_000_001, 0), 0), "choose up to 1000000"),
            (levels((100, 0), (99, 0), 0), "choose 100 or more, or 0"),
            (levels((0, MIB), (0, MIB - 1), 0), "below the base level of 1048576 (1 MiB)"),
            (levels((0, 0), (0, 0), 101), "choose 0 to 100"),
        ] {
            let error = check_levels(&bad).unwrap_err();
            assert!(error.kind == base::ErrorKind::Invalid && error.message.contains(part), "{error}");
        }
    }

    #[test]
    fn the_nearest_word_is_named_if_it_is_near() {
        let known = ["name", "size", "data_sector", "owner"];
        assert_eq!(nearest("sise", known), Some("size"));
        assert_eq!(nearest("datasector", known), Some("data_sector"));
        assert_eq!(nearest("zzzzzzzz", known), None);
    }
}
