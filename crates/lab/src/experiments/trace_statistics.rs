//! What a trace is like, as far as it matters to a store that spreads bursts: how large writes are, how uneven in time and over
//! volumes, how many are at random places, and what DiffForward's detector (`policies::burst`) finds in them.
//!
//! One request after the other, in the order of their times; what is kept does not grow with the length of a trace, only with how
//! many volumes it has.

use std::collections::BTreeMap;

use base::{Instant, KIB, MIB, Map};
use policies::burst::{BurstSettings, Detector};
use serde::Serialize;

use super::sig23::detection::{Detection, Watch};
use super::sig23::workload::Write;
use super::trace::Request;

/// Time is cut into bins of so long (DiffForward, §2.2).
const BIN_NS: u64 = 100_000_000;
const SECOND_NS: u64 = 1_000_000_000;
/// Larger writes count as these, so that there are not more sizes than memory for them.
const SIZE_MAX: u64 = 16 * MIB;
const SECTOR: u64 = 512;
/// Of fewer volumes a fiftieth is none.
const FIFTY: usize = 50;
/// Volumes that a trace may have.
const VOLUMES_MAX: usize = 1 << 17;

/// What was seen so far.
#[derive(Default)]
pub struct Statistics {
    reads: Sum,
    writes: Sum,
    begun: Option<u64>,
    last: u64,
    /// Whether any time is no whole second.
    is_fine: bool,
    volumes: Map<u64, Volume>,
    /// How many writes there are of each size, in whole sectors.
    sizes: BTreeMap<u64, u64>,
    bins: Bins,
    random: u64,
}

/// Requests and their bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Sum {
    /// How many.
    pub requests: u64,
    /// How many together.
    pub bytes: u64,
}

impl Sum {
    fn add(&mut self, bytes: u64) {
        self.requests += 1;
        self.bytes += bytes;
    }
}

/// One volume.
struct Volume {
    written: u64,
    /// Says what is at a random place.
    places: Detector,
    /// The detector as the paper's text has it, and as it was run.
    watches: [Watch; 2],
}

/// Written bytes by time, without the bins themselves.
#[derive(Default)]
struct Bins {
    open: u64,
    bytes: u64,
    most: u64,
    sum: f64,
    squares: f64,
    /// Bytes of all bins that are as large, by the logarithm of that.
    by_size: BTreeMap<u32, f64>,
}

/// Parts of an octave that bins are told apart by.
const PARTS: f64 = 64.0;

impl Bins {
    fn add(&mut self, at_ns: u64, bytes: u64) {
        let at = at_ns / BIN_NS;
        if at != self.open {
            self.close();
            self.open = at;
        }
        self.bytes += bytes;
    }

    fn close(&mut self) {
        let bytes = std::mem::take(&mut self.bytes);
        if bytes > 0 {
            self.most = self.most.max(bytes);
            self.sum += bytes as f64;
            self.squares += (bytes as f64).powi(2);
            *self.by_size.entry(((bytes as f64).log2() * PARTS) as u32).or_default() += bytes as f64;
        }
    }

    /// Bytes of bins that have more than so many, by half a part of an octave.
    fn above(&self, bytes: f64) -> f64 {
        self.by_size.range(((bytes.max(1.0).log2() * PARTS) as u32 + 1)..).map(|(_, sum)| sum).sum()
    }
}

