"""What is measured side by side: each target serves one disk of the same size from the same file system.

A target starts its server (if it has one), says how fio reaches it, and can tell what the server has spent:
processor time, memory and bytes written to disk, read from /proc.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from pathlib import Path

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def process_cpu_seconds(pid):
    """User and system time of a process in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS


def process_written_bytes(pid):
    """Bytes that a process sent to the block layer."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    raise RuntimeError("no write_bytes in /proc/PID/io")


def process_usage(pid):
    """Times in seconds and switches of all threads of a process, with what io_uring's workers took of them."""
    found = {"user_seconds": 0.0, "system_seconds": 0.0, "io_worker_seconds": 0.0, "sleeps": 0, "preemptions": 0}
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            head, _, rest = (task / "stat").read_text().rpartition(")")
            status = (task / "status").read_text()
        except FileNotFoundError:
            continue  # A worker that ended.
        fields = rest.split()
        user, system = int(fields[11]) / CLOCK_TICKS, int(fields[12]) / CLOCK_TICKS
        found["user_seconds"] += user
        found["system_seconds"] += system
        if "(iou-" in head:
            found["io_worker_seconds"] += user + system
        found["sleeps"] += int(re.search(r"\nvoluntary_ctxt_switches:\s+(\d+)", status)[1])
        found["preemptions"] += int(re.search(r"nonvoluntary_ctxt_switches:\s+(\d+)", status)[1])
    return found


def kernel_worker_seconds():
    """Processor time of the kernel's worker threads, of the whole machine."""
    total = 0
    for process in Path("/proc").glob("[0-9]*"):
        try:
            head, _, rest = (process / "stat").read_text().rpartition(")")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if "(kworker" in head:
            fields = rest.split()
            total += int(fields[11]) + int(fields[12])
    return total / CLOCK_TICKS


def process_status_kib(pid, field):
    """A memory field of /proc/PID/status, in KiB."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1])
    raise RuntimeError(f"no {field} in /proc/PID/status")


class Target:
    """A disk to measure. `name` is its row in the report."""

    name = ""
    durable = True
    # Reads come from the disk, not from memory of the machine.
    reads_disk = True
    # A command without which there is no such target.
    needs = None

    def __init__(self, directory, size):
        self.directory = Path(directory).resolve() / self.name.replace(" ", "-")
        self.size = size
        self.process = None
        self.tcp = False
        self.port = None

    def start(self):
        """Makes the disk, starts the server and waits until it answers."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self.launch()

    def launch(self):
        """Makes the disk and serves it."""
        self.make_disk()
        self.serve()

    def make_disk(self):
        self.path = self.make_file()

    def serve(self):
        raise NotImplementedError

    def serve_on(self, tcp):
        """From here on through TCP or the socket; what can do only one of them is started again. True if what it held
        is lost by that."""
        if self.tcp == tcp:
            return False
        self.stop()
        self.socket().unlink(missing_ok=True)
        self.tcp = tcp
        self.serve()
        return not self.durable

    def fio_arguments(self):
        """How fio reaches the disk."""
        return ["--ioengine=nbd", f"--uri={self.uri()}"]

    def uri(self):
        return f"nbd://127.0.0.1:{self.port}/" if self.tcp else f"nbd+unix:///?socket={self.socket()}"

    def socket(self):
        return self.directory / "sock"

    def spawn(self, command):
        log = open(self.directory / "log", "ab")
        # A session of its own: Ctrl-C ends the benchmark, which then stops it in order.
        self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        self.wait_for(self.listens)

    def listens(self):
        family, address = (socket.AF_INET, ("127.0.0.1", self.port)) if self.tcp else (socket.AF_UNIX, str(self.socket()))
        with socket.socket(family) as probe:
            return probe.connect_ex(address) == 0

    def wait_for(self, ready, seconds=60):
        deadline = time.monotonic() + seconds
        while not ready():
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended: {(self.directory / 'log').read_text()[-2000:]}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} is not ready after {seconds} s")
            time.sleep(0.005)

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.process = None

    def remove(self):
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def make_file(self):
        path = self.directory / "disk"
        with open(path, "wb") as file:
            file.truncate(self.size)
        return path


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Raw(Target):
    """The file itself, written with O_DIRECT and O_DSYNC through io_uring: the floor."""

    name = "raw file"

    def serve(self):
        pass

    def fio_arguments(self):
        return ["--ioengine=io_uring", "--direct=1", "--sync=dsync", f"--filename={self.path}"]


class QemuNbd(Target):
    """qemu-nbd with every write durable before it is acknowledged."""

    image_format = "raw"

    def make_disk(self):
        if self.image_format == "raw":
            return super().make_disk()
        self.path = self.directory / "disk"
        subprocess.run(["qemu-img", "create", "-q", "-f", self.image_format, self.path, str(self.size)], check=True)

    def serve(self):
        self.port = free_port()
        where = ["-b", "127.0.0.1", "-p", str(self.port)] if self.tcp else ["-k", self.socket()]
        self.spawn(["qemu-nbd", *where, "--cache=directsync", "--aio=io_uring", "--discard=unmap",
                    "-t", "-e", "64", "-f", self.image_format, self.path])


class QemuNbdRaw(QemuNbd):
    name = "qemu-nbd raw"


class QemuNbdQcow2(QemuNbd):
    name = "qemu-nbd qcow2"
    image_format = "qcow2"


