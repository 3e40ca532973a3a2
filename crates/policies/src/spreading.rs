//! Which loop serves a connection. The queues of virtual machines are for [`super::queues`].
//!
//! A connection stays with the loop that got it, so it goes to the one that has the fewest then; of those with as many, to
//! the first. What a connection does is not known when it comes; that all of an export spread over the loops is.

/// The loop that gets a new connection, where each has so many.
///
/// # Panics
/// There is no loop.
pub fn plan_loop(connections: impl IntoIterator<Item = usize>) -> usize {
    let fewest = connections.into_iter().enumerate().min_by_key(|(index, count)| (*count, *index));
    fewest.map(|(index, _)| index).expect("there is a loop")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_go_where_the_fewest_are() {
        let mut counts = [0usize; 4];
        let order: Vec<usize> = (0..8)
            .map(|_| {
                let chosen = plan_loop(counts);
                counts[chosen] += 1;
                chosen
            })
            .collect();
        assert_eq!(order, [0, 1, 2, 3, 0, 1, 2, 3]);
        assert_eq!(plan_loop([3, 1, 0, 2]), 2);
        assert_eq!(plan_loop([7]), 0);
    }
}
