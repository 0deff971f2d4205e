"""What it costs that workers train one model together: rates, joining, the parts of a step.

**Rates.** `--num_workers=2` against two `elasticdl train` that know nothing of each other, at the
same time, each pinned to its half of the cores; on two cores everybody has one thread. They make no
step together, so the sum of their rates is what two workers could reach if agreeing were free. And
the same PyTorch model against torch DDP: two processes of as many threads, its data once tensors in
memory (which nothing has to be read or put together for: its best case) and once a `DataLoader`.
Ours reads RecordIO files. Each run is ended by a Ctrl-C some seconds after its first step; what
counts are the records told as committed, the first third of the seconds left out.

**Joining.** A worker whose state weighs 100 MB (weights and Adam's ranks) is killed and a spare one
takes its place: how long the others stand still for that, from the last commit without it to the
first one with it, less their median step. Once two train on and a third joins, once one trains on
and a second joins, who on two cores has a core for itself.

**Parts of a step.** A model so small that the rest shows: one step a call in one process, then one
worker and two, with a clock around each part (`zoo/stopwatch.py`). The sum of two contains the
waiting for the slower one.

Nobody is to be busy beside it. `BENCHMARK_SHORT=1` makes one short run of each: whether it works.
"""

import contextlib
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path

from benchmarks.record import ratio
from benchmarks.training import HERE, write_data

