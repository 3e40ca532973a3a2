//! Which directories a store may start with: a pure decision over the superblocks that were found (rule 19 of
//! docs/SAFETY.md).
//!
//! **Why the newest generation that is found is the newest there is, once all its members are found:** generation
//! g + 1 counts only after it is durable on all of its members, and at least one of them was a member of g. So if all
//! members of g are there and none of them knows g + 1, no such generation ever confirmed anything. A start that
//! leaves members behind breaks this argument; it draws a new lineage, by which a member that was left behind is
//! known to be older, whatever its generation, and two sides that both went on alone are told apart.
//!
//! Being a member is what counts, not the generation in a directory's own superblock: a crash in the middle of a
//! change leaves members whose superblocks are of two generations, and each of them holds all that was confirmed.
//!
//! **A generation that one of its members does not know never counted,** and does not count later, either: the others
//! may have gone on for long without it, and whoever was to join by it may have missed that. Even while nobody has, to
//! go on by it is not safe: should those who do not know it fail next, they would be complete without the rest. So the
//! newest that may have counted decides.
//!
//! **A member that was put back to an older state** (a backup, a snapshot of the disk) is found out by the number of
//! its last publication: each one says which earlier one all members know. A member that does not know that one is
//! none; it counts as missing. Each life publishes twice before it confirms anything, and again from time to time
//! while files come and go ([`super::membership`]), so every older state is found but one of the last moments.

use std::path::PathBuf;

use base::seeded::is_on;
use base::{DirectoryId, Error, Incarnation, Result, StoreId};

use super::superblock::{LINEAGES_MAX, MEMBERS_MAX, Member, Shard, StoreRecord, Superblock};

/// File ids that a start without members leaves to these. If they go on without it, too, their files are others, and
/// are known as such by their names.
const FILES_LEFT_BEHIND: u64 = 1 << 32;

/// One of the directories that were given.
#[derive(Clone, Debug)]
pub struct Found {
    /// Its path.
    pub path: PathBuf,
    /// Whether there is a directory under this path, and it answers.
    pub exists: bool,
    /// Its superblock; none in an empty directory.
    pub superblock: Option<Superblock>,
}

/// What a directory is to the store that starts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Holds all that was confirmed in its copies.
    Member,
    /// Empty: becomes a member in this start.
    Joins,
    /// Was a member: becomes one again after it has been resynchronized.
    Returns,
    /// Left alone: it does not exist although the store does, or it is empty while members are missing. Its disk may
    /// not be mounted.
    Absent,
}

/// The decision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Of each directory found, in order.
    pub roles: Vec<Role>,
    /// What the store's directories agreed on last; `members` without those that are missing, and a new lineage if
    /// there are any. The highest incarnation, file id and publication of all directories.
    pub record: StoreRecord,
    /// Members that were not found, and are given up.
    pub missing: Vec<Member>,
    /// Whether the store is made by this start.
    pub created: bool,
}

