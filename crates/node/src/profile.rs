//! What requests take of a loop's processor on a machine: what was measured, as a file beside the store (BurstCBS, OSDI 2024,
//! §5.3, figure 15).
//!
//! A line for each kind of request goes through what requests of 4 to 16 KiB took; it is the *shape* that matters, how
//! reads, writes and frontends compare: how much a nanosecond of it is at this moment, a loop finds out by itself. The file
//! keeps what was measured, and the machine; on another one it is not used.

use base::{Error, KIB, Result};
use policies::tenants::{Frontend, Line, Operation, Profile, Sample};
use serde::{Deserialize, Serialize};

/// What the file is called in the first directory of a store, and what the next one is called until it is whole.
pub const FILES: [&str; 2] = ["profile.toml", "profile.toml.new"];
/// What is measured with lives in this directory beside it, until that is over.
pub const SCRATCH: &str = "profile.scratch";
/// Sizes of requests that are measured, in bytes.
pub const SIZES: [u64; 3] = [4 * KIB, 8 * KIB, 16 * KIB];
/// More than any request takes, in nanoseconds: what is beyond was not measured.
const REQUEST_NS_MAX: f64 = 1e9;

/// The file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineProfile {
    /// The machine, in words that differ where its processors do.
    pub machine: String,
    /// What was measured.
    pub request: Vec<Measured>,
}

/// What requests of one kind and size took.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// Where they came in.
    pub frontend: Way,
    /// What they asked for.
    pub operation: Asked,
    /// Their size.
    pub bytes: u64,
    /// Processor time of each.
    pub processor_ns: f64,
}

/// See [`Frontend`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Way {
    /// Over NBD.
    Nbd,
    /// From a virtual machine's queue.
    VhostUser,
}

/// See [`Operation`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Asked {
    /// Reads.
    Read,
    /// Writes.
    Write,
}

/// Every kind that is measured.
pub const KINDS: [(Way, Asked); 4] =
    [(Way::Nbd, Asked::Read), (Way::Nbd, Asked::Write), (Way::VhostUser, Asked::Read), (Way::VhostUser, Asked::Write)];

impl MachineProfile {
    /// Reads a file.
    ///
    /// # Errors
    /// `Invalid`: it is none, or lacks something.
    pub fn parse(text: &str) -> Result<MachineProfile> {
        let parsed: std::result::Result<MachineProfile, _> = toml::from_str(text);
        let profile = parsed.map_err(|error| Error::invalid(error.message().to_owned()))?;
        profile.profile()?;
        Ok(profile)
    }

    /// The file as text.
    ///
    /// # Errors
    /// `Internal`
    pub fn text(&self) -> Result<String> {
        let table = toml::to_string(self).map_err(|error| Error::internal(error.to_string()))?;
        Ok(format!("# What requests take of a loop on this machine, measured by levee agent profile.\n{table}"))
    }

    /// The lines through what was measured.
    ///
    /// # Errors
    /// `Invalid`: a kind lacks two sizes, or a number cannot be.
    pub fn profile(&self) -> Result<Profile> {
        let cannot_be = |one: &&Measured| !(one.processor_ns > 0.0 && one.processor_ns < REQUEST_NS_MAX);
        if let Some(wrong) = self.request.iter().find(cannot_be) {
            return Err(Error::invalid(format!("no request takes {} ns", wrong.processor_ns)));
        }
        let mut profile = Profile::default();
        for (way, asked) in KINDS {
            let samples = self.samples(way, asked);
            if samples.iter().all(|sample| sample.bytes == samples[0].bytes) {
                return Err(Error::invalid(format!("requests of {way:?} {asked:?} of two sizes are needed")));
            }
            let frontend = match way {
                Way::Nbd => Frontend::Nbd,
                Way::VhostUser => Frontend::VhostUser,
            };
            let operation = match asked {
                Asked::Read => Operation::Read,
                Asked::Write => Operation::Write,
            };
            if let Some(line) = Line::fit(&samples) {
                profile.set(frontend, operation, line);
            }
        }
        Ok(profile)
    }

    fn samples(&self, way: Way, asked: Asked) -> Vec<Sample> {
        let of_kind = self.request.iter().filter(|one| (one.frontend, one.operation) == (way, asked));
        of_kind.map(|one| Sample { bytes: one.bytes, processor_ns: one.processor_ns }).collect()
    }

    /// Processor time of requests of that kind and size, in nanoseconds, if they were measured.
    pub fn of(&self, way: Way, asked: Asked, bytes: u64) -> Option<f64> {
        self.samples(way, asked).iter().find(|sample| sample.bytes == bytes).map(|sample| sample.processor_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured() -> MachineProfile {
        let of_kind = |(frontend, operation): (Way, Asked)| {
            let base_ns = if frontend == Way::Nbd { 6000.0 } else { 4000.0 };
            SIZES.map(move |bytes| Measured {
                frontend,
                operation,
                bytes,
                processor_ns: base_ns + bytes as f64 * if operation == Asked::Read { 0.25 } else { 0.5 },
            })
        };
        MachineProfile {
            machine: "a machine, 2 processors".into(),
            request: KINDS.into_iter().flat_map(of_kind).collect(),
        }
    }

    #[test]
    fn what_is_written_is_read_again_and_becomes_lines() {
        let file = MachineProfile::parse(&measured().text().unwrap()).unwrap();
        assert_eq!(file, measured());
        let profile = file.profile().unwrap();
        let near = |line: Line, fixed_ns: f64, per_byte_ns: f64| {
            assert!(
                (line.fixed_ns - fixed_ns).abs() < 1e-6 && (line.per_byte_ns - per_byte_ns).abs() < 1e-9,
                "{line:?}"
            );
        };
        near(profile.line(Frontend::Nbd, Operation::Read), 6000.0, 0.25);
        near(profile.line(Frontend::VhostUser, Operation::Write), 4000.0, 0.5);
        assert_eq!(file.of(Way::Nbd, Asked::Write, 8192), Some(10_096.0));
    }

    #[test]
    fn what_cannot_be_is_refused() {
        let refused = |change: &dyn Fn(&mut MachineProfile)| {
            let mut file = measured();
            change(&mut file);
            MachineProfile::parse(&file.text().unwrap()).unwrap_err().message
        };
        assert!(refused(&|file| file.request.truncate(4)).contains("of two sizes are needed"));
        assert!(refused(&|file| file.request.retain(|one| one.bytes == 4096)).contains("Nbd Read of two sizes"));
        assert!(refused(&|file| file.request[5].processor_ns = -1.0).contains("no request takes -1 ns"));
        assert!(refused(&|file| file.request[5].processor_ns = f64::NAN).contains("no request takes NaN ns"));
        assert!(MachineProfile::parse("machine = 7").is_err());
    }
}
