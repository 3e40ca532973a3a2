//! Whole searches for the knee on modelled disks of very different kinds: is what they find the disk's, and do they say
//! so when it cannot be trusted?

#[path = "../knee/disks.rs"]
mod disks;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use base::{Instant, Prng};
use disks::{DISKS, Disk, Queue};
use policies::admission::calibration::{
    Arrivals, Ask, Calibration, CalibrationSettings, Doubt, Found, Mix, Sample, Step, gap_ns,
};
use policies::slow_requests::Direction;

/// What requests move over, in bytes.
const LEN: u64 = 1 << 30;

fn settings(seconds: u64) -> CalibrationSettings {
    CalibrationSettings { lasts: Duration::from_secs(seconds), takeoff_percent: 160, mix: Mix::default() }
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Done(u64, u64),
    Arrives,
    Look,
}

/// A disk, and the time.
struct World {
    disk: Queue,
    prng: Prng,
    mix: Mix,
    now: u64,
    events: BinaryHeap<Reverse<(u64, Event)>>,
}

impl World {
    fn new(disk: Disk, seed: u64) -> World {
        World {
            disk: Queue::new(disk, seed),
            prng: Prng::new(seed + 1),
            mix: Mix::default(),
            now: 0,
            events: BinaryHeap::new(),
        }
    }

    /// Does a step, and lets what it started end.
    fn run(&mut self, step: Step) -> Sample {
        let mut sample = Sample::new(step, Instant(self.now));
        let mut asked: Vec<Ask> = Vec::new();
        match step.arrivals {
            Arrivals::Alone => self.ask(&mut sample, &mut asked),
            Arrivals::Full(depth) => (0..depth).for_each(|_| self.ask(&mut sample, &mut asked)),
            Arrivals::Random(_) => self.events.push(Reverse((self.now, Event::Arrives))),
        }
        self.events.push(Reverse((sample.next_look(Instant(self.now)).0, Event::Look)));
        while let Some(Reverse((now, event))) = self.events.pop() {
            self.now = now;
            let is_over = sample.is_over(Instant(now));
            match event {
                Event::Done(number, asked_at) => {
                    sample.on_done(Instant(now), asked[number as usize], now - asked_at);
                    if !is_over && !matches!(step.arrivals, Arrivals::Random(_)) {
                        self.ask(&mut sample, &mut asked);
                    }
                }
                Event::Arrives if !is_over => {
                    let Arrivals::Random(per_sec) = step.arrivals else { continue };
                    self.ask(&mut sample, &mut asked);
                    self.events.push(Reverse((now + gap_ns(&mut self.prng, per_sec) + 1, Event::Arrives)));
                }
                Event::Look if !is_over => {
                    self.events.push(Reverse((sample.next_look(Instant(now)).0.max(now + 1), Event::Look)));
                }
                _ => {}
            }
        }
        sample
    }

    fn ask(&mut self, sample: &mut Sample, asked: &mut Vec<Ask>) {
        let ask = self.mix.draw(&mut self.prng, LEN);
        sample.on_start(&ask);
        let done = self.disk.done_at(self.now, ask.direction == Direction::Write, ask.bytes);
        self.events.push(Reverse((done, Event::Done(asked.len() as u64, self.now))));
        asked.push(ask);
    }
}

/// A whole search, and how long it took.
fn search(disk: Disk, settings: CalibrationSettings, seed: u64) -> (Found, Duration) {
    let mut world = World::new(disk, seed);
    let mut calibration = Calibration::new(settings, Instant(world.now));
    while let Some(step) = calibration.next(Instant(world.now)) {
        let sample = world.run(step);
        calibration.on_measured(Instant(world.now), &sample);
    }
    (calibration.found(), Duration::from_nanos(world.now))
}

/// The highest of 40 rates up to `mu` that is flat for long on a disk that was full before: what a search of any length
/// would find.
fn true_knee(disk: Disk, found: &Found, seed: u64) -> f64 {
    let seconds = |seconds| Duration::from_secs(seconds);
    let like = found.alone.p95_ns();
    let is_flat = |rate: f64| {
        let mut world = World::new(disk, seed);
        world.run(Step { arrivals: Arrivals::Full(128), lasts: seconds(3), at_most: seconds(3) });
        let arrivals = Arrivals::Random(rate / Mix::default().mean_bytes());
        let lasts = seconds(if disk.channels == 1 { 60 } else { 3 });
        let sample = world.run(Step { arrivals, lasts, at_most: lasts });
        let mut took = sample.took_ns();
        took.sort_unstable();
        sample.in_flight() == 0 && took[took.len() * 95 / 100] * 100 <= like * 160
    };
    let rates = (1..=40).map(|step| found.mu * f64::from(step) / 40.0);
    rates.take_while(|rate| is_flat(*rate)).last().unwrap_or(0.0)
}