/// Decides. `fresh` is a random store id and lineage, used where a new one is needed.
///
/// # Errors
/// `Conflict` for directories that do not belong together, `Invalid` where members are missing.
pub fn plan_open(found: &[Found], accept_missing: bool, fresh: (StoreId, u64)) -> Result<Plan> {
    let Some(newest) = newest_record(found)? else {
        let record = StoreRecord {
            store: fresh.0,
            shard: Shard::WHOLE,
            generation: 0,
            incarnation: Incarnation(0),
            next_file: 1,
            publication: 0,
            agreed_publication: 0,
            lineages: vec![fresh.1],
            members: Vec::new(),
        };
        check_count(found.len())?;
        return Ok(Plan { roles: vec![Role::Joins; found.len()], record, missing: Vec::new(), created: true });
    };
    let mut record = newest.clone();
    let highest = belonging(found).map(|(_, superblock)| superblock.record.generation).max().unwrap_or(0);
    if highest > newest.generation {
        // That one never counted. It is left behind for good.
        record.generation = highest + 1;
    }
    let (present, missing) =
        record.members.into_iter().partition::<Vec<_>, _>(|member| is_current(found, newest, member.id));
    record.members = present;
    if !missing.is_empty() {
        if !accept_missing {
            return Err(refusal(found, &missing));
        }
        if record.members.is_empty() {
            return Err(Error::corrupt("no directory that was given holds data of the store: give those that do"));
        }
        record.lineages.push(fresh.1);
        let excess = record.lineages.len().saturating_sub(LINEAGES_MAX);
        record.lineages.drain(..excess);
    }
    let role = |found: &Found| match &found.superblock {
        Some(superblock) if record.has_member(superblock.directory) => Role::Member,
        Some(superblock) if superblock.record.generation > 0 => Role::Returns,
        _ if missing.is_empty() && found.exists => Role::Joins,
        _ => Role::Absent,
    };
    let roles = found.iter().map(role).collect::<Vec<_>>();
    check_count(roles.iter().filter(|role| **role != Role::Absent).count())?;
    for (_, superblock) in belonging(found) {
        record.incarnation = record.incarnation.max(superblock.record.incarnation);
        record.next_file = record.next_file.max(superblock.record.next_file);
        record.publication = record.publication.max(superblock.record.publication);
    }
    record.next_file += if missing.is_empty() { 0 } else { FILES_LEFT_BEHIND };
    Ok(Plan { roles, record, missing, created: false })
}

/// The superblocks that count. One of generation 0 that no other names was never part of a store.
fn belonging(found: &[Found]) -> impl Iterator<Item = (&Found, &Superblock)> {
    found.iter().filter_map(|found| Some((found, found.superblock.as_ref()?)))
}

fn newest_record(found: &[Found]) -> Result<Option<&StoreRecord>> {
    let all = belonging(found).filter(|(_, superblock)| superblock.record.generation > 0).collect::<Vec<_>>();
    let Some((first, _)) = all.first() else { return Ok(None) };
    for (index, (here, superblock)) in all.iter().enumerate() {
        if superblock.record.store != all[0].1.record.store {
            return Err(Error::conflict(format!(
                "{} belongs to store {} and {} to store {}: give the directories of one store",
                first.path.display(),
                all[0].1.record.store,
                here.path.display(),
                superblock.record.store
            )));
        }
        if superblock.record.shard != all[0].1.record.shard {
            return Err(Error::conflict(format!(
                "{} is {} of the store and {} is {}: put them back where they were",
                first.path.display(),
                all[0].1.record.shard,
                here.path.display(),
                superblock.record.shard
            )));
        }
        if let Some((there, _)) = all[..index].iter().find(|(_, other)| other.directory == superblock.directory) {
            return Err(Error::conflict(format!(
                "{} and {} are the same directory of the store, or one is a copy of the other: give one of them",
                there.path.display(),
                here.path.display()
            )));
        }
    }
    let knows = |record: &StoreRecord, other: &StoreRecord| match other.lineages.last() {
        Some(lineage) => record.lineages.contains(lineage),
        None => false,
    };
    let records = all.iter().map(|(_, superblock)| &superblock.record);
    let descendants = records.clone().filter(|record| records.clone().all(|other| knows(record, other)));
    match newest_of(found, descendants.collect()) {
        Some(newest) => Ok(Some(newest)),
        None => {
            let paths = all.iter().map(|(found, _)| found.path.display().to_string()).collect::<Vec<_>>();
            Err(Error::conflict(format!(
                "the directories {} went on without each other after members were left behind: give only those whose \
                 data you want to keep, and empty the others",
                paths.join(", ")
            )))
        }
    }
}

