//! How evenly servers are asked (DiffForward, SIGMETRICS 2023, §2.3): time is cut into bins; of each, the bytes of the servers are
//! compared. CoV is their standard deviation by their mean, Max/Min the most by the least; of both the mean over all bins.

use super::geometry::Geometry;
use super::schemes::{Scheme, Spreader};
use super::workload::Traffic;

/// See the module.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Balance {
    /// Coefficient of variation.
    pub cov: f64,
    /// Of bins in which each server has something.
    pub max_by_min: f64,
    /// The most and the least of a server, by the mean of all: the mean of bins.
    pub range: [f64; 2],
    /// The most that any server has in any bin, by the mean of all servers and bins.
    pub peak: f64,
}

/// Time that is not looked at: nothing is known of a volume yet.
pub(super) const WARM_UP_NS: u64 = 10_000_000_000;

/// Bytes of each server, by bin.
pub struct Bins {
    servers: usize,
    bin_ns: u64,
    bins: Vec<Vec<u64>>,
}

impl Bins {
    /// Bins of that length.
    pub fn new(servers: usize, bin_ns: u64) -> Bins {
        Bins { servers, bin_ns, bins: Vec::new() }
    }

    /// A server takes so many bytes at that time.
    pub fn add(&mut self, at_ns: u64, server: usize, bytes: u64) {
        let Some(since) = at_ns.checked_sub(WARM_UP_NS) else { return };
        let bin = (since / self.bin_ns) as usize;
        if self.bins.len() <= bin {
            self.bins.resize_with(bin + 1, || vec![0; self.servers]);
        }
        self.bins[bin][server] += bytes;
    }

    /// How even that is.
    pub fn balance(&self) -> Balance {
        Balance::of_bins(&self.bins)
    }
}

impl Balance {
    /// Of traffic that is spread over so many servers, in bins of that length.
    pub fn of(
        traffic: &Traffic,
        scheme: Scheme,
        geometry: Geometry,
        servers: usize,
        bin_ns: u64,
        seed: u64,
    ) -> Balance {
        let mut spreader = Spreader::new(scheme, geometry, servers, seed);
        let mut bins = Bins::new(servers, bin_ns);
        for write in &traffic.writes {
            spreader.spread(write, |server, bytes| bins.add(write.at_ns, server, bytes));
        }
        bins.balance()
    }

    fn of_bins(bins: &[Vec<u64>]) -> Balance {
        let of_all = |each: &dyn Fn(&[u64]) -> Option<f64>| {
            let found: Vec<f64> = bins.iter().filter_map(|bin| each(bin)).collect();
            found.iter().sum::<f64>() / found.len() as f64
        };
        let of_mean = |bytes: Option<&u64>, bin: &[u64]| bytes.zip(mean(bin)).map(|(bytes, mean)| *bytes as f64 / mean);
        let most = bins.iter().flatten().max().copied().unwrap_or_default();
        let all = bins.iter().flatten().sum::<u64>() as f64 / bins.iter().flatten().count() as f64;
        Balance {
            cov: of_all(&cov),
            max_by_min: of_all(&max_by_min),
            range: [of_all(&|bin| of_mean(bin.iter().max(), bin)), of_all(&|bin| of_mean(bin.iter().min(), bin))],
            peak: most as f64 / all,
        }
    }
}

/// None, if there is nothing.
fn mean(bin: &[u64]) -> Option<f64> {
    let mean = bin.iter().sum::<u64>() as f64 / bin.len() as f64;
    (mean > 0.0).then_some(mean)
}

fn cov(bin: &[u64]) -> Option<f64> {
    let mean = mean(bin)?;
    let variance = bin.iter().map(|bytes| (*bytes as f64 - mean).powi(2)).sum::<f64>() / bin.len() as f64;
    Some(variance.sqrt() / mean)
}

fn max_by_min(bin: &[u64]) -> Option<f64> {
    let (most, least) = (bin.iter().max()?, bin.iter().min()?);
    (*least > 0).then(|| *most as f64 / *least as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn by_hand() {
        assert_eq!(cov(&[10, 10, 10]), Some(0.0));
        assert_eq!(cov(&[0, 20]), Some(1.0));
        assert_eq!(cov(&[0, 0]), None);
        assert_eq!((max_by_min(&[2, 8, 4]), max_by_min(&[0, 8])), (Some(4.0), None));
        let balance = Balance::of_bins(&[vec![10, 10], vec![0, 20], vec![5, 15]]);
        assert_eq!(balance, Balance { cov: 0.5, max_by_min: 2.0, range: [1.5, 0.5], peak: 2.0 });
    }
}
