//! What happens to the agreement of the directories: pure decisions over what all of them know (rule 19 of
//! docs/SAFETY.md).
//!
//! [`super::membership`] and [`super::resync`] carry them out; `lab::protocol` puts them through every order of
//! failures, crashes and starts.

use base::DirectoryId;

use super::superblock::{Member, StoreRecord};

/// Ids that one write of the superblocks reserves.
pub const ID_BATCH: u64 = 1024;

/// What a directory is from now on that could not be written to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// A member still, but it gets no new files: something is nowhere else.
    Suspect,
    /// A member no more.
    Excluded,
}

/// What becomes of a member that failed. One that holds the only copy of something stays a member: a store without it
/// would be a store without that file, and when it came back nobody could tell whether the file was deleted meanwhile.
pub fn plan_failure(is_only_member: bool, holds_only_copies: bool) -> Fate {
    match is_only_member || holds_only_copies {
        true => Fate::Suspect,
        false => Fate::Excluded,
    }
}

/// What is published next, with these members. `next_file`: the first id that was not given out yet.
pub fn plan_publication(last: &StoreRecord, members: Vec<Member>, next_file: u64) -> StoreRecord {
    let same = members.iter().map(|member| member.id).eq(last.members.iter().map(|member| member.id));
    StoreRecord {
        generation: last.generation + u64::from(!same),
        next_file: last.next_file.max(next_file + ID_BATCH),
        publication: last.publication + 1,
        members,
        ..last.clone()
    }
}

/// What came of writing a publication to one directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Written {
    /// It is durable there.
    Yes,
    /// It may be there or not, and the directory was excluded for it.
    Excluded,
    /// It may be there or not, and the directory is a member all the same.
    StillMember,
}

/// What came of a publication.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Conclusion {
    /// It counts. `complete`: every member knows it.
    Published {
        /// Whether every member knows it.
        complete: bool,
    },
    /// Another one without those that were excluded has to be published.
    Again,
    /// A member does not know it and may not be left out: nothing may be confirmed.
    Failed,
}

/// What came of a publication that was `written` to every member like this. `same_members`: an earlier publication of
/// this life with the same members counts.
///
/// With the same members as before, one that knows is enough: a start needs all of them, and takes the highest
/// numbers.
pub fn plan_conclusion(written: &[Written], same_members: bool) -> Conclusion {
    let has = |what: Written| written.contains(&what);
    match (has(Written::StillMember), has(Written::Excluded)) {
        (true, _) if !same_members || !has(Written::Yes) => Conclusion::Failed,
        (_, true) => Conclusion::Again,
        (missed, false) => Conclusion::Published { complete: !missed },
    }
}

/// Whether a directory that was away went a way of its own: `last` is the record that it knows, `now` what is agreed
/// on.
pub fn was_left_behind(last: &StoreRecord, now: &StoreRecord) -> bool {
    last.lineages.last() != now.lineages.last()
}

/// Whether a file of a directory that was left behind is nowhere else: nobody knows it, and none of the members was
/// there when it was born in `born_in`.
pub fn is_only_there(is_known: bool, born_in: &[DirectoryId], members: &[DirectoryId]) -> bool {
    !is_known && !born_in.iter().any(|id| members.contains(id))
}

#[cfg(test)]
mod tests {
    use base::{Incarnation, StoreId};

    use super::super::superblock::Shard;

    use super::*;

    fn members(ids: &[u128]) -> Vec<Member> {
        ids.iter().map(|id| Member { id: DirectoryId(*id), path: format!("/srv/{id}") }).collect()
    }

    #[test]
    fn a_publication_grows_the_generation_with_its_members() {
        let last = StoreRecord {
            store: StoreId(1),
            shard: Shard::WHOLE,
            generation: 4,
            incarnation: Incarnation(2),
            next_file: 2048,
            publication: 9,
            agreed_publication: 8,
            lineages: vec![7],
            members: members(&[1, 2]),
        };
        let next = plan_publication(&last, members(&[1, 2]), 5);
        let expected = StoreRecord { publication: 10, ..last.clone() };
        assert_eq!(next, expected);
        let next = plan_publication(&last, members(&[1]), 2000);
        assert_eq!((next.generation, next.next_file, next.members.len()), (5, 3024, 1));
        let moved = vec![Member { path: "/elsewhere".into(), ..last.members[0].clone() }, last.members[1].clone()];
        assert_eq!(plan_publication(&last, moved, 5).generation, 4, "a path is no change");
    }

    #[test]
    fn what_counts_is_known_to_every_member() {
        use Written::{Excluded, StillMember, Yes};
        assert_eq!(plan_conclusion(&[Yes, Yes], false), Conclusion::Published { complete: true });
        assert_eq!(plan_conclusion(&[Yes, Excluded], true), Conclusion::Again);
        assert_eq!(plan_conclusion(&[Yes, StillMember], true), Conclusion::Published { complete: false });
        assert_eq!(plan_conclusion(&[Yes, StillMember], false), Conclusion::Failed);
        assert_eq!(plan_conclusion(&[StillMember], true), Conclusion::Failed);
        assert_eq!(plan_conclusion(&[StillMember, Excluded, Yes], false), Conclusion::Failed);
        assert_eq!(plan_conclusion(&[StillMember, Excluded, Yes], true), Conclusion::Again);
    }
}
