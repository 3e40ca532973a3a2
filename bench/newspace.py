"""What space costs that nobody wrote before: the first pass over a large fresh volume against a second one."""

import shutil
import time

import figures
import load
import targets

SIZE = 64 << 30
# What a pass writes at most, so that a fast disk is not filled.
PASS_BYTES_MAX = 24 << 30
RESERVE_BYTES = 8 << 30
PATTERNS = [load.Workload("128 KiB sequential write, depth 8", "write", "128k", 8),
            load.Workload("4 KiB random write, depth 32", "randwrite", "4k", 32)]


def measure(arguments, say):
    """Figures of both patterns. Every pass asks for the same addresses in the same order, from an idle store; another store
    starts its first pass at once, which is printed and not judged."""
    found = []
    seconds, idle = arguments.new_space_seconds, arguments.idle_seconds
    bytes_max = bytes_of_a_pass(arguments)
    for workload in PATTERNS:
        at_once = Store(arguments).passes(workload, seconds, bytes_max, [0], say)[0]
        first, second = Store(arguments).passes(workload, seconds, bytes_max, [idle, idle], say)
        name = f"new space: {workload.name}: first {seconds:g} s after {idle:g} s idle / second pass"
        figure = figures.judge(name, first["iops"] / second["iops"], 0.9, 1.0, higher_is_better=True)
        figure.measured += (f" ({first['iops']:,.0f} and {second['iops']:,.0f} IOPS, {first['amplification']:.2f} and "
                            f"{second['amplification']:.2f} bytes to disk per byte; {at_once['iops']:,.0f} IOPS and "
                            f"{at_once['amplification']:.2f} without the idle time)")
        found.append(figure)
    return found


def bytes_of_a_pass(arguments):
    """What may be written in one pass: two of them, their garbage and zeros ahead of them have to find room."""
    free = shutil.disk_usage(arguments.directory).free - RESERVE_BYTES
    if free < 4 << 30:
        raise RuntimeError(f"{arguments.directory} has too little room for a new space")
    return min(PASS_BYTES_MAX, free // 3)


class Store(targets.Levee):
    """A fresh one with a large volume."""

    def __init__(self, arguments):
        super().__init__(arguments.directory, SIZE)

    def passes(self, workload, seconds, bytes_max, idle_times, say):
        """A sample for each time of rest before it."""
        found = []
        try:
            self.start()
            for number, idle in enumerate(idle_times):
                # The idle time counts from the moment that the store is ready; zeros of it count as disk bytes.
                before = targets.process_written_bytes(self.process.pid)
                time.sleep(idle)
                span = found[0]["bytes"] if found and workload.pattern == "write" else SIZE
                extra = [f"--size={span}", f"--io_size={bytes_max}", f"--runtime={round(seconds * 1000)}ms", "--randseed=7", "--allrandrepeat=1"]
                side = load.run_fio(self, workload, extra=extra)
                written = targets.process_written_bytes(self.process.pid) - before
                found.append({"iops": side["iops"], "bytes": side["io_bytes"], "amplification": written / side["io_bytes"]})
                say(f"{workload.name}, pass {number + 1} after {idle:g} s idle: {side['iops']:,.0f} IOPS")
            return found
        finally:
            self.remove()
