"""What the job page costs: to open a long log, to be watched, and in bytes to load.

**Opening.** A log of a million events, as an elastic job of eleven days writes it: from the start
of `elasticdl job page` to the first answer with all sections, and the part of it that reads and
folds. The bar is 2 s.

**Being watched.** A training with a page and somebody who listens to it, and without, by turns:
steps a second over some seconds each. The bar is 0.5 % of its steps. A page is a process of its
own, so what it costs is what it takes of cores that the training wants. The processor time of the
page, and of the training for each of its steps, is measured as well: on a machine that others use
too it says more than two rates that differ by chance.

**Weight.** All that a browser loads, in bytes. The bar is 500 kB.

`BENCHMARK_SHORT=1` takes a log of 100,000 events and short trainings.
"""

import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from pathlib import Path

from benchmarks.training import HERE, write_data

SHORT = bool(os.environ.get("BENCHMARK_SHORT"))
NUM_EVENTS = 100_000 if SHORT else 1_000_000
RUNS = 1 if SHORT else 3
PAIRS = 1 if SHORT else 6
TRAIN_S = 6 if SHORT else 20
OPEN_BAR_S, COST_BAR, WEIGHT_BAR = 2.0, 0.005, 500_000
STATIC = Path(__file__).parent.parent / "src" / "elasticdl" / "page" / "static"
NUM_WORKERS = 4


def run():
    with tempfile.TemporaryDirectory() as folder:
        return {
            "opening": opening(Path(folder)),
            "watched": watched(Path(folder)),
            "weight": weight(),
        }


# --- opening ----------------------------------------------------------------------------------


def opening(work):
    output = work / "long"
    output.mkdir()
    size = write_log(output / "events.jsonl")
    first, fold = [], []
    for _ in range(RUNS):
        started = time.monotonic()
        with Page(output) as page:
            state = page.get("state.json")
            first.append(round(time.monotonic() - started, 3))
            started = time.monotonic()
            page.get("state.json")
            again = round(time.monotonic() - started, 3)
        fold.append(fold_s(output))
    body = json.dumps(state)
    print(f"{NUM_EVENTS:,} events, {size / 1e6:.0f} MB: {statistics.median(first):.2f} s")
    return {
        "events": NUM_EVENTS,
        "log_bytes": size,
        "command_to_first_state_s": first,
        "read_and_fold_s": fold,
        "next_state_s": again,
        "state_bytes": len(body),
        "bar_s": OPEN_BAR_S,
        "met": statistics.median(fold) <= OPEN_BAR_S,
    }


def fold_s(output):
    """Return how long a process that serves already takes to open a log for the first time."""
    code = (
        "import time\n"
        "from elasticdl.artifacts.folder import OutputFolder\n"
        "from elasticdl.page.outputs import WatchedOutput\n"
        "from elasticdl.page.view import view\n"
        "started = time.monotonic()\n"
        f"watched = WatchedOutput(OutputFolder({str(output)!r}), 'long')\n"
        "watched.refresh()\n"
        "view(watched.history, watched.facts(), time.time())\n"
        "print(time.monotonic() - started)\n"
    )
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return round(float(told.stdout), 3)


def write_log(path):
    """Write a log of an elastic training: steps, checkpoints, evaluations, workers that die."""
    writer = LogWriter()
    with path.open("w") as log:
        for line in writer.lines():
            log.write(line + "\n")
    return path.stat().st_size


class LogWriter:
    def __init__(self):
        self.chance, self.time_s, self.step = random.Random(0), 1_700_000_000.0, 0
        self.num_processes, self.done = NUM_WORKERS, [0] * NUM_WORKERS

    def lines(self):
        yield self.event(
            "job_started",
            job_id="train-long",
            attempt=1,
            num_records=10**9,
            num_epochs=3,
            minibatch_size=64,
            host="h",
            pid=1,
            num_shards=10**9 // 2048 + 1,
            batches_per_shard=32,
        )
        for rank in range(NUM_WORKERS):
            yield self.joined(rank, rank + 1)
        for number in range(NUM_EVENTS - NUM_WORKERS - 1):
            self.time_s += 1.0
            if number % 100 == 98:
                yield self.event("evaluated", epoch=0, metrics={"loss": 1.0, "accuracy": 0.5})
            elif number % 100 == 99:
                yield self.event("checkpointed", blocked_s=0.01, num_bytes=10**8, best=False)
            elif number % 10_000 == 5_000:
                yield self.event("worker_left", rank=1, incarnation=2, reason="died")
            elif number % 10_000 == 5_003:
                self.num_processes += 1
                yield self.joined(1, self.num_processes)
            else:
                yield self.steps()

    def event(self, kind, **fields):
        # As `events.to_json` writes it: the time is the first field.
        return json.dumps({"event": kind, "time": self.time_s, "step": self.step, **fields})

    def joined(self, rank, incarnation):
        fields = {"rank": rank, "incarnation": incarnation, "host": "h", "pid": incarnation}
        return self.event("worker_joined", **fields, replaces=0, started=self.time_s - 5)

    def steps(self):
        self.step += 10
        rows = []
        for rank in range(NUM_WORKERS):
            first = self.done[rank] % 30
            shard = self.done[rank] // 30 * NUM_WORKERS + rank
            rows.append([0, rank, shard, first, first + 10])
            self.done[rank] += 10
        return self.event(
            "step_committed",
            epoch=0,
            num_records=640 * NUM_WORKERS,
            loss=2.0 / (1 + self.step / 1e5) + self.chance.gauss(0, 0.05),
            records_per_s=2560.0,
            rows=rows,
            num_left_out=0,
            longest_s=0.1,
        )


