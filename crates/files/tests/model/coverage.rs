//! What happened in all seeds: a test of faults that never happened proves nothing.

/// What happened over all seeds: each must be above zero.
#[derive(Default, Debug)]
pub struct Coverage {
    pub lives: u32,
    pub kills: u32,
    pub power_losses: u32,
    pub ended_while_opening: u32,
    pub recovered_files: u32,
    pub tails_kept: u32,
    pub swept: u32,
    pub seals_completed: u32,
    pub deletions_found_undone: u32,
    pub failed_appends: u32,
    pub disks_failed: u32,
    pub refused_starts: u32,
    pub returns: u32,
    pub full: u32,
    pub healthy_again: u32,
}

impl Coverage {
    /// Adds what happened in one seed.
    pub fn add(&mut self, one: &Coverage) {
        self.lives += one.lives;
        self.kills += one.kills;
        self.power_losses += one.power_losses;
        self.ended_while_opening += one.ended_while_opening;
        self.recovered_files += one.recovered_files;
        self.tails_kept += one.tails_kept;
        self.swept += one.swept;
        self.seals_completed += one.seals_completed;
        self.deletions_found_undone += one.deletions_found_undone;
        self.failed_appends += one.failed_appends;
        self.disks_failed += one.disks_failed;
        self.refused_starts += one.refused_starts;
        self.returns += one.returns;
        self.full += one.full;
        self.healthy_again += one.healthy_again;
    }
}
