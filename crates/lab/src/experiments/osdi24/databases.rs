//! Figures 26 to 29: a database on one tenant's disk, as a model: threads that compute and ask for blocks in turns.
//!
//! What a query asks for is not printed; it is said in the parameters, once. Figures 28 and 29 are synthetic: what ran beside the
//! database in print is a trace that is not public.

use policies::tenants::Scheduling;

use super::super::Row;
use super::judges::{Value, change, judged, least, most};
use super::printed::{FIG26_LEAST, FIG27_LEAST, FIG27_MOST, FIG28_BEST, FIG29_WORST};
use super::world::{Database, Guest, Measured, Point, Product};
use super::{Case, Parameters, guest, point};

const WAYS: [Scheduling; 2] = [Scheduling::Wild, Scheduling::Bios];

fn database(parameters: &Parameters, threads: usize, does: Database) -> Guest {
    Guest { database: Some(does), ..guest("database", &parameters.db_sizes_kib, threads) }
}

fn neighbours(parameters: &Parameters, count: usize) -> impl Iterator<Item = Guest> {
    let burst = guest("", &parameters.bps_sizes_kib, parameters.db_neighbour_depth);
    (1..=count).map(move |number| Guest { name: format!("burst {number}"), ..burst.clone() })
}

/// The database and its neighbours, with each of these schedulers. All disks are of product B, and bursts write.
fn each_way(parameters: &Parameters, label: String, guests: Vec<Guest>, ways: [Scheduling; 2]) -> Vec<Point> {
    let usual = point(parameters, (Product::B, true), label, guests);
    ways.map(|scheduling| Point { scheduling, ..usual.clone() }).into()
}

/// Figure 26: operations that write at once, and each is waited for.
pub(super) fn writes(parameters: &Parameters) -> Vec<Point> {
    let put = Database { compute_us: parameters.put_compute_us, blocks: 1, read_percent: 0 };
    let insert =
        Database { compute_us: parameters.insert_compute_us, blocks: parameters.insert_blocks, read_percent: 0 };
    let of = |(label, does): (&str, Database)| {
        let guests =
            std::iter::once(database(parameters, 1, does)).chain(neighbours(parameters, parameters.db_neighbours));
        each_way(parameters, label.into(), guests.collect(), WAYS)
    };
    [("put", put), ("insert", insert)].into_iter().flat_map(of).collect()
}

/// Figure 27: as many operations as there can be, while the neighbours are idle.
pub(super) fn bursts(parameters: &Parameters) -> Vec<Point> {
    let levelled = |guest: Guest| Guest {
        base_iops: Some(parameters.db_base_iops),
        burst_iops: Some(2 * parameters.db_base_iops),
        ..guest
    };
    let of = |&read_percent: &u64| {
        let does = Database { compute_us: parameters.ycsb_compute_us, blocks: 1, read_percent };
        // There, and asking for next to nothing.
        let idle = Database { compute_us: 1_000_000, blocks: 1, read_percent: 100 };
        let beside = neighbours(parameters, parameters.db_neighbours).map(|guest| Guest {
            depth: 1,
            database: Some(idle),
            ..guest
        });
        let busy =
            Guest { sizes_kib: vec![parameters.victim_kib], ..database(parameters, parameters.ycsb_threads, does) };
        let guests = std::iter::once(busy).chain(beside).map(levelled);
        let ways = [Scheduling::Base, Scheduling::Bios];
        each_way(parameters, format!("{read_percent}% reads"), guests.collect(), ways)
    };
    parameters.ycsb_read_percents.iter().flat_map(of).collect()
}

fn rds(parameters: &Parameters) -> Guest {
    let does = Database {
        compute_us: parameters.rds_compute_us,
        blocks: parameters.rds_blocks,
        read_percent: parameters.rds_read_percent,
    };
    database(parameters, 1, does)
}

/// Figure 28: queries of one thread beside bursts that go on.
pub(super) fn queries(parameters: &Parameters) -> Vec<Point> {
    let of = |&count: &usize| {
        let guests = std::iter::once(rds(parameters)).chain(neighbours(parameters, count));
        each_way(parameters, format!("{count} neighbours"), guests.collect(), WAYS)
    };
    parameters.rds_neighbours.iter().flat_map(of).collect()
}

/// Figure 29: the same beside bursts that come and go.
pub(super) fn spikes(parameters: &Parameters) -> Vec<Point> {
    let count = parameters.rds_neighbours.iter().max().copied().unwrap_or(0);
    let fluctuant = neighbours(parameters, count).map(|guest| Guest { pauses_us: Some(parameters.pause_us), ..guest });
    let guests = std::iter::once(rds(parameters)).chain(fluctuant);
    each_way(parameters, format!("{count} neighbours that come and go"), guests.collect(), WAYS)
}

/// A baseline and ours of each label.
fn pairs<'a>(case: &Case<'a>, of: impl Fn(&Measured, &Measured) -> (f64, String)) -> Vec<Value> {
    let pair = |two: &'a [(Point, Measured)]| match two {
        [(point, before), (_, after)] => {
            let (measured, detail) = of(before, after);
            Some(Value { label: point.label.clone(), measured, detail })
        }
        _ => None,
    };
    case.measured.chunks_exact(2).filter_map(pair).collect()
}

fn by_latency(case: &Case) -> Vec<Value> {
    pairs(case, |wild, bios| {
        let [wild, bios] = [wild, bios].map(|measured| measured.guest(0).query_us());
        (change(wild, bios), format!("{wild:.0} us, {bios:.0} with ours"))
    })
}

pub(super) fn judge_fig26(case: &Case) -> Vec<Row> {
    let (values, mut rows) = (by_latency(case), Vec::new());
    judged(&mut rows, &FIG26_LEAST, most(&values));
    rows.extend(values.iter().map(|value| value.observed("mean of an operation", "%")));
    rows
}

pub(super) fn judge_fig27(case: &Case) -> Vec<Row> {
    let values = pairs(case, |base, bios| {
        let [base, bios] = [base, bios].map(|measured| measured.guest(0).queries as f64 / measured.seconds);
        (bios / base, format!("{base:.0} operations per second with BaseCBS, {bios:.0} with ours"))
    });
    let mut rows = Vec::new();
    judged(&mut rows, &FIG27_LEAST, least(&values));
    judged(&mut rows, &FIG27_MOST, most(&values));
    rows.extend(values.iter().map(|value| value.observed("operations", "x")));
    rows
}

pub(super) fn judge_fig28(case: &Case) -> Vec<Row> {
    let (values, mut rows) = (by_latency(case), Vec::new());
    judged(&mut rows, &FIG28_BEST, least(&values));
    rows.extend(values.iter().map(|value| value.observed("mean of a query", "%")));
    rows
}

pub(super) fn judge_fig29(case: &Case) -> Vec<Row> {
    let values = pairs(case, |wild, bios| {
        let [wild, bios] = [wild, bios].map(|measured| measured.guest(0).worst_query_ns as f64 / 1e3);
        (bios / wild, format!("{wild:.0} us, {bios:.0} with ours"))
    });
    let mut rows = Vec::new();
    judged(&mut rows, &FIG29_WORST, values.first());
    rows.extend(by_latency(case).iter().map(|value| value.observed("mean of a query", "%")));
    rows
}
