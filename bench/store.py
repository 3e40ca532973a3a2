"""A store of Levee with its settings and volumes, and what its metrics say."""

import contextlib
import re
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

import targets


class Store(targets.Target):
    """`levee up` with the text of a configuration, and volumes of the same size; the first one is what fio sees."""

    def __init__(self, name, arguments, config, volumes):
        self.name = name
        super().__init__(arguments.directory, arguments.size)
        self.binary, self.config, self.volumes, self.volume = arguments.binary, config, volumes, volumes[0]
        # Where it lives, the first one always there, and what else the command says.
        self.disks, self.flags = ["store"], []

    def launch(self):
        config = self.directory / "levee.toml"
        config.write_text(f'[nbd]\nsocket = "{self.socket()}"\n{self.config}')
        self.run_again()
        for volume in self.volumes[1:]:
            self.ask("volume", "create", volume, "--size", str(self.size))

    def run_again(self):
        """Starts it on what is there, with its disks and flags as they are now."""
        places = [part for disk in self.disks for part in ("--dir", self.directory / disk)]
        command = [self.binary, "up", *places, *self.flags, "--listen", "127.0.0.1:0", "--api-listen", "127.0.0.1:0",
                   "--config", self.directory / "levee.toml", "--volume", self.volume, "--size", str(self.size)]
        log = self.directory / "log"
        log.unlink(missing_ok=True)
        self.spawn([str(part) for part in command])
        self.wait_for(lambda: "control  http" in log.read_text())
        self.api = next(line.split()[1] for line in log.read_text().splitlines() if line.startswith("control "))

    def ask(self, *command):
        """Runs a command on the store that runs."""
        token = (self.directory / "store" / "api.token").read_text().strip()
        subprocess.run([self.binary, *command, "--api", self.api], check=True, capture_output=True, env={"LEVEE_TOKEN": token})

    def uri(self):
        return f"nbd+unix:///{self.volume}?socket={self.socket()}"

    def use(self, volume):
        """The same store, seen through another volume."""
        view = object.__new__(Store)
        view.__dict__ = {**self.__dict__, "volume": volume}
        return view

    def longest_background_wait(self):
        """A bound in seconds that no background task had to wait longer than, and how many there were."""
        text = urllib.request.urlopen(f"{self.api}/metrics").read().decode()
        pattern = r'stage_latency_seconds_bucket\{stage="background_wait",le="([0-9.]+)"\} (\d+)'
        buckets = [(float(bound), int(count)) for bound, count in re.findall(pattern, text)]
        tasks = int(re.search(r'stage_latency_seconds_count\{stage="background_wait"\} (\d+)', text)[1])
        return next((bound for bound, count in buckets if count == tasks), float("inf")), tasks


@contextlib.contextmanager
def loop_device(uri):
    """A volume as a block device, through FUSE: this needs root, and no driver for NBD. Yields its path."""
    with tempfile.TemporaryDirectory() as fuse:
        # A session of its own: Ctrl-C ends us, and we end it when nothing is mounted any more.
        bridge = subprocess.Popen(["nbdfuse", fuse, uri], start_new_session=True)
        device = None
        try:
            disk, deadline = Path(fuse, "nbd"), time.monotonic() + 20
            while not disk.exists():
                if bridge.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"nbdfuse does not serve {uri}")
                time.sleep(0.05)
            device = run("losetup", "--direct-io=on", "-f", "--show", disk).strip()
            yield device
        finally:
            if device:
                run("losetup", "-d", device)
            subprocess.run(["fusermount3", "-u", fuse], capture_output=True)
            try:
                bridge.wait(10)
            except subprocess.TimeoutExpired:
                bridge.kill()
                bridge.wait()


@contextlib.contextmanager
def file_device(path):
    """A file as a block device; this needs root. Yields its path."""
    device = run("losetup", "--direct-io=on", "-f", "--show", path).strip()
    try:
        yield device
    finally:
        run("losetup", "-d", device)


@contextlib.contextmanager
def new_file_system(device):
    """Makes an ext4 file system and mounts it. Yields its root."""
    with tempfile.TemporaryDirectory() as root:
        run("mkfs.ext4", "-q", "-F", device)
        run("mount", device, root)
        try:
            yield Path(root)
        finally:
            run("umount", root)


def run(*command):
    """Output of a command that must succeed."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
    return done.stdout
