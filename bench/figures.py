"""The figures that Levee is held to: ratios within one run, and what the process costs by itself."""

import re
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import load
import targets

GIB = 1 << 30


# The peers that promise what Levee promises; the raw file is the floor below all of them.
FLOOR, CEILING = "raw file", "nbdkit memory"
DURABLE = [t.name for t in targets.PEERS if t.durable and t.name not in ("levee", FLOOR)]
SATURATED = 0.95


@dataclass
class Figure:
    """One line of the verdict table."""

    name: str
    measured: str
    floor: str
    aim: str
    verdict: str
    # Median and quartiles over rounds, as numbers; quartiles are None where there was one round.
    value: float | None = None
    low: float | None = None
    high: float | None = None


def judge(name, values, floor, aim, unit="x", higher_is_better=False):
    """A figure with its verdict over the rounds' values: `aim`, `met` or `MISSED`; a verdict that the quartiles of the
    rounds do not bear out says so."""
    values = values if isinstance(values, list) else [values]
    value = statistics.median(values)
    low = high = None
    measured = f"{value:.3g} {unit}"
    if len(values) > 2:
        low, _, high = statistics.quantiles(values, n=4, method="inclusive")
        measured = f"{value:.3g} ({low:.3g} to {high:.3g}) {unit}"
    good = (lambda limit: value >= limit) if higher_is_better else (lambda limit: value <= limit)
    verdict, decisive = ("aim", aim) if good(aim) else ("met", floor) if good(floor) else ("MISSED", floor)
    if low is not None and low <= decisive <= high and low < high:
        verdict += ", within its spread"
    return Figure(name, measured, f"{floor:g} {unit}", f"{aim:g} {unit}", verdict, value, low, high)


def by_round(samples, workload, needed, compute):
    """`compute(by_target)` for each round, compared within itself; None where a target was not run."""
    by_target = samples.get(workload)
    if not by_target or not all(by_target.get(name) for name in needed):
        return None
    count = min(len(by_target[name]) for name in needed)
    return [compute({name: by_target[name][i] for name in needed}) for i in range(count)]


def verdicts(samples):
    """The figures that compare with peers; those whose rows were not run are left out."""
    found = []

    def add(name, workload, compute, floor, aim, needed=(FLOOR, CEILING), **options):
        values = by_round(samples, workload, ["levee", *needed], compute)
        if values is not None:
            found.append(judge(name, values, floor, aim, **options))

    def p50_over_sum(t):
        return t["levee"].p50_us / (t[FLOOR].p50_us + t[CEILING].p50_us)

    def iops_over_least(t):
        return t["levee"].iops / min(t[FLOOR].iops, t[CEILING].iops)

    def over(peer, field):
        return lambda t: getattr(t["levee"], field) / getattr(t[peer], field)

    found += beside_the_best(samples)
    write1, write32 = "4 KiB random write, depth 1", "4 KiB random write, depth 32"
    read1, read32 = "4 KiB random read, depth 1", "4 KiB random read, depth 32"
    add(f"{write1}: p50 / (raw + nbdkit memory)", write1, p50_over_sum, 1.1, 0.95)
    add(f"{write32}: IOPS / min(raw, nbdkit memory)", write32, iops_over_least, 0.95, 1.1, higher_is_better=True)
    add(f"{read1}: p50 / (raw + nbdkit memory)", read1, p50_over_sum, 1.15, 1.05)
    add(f"{read32}: IOPS / min(raw, nbdkit memory)", read32, iops_over_least, 0.85, 1.0, higher_is_better=True)
    for side, depth, floor, aim in (("write", 1, 0.65, 0.8), ("write", 8, 0.8, 0.95), ("read", 1, 1.0, 1.3), ("read", 8, 1.0, 1.2)):
        row = f"128 KiB sequential {side}, depth {depth}"
        name = f"{row}: IOPS / raw"
        if side == "read" and saturates(samples, row):
            floor, name = SATURATED, f"{name}, which saturates the device"
        add(name, row, over(FLOOR, "iops"), floor, aim, needed=(FLOOR,), higher_is_better=True)
    for row, floor, aim in ((write32, 1.6, 1.3), (read32, 1.3, 1.1),
                            ("128 KiB sequential write, depth 8", 1.6, 1.3), ("128 KiB sequential read, depth 8", 1.3, 1.1)):
        add(f"{row}: server CPU / nbdkit memory", row, over(CEILING, "server_cpu_us_per_op"), floor, aim, needed=(CEILING,))
    return found


def beside_the_best(samples):
    """Every row against its best durable peer: IOPS, and p50 at depth 1. Where a row reads, only peers that read the disk:
    what comes from the page cache is printed and not judged."""
    found = []
    for workload in load.WORKLOADS:
        by_target = samples.get(workload.name, {})
        peers = [name for name in DURABLE if by_target.get(name)]
        if workload.reads:
            peers = [t.name for t in targets.PEERS if t.name in peers and t.reads_disk]
        if not peers or not by_target.get("levee"):
            continue
        one_at_a_time = workload.depth * workload.jobs == 1
        speed = (lambda s: 1e6 / s.p50_us) if one_at_a_time else (lambda s: s.iops)
        best = max(peers, key=lambda name: statistics.median(map(speed, by_target[name])))
        values = by_round(samples, workload.name, ["levee", best], lambda t: speed(t["levee"]) / speed(t[best]))
        what = f"p50 of {best} / Levee's" if one_at_a_time else f"IOPS / {best}"
        found.append(judge(f"{workload.name}: {what}, the best durable peer", values, 1.0, 1.5, higher_is_better=True))
    return found