# --- being watched ----------------------------------------------------------------------------


def watched(work):
    data = write_data(work, "mlp", 65536)
    alone, seen, page_cpu = [], [], []
    step_cpu = {False: [], True: []}
    for number in range(PAIRS):
        # By turns, and turned round: what warms up or is disturbed is so for both.
        for with_page in (False, True) if number % 2 else (True, False):
            output = work / f"{number}{with_page}"
            rate, cpu, step_us = training_rate(output, data, with_page=with_page)
            (seen if with_page else alone).append(rate)
            step_cpu[with_page].append(step_us)
            if with_page:
                page_cpu.append(cpu)
    cost = 1 - statistics.median(seen) / statistics.median(alone)
    return {
        "steps_per_s_alone": alone,
        "steps_per_s_watched": seen,
        "cost": round(cost, 4),
        "spread_alone": round((max(alone) - min(alone)) / statistics.median(alone), 4),
        "page_share_of_a_core": page_cpu,
        "training_cpu_us_a_step_alone": step_cpu[False],
        "training_cpu_us_a_step_watched": step_cpu[True],
        "training_cpu_cost": round(
            statistics.median(step_cpu[True]) / statistics.median(step_cpu[False]) - 1, 4
        ),
        "bar": COST_BAR,
        "met": cost <= COST_BAR,
    }


def training_rate(output, data, *, with_page):
    """Train for some seconds; return steps a second, and what of the processor was used.

    Returns:
        Steps a second; the share of a core that the page took (None without one); the processor
        time of the training for each step, in microseconds.
    """
    command = [
        *(
            sys.executable,
            "-m",
            "elasticdl.cli.main",
            "train",
            "--page" if with_page else "--no-page",
        ),
        *(f"--model_zoo={HERE / 'zoo'}", "--model_def=mlp", f"--data={data}", f"--output={output}"),
        *("--minibatch_size=32", "--num_epochs=100000"),
    ]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    cpu = None
    stop = threading.Event()
    if with_page:
        url = next(line for line in process.stderr if line.startswith("Job page: "))[10:].strip()
        threading.Thread(target=listen, args=(url, stop), daemon=True).start()
    threading.Thread(target=process.stderr.read, daemon=True).start()
    log = output / "events.jsonl"
    wait_for(lambda: log.exists() and log.read_text().count("step_committed") >= 3)
    page = page_of(process.pid) if with_page else None
    first = last_step(log)
    before, before_us, started = cpu_s(page), 1e6 * cpu_s(process.pid), time.monotonic()
    time.sleep(TRAIN_S)
    step_us = round((1e6 * cpu_s(process.pid) - before_us) / (last_step(log) - first), 2)
    if page is not None:
        cpu = round((cpu_s(page) - before) / (time.monotonic() - started), 4)
    stop.set()
    process.send_signal(signal.SIGINT)
    process.wait()
    steps = [e for e in map(json.loads, log.open()) if e["event"] == "step_committed"][3:]
    rate = (steps[-1]["step"] - steps[0]["step"]) / (steps[-1]["time"] - steps[0]["time"])
    print(
        f"{'watched' if with_page else 'alone':<10}{rate:10.1f} steps/s   page {cpu}   {step_us} us"
    )
    return round(rate, 2), cpu, step_us


def last_step(log):
    lines = [line for line in log.read_text().splitlines() if "step_committed" in line]
    return json.loads(lines[-1])["step"]


def listen(url, stop):
    """Follow a page as a browser does."""
    with urllib.request.urlopen(url.replace("/?", "/events?")) as answer:
        while not stop.is_set() and answer.readline():
            pass


def page_of(parent):
    for path in Path("/proc").glob("[0-9]*/stat"):
        fields = path.read_text().rsplit(")", 1)[1].split()
        if int(fields[1]) == parent and b"elasticdl.page" in (path.parent / "cmdline").read_bytes():
            return int(path.parent.name)
    return None


def cpu_s(pid):
    if pid is None:
        return 0.0
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_for(condition, patience_s=120):
    deadline = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


# --- weight -----------------------------------------------------------------------------------


def weight():
    loaded = [path for path in STATIC.iterdir() if path.suffix in {".css", ".html", ".js"}]
    sizes = {path.name: path.stat().st_size for path in loaded}
    total = sum(sizes.values())
    return {"files": sizes, "bytes": total, "bar": WEIGHT_BAR, "met": total < WEIGHT_BAR}


class Page:
    """`elasticdl job page` on an output."""

    def __init__(self, output):
        self._output = output

    def __enter__(self):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "elasticdl.cli.main", "job", "page", str(self._output)],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._url = re.search(r"http://\S+", self._process.stdout.readline())[0]
        return self

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGINT)
        self._process.wait()

    def get(self, name):
        with urllib.request.urlopen(self._url.replace("/?", f"/{name}?")) as answer:
            return json.load(answer)
