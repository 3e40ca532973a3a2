"""What perf sees of a target and its client: samples of the processors, events, and who worked when.

Everything here watches a run of its own, and none needs another build: samples of the software clock (a virtual machine
has no counters), tracepoints of the kernel, and uprobes on functions of the C library and of the binary. It needs root.
"""

import collections
import contextlib
import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from groups import group_of

TRACING = Path("/sys/kernel/tracing")
HERTZ = 3999
COPY_BYTES_MIN = 512


def missing():
    """Why perf cannot be used here; None if it can."""
    if not shutil.which("perf"):
        return "perf is not installed (Debian: linux-perf)"
    if os.geteuid() != 0:
        return "perf needs root to see the kernel and other processes"
    if not (TRACING / "instances").is_dir():
        return f"the kernel's tracing is not mounted: mount -t tracefs nodev {TRACING}"
    done = subprocess.run(["perf", "stat", "-e", "cpu-clock", "--", "true"], capture_output=True, text=True)
    return f"perf does not work here: {done.stderr.strip().splitlines()[-1:]}" if done.returncode else None


def memory_directory():
    """A temporary directory in memory: what perf writes down is no work for the disk that is measured."""
    return tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)


def write_tracing(path, text):
    """To a file of the tracing file system, which has no end to seek to."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def has_event(event):
    system, _, name = event.partition(":")
    return (TRACING / "events" / system / name).exists()


def script(path, fields):
    """Lines of `perf script`."""
    command = ["perf", "script", "-i", path, "-F", fields, "--no-inline"]
    reader = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace")
    yield from reader.stdout
    reader.wait()


def role_of(command, pid, server, tids=()):
    """Whose work a thread does: `server`, `client`, `idle`, `kernel` or `others`."""
    if pid == 0:
        return "idle"
    if pid == server or pid in tids:
        return "server"
    if command.startswith("fio"):
        return "client"
    if re.match(r"kworker|ksoftirqd|rcu|jbd2|kswapd|migration|kcompact|kthread", command):
        return "kernel"
    return "others"


# Samples ------------------------------------------------------------------------------------------------------------


class Samples:
    """Processor time of a run by role and group of functions, and by role and function."""

    def __init__(self, run, server):
        self.groups = collections.defaultdict(collections.Counter)
        self.functions = collections.defaultdict(collections.Counter)
        with memory_directory() as directory:
            path = f"{directory}/samples"
            prefix = ["perf", "record", "-q", "-B", "-a", "-e", "cpu-clock", "-F", str(HERTZ), "-g", "-o", path, "--"]
            self.side = run(prefix)
            self.count(script(path, "comm,pid,tid,ip,sym,dso"), server)

    def count(self, lines, server):
        head, frames = None, []
        for line in lines:
            if line.strip() and not line[0].isspace():
                head, frames = line.rsplit(None, 1), []
            elif line.strip():
                _, _, rest = line.strip().partition(" ")
                symbol, _, module = rest.rpartition(" (")
                frames.append((symbol.removesuffix("+0x0"), module.rstrip(")")))
            elif head and frames:
                role = role_of(head[0].strip(), int(head[1].split("/")[0]), server)
                self.groups[role][group_of(frames)] += 1
                self.functions[role][frames[0][0]] += 1
                head = None

    def us_per_request(self, role):
        """Microseconds of a processor per request, by group, largest first."""
        scale = 1e6 / HERTZ / self.side["total_ios"]
        return {name: count * scale for name, count in self.groups[role].most_common()}

    def top_functions(self, role, count):
        scale = 1e6 / HERTZ / self.side["total_ios"]
        return {name: number * scale for name, number in self.functions[role].most_common(count)}


# Events -------------------------------------------------------------------------------------------------------------

SYSTEM_CALLS = ["io_uring_enter", "read", "write", "readv", "writev", "pread64", "pwrite64", "preadv", "pwritev", "preadv2",
                "pwritev2", "sendto", "recvfrom", "sendmsg", "recvmsg", "poll", "ppoll", "select", "epoll_wait", "epoll_pwait",
                "epoll_pwait2", "epoll_ctl", "futex", "fsync", "fdatasync", "fallocate", "madvise", "mmap", "munmap",
                "nanosleep", "clock_nanosleep", "sched_yield", "io_submit", "io_getevents", "eventfd2"]
# Names of io_uring's operations by number (include/uapi/linux/io_uring.h).
OPERATIONS = {1: "READV", 2: "WRITEV", 3: "FSYNC", 4: "READ_FIXED", 5: "WRITE_FIXED", 6: "POLL_ADD", 9: "SENDMSG",
              10: "RECVMSG", 11: "TIMEOUT", 13: "ACCEPT", 14: "ASYNC_CANCEL", 17: "FALLOCATE", 22: "READ", 23: "WRITE",
              26: "SEND", 27: "RECV", 47: "SEND_ZC", 49: "READ_MULTISHOT"}


class Events:
    """How often server and client did what, per request."""

    def __init__(self, run, server):
        self.wanted = [(f"syscalls:sys_enter_{name}", None, name) for name in SYSTEM_CALLS]
        self.wanted += [("raw_syscalls:sys_enter", None, "system calls"),
                        ("sched:sched_switch", "prev_state!=0", "sleeps"),
                        ("sched:sched_switch", "prev_state==0", "preempted"),
                        ("sched:sched_waking", None, "wakes others"),
                        ("io_uring:io_uring_queue_async_work", None, "io_uring to a worker"),
                        ("io_uring:io_uring_poll_arm", None, "io_uring waits for readiness"),
                        ("exceptions:page_fault_user", None, "page faults")]
        self.wanted += [("io_uring:io_uring_submit_req", f"opcode=={number}", f"io_uring {name}")
                        for number, name in OPERATIONS.items()]
        self.wanted = [wanted for wanted in self.wanted if has_event(wanted[0])]
        with memory_directory() as directory:
            files = {role: Path(directory, role) for role in ("server", "client")}
            prefix = self.command(files["client"])
            if server:
                prefix = self.command(files["server"], server) + prefix
            side = run(prefix)
            self.per_request = {role: self.parse(path, side["total_ios"]) for role, path in files.items() if path.exists()}

    def command(self, path, pid=None):
        command = ["perf", "stat", "-x", ";", "-o", str(path)]
        for event, condition, _ in self.wanted:
            command += ["-e", event] + (["--filter", condition] if condition else [])
        return command + (["-p", str(pid)] if pid else []) + ["--"]

    def parse(self, path, requests):
        """Counts come in the order in which the events were named; perf may put lines of its own between them."""
        lines = [line.split(";") for line in path.read_text().splitlines() if line.count(";") > 3]
        found = {}
        for fields in lines:
            event, _, name = self.wanted[len(found)] if len(found) < len(self.wanted) else ("", None, "")
            if fields[2].startswith(event) and event:
                found[name] = (int(fields[0]) if fields[0].isdigit() else 0) / requests
        if len(found) != len(self.wanted):
            raise RuntimeError(f"perf counted {len(found)} of {len(self.wanted)} events: {path.read_text()}")
        return {name: value for name, value in found.items() if value >= 0.005}


# The timeline -------------------------------------------------------------------------------------------------------

SWITCH = re.compile(r"prev_pid=(\d+) .*next_comm=(.*) next_pid=(\d+)")
WAKING = re.compile(r" pid=(\d+) ")
BLOCK = re.compile(r"(\d+,\d+) (\S+) .*?(\d+) \+ (\d+)")
LINE = re.compile(r".*-\d+\s+\[(\d+)\] \S+\s+([0-9.]+): (\w+): (.*)")
IN_FLIGHT_SECONDS_MAX = 1.0


@contextlib.contextmanager
def recorded(events):
    """A buffer of the kernel's own that records events while this runs; gives a function that reads them. What perf
    records has no events of idle processors, and those are where a disk's answers arrive."""
    instance = TRACING / "instances" / f"levee_profile_{os.getpid()}"
    instance.mkdir()
    try:
        write_tracing(instance / "buffer_size_kb", "32768")
        for event in events:
            write_tracing(instance / "events" / event.replace(":", "/") / "enable", "1")

        def read():
            write_tracing(instance / "tracing_on", "0")
            return (instance / "trace").read_text(errors="replace").splitlines()

        yield read
    finally:
        instance.rmdir()