/// Which of the records of one lineage decides.
fn newest_of<'a>(found: &[Found], mut records: Vec<&'a StoreRecord>) -> Option<&'a StoreRecord> {
    let time = |record: &StoreRecord| (record.incarnation, record.publication, record.generation);
    records.sort_by_key(|record| std::cmp::Reverse(time(record)));
    // A member that was put back to an older state says nothing about what came after it.
    let does_not_know = |superblock: &Superblock, record: &StoreRecord| {
        record.has_member(superblock.directory)
            && superblock.record.generation < record.generation
            && superblock.record.publication >= record.agreed_publication
    };
    let may_have_counted = |record: &StoreRecord| {
        let mut known = belonging(found).filter(|(_, superblock)| superblock.record.generation > 0);
        !known.any(|(_, superblock)| does_not_know(superblock, record))
    };
    records.iter().copied().find(|record| may_have_counted(record)).or(records.first().copied())
}

/// Whether a member is there, and not in an older state than everybody knows according to `record`.
fn is_current(found: &[Found], record: &StoreRecord, member: DirectoryId) -> bool {
    let mut all = belonging(found).filter(|(_, superblock)| superblock.directory == member);
    all.any(|(_, superblock)| {
        superblock.record.publication >= record.agreed_publication || is_on("stale-directory-accepted")
    })
}

fn check_count(count: usize) -> Result<()> {
    match count <= MEMBERS_MAX {
        true => Ok(()),
        false => Err(Error::invalid(format!("{count} directories are too many: a store has at most {MEMBERS_MAX}"))),
    }
}

