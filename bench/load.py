"""The load: fio with a fixed set of options, and what is taken from its report."""

import contextlib
import json
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass

import targets
from database import Database
from store import file_device, loop_device, new_file_system


# The pattern of a workload that is a database and not fio's.
DATABASE = "sqlite"


@dataclass(frozen=True)
class Workload:
    """One row of the table."""

    name: str
    pattern: str  # fio's --rw
    block: str  # fio's --bs
    depth: int
    # How many times longer than the others a sample lasts: over all rounds each write row writes at least three times
    # what Levee's journal and caches hold (3 x 448 MiB), so that dumps and collection are part of what it measures.
    stretch: int = 1
    jobs: int = 1  # clients, each with a connection and a depth of its own
    tcp: bool = False  # through TCP, where a target speaks it

    @property
    def is_possible(self):
        """Whether this machine can run it: a file system on a volume needs root, and something that makes it a device."""
        return self.pattern != DATABASE or (os.geteuid() == 0 and shutil.which("nbdfuse"))

    @property
    def writes(self):
        return "write" in self.pattern or self.mixed

    @property
    def reads(self):
        return "read" in self.pattern or self.mixed

    @property
    def mixed(self):
        return self.pattern == "randrw"


WORKLOADS = [
    Workload("4 KiB random write, depth 1", "randwrite", "4k", 1, stretch=5),
    Workload("4 KiB random write, depth 32", "randwrite", "4k", 32),
    Workload("128 KiB sequential write, depth 1", "write", "128k", 1),
    Workload("128 KiB sequential write, depth 8", "write", "128k", 8),
    Workload("4 KiB random read, depth 1", "randread", "4k", 1),
    Workload("4 KiB random read, depth 32", "randread", "4k", 32),
    Workload("128 KiB sequential read, depth 1", "read", "128k", 1),
    Workload("128 KiB sequential read, depth 8", "read", "128k", 8),
    Workload("4 KiB mixed 70/30, depth 32", "randrw", "4k", 32),
    Workload("4 KiB random write, 4 clients of depth 8", "randwrite", "4k", 8, jobs=4),
    Workload("4 KiB random read, 4 clients of depth 8", "randread", "4k", 8, jobs=4),
    Workload("16 KiB random write, depth 8", "randwrite", "16k", 8),
    Workload("1 MiB sequential write, depth 4", "write", "1m", 4),
    Workload("1 MiB sequential read, depth 4", "read", "1m", 4),
    Workload("4 KiB random write, depth 1, TCP", "randwrite", "4k", 1, stretch=5, tcp=True),
    # The last one: a file system discards the disk when it is made, and what is read after that are holes.
    Workload("SQLite in ext4, one transaction after the other", DATABASE, "", 1, stretch=2),
]


def rows(texts):
    """Rows whose name is one of the texts, or, where none is, contains it."""
    names = [text.lower() for text in texts]
    found = [w for w in WORKLOADS if w.name.lower() in names]
    vague = [name for name in names if name not in [w.name.lower() for w in found]]
    return [w for w in WORKLOADS if w in found or any(name in w.name.lower() for name in vague)]


@dataclass
class Sample:
    """One run of one workload on one target."""

    iops: float
    p50_us: float
    p99_us: float
    p999_us: float
    p9999_us: float
    bytes: int
    server_cpu_us_per_op: float | None
    disk_bytes_per_byte: float | None