/// What a trace is like.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Summary {
    /// See there.
    pub reads: Sum,
    /// See there.
    pub writes: Sum,
    /// From the first request to the last one.
    pub seconds: f64,
    /// Whether times are finer than a second: without that, what is said of bins and bursts means nothing.
    pub has_fine_times: bool,
    /// Volumes, and those that are written.
    pub volumes: [usize; 2],
    /// Half, three quarters and nine tenths of writes are at most as large, in bytes.
    pub write_sizes: [u64; 3],
    /// Writes of at most 16 KiB, of all.
    pub small_writes: f64,
    /// Writes of which none of the 32 before it began within 128 KiB, of all.
    pub random_writes: f64,
    /// How uneven writing is: standard deviation by mean of written bytes in 100 ms.
    pub cov: f64,
    /// The most in 100 ms, by the mean.
    pub peak: f64,
    /// Written bytes in those 100 ms that have more than ten times the mean.
    pub in_peaks: f64,
    /// What the fiftieth of volumes that are written most has, by what a volume has that is written; with fifty of them.
    pub skew: Option<f64>,
    /// What a volume's own last minute has a tenth of in 100 ms, by bytes.
    pub bursts: f64,
    /// What the detector finds, with TH as the text has it and as it was run.
    pub found: [Found; 2],
}

/// What the detector finds, of all bytes; and how right it is, by intervals of 100 ms.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[allow(missing_docs, reason = "see the struct")]
pub struct Found {
    pub share: f64,
    pub recall: f64,
    pub precision: f64,
}

impl Statistics {
    /// One more request.
    ///
    /// # Errors
    /// What is wrong with it, and what to do.
    pub fn add(&mut self, request: Request) -> Result<(), String> {
        let Request { at_ns, device, offset, bytes, is_write } = request;
        let number = self.reads.requests + self.writes.requests + 1;
        if at_ns < self.last {
            let back = (self.last - at_ns) as f64 / 1e9;
            return Err(format!("request {number} is {back} s before the one in front of it; sort the file by time"));
        }
        if offset.checked_add(bytes).is_none() {
            return Err(format!("request {number} ends beyond what 64 bits can say"));
        }
        let begun = *self.begun.get_or_insert(at_ns);
        self.last = at_ns;
        self.is_fine |= at_ns % SECOND_NS != 0;
        if self.volumes.len() >= VOLUMES_MAX && !self.volumes.contains_key(&device) {
            return Err(format!(
                "request {number} is of one more than {VOLUMES_MAX} volumes; cut the trace by volumes"
            ));
        }
        let volume = self.volumes.entry(device).or_insert_with(Volume::new);
        if !is_write {
            self.reads.add(bytes);
            return Ok(());
        }
        self.writes.add(bytes);
        *self.sizes.entry(bytes.min(SIZE_MAX).next_multiple_of(SECTOR)).or_default() += 1;
        self.bins.add(at_ns - begun, bytes);
        let write = Write { at_ns: at_ns - begun, volume: 0, offset, bytes, is_burst: false };
        self.random += u64::from(volume.write(&write));
        Ok(())
    }

    /// What came of it.
    ///
    /// # Errors
    /// There is nothing to say of a trace without writes, or of one moment.
    pub fn summary(mut self) -> Result<Summary, String> {
        let length = self.last - self.begun.ok_or("it is empty")?;
        if self.writes.bytes == 0 || length == 0 {
            return Err("it has no writes, or all at one time: there is nothing to say of bursts".into());
        }
        self.bins.close();
        let count = (length / BIN_NS + 1) as f64;
        let mean = self.bins.sum / count;
        let mut detections = [Detection::default(); 2];
        let mut written: Vec<u64> = Vec::new();
        let volumes = self.volumes.len();
        for (_, volume) in std::mem::take(&mut self.volumes) {
            if volume.written > 0 {
                written.push(volume.written);
            }
            for (all, watch) in detections.iter_mut().zip(volume.watches) {
                *all = all.and(watch.finish());
            }
        }
        written.sort_unstable_by(|one, other| other.cmp(one));
        let writes = self.writes.requests as f64;
        let skew = (written.len() >= FIFTY).then(|| {
            let top = written.len() / FIFTY;
            let mean = |volumes: &[u64]| volumes.iter().sum::<u64>() as f64 / volumes.len() as f64;
            mean(&written[..top]) / mean(&written)
        });
        let of_all = |bytes: u64| bytes as f64 / self.writes.bytes as f64;
        let none_is_whole = |share: f64| if share.is_finite() { share } else { 0.0 };
        Ok(Summary {
            reads: self.reads,
            writes: self.writes,
            seconds: length as f64 / 1e9,
            has_fine_times: self.is_fine,
            volumes: [volumes, written.len()],
            write_sizes: [0.5, 0.75, 0.9].map(|share| self.size_at(share)),
            small_writes: self.sizes.range(..=16 * KIB).map(|(_, count)| count).sum::<u64>() as f64 / writes,
            random_writes: self.random as f64 / writes,
            cov: (count * self.bins.squares / self.bins.sum.powi(2) - 1.0).max(0.0).sqrt(),
            peak: self.bins.most as f64 / mean,
            in_peaks: self.bins.above(10.0 * mean) / self.bins.sum,
            skew,
            bursts: of_all(detections[0].bytes.there),
            found: detections.map(|Detection { bytes, intervals }| Found {
                share: of_all(bytes.found),
                recall: none_is_whole(intervals.recall()),
                precision: none_is_whole(intervals.precision()),
            }),
        })
    }

