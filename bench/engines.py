"""A Ceph of three OSDs and an etcd of three members on this machine (tests/cluster/engines)."""

import os
import subprocess
from pathlib import Path

ENGINES = Path(__file__).resolve().parent.parent / "tests/cluster/engines"


class Engines:
    """Both, in a directory of their own. `pool` has three copies, `data_pool` erasure coding."""

    def __init__(self, directory):
        self.directory = Path(directory).absolute() / f"engines-{os.getpid()}"
        said = subprocess.run([ENGINES, "up", self.directory], check=True, capture_output=True, text=True).stdout
        found = dict(line.split("=", 1) for line in said.splitlines())
        self.store, self.leases = found["LEVEE_TEST_POOL"], found["LEVEE_TEST_ETCD"]
        self.conf = str(self.directory / "ceph.conf")
        self.pool, self.data_pool = self.store.removeprefix("rados:").split("?")[0], found["LEVEE_TEST_DATA_POOL"]

    def part(self, name, coded=False):
        """What `--store` and `--leases` are for a cluster that has a part of both by itself; `coded`: data files in `data_pool`."""
        (pool, how), (members, rights) = self.store.split("?"), self.leases.split("?")
        data = f"&data={self.data_pool}" if coded else ""
        return f"{pool}/{name}?{how}{data}", f"{members}/{name}?{rights}"

    def osds(self):
        return [int(file.read_text()) for file in (self.directory / "run").glob("osd.*.pid")]

    def written(self):
        """Bytes that the OSDs have written to their disks."""
        def of(pid):
            fields = dict(line.split(": ") for line in Path(f"/proc/{pid}/io").read_text().splitlines())
            return int(fields["write_bytes"])
        return sum(of(pid) for pid in self.osds())

    def close(self):
        subprocess.run([ENGINES, "down", self.directory], check=True)
        subprocess.run(["rm", "-rf", str(self.directory)], check=True)
