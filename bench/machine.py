"""What a benchmark ran on: processor, kernel and disk, in one line each."""

import os
import platform
import subprocess
import time
from pathlib import Path


def describe(directory):
    """The machine, and the disk below a directory, as a dictionary of short texts."""
    disk = disk_of(directory)
    return {
        "host": platform.node(),
        "processor": f"{processor()}, {os.cpu_count()} cores",
        "kernel": f"Linux {platform.release()}",
        "disk": describe_disk(disk) if disk else "unknown",
        "file system": file_system(directory),
        "date": time.strftime("%Y-%m-%d"),
    }


def sentence(machine):
    return ". ".join(f"{name.capitalize()}: {text}" for name, text in machine.items()) + "."


def processor():
    fields = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        fields.setdefault(name.strip(), value.strip())
    model = fields.get("model name") or platform.machine()
    if not {"cpu family", "model"} <= fields.keys():
        return model
    guest = " (virtual)" if "hypervisor" in fields.get("flags", "").split() else ""
    return f"{model}, family {fields['cpu family']} model {fields['model']}{guest}"


def disk_of(directory):
    """The whole disk that a directory lies on, as its directory in /sys; None where there is none of its own."""
    path = Path(directory).resolve()
    while not path.exists():
        path = path.parent
    number = path.stat().st_dev
    block = Path(f"/sys/dev/block/{os.major(number)}:{os.minor(number)}")
    if not block.exists():
        return None
    block = block.resolve()
    return block.parent if (block / "partition").exists() else block


def describe_disk(disk):
    def read(name):
        path = disk / name
        return path.read_text().strip() if path.exists() else ""

    scheduler = read("queue/scheduler")
    scheduler = scheduler[scheduler.find("[") + 1:scheduler.find("]")] if "[" in scheduler else scheduler
    driver = disk / "device" / "driver"
    model = read("device/model") or (driver.resolve().name if driver.exists() else "")
    parts = [f"{disk.name} {model}".strip(), f"{int(read('size') or 0) // (2 << 20)} GiB", f"scheduler {scheduler or 'none'}",
             f"write cache: {read('queue/write_cache')}", f"FUA: {'yes' if read('queue/fua') == '1' else 'no'}"]
    return ", ".join(parts)


def file_system(directory):
    path = Path(directory).resolve()
    while not path.exists():
        path = path.parent
    done = subprocess.run(["findmnt", "-n", "-o", "FSTYPE,OPTIONS", "-T", path], capture_output=True, text=True)
    return " ".join(done.stdout.split()) if done.returncode == 0 else "unknown"


def disk_counters(disk):
    """What a disk has done so far: finished reads, writes and flushes, and bytes (Documentation/block/stat)."""
    fields = [int(field) for field in (disk / "stat").read_text().split()]
    flushes = fields[15] if len(fields) > 15 else 0
    return {"reads": fields[0], "read_bytes": fields[2] * 512, "writes": fields[4], "written_bytes": fields[6] * 512,
            "flushes": flushes, "busy_ms": fields[9]}