    fn size_at(&self, share: f64) -> u64 {
        let wanted = (self.writes.requests as f64 * share).ceil() as u64;
        let mut seen = 0;
        let found = self.sizes.iter().find(|(_, count)| {
            seen += *count;
            seen >= wanted
        });
        found.map_or(0, |(size, _)| *size)
    }
}

impl Volume {
    fn new() -> Volume {
        Volume {
            written: 0,
            places: Detector::new(BurstSettings::SENSITIVE, Instant(0)),
            watches: [BurstSettings::SENSITIVE, BurstSettings::EXACT].map(|settings| Watch::new(Some(settings))),
        }
    }

    /// Whether it is at a random place.
    fn write(&mut self, write: &Write) -> bool {
        self.written += write.bytes;
        let is_random = self.places.is_random(write.offset);
        self.places.on_write(Instant(write.at_ns), write.offset, write.bytes);
        self.watches.iter_mut().for_each(|watch| watch.add(write));
        is_random
    }
}

impl Summary {
    /// Lines of a table.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let percent = |share: f64| format!("{:.0}%", share * 100.0);
        let Sum { requests, bytes } = self.writes;
        let all = Sum { requests: requests + self.reads.requests, bytes: bytes + self.reads.bytes };
        let share = |part: u64, all: u64| percent(part as f64 / all.max(1) as f64);
        let kib = |bytes: &u64| format!("{:.0}", *bytes as f64 / KIB as f64);
        let sizes: Vec<String> = self.write_sizes.iter().map(kib).collect();
        let found = |found: Found| {
            let Found { share, recall, precision } = found;
            format!("{} of bytes; recall {recall:.2}, precision {precision:.2}", percent(share))
        };
        let fine = |text: String| if self.has_fine_times { text } else { "its times are whole seconds".into() };
        let per_second = |bytes: u64| bytes as f64 / MIB as f64 / self.seconds;
        vec![
            ("requests", format!("{} in {:.1} s, of {} volumes", all.requests, self.seconds, self.volumes[0])),
            ("reads", format!("{} requests, {:.2} MiB/s", self.reads.requests, per_second(self.reads.bytes))),
            ("writes", format!("{requests} requests, {:.2} MiB/s", per_second(bytes))),
            (
                "writes of all",
                format!("{} of requests, {} of bytes", share(requests, all.requests), share(bytes, all.bytes)),
            ),
            ("write size, p50 / p75 / p90", format!("{} KiB", sizes.join(" / "))),
            ("writes of at most 16 KiB", percent(self.small_writes)),
            ("writes at random places", percent(self.random_writes)),
            ("CoV of written bytes, 100 ms", fine(format!("{:.2}", self.cov))),
            ("most by mean, 100 ms", fine(format!("{:.1}", self.peak))),
            ("bytes where it is over ten times the mean", fine(percent(self.in_peaks))),
            (
                "top fiftieth of volumes by mean",
                self.skew.map_or("fewer than fifty are written".into(), |skew| format!("{skew:.1} times")),
            ),
            ("bursts: ten times a volume's last minute", fine(format!("{} of bytes", percent(self.bursts)))),
            ("found, TH of 50 ms", fine(found(self.found[0]))),
            ("found, TH of 800 ms", fine(found(self.found[1]))),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(requests: impl IntoIterator<Item = Request>) -> Result<Summary, String> {
        let mut statistics = Statistics::default();
        requests.into_iter().try_for_each(|request| statistics.add(request))?;
        statistics.summary()
    }

    fn write(at_ms: u64, device: u64, offset: u64, bytes: u64) -> Request {
        Request { at_ns: at_ms * 1_000_000, device, offset, bytes, is_write: true }
    }

    /// A write in each bin but one, which has eleven times as much as the mean; by hand.
    #[test]
    fn numbers_are_as_by_hand() {
        let calm = (0..199u64).map(|at| write(5 + at * 100, 1, at % 4 * MIB, 4096));
        let read = Request { at_ns: 10_000_000, device: 2, offset: 0, bytes: 8192, is_write: false };
        let burst = (0..11u64).map(|at| write(19_905 + at, 1, at * 16 * MIB, 4096));
        let mut all: Vec<Request> = calm.chain(burst).collect();
        all.insert(1, read);
        let found = summary(all).unwrap();
        let (bins, mean): (f64, f64) = (200.0, 210.0 / 200.0);
        assert_eq!(
            (found.writes.requests, found.reads, found.volumes),
            (210, Sum { requests: 1, bytes: 8192 }, [2, 1])
        );
        let variance = (199.0 + 121.0) / bins - mean * mean;
        assert!((found.cov - variance.sqrt() / mean).abs() < 1e-9, "{found:?}");
        assert!((found.peak - 11.0 / mean).abs() < 1e-9 && (found.in_peaks - 11.0 / 210.0).abs() < 1e-9, "{found:?}");
        assert_eq!((found.write_sizes, found.small_writes, found.skew), ([4096; 3], 1.0, None));
        // The first of each of four streams, and the burst but for one that begins where a stream is.
        assert!((found.random_writes - 14.0 / 210.0).abs() < 1e-9, "{}", found.random_writes * 210.0);
        assert!((found.bursts - 11.0 / 210.0).abs() < 1e-9, "{found:?}");
        assert!(found.found[0].recall == 1.0 && found.has_fine_times);
        assert!(found.rows().iter().all(|(_, value)| !value.is_empty()));
    }

    #[test]
    fn few_volumes_that_have_most_are_seen() {
        let all = (0..100u64).flat_map(|volume| (0..if volume < 2 { 40 } else { 1 }).map(move |n| (n, volume)));
        let mut all: Vec<Request> = all.map(|(n, volume)| write(n * 1_000, volume, n * MIB, 4096)).collect();
        all.sort_by_key(|request| request.at_ns);
        let found = summary(all).unwrap();
        assert!((found.skew.unwrap() - 40.0 / 1.78).abs() < 0.01, "{found:?}");
        assert!(!found.has_fine_times && found.rows().iter().any(|(_, value)| value.contains("whole seconds")));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_to_do() {
        let back = summary([write(5, 1, 0, 512), write(4, 1, 0, 512)]).unwrap_err();
        assert!(back.contains("request 2") && back.contains("sort the file by time"), "{back}");
        assert!(summary([write(5, 1, u64::MAX - 5, 512)]).unwrap_err().contains("64 bits"));
        assert!(summary([write(5, 1, 0, 512)]).unwrap_err().contains("nothing to say"));
        assert!(summary([]).unwrap_err().contains("empty"));
    }
}
