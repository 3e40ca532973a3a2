//! How much comes home together, and whether clients count. The paper compares its own way (prioritized coordination) with two that
//! look at nobody (DiffForward, SIGMETRICS 2023, §5.5, figure 20d).

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Pace {
    /// While servers let it ([`super::Coordination`]), as much at once as nobody has to wait behind ([`super::Window`]).
    #[default]
    Prioritized,
    /// Whatever clients want, 1 MiB at once: the paper's CL, concurrency limited.
    Limited,
    /// Whatever clients want, all of the longest log at once: the paper's ASAP.
    AtOnce,
}

/// How much is merged together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BatchSize {
    /// Bytes of a batch.
    pub bytes: u64,
    /// Its pieces.
    pub parts: usize,
}

impl Pace {
    /// How much is merged together.
    pub fn batch(self) -> BatchSize {
        const BYTES: u64 = 1 << 20;
        match self {
            Pace::Prioritized => BatchSize { bytes: BYTES, parts: 64 },
            Pace::Limited => BatchSize { bytes: BYTES, parts: usize::MAX },
            Pace::AtOnce => BatchSize { bytes: u64::MAX, parts: usize::MAX },
        }
    }
}
