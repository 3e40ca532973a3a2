//! Why an I/O had to wait, at its agent or at the server of its segment.

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
    /// The volumes of its owner have used up what each tenant of the agent gets.
    TenantLevel,
    /// Other tenants want its agent's loop, too, and its tenant has had its share.
    TenantShare,
}

impl Reason {
    /// All of them.
    pub const ALL: [Reason; 8] = [
        Reason::HotSegment,
        Reason::MainBucketEmpty,
        Reason::BaseLevel,
        Reason::BurstLevel,
        Reason::ClientCap,
        Reason::SegmentCap,
        Reason::TenantLevel,
        Reason::TenantShare,
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
            Reason::TenantLevel => "tenant_level",
            Reason::TenantShare => "tenant_share",
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

    /// Adds what others waited for.
    pub fn add(&mut self, other: &Waits) {
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            mine.requests += theirs.requests;
            mine.total_ns += theirs.total_ns;
            mine.max_ns = mine.max_ns.max(theirs.max_ns);
            mine.now += theirs.now;
        }
    }

    /// A request waits.
    pub fn on_wait(&mut self, reason: Reason) {
        self.0[reason as usize].now += 1;
    }

    /// A request that waits does so for another reason.
    pub fn on_change(&mut self, before: Reason, reason: Reason) {
        self.0[before as usize].now -= 1;
        self.0[reason as usize].now += 1;
    }

    /// A request that waited has been started.
    pub fn on_start(&mut self, reason: Reason, waited_ns: u64) {
        let wait = &mut self.0[reason as usize];
        wait.now -= 1;
        wait.requests += 1;
        wait.total_ns += waited_ns;
        wait.max_ns = wait.max_ns.max(waited_ns);
    }

    /// A request that waits is gone.
    pub fn on_gone(&mut self, reason: Reason) {
        self.0[reason as usize].now -= 1;
    }
}