#[test]
fn the_knee_of_every_disk_is_found_in_time() {
    for disk in DISKS.iter().filter(|disk| disk.halved.is_none()) {
        for seed in [1, 2] {
            // A hard disk does 40 of these in a second: with less time its 95th percentile is a matter of chance.
            let (seconds, band) = if disk.channels == 1 { (180, 0.7..1.3) } else { (45, 0.85..1.15) };
            let (found, took) = search(*disk, settings(seconds), seed);
            let knee = found.knee.unwrap_or_else(|| panic!("{}: {:?}", disk.name, found.doubts));
            let truth = true_knee(*disk, &found, seed);
            let ratio = knee / truth;
            assert!(band.contains(&ratio), "{} {seed}: {knee:.0} instead of {truth:.0}: {found:?}", disk.name);
            assert!(found.doubts.is_empty(), "{} {seed}: {:?}", disk.name, found.doubts);
            assert!(took < Duration::from_secs(seconds * 4 / 3), "{}: {took:?}", disk.name);
            assert!(found.points.iter().any(|point| point.has_taken_off) && knee <= found.mu * 1.02);
        }
    }
}

#[test]
fn credits_that_a_disk_has_saved_up_are_no_proof() {
    // Without its bucket the cloud disk takes far more than was sold; so do requests while credits last.
    let (cloud, more_saved) = (DISKS[3], |saved_secs| {
        let sold = DISKS[3].sold.map(|sold| disks::Sold { saved_secs, ..sold });
        Disk { sold, ..DISKS[3] }
    });
    let sold = cloud.sold.unwrap();
    let most = (sold.iops as f64 * Mix::default().mean_bytes()).min(sold.bytes_per_sec as f64);
    for saved_secs in [2, 5, 10] {
        let (found, _) = search(more_saved(saved_secs), settings(45), 4);
        let knee = found.knee.unwrap();
        assert!(knee <= most * 1.02, "{saved_secs} s: {knee:.0} of {most:.0} that were sold: {found:?}");
        assert!((found.mu / most - 1.0).abs() < 0.05, "{saved_secs} s: {:.0} of {most:.0}", found.mu);
    }
}

#[test]
fn the_curve_runs_through_what_was_measured() {
    for disk in &DISKS[1..4] {
        let (found, _) = search(*disk, settings(45), 5);
        let fit = found.fit.unwrap();
        assert!(fit.off_percent < 25.0 && fit.w0_ns == found.alone.p95_ns(), "{}: {fit:?}", disk.name);
    }
}

#[test]
fn a_disk_that_becomes_slower_is_not_believed() {
    let halved = Disk { halved: Some((25, 1000)), ..DISKS[4] };
    let (found, _) = search(halved, settings(45), 6);
    assert!(found.doubts.iter().any(|doubt| matches!(doubt, Doubt::Slower(..))), "{:?}", found.doubts);
}

#[test]
fn somebody_else_on_the_disk_is_noticed() {
    // Requests that are alone take three times as long when the search ends.
    let mut calibration = Calibration::new(settings(45), Instant::ZERO);
    let (mut quiet, mut now) = (World::new(DISKS[1], 7), 0);
    let slow = Disk { service_ns: DISKS[1].service_ns.map(|ns| ns * 3), ..DISKS[1] };
    let mut busy = World::new(slow, 7);
    while let Some(step) = calibration.next(Instant(now)) {
        let world = if now < 30_000_000_000 { &mut quiet } else { &mut busy };
        world.now = world.now.max(now);
        let sample = world.run(step);
        now = world.now;
        calibration.on_measured(Instant(now), &sample);
    }
    let doubts = calibration.found().doubts;
    assert!(
        doubts.iter().any(|doubt| matches!(doubt, Doubt::IdleChanged(before, after) if after > before)),
        "{doubts:?}"
    );
}

#[test]
fn too_little_time_is_said() {
    let (found, _) = search(DISKS[1], CalibrationSettings { lasts: Duration::from_millis(10), ..settings(0) }, 8);
    assert!(!found.doubts.is_empty() || found.knee.is_some());
    let never = CalibrationSettings { takeoff_percent: 1, ..settings(45) };
    let (found, took) = search(DISKS[1], never, 9);
    assert!(found.knee.is_none() && found.doubts.contains(&Doubt::NeverFlat), "{:?}", found.doubts);
    assert!(took < Duration::from_secs(60));
    let always = CalibrationSettings { takeoff_percent: 1_000_000, ..settings(45) };
    let (found, took) = search(DISKS[1], always, 10);
    assert!(found.knee.is_some_and(|knee| knee <= found.mu * 1.3), "it outran: {found:?}");
    assert!(took < Duration::from_secs(60));
}
