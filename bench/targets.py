"""What is measured side by side: each target serves one disk of the same size from the same file system.

A target starts its server (if it has one), says how fio reaches it, and can tell what the server has spent:
processor time, memory and bytes written to disk, read from /proc.
"""

import os
import shutil
import signal
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

    def __init__(self, directory, size):
        self.directory = Path(directory).resolve() / self.name.replace(" ", "-")
        self.size = size
        self.process = None

    def start(self):
        """Starts the server and waits until it answers."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir(parents=True)
        self.launch()

    def launch(self):
        raise NotImplementedError

    def fio_arguments(self):
        """How fio reaches the disk."""
        return ["--ioengine=nbd", f"--uri={self.uri()}"]

    def uri(self):
        return f"nbd+unix:///?socket={self.socket()}"

    def socket(self):
        return self.directory / "sock"

    def spawn(self, command):
        log = open(self.directory / "log", "ab")
        # A session of its own: Ctrl-C ends the benchmark, which then stops it in order.
        self.process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
        self.wait_for(lambda: self.socket().exists())

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


class Raw(Target):
    """The file itself, written with O_DIRECT and O_DSYNC through io_uring: the floor."""

    name = "raw file"

    def launch(self):
        self.path = self.make_file()

    def fio_arguments(self):
        return ["--ioengine=io_uring", "--direct=1", "--sync=dsync", f"--filename={self.path}"]


class QemuNbd(Target):
    """qemu-nbd with every write durable before it is acknowledged."""

    image_format = "raw"

    def launch(self):
        path = self.make_file() if self.image_format == "raw" else self.directory / "disk"
        if self.image_format != "raw":
            subprocess.run(["qemu-img", "create", "-q", "-f", self.image_format, path, str(self.size)], check=True)
        self.spawn(["qemu-nbd", "-k", self.socket(), "--cache=directsync", "--aio=io_uring", "--discard=unmap",
                    "-t", "-e", "64", "-f", self.image_format, path])


class QemuNbdRaw(QemuNbd):
    name = "qemu-nbd raw"


class QemuNbdQcow2(QemuNbd):
    name = "qemu-nbd qcow2"
    image_format = "qcow2"


class NbdkitFile(Target):
    """nbdkit's file plugin, each write forced to be durable."""

    name = "nbdkit file"

    def launch(self):
        self.spawn(["nbdkit", "-f", "-U", self.socket(), "--filter=fua", "file", self.make_file(), "cache=none",
                    "fuamode=force"])


class NbdkitMemory(Target):
    """nbdkit's memory plugin: not durable, the ceiling of NBD and fio on this machine."""

    name = "nbdkit memory"
    durable = False

    def launch(self):
        self.spawn(["nbdkit", "-f", "-U", self.socket(), "memory", str(self.size)])


class Levee(Target):
    """`levee up` on one directory with its defaults, or with `options` besides."""

    name = "levee"
    binary = "target/release/levee"
    volume = "bench"
    options = ()

    def launch(self):
        self.start_process()

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

    def uri(self):
        return f"nbd+unix:///{self.volume}?socket={self.socket()}"

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.process = None


PEERS = [Raw, QemuNbdRaw, QemuNbdQcow2, NbdkitFile, Levee, NbdkitMemory]