@dataclass
class Timeline:
    """Who worked at the same time: shares of wall time, the disk's times, and waits for a processor."""

    together: dict  # frozenset of names -> share
    disk: dict  # kind -> list of microseconds
    waits: dict  # role -> list of microseconds from wake-up to running

    @staticmethod
    def of(run, server):
        with recorded(["sched:sched_switch", "sched:sched_waking", "block:block_rq_issue", "block:block_rq_complete"]) as read:
            run([])
            tids = {int(task.name) for task in Path(f"/proc/{server}/task").iterdir()} if server else set()
            return Timeline.parse(read(), server, tids)

    @staticmethod
    def parse(lines, server, tids):
        together, disk, waits = collections.Counter(), collections.defaultdict(list), collections.defaultdict(list)
        running, in_flight, woken = {}, {}, {}
        parsed = [found.groups() for found in map(LINE.match, lines) if found]
        if not parsed:
            return Timeline({}, {}, {})
        # The load without its start and its end; where the buffer was too small, the beginning is lost.
        first, last = float(parsed[0][1]), float(parsed[-1][1])
        begin, end = first + (last - first) * 0.4, first + (last - first) * 0.9
        then = None
        for cpu, time, event, text in parsed:
            now = float(time)
            if then is not None and begin <= then and now <= end:
                busy = {role for role in running.values() if role in ("server", "client")}
                together[frozenset(busy | ({"disk"} if in_flight else set()))] += now - then
            then = now
            if event == "sched_switch":
                found = SWITCH.search(text)
                if not found:
                    continue
                # Who was woken before it had left its processor did not wait for one.
                woken.pop(int(found[1]), None)
                command, pid = found[2], int(found[3])
                role = role_of(command, pid, server, tids)
                running[cpu] = "server" if role == "others" and command.startswith("iou-") else role
                if pid in woken:
                    waited = (now - woken.pop(pid)) * 1e6
                    if role in ("server", "client") and begin <= now <= end:
                        waits[role].append(waited)
            elif event == "sched_waking":
                if found := WAKING.search(text):
                    woken.setdefault(int(found[1]), now)
            elif found := BLOCK.search(text):
                kind = block_kind(found[2])
                key = (found[1], kind if kind == "flush" else found[3])
                if event == "block_rq_issue":
                    in_flight[key] = now
                    # One whose end was lost is not in flight for ever.
                    for old in [key for key, since in in_flight.items() if now - since > IN_FLIGHT_SECONDS_MAX]:
                        del in_flight[old]
                elif key in in_flight:
                    spent = (now - in_flight.pop(key)) * 1e6
                    if begin <= now <= end:
                        disk[kind].append(spent)
        total = sum(together.values()) or 1
        shares = {names: spent / total for names, spent in together.most_common()}
        return Timeline(shares, dict(disk), dict(waits))