class QemuStorageDaemon(Target):
    """qemu-storage-daemon on a raw file: O_DIRECT and io_uring. `writethrough` flushes after every write before it is
    acknowledged, as qemu-nbd's directsync does. The export has a thread of its own, which polls before it sleeps (QEMU's
    default for such threads), where that works: one export has one thread in QEMU, however many there are, and some
    versions (7.2.22 of Debian 12) end with an assertion there as soon as a client leaves."""

    name = "qemu-storage-daemon"
    needs = "qemu-storage-daemon"
    thread = True

    def serve(self):
        self.run_server()
        if self.thread and self.ends_with_a_client():
            self.thread = False
            self.stop()
            self.socket().unlink(missing_ok=True)
            self.run_server()

    def ends_with_a_client(self):
        subprocess.run(["nbdinfo", "--size", self.uri()], capture_output=True)
        time.sleep(0.5)
        return self.process.poll() is not None

    def run_server(self):
        self.port = free_port()
        where = (f"addr.type=inet,addr.host=127.0.0.1,addr.port={self.port}" if self.tcp
                 else f"addr.type=unix,addr.path={self.socket()}")
        export = "type=nbd,id=export,node-name=disk,name=disk,writable=on,writethrough=on"
        command = ["qemu-storage-daemon",
                   "--blockdev", f"driver=file,node-name=file,filename={self.path},aio=io_uring,cache.direct=on,discard=unmap",
                   "--blockdev", "driver=raw,node-name=disk,file=file,discard=unmap,cache.direct=on"]
        if self.thread:
            command += ["--object", "iothread,id=thread"]
            export += ",iothread=thread"
        self.spawn([*command, "--nbd-server", f"{where},max-connections=64", "--export", export])

    def uri(self):
        return f"nbd://127.0.0.1:{self.port}/disk" if self.tcp else f"nbd+unix:///disk?socket={self.socket()}"


class Nbdkit(Target):
    """nbdkit with a plugin."""

    def serve(self):
        self.port = free_port()
        where = ["-i", "127.0.0.1", "-p", str(self.port)] if self.tcp else ["-U", self.socket()]
        self.spawn(["nbdkit", "-f", *where, *self.plugin()])

    def plugin(self):
        raise NotImplementedError


class NbdkitFile(Nbdkit):
    """nbdkit's file plugin, each write forced to be durable."""

    name = "nbdkit file"
    # It reads from the page cache what was written a moment ago.
    reads_disk = False

    def plugin(self):
        return ["--filter=fua", "file", self.path, "cache=none", "fuamode=force"]


class NbdkitMemory(Nbdkit):
    """nbdkit's memory plugin: not durable, the ceiling of NBD and fio on this machine."""

    name = "nbdkit memory"
    durable = False
    reads_disk = False

    def make_disk(self):
        pass

    def plugin(self):
        return ["memory", str(self.size)]


class Levee(Target):
    """`levee up` on one directory with its defaults, or with `options` besides."""

    name = "levee"
    binary = "target/release/levee"
    volume = "bench"
    options = ()

    def make_disk(self):
        pass

    def serve(self):
        self.start_process()

    def serve_on(self, tcp):
        # It listens on both.
        self.tcp = tcp
        return False

    def start_process(self, volume=True):
        """Starts the store on its directory, fresh or not; returns the seconds until it said that it is ready."""
        begun = time.monotonic()
        log = open(self.directory / "log", "ab")
        command = [self.binary, "up", "--dir", self.directory / "store", "--listen", "127.0.0.1:0",
                   "--api-listen", "127.0.0.1:0", *self.options]
        if volume:
            command += ["--volume", self.volume, "--size", str(self.size)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, stdin=subprocess.DEVNULL, text=True)
        self.ready_lines = []
        for line in self.process.stdout:
            self.ready_lines.append(line.strip())
            if "nbd://" in line or "NBD" in line and "127.0.0.1:" in line:
                break
        else:
            raise RuntimeError(f"levee did not start: {(self.directory / 'log').read_text()[-2000:]}")
        return time.monotonic() - begun

    def api(self):
        for line in self.ready_lines:
            for word in line.split():
                if word.startswith("http://"):
                    return word.rstrip("/,.")
        raise RuntimeError(f"no control address in {self.ready_lines}")

    def metrics(self):
        """The /metrics page as a dictionary from name with labels to value."""
        text = urllib.request.urlopen(self.api() + "/metrics", timeout=10).read().decode()
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if line and not line.startswith("#"))
        return {name: float(value) for name, value in pairs}

    def socket(self):
        return self.directory / "store" / "nbd.sock"

    def create_volume(self, name, size):
        """One more volume of the running store."""
        token = (self.directory / "store" / "api.token").read_text().strip()
        subprocess.run([self.binary, "volume", "create", name, "--size", str(size), "--api", self.api()],
                       check=True, capture_output=True, env={"LEVEE_TOKEN": token})

    def uri(self, volume=None):
        volume = volume or self.volume
        if self.tcp:
            address = next(word for line in self.ready_lines for word in line.split() if word.startswith("nbd://"))
            return f"nbd://{address.removeprefix('nbd://').split('/')[0]}/{volume}"
        return f"nbd+unix:///{volume}?socket={self.socket()}"

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process = None


PEERS = [Raw, QemuNbdRaw, QemuNbdQcow2, QemuStorageDaemon, NbdkitFile, Levee, NbdkitMemory]