def saturates(samples, row):
    """Whether the raw file moves as much in a row of sequential reads as with eight times larger ones."""
    large = samples.get("1 MiB sequential read, depth 4", {}).get(FLOOR)
    ours = samples.get(row, {}).get(FLOOR)
    if not large or not ours:
        return False
    most = statistics.median(s.iops for s in large) * (1 << 20)
    return statistics.median(s.iops for s in ours) * (128 << 10) >= SATURATED * most


def alone(arguments, say):
    """The figures of Levee by itself: tail beside background work, idling, recovery, memory."""
    found = []
    for measure in (tail_beside_background, idle, recovery, recovery_of_volumes, peak_memory):
        say(measure.__doc__.split(".")[0])
        target = targets.Levee(arguments.directory, arguments.size)
        try:
            target.start()
            found += measure(target, arguments, say)
        finally:
            target.remove()
    return found


def moved_bytes(target):
    """Bytes that dumps, collection and the index's merges wrote so far, by the store's own metrics."""
    return {name: value for name, value in target.metrics().items() if re.search('disk_written.*"(data|table|transaction)"', name)}


def tail_beside_background(target, arguments, say):
    """p99.9 of 4 KiB writes at depth 1, on a quiet store and while dumps and GC run."""
    load.fill(target)
    single = load.Workload("quiet", "randwrite", "4k", 1)
    burst = load.Workload("burst", "randwrite", "4k", 32)
    quiet, busy = [], []
    before = moved_bytes(target)
    for _ in range(arguments.rounds):
        time.sleep(min(5, arguments.seconds))
        # 256 KiB of addresses never fill a segment cache: nothing is dumped meanwhile.
        quiet.append(load.measure(target, single, arguments.seconds, extra=["--size=256k"]).p999_us)
        load.measure(target, burst, arguments.seconds * 2)
        busy.append(load.measure(target, single, arguments.seconds).p999_us)
    after = moved_bytes(target)
    say("moved meanwhile: " + ", ".join(f"{k} {(v - before.get(k, 0)) / (1 << 20):.0f} MiB" for k, v in after.items()))
    say(f"p99.9 quiet {statistics.median(quiet):.0f} us, busy {statistics.median(busy):.0f} us")
    return [judge("p99.9 of 4 KiB writes at depth 1 while dumps and GC run / quiet",
                  [b / q for b, q in zip(busy, quiet)], 2, 1.5)]


def idle(target, arguments, say):
    """Processor time of an idle store with one attached volume and 1 GiB written before."""
    load.run_fio(target, load.Workload("write", "write", "128k", 8), extra=[f"--size={min(GIB, arguments.size)}"])
    client = subprocess.Popen([sys.executable, "-c", IDLE_CLIENT, target.uri()], stdin=subprocess.PIPE)
    try:
        time.sleep(5)
        seconds = 60 if not arguments.quick else 5
        before = targets.process_cpu_seconds(target.process.pid)
        time.sleep(seconds)
        share = (targets.process_cpu_seconds(target.process.pid) - before) / seconds * 100
    finally:
        client.stdin.close()
        client.wait(10)
    return [judge("idle, one attached volume: share of a core", share, 1, 0.1, unit="%")]


def recovery(target, arguments, say):
    """Seconds until ready again after kill -9 with 4 GiB of random writes behind it."""
    amount = 4 * GIB if not arguments.quick else GIB // 4
    times = []
    for _ in range(arguments.rounds):
        load.run_fio(target, load.Workload("random", "randwrite", "4k", 32), extra=[f"--io_size={amount}"])
        target.kill()
        times.append(target.start_process())
        amount = min(amount, GIB // 2)
    say("ready again after " + ", ".join(f"{t:.2f}" for t in times) + " s")
    return [judge("ready again after kill -9 behind 4 GiB of random writes", times, 0.3, 0.1, unit="s")]


def recovery_of_volumes(target, arguments, say):
    """Seconds until ready again after kill -9 in the middle of 128 KiB writes of depth 8 to 64 volumes."""
    size = (64 if not arguments.quick else 8) << 20
    names = [f"volume-{number}" for number in range(64)]
    for name in names:
        target.create_volume(name, size)
    times = []
    for _ in range(arguments.rounds):
        writers = load.start_on_volumes(target, names, size)
        try:
            time.sleep(4 if not arguments.quick else 1)
            if writers.poll() is not None:
                raise RuntimeError("fio ended before the store was killed")
            target.kill()
        finally:
            writers.kill()
            writers.wait()
        times.append(target.start_process(volume=False))
    say("ready again after " + ", ".join(f"{t:.2f}" for t in times) + " s")
    return [judge("ready again after kill -9 behind 128 KiB writes, depth 8, 64 volumes", times, 1, 0.3, unit="s")]


def peak_memory(target, arguments, say):
    """Peak memory with 64 connections x 256 requests of 1 MiB on a fragmented 64 TiB volume."""
    target.stop()
    shutil.rmtree(target.directory / "store")
    target.size = 64 << 40
    target.start_process()
    done = subprocess.run([sys.executable, str(Path(__file__).parent / "flood.py"), target.uri(),
                           "2" if arguments.quick else "20"], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"flood.py failed: {done.stderr[-2000:]}")
    say(done.stdout.strip())
    peak = targets.process_status_kib(target.process.pid, "VmHWM") / 1024
    return [judge("peak memory under 64 x 256 x 1 MiB", peak, 512 + 64, 512, unit="MiB")]


IDLE_CLIENT = """
import sys, nbd
handle = nbd.NBD()
handle.connect_uri(sys.argv[1])
handle.pread(4096, 0)
sys.stdin.read()
"""
