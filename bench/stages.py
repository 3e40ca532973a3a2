"""The stages of a request in Levee: what its metrics say of a whole run, and what its trace says of single requests."""

import collections
import re
import statistics
from dataclasses import dataclass
from datetime import datetime

# What the metrics tell of one request, in the order in which it passes; all but the first are part of its latency.
METRICS = [("receive_wait", "received, waits for its task"), ("order_wait", "waits for an overlapping write"),
           ("queue", "block server: tokens, slot"), ("admission", "engine: memory, space"),
           ("journal", "journal: from batch to durable"), ("large_write", "large write: data and record"),
           ("read", "engine: index and disk"), ("reply", "from reply queued to sent")]


class Metered:
    """Differences of the latency histograms of two looks at the metrics, in microseconds."""

    def __init__(self, before, after):
        self.change = {name: value - before.get(name, 0) for name, value in after.items()}

    def requests(self):
        return sum(v for name, v in self.change.items() if name.startswith("levee_volume_requests_total"))

    def rows(self, client_mean_us):
        """(stage, mean of those that passed it, their number per request, p50, p99, share of the client's mean)."""
        requests = self.requests() or 1
        rows = []
        for stage, label in METRICS:
            count = self.change.get(f'levee_stage_latency_seconds_count{{stage="{stage}"}}', 0)
            if count == 0:
                continue
            total = self.change[f'levee_stage_latency_seconds_sum{{stage="{stage}"}}'] * 1e6
            low, high = (self.quantile(stage, share) for share in (0.5, 0.99))
            rows.append((label, total / count, count / requests, low, high, total / requests / client_mean_us))
        inside = sum(v for name, v in self.change.items() if name.startswith("levee_volume_latency_seconds_sum")) * 1e6
        rows.append(("whole, inside the server", inside / requests, 1, None, None, inside / requests / client_mean_us))
        return rows

    def quantile(self, stage, share):
        """By buckets of powers of two, with a straight line inside of one: a rough number."""
        pattern = re.compile(rf'levee_stage_latency_seconds_bucket{{stage="{stage}",le="([0-9.]+)"}}')
        buckets = sorted((float(found[1]), v) for name, v in self.change.items() if (found := pattern.fullmatch(name)))
        total = self.change[f'levee_stage_latency_seconds_count{{stage="{stage}"}}']
        below, low = 0, 0.0
        for bound, count in buckets:
            if count >= share * total and count > below:
                return (low + (bound - low) * (share * total - below) / (count - below)) * 1e6
            below, low = count, bound
        return low * 1e6


LINE = re.compile(r"(\S+)Z TRACE levee::stage: (.+)")
PAIR = re.compile(r"(\w+)=#?(\S+)")
NAMES = ("received", "routed", "session", "slot", "admitted", "gathered", "append", "durable", "applied", "reply queued",
         "replies sent")


@dataclass
class Request:
    """When a request passed each stage, in microseconds."""

    at: dict
    cookie: str
    segment: str = ""
    sequence: str = ""


class Trace:
    """Requests as the log of `levee::stage` tells them; a run to completion, so that lines of one stage keep their order."""

    def __init__(self, text):
        self.requests = []
        self.waiting = collections.defaultdict(collections.deque)
        self.open = {}
        self.batches = {}
        self.gathered, self.replied = [], collections.defaultdict(list)
        for line in text.splitlines():
            if found := LINE.match(line):
                at = datetime.fromisoformat(found[1]).timestamp() * 1e6
                stage = next((name for name in NAMES if found[2].startswith(name)), None)
                if stage:
                    self.on(stage, at, dict(PAIR.findall(found[2][len(stage):])))

    def on(self, stage, at, fields):
        """Who passes a stage is the first of those that passed the one before it."""
        segment, waiting = fields.get("segment"), self.waiting
        if stage == "received":
            request = Request({stage: at}, fields["cookie"])
            self.open[fields["connection"], fields["cookie"]] = request
            waiting["routed"].append(request)
        elif stage == "routed" and waiting["routed"]:
            self.pass_on(waiting["routed"].popleft(), stage, at, segment, "session")
        elif stage in ("session", "slot") and waiting[stage, segment]:
            follows = {"session": "slot", "slot": "admitted"}[stage]
            self.pass_on(waiting[stage, segment].popleft(), stage, at, segment, follows)
        elif stage == "admitted" and waiting[stage, segment]:
            request = waiting[stage, segment].popleft()
            self.pass_on(request, stage, at, segment, "gathered")
            waiting["applied", segment].append(request)
        elif stage == "gathered" and waiting[stage, segment]:
            request = waiting[stage, segment].popleft()
            request.at[stage] = at
            self.gathered.append(request)
        elif stage == "append":
            self.batches[fields["file"], fields["sequence"]] = self.gathered
            for request in self.gathered:
                request.at[stage] = at
            self.gathered = []
        elif stage == "durable":
            for request in self.batches.pop((fields["file"], fields["sequence"]), []):
                request.at[stage] = at
        elif stage == "applied" and waiting[stage, segment]:
            waiting[stage, segment].popleft().at[stage] = at
        elif stage == "reply queued":
            if request := self.open.pop((fields["connection"], fields["cookie"]), None):
                request.at[stage] = at
                self.forget(request)
                self.replied[fields["connection"]].append(request)
        elif stage == "replies sent":
            for request in self.replied.pop(fields["connection"], []):
                request.at[stage] = at
                self.requests.append(request)

    def pass_on(self, request, stage, at, segment, follows):
        request.at[stage], request.segment = at, segment
        self.waiting[follows, segment].append(request)

    def forget(self, request):
        """A request that is answered passes nothing any more: reads and large writes leave stages out."""
        for stage in ("session", "slot", "admitted", "gathered", "applied"):
            queue = self.waiting[stage, request.segment]
            if request in queue:
                queue.remove(request)

    def shares(self):
        """(stage, share of p50, share of p99, us at p50, us at p99): means of the middle tenth and of the slowest 1%."""
        whole = [r for r in self.requests if "received" in r.at and "reply queued" in r.at]
        kinds = collections.Counter(tuple(name for name in NAMES if name in r.at) for r in whole)
        if not kinds:
            return []
        path = kinds.most_common(1)[0][0]
        same = sorted((r for r in whole if all(name in r.at for name in path)), key=lambda r: r.at[path[-1]] - r.at[path[0]])
        count = len(same)
        if count < 100:
            return []
        middle, slow = same[int(count * 0.45):int(count * 0.55) + 1], same[int(count * 0.99):]
        rows = []
        totals = [statistics.fmean(r.at[path[-1]] - r.at[path[0]] for r in part) for part in (middle, slow)]
        for stage, following in zip(path, path[1:]):
            times = [statistics.fmean(r.at[following] - r.at[stage] for r in part) for part in (middle, slow)]
            rows.append((f"{stage} → {following}", *(t / total for t, total in zip(times, totals)), *times))
        return rows