SHORT = bool(os.environ.get("BENCHMARK_SHORT"))
RUNS = 1 if SHORT else 3
RATE_S = 6 if SHORT else 12
PARTS_S = 2 if SHORT else 4
JOINS = 1 if SHORT else 3
# A busy machine needs long to load TensorFlow in three processes and to compile.
PATIENCE_S = 300
NUM_WORKERS = 2
SHARE = max(1, (os.cpu_count() or 1) // NUM_WORKERS)
CORES = [f"{i * SHARE}-{(i + 1) * SHARE - 1}" for i in range(NUM_WORKERS)]
RATE_BAR, DDP_BAR = 0.95, 1.0
MODELS = ("cnn", "cnn_torch")
NUM_RECORDS = {"cnn": 16384, "mlp": 65536, "large": 16384}
MINIBATCH_SIZE = {"cnn": 64, "cnn_torch": 64, "timed_mlp": 32, "timed_large": 64}
PARTS = ("quorum", "train_steps", "gradients", "rows", "sum", "vote", "apply", "ledger")
# Between two joins: the one before must not be felt any more.
STEPS_BETWEEN_JOINS = 12


def run():
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        data = {name: write_data(work, name, count) for name, count in NUM_RECORDS.items()}
        return {
            "packages": {name: metadata.version(name) for name in ("ray", "torch", "torchft")},
            "threads_each": SHARE,
            **rates(work, data["cnn"]),
            **joining(work, data["large"]),
            **parts_of_a_step(work, data["mlp"]),
        }


# --- rates ------------------------------------------------------------------------------------


def rates(work, data):
    alone = {model: [] for model in MODELS}
    together = {model: [] for model in MODELS}
    for i in range(RUNS):
        for model in MODELS:
            one_by_one = [Training(work, model, data, cores=cores) for cores in CORES]
            alone[model].append(sum(rates_of(one_by_one)))
            both = Training(work, model, data, options=[f"--num_workers={NUM_WORKERS}"])
            together[model].extend(rates_of([both]))
            fraction = together[model][-1] / alone[model][-1]
            print(
                f"{model:<12}run {i}: two workers {together[model][-1]:7.0f} records/s, "
                f"two processes {alone[model][-1]:7.0f}, ratio {fraction:.3f}"
            )
    result = {
        f"{model}_records_per_s": ratio(together[model], alone[model], RATE_BAR)
        | {"ratios": [round(o / p, 3) for o, p in zip(together[model], alone[model], strict=True)]}
        for model in MODELS
    }
    for source in ("memory", "loader"):
        peer = ddp_rate(source)
        print(f"torch DDP, data from {source}: {peer:.0f} records/s")
        name = f"cnn_torch_records_per_s_ddp_from_{source}"
        result[name] = ratio(together["cnn_torch"], [peer], DDP_BAR)
    return result


def rates_of(trainings):
    """Let trainings run at the same time; return the records/s of each, when all are warm."""
    with contextlib.ExitStack() as stack:
        for training in trainings:
            stack.enter_context(training)
        for training in trainings:
            training.wait_for(lambda t: t.events("step_committed"))
        begin = time.time() + RATE_S / 3
        time.sleep(RATE_S)
        end = time.time()
        # Before the first of them is told to stop: from then on the other has the machine.
        return [training.rate(begin, end) for training in trainings]


def ddp_rate(source):
    command = [
        *(sys.executable, str(HERE / "peers" / "torch_ddp.py"), str(NUM_WORKERS), str(SHARE)),
        *(str(MINIBATCH_SIZE["cnn_torch"]), str(NUM_RECORDS["cnn"]), str(RATE_S), source),
    ]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


# --- joining ----------------------------------------------------------------------------------


def joining(work, data):
    return {
        "joining_third_s": joins(work, data, num_workers=3),
        "joining_second_s": joins(work, data, num_workers=2),
    }


def joins(work, data, num_workers):
    """Kill the youngest rank's worker again and again; return what the others have lost by it."""
    options = [
        f"--num_workers={num_workers}",
        "--num_spare_workers=1",
        # Of three, one is left out of each step, by turns, for as long as a step takes longer than
        # this; and the one that comes back makes it so.
        "--join_timeout=10",
    ]
    with Training(work, "timed_large", data, options=options) as training:
        found = []
        for i in range(JOINS):
            training.wait_for(
                lambda t, started=i: (
                    t.num_ready() >= num_workers + 1 + started
                    and t.num_steps_in_a_row(num_workers) >= STEPS_BETWEEN_JOINS
                )
            )
            killed_at, rank = time.time(), num_workers - 1
            os.kill(training.pid_of(rank), signal.SIGKILL)
            training.wait_for(
                lambda t, since=killed_at: (
                    t.num_steps_in_a_row(num_workers, since) >= STEPS_BETWEEN_JOINS
                )
            )
            found.append(stop_of_join(training.turns(), killed_at, num_workers))
    print(f"the {num_workers}. worker joins:", json.dumps(found))
    return {
        "ours": statistics.median(join["extra_s"] for join in found),
        "state_bytes": training.state_bytes,
        "joins": found,
    }


def stop_of_join(turns, killed_at, num_workers):
    """Return how long a worker that stayed did not commit, around the death and the join."""
    steps = [turn for turn in turns if turn["committed"]]
    # The one that is killed may have brought in its part of a step that ends after that: what was
    # without it begins after the longest pause.
    near = [turn for turn in steps if turn["at"] > killed_at][:STEPS_BETWEEN_JOINS]
    begin = steps.index(near[0])
    begin += max(range(len(near)), key=lambda i: gaps(steps[begin - 1 :])[i])
    before, after = steps[:begin][-STEPS_BETWEEN_JOINS:], steps[begin:]
    smaller = list(itertools.takewhile(lambda turn: len(turn["ranks"]) < num_workers, after))
    joined = after[len(smaller) :][: STEPS_BETWEEN_JOINS + 1]
    last = (smaller or before)[-1]
    step_s = statistics.median(gaps(joined))
    return {
        "extra_s": round(joined[0]["at"] - last["at"] - step_s, 3),
        "step_s": round(step_s, 3),
        "num_steps_without": len(smaller),
        "extra_at_death_s": round(after[0]["at"] - before[-1]["at"] - step_s, 3),
        "killed_to_joined_s": round(joined[0]["at"] - killed_at, 3),
        "quorum_s": round(joined[0]["parts_s"]["quorum"], 3),
        "sum_s": round(joined[0]["parts_s"]["sum"], 3),
    }


def gaps(turns):
    return [b["at"] - a["at"] for a, b in itertools.pairwise(turns)]


# --- parts of a step --------------------------------------------------------------------------


def parts_of_a_step(work, data):
    one_a_call = {"BENCHMARK_GROUP_STEPS": "1"}
    cases = {
        "one_process": {"environment": one_a_call},
        "one_worker": {"options": ["--num_workers=1"]},
        "one_process_of_half_the_cores": {"cores": CORES[0], "environment": one_a_call},
        "two_workers": {"options": ["--num_workers=2"]},
    }
    table = {
        name: parts_of(Training(work, "timed_mlp", data, **how)) for name, how in cases.items()
    }
    for worker, process in (
        ("one_worker", "one_process"),
        ("two_workers", "one_process_of_half_the_cores"),
    ):
        table[worker]["more_than_one_process"] = table[worker]["turn"] - table[process]["turn"]
    show(table)
    return {"step_us": table}


def parts_of(training):
    """Return the median microseconds of a turn and its parts, in the steady part of a training."""
    with training:
        training.wait_for(lambda t: t.events("step_committed"))
        time.sleep(PARTS_S)
        turns = training.turns()
    steps = [turn for turn in turns[len(turns) // 3 :] if turn["committed"]]
    medians = {
        part: round(statistics.median(turn["parts_s"].get(part, 0) for turn in steps) * 1e6)
        for part in PARTS
    }
    rest = [turn["turn_s"] - sum(turn["parts_s"].values()) for turn in steps]
    return {
        **medians,
        "rest": round(statistics.median(rest) * 1e6),
        "turn": round(statistics.median(turn["turn_s"] for turn in steps) * 1e6),
        "num_steps": len(steps),
    }


def show(table):
    print(f"{'median us in a step':<24}" + "".join(f"{name:>32}" for name in table))
    for part in (*PARTS, "rest", "turn", "more_than_one_process"):
        values = (figures.get(part, "") or "" for figures in table.values())
        print(f"{part:<24}" + "".join(f"{value:>32}" for value in values))


# --- a training -------------------------------------------------------------------------------


class Training:
    """An `elasticdl train` that goes on until its block is left; then it is given a Ctrl-C."""

    def __init__(
        self, work, model, data, *,
        minibatch_size=None, options=(), cores=None, environment=None,
    ):  # fmt: skip
        place = Path(tempfile.mkdtemp(dir=work))
        self.output, self.times, self._printed = place / "out", place / "times", place / "printed"
        self.times.mkdir()
        self.state_bytes = 0
        self._command = [
            *(["taskset", "-c", cores] if cores else []),
            *(sys.executable, "-m", "elasticdl.cli.main", "train"),
            f"--model_zoo={HERE / 'zoo'}",
            f"--model_def={model}",
            f"--data={data}",
            f"--output={self.output}",
            f"--minibatch_size={minibatch_size or MINIBATCH_SIZE[model]}",
            "--num_epochs=10000",
            *options,
        ]
        self._environment = {
            **os.environ,
            "TF_CPP_MIN_LOG_LEVEL": "3",
            "CUDA_VISIBLE_DEVICES": "",
            "BENCHMARK_TIMES": str(self.times),
            **(environment or {}),
        }

    def __enter__(self):
        with self._printed.open("w") as printed:
            self._process = subprocess.Popen(
                self._command,
                stdout=printed,
                stderr=subprocess.STDOUT,
                env=self._environment,
                cwd=HERE.parent,
            )
        return self

    def __exit__(self, *_):
        self._process.send_signal(signal.SIGINT)
        try:
            self._process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        saved = self.events("checkpointed")
        self.state_bytes = saved[-1]["num_bytes"] if saved else 0

    def wait_for(self, condition):
        deadline = time.monotonic() + PATIENCE_S
        while not condition(self):
            if self._process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"{self._command} does not train:\n{self._printed.read_text()[-3000:]}")
            time.sleep(0.2)

    def events(self, kind):
        events = lines_of(self.output / "events.jsonl")
        return [event for event in events if event["event"] == kind]

    def rate(self, begin, end):
        """Return the records/s that were told between two times."""
        told = [event for event in self.events("step_committed") if begin <= event["time"] <= end]
        if len(told) < 3:
            sys.exit(f"{self._command} told of {len(told)} events in {end - begin:.0f} s.")
        num_records = sum(event["num_records"] for event in told[1:])
        return num_records / (told[-1]["time"] - told[0]["time"])

    def pid_of(self, rank):
        joined = [event for event in self.events("worker_joined") if event["rank"] == rank]
        return joined[-1]["pid"]

    # What the stopwatches have written; only models named `timed_...` have one.

    def num_ready(self):
        """Return how many processes have ever been ready to train."""
        return sum("ready_at" in line for file in self.times.iterdir() for line in lines_of(file))

    def turns(self):
        """Return the turns of rank 0, or of the one process; `committed` says a step was made."""
        joined = self.events("worker_joined")
        name = f"{self.pid_of(0) if joined else self._process.pid}.jsonl"
        turns = [line for line in lines_of(self.times / name) if "at" in line]
        return [
            after | {"committed": after["step"] > before["step"]}
            for before, after in itertools.pairwise(turns)
        ]

    def num_steps_in_a_row(self, num_ranks, since=0.0):
        """Return how many of the last steps so many ranks have made, all after a time."""
        steps = [turn for turn in self.turns() if turn["committed"]]
        last = itertools.takewhile(
            lambda turn: len(turn["ranks"]) == num_ranks and turn["at"] > since, reversed(steps)
        )
        return len(list(last))


def lines_of(file):
    """Return the JSON values in a file's whole lines; the last one may be on its way."""
    if not file.exists():
        return []
    text = file.read_text()
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
