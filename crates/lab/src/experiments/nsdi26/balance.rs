//! How evenly requests arrive at the block servers of a cluster (NSDI 2026, figure 4): no server is modelled, only who
//! gets what.
//!
//! A volume is a group of four segments, over which its data goes round and round; they are on four different servers,
//! chosen at random when the volume is made. Clients burst each by itself.

use base::Prng;

use super::Parameters;
use super::ask::Shape;
use super::load::Load;

/// Segments that a volume's data goes round.
const GROUP: usize = 4;
/// Bytes of a request: how many there are, not how large they are, would only cost time.
const BYTES: u64 = 64 << 10;

/// Where the segments of a volume are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Placement {
    /// On different servers: what Levee does.
    Spread,
    /// On one server.
    Together,
}

/// The standard deviation of arrivals between the servers, by their mean, for each second.
pub fn variation(parameters: &Parameters, placement: Placement, seconds: usize, seed: u64) -> Vec<f64> {
    let mut prng = Prng::new(seed);
    let servers = parameters.servers as usize;
    let segments = parameters.segments * parameters.servers as u32 / parameters.clients;
    let of_a_client = Parameters {
        segments,
        limit_bytes_per_sec: parameters.limit_bytes_per_sec * parameters.servers / u64::from(parameters.clients),
        depth: u32::MAX,
        ..parameters.clone()
    };
    let mut arrivals = vec![vec![0u64; servers]; seconds];
    for _ in 0..parameters.clients {
        let placed: Vec<usize> =
            (0..segments as usize).step_by(GROUP).flat_map(|_| choose(servers, placement, &mut prng)).collect();
        let mut load = Load::new(&of_a_client, Shape::Bursts, BYTES, 50, prng.next_u64());
        while load.next_at < seconds as f64 * 1e9 {
            let second = (load.next_at / 1e9) as usize;
            if let Some(asked) = load.arrive() {
                arrivals[second][placed[asked.segment as usize]] += 1;
            }
        }
    }
    arrivals.iter().map(|counts| coefficient(counts)).collect()
}

/// Servers for the segments of a volume: different ones, as far as there are so many, or one.
fn choose(servers: usize, placement: Placement, prng: &mut Prng) -> Vec<usize> {
    if placement == Placement::Together {
        return vec![prng.below(servers as u64) as usize; GROUP];
    }
    let mut left: Vec<usize> = Vec::new();
    let mut next = || {
        if left.is_empty() {
            left.extend(0..servers);
        }
        left.swap_remove(prng.below(left.len() as u64) as usize)
    };
    (0..GROUP).map(|_| next()).collect()
}

/// Standard deviation by mean.
fn coefficient(counts: &[u64]) -> f64 {
    let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
    let variance = counts.iter().map(|count| (*count as f64 - mean).powi(2)).sum::<f64>() / counts.len() as f64;
    variance.sqrt() / mean.max(1e-9)
}

#[cfg(test)]
mod tests {
    use super::super::super::FromFile;
    use super::*;

    #[test]
    fn even_arrivals_do_not_vary_and_one_server_for_all_does() {
        assert_eq!(coefficient(&[7, 7, 7]), 0.0);
        assert!((coefficient(&[0, 0, 9]) - 2f64.sqrt()).abs() < 1e-9);
        let mut prng = Prng::new(1);
        for servers in [1, 3, 12] {
            let mut chosen = choose(servers, Placement::Spread, &mut prng);
            chosen.sort_unstable();
            chosen.dedup();
            assert_eq!(chosen.len(), servers.min(GROUP));
        }
    }

    /// With more volumes the cluster is more even.
    #[test]
    fn many_volumes_even_out() {
        let few = Parameters { limit_bytes_per_sec: 100_000_000, ..Parameters::from_file().unwrap() };
        let many = Parameters { segments: few.segments * 16, ..few.clone() };
        let mean = |found: Vec<f64>| found.iter().sum::<f64>() / found.len() as f64;
        let (few, many) =
            (mean(variation(&few, Placement::Spread, 3, 1)), mean(variation(&many, Placement::Spread, 3, 1)));
        assert!(many < few / 1.8, "{few} and {many}");
    }
}
