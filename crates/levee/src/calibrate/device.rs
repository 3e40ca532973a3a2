//! Whether others used the disks meanwhile: what the kernel counts for the block device below a directory, less what we
//! did ourselves.
//!
//! Linux has the counters in `/sys/dev/block/MAJOR:MINOR/stat` (Documentation/block/stat.rst). Several directories may be
//! on one device; a file system that is on none (an overlay, ZFS, a network) has no counters, and nothing is said.

#![allow(clippy::disallowed_methods, reason = "files outside of the simulated worlds")]

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use base::units::format_size;
use node::calibrate::{CalibrateOptions, Report};

/// What others may do of all that was done, in percent: file systems write a little of their own.
const OTHERS_PERCENT: u64 = 5;
/// What a file in /sys counts in.
const SECTOR: u64 = 512;

/// Bytes that a disk has read and written since the machine started, by where the kernel shows it; with the places of the
/// directories that are on it.
pub type Counters = BTreeMap<PathBuf, ([u64; 2], Vec<usize>)>;

/// Looks at the devices of these directories.
pub fn counters(directories: &[PathBuf]) -> Counters {
    let mut found = Counters::new();
    for (place, directory) in directories.iter().enumerate() {
        let Ok(metadata) = std::fs::metadata(directory) else { continue };
        let Some(device) = device_of(metadata.dev()) else { continue };
        let Some(moved) = moved(&device) else { continue };
        found.entry(device).or_insert((moved, Vec::new())).1.push(place);
    }
    found
}

/// A sentence for each device that others used between two looks.
pub fn others(before: &Counters, after: &Counters, wanted: &CalibrateOptions, report: &Report) -> Vec<String> {
    let mut said = Vec::new();
    for (device, (then, places)) in before {
        let Some((now, _)) = after.get(device) else { continue };
        let [read, written] = [0, 1].map(|way| {
            let ours: u64 = places.iter().map(|place| report.moved[*place][way]).sum();
            // The scratch file was written first.
            let ours = ours + if way == 1 { report.scratch_bytes * places.len() as u64 } else { 0 };
            (now[way].saturating_sub(then[way]).saturating_sub(ours), ours)
        });
        let (theirs, ours) = (read.0 + written.0, read.1 + written.1);
        if theirs * 100 > ours * OTHERS_PERCENT {
            let path = wanted.directories[places[0]].display();
            said.push(format!(
                "others read {} and wrote {} on the disk of {path} meanwhile, beside {} of this measurement",
                format_size(read.0),
                format_size(written.0),
                format_size(ours)
            ));
        }
    }
    said
}

/// Where the kernel shows a device: the whole disk, if it is a partition, because others of its partitions count, too.
fn device_of(number: u64) -> Option<PathBuf> {
    let path = format!("/sys/dev/block/{}:{}", major(number), minor(number));
    let path = std::fs::canonicalize(path).ok()?;
    match path.join("partition").exists() {
        true => path.parent().map(Path::to_owned),
        false => Some(path),
    }
}

/// Bytes read and written.
fn moved(device: &Path) -> Option<[u64; 2]> {
    let text = std::fs::read_to_string(device.join("stat")).ok()?;
    parse(&text)
}

/// The third and the seventh number are sectors read and written.
fn parse(text: &str) -> Option<[u64; 2]> {
    let numbers: Vec<u64> = text.split_whitespace().map_while(|number| number.parse().ok()).collect();
    Some([numbers.get(2)? * SECTOR, numbers.get(6)? * SECTOR])
}

/// As in glibc's sysmacros.h.
fn major(number: u64) -> u64 {
    (number >> 8 & 0xfff) | (number >> 32 & !0xfff)
}

fn minor(number: u64) -> u64 {
    (number & 0xff) | (number >> 12 & !0xff)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_as_the_kernel_writes_them() {
        let line = "  117463    55226  8321094    60541   230211   194563 12008152   264015        0   127280   324557";
        assert_eq!(parse(line), Some([8_321_094 * 512, 12_008_152 * 512]));
        assert_eq!(parse("1 2 3"), None);
        assert_eq!((major(0xfe01), minor(0xfe01)), (254, 1));
        assert_eq!((major(0x1000_0000_0103), minor(0x1030_0003)), (0x1001, 0x1_0303));
    }
}
