"""Several servers with what they need, each a process, over `levee lab files` on this machine, or over a pool of Ceph."""

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path


class Cluster:
    """The processes, by name: store, m1 and so on. `prefix` says what a process is started with, and `address` where a server
    listens, both by its name. `engines` are what `--store` and `--leases` are, if that is not a process of its own. `tls`: they
    show each other certificates. `agent`: lines of the agent's section `[cluster]`."""

    def __init__(self, arguments, servers=3, managers=3, prefix=lambda name: [], address=lambda name: "127.0.0.1",
                 bandwidth="auto", engines=None, tls=False, agent=()):
        self.prefix, self.address, self.bandwidth = prefix, address, bandwidth
        self.binary = str(Path(arguments.binary).absolute())
        self.directory = Path(arguments.directory).absolute() / f"{os.getpid()}-{time.monotonic_ns()}"
        self.directory.mkdir(parents=True)
        self.managers, self.processes, self.engines, self.tls = managers, {}, engines, tls
        (self.directory / "agent.toml").write_text("\n".join(["[cluster]", *agent]) + "\n")
        if tls:
            authority(self.binary, self.directory / "pki", ["store", "manager", "server", "agent"])
        try:
            if not engines:
                self.start("store")
            for letter, count in [("m", managers), ("s", servers), ("a", 1)]:
                for number in range(1, count + 1):
                    self.start(f"{letter}{number}")
            self.wait(lambda: len(self.servers()) == servers)
        except BaseException:
            self.end()
            raise

    def socket(self, name):
        return f"unix:{self.directory / name}.sock"

    def start(self, name):
        managers = ",".join(self.socket(f"m{number}") for number in range(1, self.managers + 1))
        role = ["--json", "--name", name, "--managers", managers]
        store = ["--store", self.engines[0] if self.engines else self.socket("store")]
        leases = ["--leases", self.engines[1]] if self.engines else []
        command = {
            "store": ["lab", "files", "--dir", str(self.directory / "disk"), "--listen", self.socket("store")],
            "m": ["manager", *role, *store, *leases, "--listen", self.socket(name), "--api-listen", "127.0.0.1:0",
                  "--token-file", str(self.directory / "api.token")],
            "s": ["server", *role, *store, "--listen", f"{self.address(name)}:0", "--bandwidth",
                  self.bandwidth],
            "a": ["agent", *role, "--nbd", "127.0.0.1:0", "--socket", str(self.directory / "nbd.sock"),
                  "--config", str(self.directory / "agent.toml")],
        }["store" if name == "store" else name[0]]
        if self.tls:
            role = {"m": "manager", "s": "server", "a": "agent"}[name[0]] if name != "store" else "store"
            command += ["--tls", str(self.directory / "pki" / f"{role}-bench")]
        log = open(self.directory / f"{name}.log", "ab")
        process = subprocess.Popen([*self.prefix(name), self.binary, *command], stdout=subprocess.PIPE, stderr=log, text=True)
        line = process.stdout.readline()
        if not line:
            raise SystemExit(f"{name} did not start: see {self.directory / name}.log")
        self.processes[name] = (process, json.loads(line) if name != "store" else None)

    def kill(self, name):
        process, _ = self.processes.pop(name)
        process.kill()
        process.wait()

    def signal(self, name, number):
        self.processes[name][0].send_signal(number)

    def levee(self, *arguments):
        manager = next(name for name in self.processes if name.startswith("m"))
        api = self.processes[manager][1]["api"]
        token = str(self.directory / "api.token")
        return subprocess.run([self.binary, *arguments, "--api", api, "--token-file", token], capture_output=True, text=True)

    def ask(self, method, path, body=None):
        """The status of an API's answer, and its body. Only of one manager: others would name the one in charge."""
        token = (self.directory / "api.token").read_text().strip()
        request = urllib.request.Request(self.processes["m1"][1]["api"] + path, method=method, headers={
            "Authorization": f"Bearer {token}", "Content-Type": "application/json"}, data=body and json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def explain(self, volume):
        return json.loads(self.levee("volume", "explain", volume, "--json").stdout or "{}")

    def servers(self):
        listed = self.levee("server", "list", "--json").stdout
        return {server["name"]: server for server in json.loads(listed or "[]")}

    def settle(self, servers=3, seconds=60):
        status = {}
        def is_settled():
            status.update(json.loads(self.levee("status", "--json").stdout or "{}"))
            cluster = status.get("cluster") or {}
            return status.get("is_healthy") and len(cluster["servers"]) == servers and not cluster["segments_on_the_way"]
        self.wait(is_settled, seconds, lambda: status.get("problems"))

    def in_charge(self):
        return json.loads(self.levee("status", "--json").stdout)["cluster"]["manager"]["name"]

    def wait(self, so, seconds=60, why=lambda: None):
        end = time.monotonic() + seconds
        while not so():
            if time.monotonic() > end:
                raise SystemExit(f"nothing came of it within {seconds} s: {why() or ''} see {self.directory}")
            time.sleep(0.05)

    def uri(self, volume):
        return f"nbd+unix:///{volume}?socket={self.directory / 'nbd.sock'}"

    def end(self):
        """Ends the processes, and leaves what they said."""
        for process, _ in self.processes.values():
            process.kill()
            process.wait()

    def close(self):
        self.end()
        subprocess.run(["rm", "-rf", str(self.directory)], check=True)


def authority(binary, directory, roles):
    """An authority, and a certificate for each role, in DIRECTORY/ROLE-bench."""
    for arguments in [["init"], *(["issue", role, "bench"] for role in roles)]:
        subprocess.run([binary, "pki", *arguments, "--dir", str(directory)], check=True, capture_output=True)


def processor_seconds(pids):
    """What processes have used of processors since they began."""
    ticks = os.sysconf("SC_CLK_TCK")
    def of(pid):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / ticks
    return sum(of(pid) for pid in pids)