def block_kind(flags):
    if "R" in flags:
        return "read"
    if "W" in flags:
        return "write"
    return "flush" if "F" in flags else "discard"


# Bytes that are copied and checksummed ------------------------------------------------------------------------------

# Functions of the binary that read bytes for a checksum, with the register that holds their number.
CHECKSUMS = [(re.compile(r"crc_fast::crc32::fusion::x86::(iscsi::\w+::)?crc32_iscsi_\w+$"), "dx")]


class Touched:
    """Bytes that a server copies (from 512 at a time) and checksums, per byte of its requests, by uprobes."""

    def __init__(self, run, server):
        self.copied = self.checksummed = None
        self.notes = []
        probes = {}
        place = libc_copy()
        if place:
            probes["copy"] = (*place, "dx")
        else:
            self.notes.append("copies: no C library whose memcpy could be found")
        binary = os.path.realpath(f"/proc/{server}/exe")
        functions = checksum_functions(binary)
        for number, (offset, register) in enumerate(functions):
            probes[f"checksum{number}"] = (binary, offset, register)
        if not functions:
            self.notes.append("checksums: no function in this binary that is known to make them; see its share of time")
        if probes:
            self.measure(run, server, probes)

    def measure(self, run, server, probes):
        table, group = TRACING / "uprobe_events", f"levee_profile_{os.getpid()}"
        try:
            for name, (path, offset, register) in probes.items():
                write_tracing(table, f"p:{group}/{name} {path}:{offset:#x} len=%{register}:u64\n")
            with memory_directory() as directory:
                path = f"{directory}/events"
                prefix = ["perf", "record", "-q", "-B", "-m", "4M", "-p", str(server)]
                for name in probes:
                    prefix += ["-e", f"{group}:{name}"]
                    if name == "copy":
                        prefix += ["--filter", f"len >= {COPY_BYTES_MIN}"]
                side = run(prefix + ["-o", path, "--"])
                sums = collections.Counter()
                for line in script(path, "event,trace"):
                    event, _, rest = line.strip().partition(": ")
                    if found := re.search(r"len=(\d+)", rest):
                        sums[event.rsplit(":", 1)[-1].rstrip("0123456789")] += int(found[1])
                bytes_moved = side["io_bytes"]
                if "copy" in probes:
                    self.copied = sums["copy"] / bytes_moved
                if "checksum0" in probes:
                    self.checksummed = sums["checksum"] / bytes_moved
        except OSError as error:
            self.notes.append(f"uprobes cannot be set: {error}")
        finally:
            for name in probes:
                try:
                    write_tracing(table, f"-:{group}/{name}\n")
                except OSError:
                    pass  # It was never made.


def libc_copy():
    """The C library and the offset of the memcpy that it chose for this processor: every program gets the same one."""
    library = ctypes.CDLL(None)
    address = ctypes.cast(library.memcpy, ctypes.c_void_p).value
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, _, offset, _, _, *path = line.split(maxsplit=5)
        begin, end = (int(part, 16) for part in span.split("-"))
        if begin <= address < end and path:
            return path[0], address - begin + int(offset, 16)
    return None


def checksum_functions(binary):
    """(Offset in its file, register of the length) of the functions that make the binary's checksums."""
    done = subprocess.run(["nm", "-C", binary], capture_output=True, text=True)
    found = set()
    for line in done.stdout.splitlines():
        parts = line.split(" ", 2)
        for pattern, register in CHECKSUMS:
            if len(parts) == 3 and pattern.search(parts[2]):
                offset = file_offset(binary, int(parts[0], 16))
                if offset is not None:
                    found.add((offset, register))
    return sorted(found)


def file_offset(binary, address):
    """Where in an ELF file an address lies."""
    done = subprocess.run(["readelf", "-lW", binary], capture_output=True, text=True)
    for line in done.stdout.splitlines():
        if found := re.match(r"\s+LOAD\s+(0x\w+) (0x\w+) 0x\w+ (0x\w+)", line):
            offset, begin, size = (int(part, 16) for part in found.groups())
            if begin <= address < begin + size:
                return address - begin + offset
    return None
