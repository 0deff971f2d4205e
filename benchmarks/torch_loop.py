"""The loop around a PyTorch model: ElasticDL against the loops its users have.

**One process**, all cores, a thread for each: `elasticdl train` as it is by default; a plain loop
over a `DataLoader`; Lightning's `Trainer` in its barebones mode. **Two workers**, a thread for each
half of the cores: `--num_workers=2`, and DistributedDataParallel under torchrun with Gloo.

All of them train the same model file (model, loss, fused optimizer, `input_fn`) on minibatches of
the same RecordIO file, which they read with the same reader. The peers' loaders are those that an
expert ends up with: minibatches decoded at once, workers that persist, and as many of them as was
fastest for the plain loop (or for DDP) in a trial before; also whether threads spin as long as
OpenMP has it or, as on ElasticDL's workers, briefly. The plain loop runs once more in a process
whose C library keeps memory that a step frees, which ElasticDL sets by itself: for how much that
counts.

Each run is ended some seconds after its first step, and the first third of them is left out, in
which things compile and caches fill. Nothing is evaluated; no checkpoint is due so early. Ours and
the peers take turns.

Nobody is to be busy beside it. `BENCHMARK_SHORT=1` makes one short run of each: whether it works.
"""

import os
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.record import ratio
from benchmarks.training import HERE, write_data
from benchmarks.workers import NUM_WORKERS, RATE_S, SHARE, SHORT, Training, rates_of
from elasticdl.data import recordio
from elasticdl.data.example import encode

RUNS = 1 if SHORT else 5
RUNS_OF_WORKERS = 1 if SHORT else 3
PLAIN_BAR, LIGHTNING_BAR = 1.0, 1.05
NUM_THREADS = NUM_WORKERS * SHARE
ALL_CORES = f"0-{NUM_THREADS - 1}"
MINIBATCH_SIZE = {"loop_cnn": 64, "loop_resnet18": 32, "loop_transformer": 32}
NUM_RECORDS = {"loop_cnn": 16384, "loop_resnet18": 2048, "loop_transformer": 16384}
# Keeps glibc from returning memory at the end of each step, as ElasticDL does by itself.
KEPT_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(2**40), "MALLOC_MMAP_THRESHOLD_": str(2**25)}


class Peer(NamedTuple):
    """A peer in one process: its script, what its environment has beside, and the bar."""

    script: str
    environment: dict[str, str]
    bar: float | None


PEERS = {
    "plain_loop": Peer("plain", {}, PLAIN_BAR),
    "lightning": Peer("lightning", {}, LIGHTNING_BAR),
    "plain_loop_with_kept_memory": Peer("plain", KEPT_MEMORY, None),
}


class Loader(NamedTuple):
    """How a peer's processes are started."""

    num_workers: int
    spins_shortly: bool


ONE_PROCESS = [Loader(0, False), Loader(0, True), Loader(1, True), Loader(2, True)]
TWO_PROCESSES = [Loader(0, True), Loader(1, True)]


def run():
    versions = {name: metadata.version(name) for name in ("torch", "lightning", "ray", "torchft")}
    result = {"packages": versions, "threads": NUM_THREADS, "threads_of_a_worker": SHARE}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        for model in MINIBATCH_SIZE:
            data = written(work, model)
            result |= one_process(work, model, data)
            result |= two_workers(work, model, data)
    return result


def one_process(work, model, data):
    loader, tried = fastest(model, ONE_PROCESS, lambda how: peer_rate("plain", model, data, how))
    ours, theirs = [], {name: [] for name in PEERS}
    for i in range(RUNS):
        ours.append(our_rate(work, model, data, NUM_THREADS))
        for name, peer in PEERS.items():
            theirs[name].append(peer_rate(peer.script, model, data, loader, peer.environment))
        told = ", ".join(f"{name} {rates[-1]:.1f}" for name, rates in theirs.items())
        print(f"{model} run {i}: ours {ours[-1]:.1f} records/s, {told}", flush=True)
    result = {
        f"{model}_records_per_s_{name}": compared(ours, theirs[name], peer.bar)
        for name, peer in PEERS.items()
    }
    return {f"{model}_loaders": tried, **result}


def two_workers(work, model, data):
    loader, tried = fastest(model, TWO_PROCESSES, lambda how: peer_rate("ddp", model, data, how))
    ours, peer = [], []
    for i in range(RUNS_OF_WORKERS):
        ours.append(our_rate(work, model, data, SHARE, f"--num_workers={NUM_WORKERS}"))
        peer.append(peer_rate("ddp", model, data, loader))
        print(f"{model} run {i}: two workers {ours[-1]:.1f} records/s, DDP {peer[-1]:.1f}")
    return {
        f"{model}_loaders_of_ddp": tried,
        f"{model}_records_per_s_two_workers_ddp": compared(ours, peer, None),
    }


def fastest(model, loaders, rate):
    """Try some loaders; return the fastest, and what was found."""
    tried = {loader: rate(loader) for loader in loaders}
    best = max(tried, key=tried.get)
    told = [{**loader._asdict(), "records_per_s": tried[loader]} for loader in loaders]
    print(f"{model}: {best} of {[round(rate, 1) for rate in tried.values()]}", flush=True)
    return best, told


def compared(ours, peer, bar):
    ratios = [round(o / p, 3) for o, p in zip(ours, peer, strict=True)]
    return ratio(ours, peer, bar) | {"ratios": ratios}


def our_rate(work, model, data, num_threads, *options):
    training = Training(
        work,
        model,
        data,
        minibatch_size=MINIBATCH_SIZE[model],
        options=options,
        cores=ALL_CORES,
        environment={"OMP_NUM_THREADS": str(num_threads)},
    )
    return rates_of([training])[0]


def peer_rate(name, model, data, loader, more=None):
    """Return the records/s that the last line of a peer's script says."""
    script = str(HERE / "peers" / f"loop_{name}.py")
    is_ddp = name == "ddp"
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={NUM_WORKERS}"]
    sizes = (MINIBATCH_SIZE[model], loader.num_workers, RATE_S)
    command = [
        *("taskset", "-c", ALL_CORES, sys.executable),
        *(torchrun if is_ddp else []),
        *(script, model, str(data), *map(str, sizes)),
    ]
    spins = {"GOMP_SPINCOUNT": "10000"} if loader.spins_shortly else {}
    threads = {"OMP_NUM_THREADS": str(SHARE if is_ddp else NUM_THREADS)}
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **threads, **spins, **(more or {})}
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, env=environment, cwd=HERE.parent
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("records/s")]
    if done.returncode or not lines:
        sys.exit(f"{command} failed:\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    return float(lines[-1].split()[1])


# --- data -------------------------------------------------------------------------------------


def written(work, model):
    """Write the records of a model; return the file."""
    if model == "loop_cnn":
        return write_data(work, "cnn", NUM_RECORDS[model])
    rng = np.random.default_rng(0)
    make = {"loop_resnet18": picture, "loop_transformer": text}[model]
    path = work / f"{model}.recordio"
    with recordio.Writer(str(path)) as writer:
        for _ in range(NUM_RECORDS[model]):
            writer.write(encode(make(rng)))
    return path


def picture(rng):
    return {"image": [rng.bytes(3 * 64 * 64)], "label": rng.integers(10, size=1)}


def text(rng):
    return {"tokens": rng.integers(8192, size=64), "label": rng.integers(4, size=1)}
