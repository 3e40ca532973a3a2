//! Why an I/O had to wait.

/// What kept a request from starting: the latest one where there were several.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// Its segment asked for more than its share, and the main bucket is empty.
    HotSegment,
    /// Everybody together asked for more than the store takes, overdraw included.
    MainBucketEmpty,
    /// The volume has used up its base level, and may not burst beyond it.
    BaseLevel,
    /// The volume has used up its burst level.
    BurstLevel,
    /// Its client has used up the cap.
    ClientCap,
    /// Its segment has used up the cap.
    SegmentCap,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 6] = [
        Reason::HotSegment,
        Reason::MainBucketEmpty,
        Reason::BaseLevel,
        Reason::BurstLevel,
        Reason::ClientCap,
        Reason::SegmentCap,
    ];

    /// Its name in metrics and answers.
    pub fn name(self) -> &'static str {
        match self {
            Reason::HotSegment => "hot_segment",
            Reason::MainBucketEmpty => "main_bucket_empty",
            Reason::BaseLevel => "base_level",
            Reason::BurstLevel => "burst_level",
            Reason::ClientCap => "client_cap",
            Reason::SegmentCap => "segment_cap",
        }
    }
}

/// What waiting for one reason came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wait {
    /// Requests that waited and have been started.
    pub requests: u64,
    /// How long all of them waited, in nanoseconds.
    pub total_ns: u64,
    /// How long the one waited that waited longest.
    pub max_ns: u64,
    /// Requests that wait now.
    pub now: u64,
}

/// What a volume's requests waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Waits([Wait; Reason::ALL.len()]);

impl Waits {
    /// Waiting for that reason.
    pub fn of(&self, reason: Reason) -> &Wait {
        &self.0[reason as usize]
    }

    pub(super) fn on_wait(&mut self, reason: Reason) {
        self.0[reason as usize].now += 1;
    }

    pub(super) fn on_change(&mut self, before: Reason, reason: Reason) {
        self.0[before as usize].now -= 1;
        self.0[reason as usize].now += 1;
    }

    pub(super) fn on_start(&mut self, reason: Reason, waited_ns: u64) {
        let wait = &mut self.0[reason as usize];
        wait.now -= 1;
        wait.requests += 1;
        wait.total_ns += waited_ns;
        wait.max_ns = wait.max_ns.max(waited_ns);
    }
}
