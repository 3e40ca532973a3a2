"""Control groups that hold a process to so many bytes per second of a disk, as an operator would without a store."""

import os
from pathlib import Path

OLD, NEW = Path("/sys/fs/cgroup/blkio"), Path("/sys/fs/cgroup")


def is_there():
    """Whether this machine has them, and we may make some."""
    return os.access(OLD, os.W_OK) or "io" in controllers()


def controllers():
    """Those of the unified hierarchy."""
    try:
        return (NEW / "cgroup.subtree_control").read_text().split()
    except OSError:
        return []


def device_of(path):
    """Major and minor number of the whole disk below a path."""
    number = os.stat(path).st_dev
    place = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}").resolve()
    place = place.parent if (place / "partition").exists() else place
    return (place / "dev").read_text().strip()


class Held:
    """A group for one process. `blkio.throttle` of the first version, `io.max` of the second."""

    def __init__(self, name, path, bytes_per_sec):
        self.place = (OLD if os.access(OLD, os.W_OK) else NEW) / name
        self.device, self.rate = device_of(path), bytes_per_sec

    def hold(self, pid):
        """Each direction has the whole rate."""
        self.place.mkdir(exist_ok=True)
        if self.place.parent == OLD:
            for way in ("read", "write"):
                (self.place / f"blkio.throttle.{way}_bps_device").write_text(f"{self.device} {self.rate}")
        else:
            (self.place / "io.max").write_text(f"{self.device} rbps={self.rate} wbps={self.rate}")
        (self.place / "cgroup.procs").write_text(str(pid))

    def remove(self):
        """After the process has ended."""
        if self.place.exists():
            self.place.rmdir()