def run_fio(target, workload, seconds=None, extra=(), side=None, prefix=()):
    """Runs fio against a started target and returns its report of one side of the job, parsed; of a mix whose side is
    not said, that of both together. `prefix` is a command that runs fio and watches it."""
    mixed = workload.mixed and not side
    with tempfile.NamedTemporaryFile(suffix=".json") as output:
        command = [*prefix, "fio", "--name=bench", *target.fio_arguments(), f"--rw={workload.pattern}",
                   f"--bs={workload.block}", f"--iodepth={workload.depth}", f"--size={target.size}", "--randrepeat=0",
                   "--norandommap", "--thread", "--output-format=json", f"--output={output.name}",
                   "--percentile_list=50:99:99.9:99.99", "--refill_buffers", "--group_reporting",
                   f"--numjobs={workload.jobs}", *extra]
        if mixed:
            command += ["--rwmixread=70", "--unified_rw_reporting=mixed"]
        if seconds:
            command += ["--time_based", f"--runtime={round(seconds * 1000)}ms"]
        done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "LC_ALL": "C"})
        if done.returncode != 0:
            raise RuntimeError(f"fio failed on {target.name}: {done.stderr[-1000:]} {done.stdout[-1000:]}")
        text = open(output.name).read()
    job = json.loads(text[text.index("{"):])["jobs"][0]
    if job.get("error"):
        raise RuntimeError(f"fio saw error {job['error']} on {target.name}")
    return job["mixed"] if mixed else job[side or ("write" if workload.writes else "read")]


def measure(target, workload, seconds, extra=()):
    """One sample, with what the server spent on it, until it rests again."""
    pid = target.process.pid if target.process else None
    before = (targets.process_cpu_seconds(pid), targets.process_written_bytes(pid)) if pid else None
    side = run_database(target, seconds) if workload.pattern == DATABASE else run_fio(target, workload, seconds, extra)
    rest(target)
    cpu = amplification = None
    if pid and side["total_ios"]:
        cpu = (targets.process_cpu_seconds(pid) - before[0]) * 1e6 / side["total_ios"]
        if workload.writes and not workload.mixed and target.durable and side["io_bytes"]:
            amplification = (targets.process_written_bytes(pid) - before[1]) / side["io_bytes"]
    latency = percentiles(side)
    return Sample(
        iops=side["iops"],
        p50_us=latency["p50"],
        p99_us=latency["p99"],
        p999_us=latency["p99.9"],
        p9999_us=latency["p99.99"],
        bytes=side["io_bytes"],
        server_cpu_us_per_op=cpu,
        disk_bytes_per_byte=amplification,
    )


def run_database(target, seconds):
    """Makes a file system with a database on a target, and runs its transactions as fast as each is durable. What is reported
    looks like what fio reports of requests."""
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(loop_device(target.uri()) if target.process else file_device(target.path))
        database = Database(stack.enter_context(new_file_system(device)) / "accounts.db")
        stack.callback(database.close)
        latencies = sorted(database.run(seconds))
    at = lambda share: latencies[min(int(len(latencies) * share / 100), len(latencies) - 1)] * 1e3
    return {"iops": len(latencies) / seconds, "total_ios": len(latencies), "io_bytes": 0,
            "clat_ns": {"percentile": {f"{share}": at(share) for share in (50, 99, 99.9, 99.99)}}}


def rest(target, still_seconds=0.5, at_most_seconds=5):
    """Waits until a server does no work of its own on the disk, so that none of it runs beside the next sample."""
    if not target.process:
        return
    until, still_since = time.monotonic() + at_most_seconds, time.monotonic()
    written = targets.process_written_bytes(target.process.pid)
    while (now := time.monotonic()) < min(until, still_since + still_seconds):
        time.sleep(0.05)
        if (count := targets.process_written_bytes(target.process.pid)) != written:
            written, still_since = count, now


def percentiles(side):
    """Latencies in microseconds, by name, of what `run_fio` gave."""
    found = side["clat_ns"]["percentile"]
    return {f"p{float(key):g}": found[key] / 1e3 for key in found}


def fill(target):
    """Writes the whole disk once, so that nobody reads holes or extends a file."""
    run_fio(target, Workload("fill", "write", "1m", 8), extra=["--end_fsync=0"])


def start_on_volumes(target, names, size):
    """Starts fio with endless sequential 128 KiB writes at depth 8 to each of several volumes of a store."""
    command = ["fio", "--ioengine=nbd", "--rw=write", "--bs=128k", "--iodepth=8", f"--size={size}", "--thread",
               "--time_based", "--runtime=600", "--refill_buffers", "--group_reporting"]
    for name in names:
        command += [f"--name={name}", f"--uri={target.uri(name)}"]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
