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


@dataclass
class Figure:
    """One line of the verdict table."""

    name: str
    measured: str
    floor: str
    aim: str
    verdict: str


def judge(name, value, floor, aim, unit="x", higher_is_better=False):
    """A figure with its verdict: `aim`, `ok` or `MISSED`."""
    good = (lambda limit: value >= limit) if higher_is_better else (lambda limit: value <= limit)
    verdict = "aim" if good(aim) else "ok" if good(floor) else "MISSED"
    return Figure(name, f"{value:.3g} {unit}", f"{floor:g} {unit}", f"{aim:g} {unit}", verdict)


def ratios(samples, workload, compute):
    """The median over rounds of `compute(by_target)`, each round compared within itself."""
    by_target = samples.get(workload)
    needed = {"levee", "raw file", "nbdkit memory"}
    if not by_target or not needed <= {t for t, rounds in by_target.items() if rounds}:
        return None
    rounds = range(min(len(r) for r in by_target.values() if r))
    return statistics.median(compute({t: r[i] for t, r in by_target.items() if r}) for i in rounds)


def verdicts(samples):
    """The figures that compare with peers; those whose rows were not run are left out."""
    found = []

    def add(name, workload, compute, floor, aim, **options):
        value = ratios(samples, workload, compute)
        if value is not None:
            found.append(judge(name, value, floor, aim, **options))

    def p50_over_sum(t):
        return t["levee"].p50_us / (t["raw file"].p50_us + t["nbdkit memory"].p50_us)

    def iops_over_least(t):
        return t["levee"].iops / min(t["raw file"].iops, t["nbdkit memory"].iops)

    def over(peer, field):
        return lambda t: getattr(t["levee"], field) / getattr(t[peer], field)

    write1, write32 = "4 KiB random write, depth 1", "4 KiB random write, depth 32"
    read1, read32 = "4 KiB random read, depth 1", "4 KiB random read, depth 32"
    add(f"{write1}: p50 / (raw + nbdkit memory)", write1, p50_over_sum, 1.3, 1.1)
    add(f"{write32}: IOPS / min(raw, nbdkit memory)", write32, iops_over_least, 0.8, 1.0, higher_is_better=True)
    if samples.get(write32, {}).get("qemu-nbd qcow2"):
        add(f"{write32}: IOPS / qemu-nbd qcow2", write32, over("qemu-nbd qcow2", "iops"), 2, 2, higher_is_better=True)
    add(f"{read1}: p50 / (raw + nbdkit memory)", read1, p50_over_sum, 1.3, 1.1)
    for peer in ("qemu-nbd raw", "qemu-nbd qcow2"):
        if samples.get(read1, {}).get(peer):
            add(f"{read1}: p50 / {peer}", read1, over(peer, "p50_us"), 1, 1)
    add(f"{read32}: IOPS / min(raw, nbdkit memory)", read32, iops_over_least, 0.9, 1.0, higher_is_better=True)
    for side in ("write", "read"):
        for depth, floor, aim in ((1, 0.5, 0.63), (8, 0.8, 1.0)):
            row = f"128 KiB sequential {side}, depth {depth}"
            add(f"{row}: IOPS / raw", row, over("raw file", "iops"), floor, aim, higher_is_better=True)
    cpu = [s.server_cpu_us_per_op for s in samples.get(write32, {}).get("levee", [])]
    if cpu:
        found.append(judge(f"{write32}: server CPU", statistics.median(cpu), 12, 8, unit="us"))
    return found


def alone(arguments, say):
    """The figures of Levee by itself: tail beside background work, idling, recovery, memory."""
    found = []
    for measure in (tail_beside_background, idle, recovery, peak_memory):
        say(measure.__doc__.split(".")[0])
        target = targets.Levee(arguments.directory, arguments.size)
        try:
            target.start()
            found += measure(target, arguments, say)
        finally:
            target.remove()
    return found


def moved_bytes(target):
    """Bytes that GC and dumps wrote so far, by the store's own metrics."""
    return {name: value for name, value in target.metrics().items() if re.search("gc|dump", name) and "bytes" in name}


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
    ratio = statistics.median(b / q for b, q in zip(busy, quiet))
    say(f"p99.9 quiet {statistics.median(quiet):.0f} us, busy {statistics.median(busy):.0f} us")
    return [judge("p99.9 of 4 KiB writes at depth 1 while dumps and GC run / quiet", ratio, 3, 2)]


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
    return [judge("ready again after kill -9 behind 4 GiB of random writes", max(times), 1, 0.3, unit="s")]


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