fn refusal(found: &[Found], missing: &[Member]) -> Error {
    let describe = |member: &Member| {
        let older = belonging(found).find(|(_, superblock)| superblock.directory == member.id);
        match older {
            Some((found, _)) => format!("{} holds an older state of itself, as from a backup", found.path.display()),
            None => format!("{} (id {}) is missing", member.path, member.id),
        }
    };
    Error::invalid(format!(
        "the directories of this store are not complete: {}. Bring back what is missing and give its directory, too; \
         or start with --accept-missing-directories, which brings an older one up to date from the others, and gives \
         up whatever the others do not hold",
        missing.iter().map(describe).collect::<Vec<_>>().join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use base::ErrorKind;

    use super::*;

    const FRESH: (StoreId, u64) = (StoreId(77), 700);

    fn superblock(id: u128, generation: u64, lineages: &[u64], members: &[u128]) -> Superblock {
        Superblock {
            sequence: 1,
            directory: DirectoryId(id),
            record: StoreRecord {
                store: StoreId(5),
                shard: Shard::WHOLE,
                generation,
                incarnation: Incarnation(generation * 10),
                next_file: generation * 100,
                publication: generation * 10,
                agreed_publication: generation.saturating_sub(1) * 10,
                lineages: lineages.to_vec(),
                members: members.iter().map(|id| Member { id: DirectoryId(*id), path: format!("/srv/{id}") }).collect(),
            },
        }
    }

    fn found(superblocks: Vec<Option<Superblock>>) -> Vec<Found> {
        let path = |index| PathBuf::from(format!("/given/{index}"));
        let superblocks = superblocks.into_iter().enumerate();
        superblocks.map(|(index, superblock)| Found { path: path(index), exists: true, superblock }).collect()
    }

    fn member(id: u128, generation: u64, members: &[u128]) -> Option<Superblock> {
        Some(superblock(id, generation, &[1], members))
    }

    #[test]
    fn empty_directories_become_a_store() {
        let plan = plan_open(&found(vec![None, None]), false, FRESH).unwrap();
        assert!(plan.created && plan.roles == [Role::Joins, Role::Joins]);
        assert_eq!((plan.record.store, plan.record.generation, &plan.record.lineages[..]), (FRESH.0, 0, &[700][..]));
        // A crash before the first generation leaves superblocks of generation 0: nothing was in that store.
        let forming = Some(superblock(1, 0, &[], &[]));
        assert!(plan_open(&found(vec![forming.clone(), None]), false, FRESH).unwrap().created);
        // One that the first generation names is a member, though its own superblock does not know.
        let plan = plan_open(&found(vec![forming, member(2, 1, &[1, 2])]), false, FRESH).unwrap();
        assert_eq!(plan.roles, [Role::Member, Role::Member]);
    }

    #[test]
    fn every_member_of_the_newest_generation_is_needed() {
        let plan = plan_open(&found(vec![member(1, 2, &[1, 2]), member(2, 2, &[1, 2])]), false, FRESH).unwrap();
        assert_eq!(plan.roles, [Role::Member, Role::Member]);
        assert_eq!((plan.record.generation, plan.record.incarnation, plan.record.next_file), (2, Incarnation(20), 200));
        let refused = plan_open(&found(vec![member(2, 1, &[1, 2])]), false, FRESH).unwrap_err();
        assert_eq!(refused.kind, ErrorKind::Invalid);
        assert!(refused.message.contains("/srv/1") && refused.message.contains("--accept-missing-directories"));
    }

    #[test]
    fn a_generation_that_a_member_does_not_know_never_counted() {
        // 3 was about to join when the process was killed. Whatever it was told, it may have missed what came after.
        let told = |generation| member(3, generation, &[1, 2, 3]);
        let given = found(vec![member(1, 2, &[1, 2]), member(2, 2, &[1, 2]), told(3)]);
        let plan = plan_open(&given, false, FRESH).unwrap();
        assert_eq!(plan.roles, [Role::Member, Role::Member, Role::Returns]);
        assert_eq!((plan.record.members.len(), plan.record.generation), (2, 4), "and never will");
        assert_eq!((plan.record.incarnation, plan.record.publication), (Incarnation(30), 30));
        // One of the others was told, too.
        let given = found(vec![member(1, 3, &[1, 2, 3]), member(2, 2, &[1, 2]), told(3)]);
        assert_eq!(plan_open(&given, false, FRESH).unwrap().roles, [Role::Member, Role::Member, Role::Returns]);
        // 3 was about to be left out: it is a member still.
        let (alone, before) = (member(1, 3, &[1, 2]), |id| member(id, 2, &[1, 2, 3]));
        let all = found(vec![alone.clone(), before(2), before(3)]);
        assert_eq!(plan_open(&all, false, FRESH).unwrap().roles, [Role::Member; 3]);
        let refused = plan_open(&found(vec![alone, before(2)]), false, FRESH).unwrap_err();
        assert!(refused.message.contains("/srv/3"), "{refused}");
        // Everybody who knew of the one before was told: it is finished.
        let mut forming = superblock(3, 0, &[], &[]);
        forming.record.publication = 20;
        let given = found(vec![member(1, 3, &[1, 2, 3]), member(2, 3, &[1, 2, 3]), Some(forming)]);
        assert_eq!(plan_open(&given, false, FRESH).unwrap().roles, [Role::Member; 3]);
        // It may have counted if nobody is there who did not know it: then all of its members are needed.
        let refused = plan_open(&found(vec![member(1, 3, &[1, 2, 3]), told(3)]), false, FRESH).unwrap_err();
        assert!(refused.message.contains("/srv/2"), "{refused}");
        // Whoever was put back to an older state does not know either, but says nothing.
        let mut put_back = superblock(3, 2, &[1], &[1, 2]);
        put_back.record.publication = 19;
        let given = found(vec![member(1, 3, &[1, 2, 3]), member(2, 3, &[1, 2, 3]), Some(put_back)]);
        assert!(plan_open(&given, false, FRESH).unwrap_err().message.contains("an older state"));
    }

    #[test]
    fn one_that_was_left_out_returns_and_an_empty_one_joins() {
        let given = vec![member(1, 2, &[1]), member(2, 1, &[1, 2]), None];
        let plan = plan_open(&found(given), false, FRESH).unwrap();
        assert_eq!(plan.roles, [Role::Member, Role::Returns, Role::Joins]);
        assert!(plan.missing.is_empty() && plan.record.lineages == [1]);
        // Nothing under a path: a disk that is not mounted, not one that was bought.
        let mut given = found(vec![member(1, 2, &[1]), None]);
        given[1].exists = false;
        assert_eq!(plan_open(&given, false, FRESH).unwrap().roles, [Role::Member, Role::Absent]);
        given.remove(0);
        assert_eq!(plan_open(&given, false, FRESH).unwrap().roles, [Role::Joins], "but a new store makes its own");
    }

    #[test]
    fn leaving_members_behind_is_remembered() {
        let plan = plan_open(&found(vec![member(1, 2, &[1, 2]), None]), true, FRESH).unwrap();
        assert_eq!(plan.roles, [Role::Member, Role::Absent], "an empty directory may be the missing one, unmounted");
        assert_eq!(plan.record.next_file, 200 + FILES_LEFT_BEHIND, "nor do their files get the same names");
        assert_eq!((plan.missing.len(), &plan.record.lineages[..]), (1, &[1, 700][..]));
        assert_eq!(plan.record.members.len(), 1);

        // The one that was left behind is older, whatever generation it reached before.
        let behind = Some(superblock(2, 9, &[1], &[1, 2]));
        let ahead = Some(superblock(1, 3, &[1, 700], &[1]));
        let plan = plan_open(&found(vec![behind.clone(), ahead.clone()]), false, FRESH).unwrap();
        assert_eq!(plan.roles, [Role::Returns, Role::Member]);
        assert_eq!(plan.record.incarnation, Incarnation(90), "numbers only grow");

        // Two that both went on alone do not come together again by themselves.
        let alone = Some(superblock(2, 9, &[1, 800], &[2]));
        let refused = plan_open(&found(vec![alone, ahead]), true, FRESH).unwrap_err();
        assert!(refused.kind == ErrorKind::Conflict && refused.message.contains("without each other"));
    }

    #[test]
    fn a_member_that_was_put_back_to_an_older_state_is_none() {
        let with = |id, publication, agreed_publication| {
            let mut superblock = superblock(id, 1, &[1], &[1, 2]);
            superblock.record = StoreRecord { publication, agreed_publication, ..superblock.record };
            Some(superblock)
        };
        // Two publications in a row that reached only one of them: both are current.
        let plan = plan_open(&found(vec![with(1, 9, 7), with(2, 7, 6)]), false, FRESH).unwrap();
        assert_eq!(plan.roles, [Role::Member, Role::Member]);
        assert_eq!((plan.record.publication, plan.record.agreed_publication), (9, 7));
        let given = found(vec![with(1, 9, 7), with(2, 6, 5)]);
        let refused = plan_open(&given, false, FRESH).unwrap_err();
        assert!(refused.message.contains("/given/1 holds an older state of itself"), "{refused}");
        let plan = plan_open(&given, true, FRESH).unwrap();
        assert_eq!((plan.roles, plan.missing.len()), (vec![Role::Member, Role::Returns], 1));
    }

    #[test]
    fn directories_that_do_not_belong_together_are_refused() {
        let mut other = superblock(2, 1, &[1], &[2]);
        other.record.store = StoreId(6);
        let refused = plan_open(&found(vec![member(1, 1, &[1]), Some(other)]), true, FRESH).unwrap_err();
        assert!(refused.kind == ErrorKind::Conflict && refused.message.contains("one store"));
        let twice = vec![member(1, 1, &[1]), member(1, 1, &[1])];
        assert_eq!(plan_open(&found(twice), false, FRESH).unwrap_err().kind, ErrorKind::Conflict);
        assert_eq!(plan_open(&found(vec![None; 33]), false, FRESH).unwrap_err().kind, ErrorKind::Invalid);
    }

    #[test]
    fn lineages_are_bounded() {
        let full = superblock(1, 2, &[1, 2, 3, 4, 5, 6, 7, 8], &[1, 2]);
        let plan = plan_open(&found(vec![Some(full)]), true, FRESH).unwrap();
        assert_eq!(plan.record.lineages, [2, 3, 4, 5, 6, 7, 8, 700]);
    }
}
