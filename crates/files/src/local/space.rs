//! Room in directories: how much fits in several copies, and where a new file goes. Pure decisions.

/// Most bytes that can be stored `copies` times, at most once in each directory, where directories have `rooms`.
///
/// A directory that is larger than its share holds one copy of everything at most. So with the k largest
/// directories full of everything, the others hold the rest of the copies; the tightest such bound is the answer.
/// Sorts `rooms`.
pub(crate) fn plan_usable(rooms: &mut [u64], copies: usize) -> u64 {
    let copies = copies.clamp(1, rooms.len().max(1));
    rooms.sort_unstable();
    let bound = |k: usize| {
        let smaller = rooms[..rooms.len().saturating_sub(k)].iter().map(|room| u128::from(*room)).sum::<u128>();
        (smaller / (copies - k) as u128) as u64
    };
    (0..copies).map(bound).min().unwrap_or(0)
}

/// Which directories get a copy of `bytes` each: those with the most room, the earlier one where they have the same.
/// Gives indexes into `rooms`, fewer than `copies` if not enough have room.
pub(crate) fn plan_placement(rooms: &[u64], copies: usize, bytes: u64) -> Vec<usize> {
    let mut fitting = (0..rooms.len()).filter(|index| rooms[*index] >= bytes).collect::<Vec<_>>();
    fitting.sort_by_key(|index| (std::cmp::Reverse(rooms[*index]), *index));
    fitting.truncate(copies);
    fitting
}

#[cfg(test)]
mod tests {
    use base::Prng;

    use super::*;

    #[test]
    fn what_fits_in_copies() {
        assert_eq!(plan_usable(&mut [], 2), 0);
        assert_eq!(plan_usable(&mut [10], 3), 10, "one directory holds one copy");
        assert_eq!(plan_usable(&mut [100, 10], 2), 10);
        assert_eq!(plan_usable(&mut [100, 60, 40], 2), 100);
        assert_eq!(plan_usable(&mut [100, 10, 10], 2), 20);
        assert_eq!(plan_usable(&mut [5, 5, 5], 3), 5);
    }

    #[test]
    fn as_much_can_be_placed_as_is_promised() {
        for seed in 0..200 {
            let mut prng = Prng::new(seed);
            let mut rooms = (0..prng.between(1, 6)).map(|_| prng.below(60)).collect::<Vec<_>>();
            let copies = prng.between(1, rooms.len() as u64) as usize;
            let promised = plan_usable(&mut rooms.clone(), copies);
            let mut placed = 0;
            loop {
                let chosen = plan_placement(&rooms, copies, 1);
                if chosen.len() < copies {
                    break;
                }
                chosen.into_iter().for_each(|index| rooms[index] -= 1);
                placed += 1;
            }
            assert_eq!(placed, promised, "seed {seed}: {rooms:?} in {copies} copies");
        }
    }

    #[test]
    fn the_roomiest_directories_are_chosen() {
        assert_eq!(plan_placement(&[5, 9, 9, 7], 3, 6), [1, 2, 3]);
        assert_eq!(plan_placement(&[5, 9], 2, 6), [1]);
        assert!(plan_placement(&[5], 1, 6).is_empty());
    }
}
