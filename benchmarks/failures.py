"""What a `kill -9` costs: how long training stands still, and what is left of two minutes.

Three workers of one thread each train the same CNN on the same records, and one of them is killed
again and again; `kills.py` says how, `stalls.py` what counts. Ours trains it in Keras and in
PyTorch, with a spare worker standing ready, and in Keras without one. The peers train the PyTorch
one, as they know no other: Ray Train's elastic training and torchrun's elastic agents, with
checkpoints each 100 steps, their way to keep what was reached.

All of it on one machine. If that has fewer cores than workers, they compete for them, here and
there, and with whoever starts anew: making a spare worker ready takes some seconds of a core. So
ours is measured once more with steps that take as long and need no core (`unloaded`), which shows
what is left of the time where each worker has its own.
"""

import json
import socket
import statistics
import sys
import tempfile
from pathlib import Path

from benchmarks.kills import Contestant, Phases, measure
from benchmarks.stalls import NUM_WORKERS
from benchmarks.training import HERE, write_data

MINIBATCH_SIZE = 64
NUM_RECORDS = 16384
# Of ours, with a spare; medians of them are what is held against the bars. The rest runs once.
RUNS = 3
WITH_GOODPUT = Phases(undisturbed_s=45, goodput_s=120, interval_s=20, num_kills=10)
STALLS_ONLY = Phases(undisturbed_s=10, goodput_s=0, interval_s=0, num_kills=10)
# For an idle machine: a loaded one drops healthy workers with it, so the default is longer.
PACE = ("--heartbeat_timeout=0.2",)

STALL_BAR_S = 0.5
REPLACEMENT_BAR_S = 1.5
COLD_REPLACEMENT_BAR_S = 6.0
GOODPUT_BAR = 0.95

OURS = ("elasticdl_keras", "elasticdl_torch", "elasticdl_unloaded")
COLD = "elasticdl_keras_no_spare"
PEERS = ("ray_train", "torchrun")


def run():
    found = {}
    with tempfile.TemporaryDirectory() as work:
        data = write_data(Path(work), "cnn", NUM_RECORDS)
        arrays = _as_arrays(data)
        todo = [
            (Contestant(OURS[0], _ours("cnn_step_lines", data, 1), 1), WITH_GOODPUT, RUNS),
            (Contestant(OURS[1], _ours("cnn_torch_step_lines", data, 1), 1), WITH_GOODPUT, RUNS),
            (Contestant(OURS[2], _ours("unloaded_step_lines", data, 1), 1), WITH_GOODPUT, 1),
            (Contestant(COLD, _ours("cnn_step_lines", data, 0)), STALLS_ONLY, 1),
            (Contestant(PEERS[0], _ray_train(arrays)), WITH_GOODPUT, 1),
            (Contestant(PEERS[1], _torchrun(arrays)), WITH_GOODPUT, 1),
        ]
        for contestant, phases, num_runs in todo:
            found[contestant.name] = []
            for i in range(num_runs):
                folder = Path(work, f"{contestant.name}{i}")
                found[contestant.name].append(measure(contestant, phases, folder).to_json())
                print(json.dumps(found[contestant.name][-1]), file=sys.stderr, flush=True)
    return result(found)


def result(found):
    """Return what is kept: figures beside their bars and the peers', and all there is to them.

    Args:
        found: Contestant -> the figures of its runs, as JSON values.
    """
    summary = {}
    for name in OURS:
        warm = [kill for run in found[name] for kill in run["kills"] if kill["spare"]]
        summary[f"{name}_stall_s"] = {
            **_held(warm, "stall_s", STALL_BAR_S),
            "peers": _peers(found, "stall_s"),
        }
        summary[f"{name}_replacement_s"] = {
            **_held(warm, "replacement_s", REPLACEMENT_BAR_S),
            "peers": _peers(found, "replacement_s"),
        }
        # Who did not come back has none: nothing was left.
        goodput = statistics.median(run["goodput"] or 0.0 for run in found[name])
        summary[f"{name}_goodput"] = {
            "ours": goodput,
            "bar": GOODPUT_BAR,
            "met": goodput >= GOODPUT_BAR,
            "peers": {peer: found[peer][0]["goodput"] or 0.0 for peer in PEERS},
        }
    for name in [f"{OURS[2]}_{what}" for what in ("stall_s", "replacement_s", "goodput")]:
        # They trained the CNN, which is another thing.
        del summary[name]["peers"]
    cold = [kill for run in found[COLD] for kill in run["kills"]]
    summary[f"{COLD}_stall_s"] = _held(cold, "stall_s", STALL_BAR_S)
    summary[f"{COLD}_replacement_s"] = _held(cold, "replacement_s", COLD_REPLACEMENT_BAR_S)
    return {**summary, "runs": found}


def _held(kills, what, bar):
    """Return median and maximum beside a bar for both."""
    figures = _p50_and_max(kills, what)
    return {
        **figures,
        "bar": bar,
        "met": bool(figures["p50"]) and figures["p50"] <= bar and not figures["num_missing"],
        "max_met": bool(figures["max"]) and figures["max"] <= bar and not figures["num_missing"],
        "seconds": [kill[what] for kill in kills],
    }


def _peers(found, what):
    return {peer: _p50_and_max(found[peer][0]["kills"], what) for peer in PEERS}


def _p50_and_max(kills, what):
    """Return both, and of how many kills; missing are those that nobody came back from."""
    seconds = [kill[what] for kill in kills if kill[what] is not None]
    return {
        "p50": statistics.median(seconds) if seconds else None,
        "max": max(seconds, default=None),
        "num_kills": len(kills),
        "num_missing": len(kills) - len(seconds),
    }


# --- the contestants -------------------------------------------------------------------------


def _ours(model, data, num_spares):
    def commands(folder):
        command = [
            sys.executable,
            "-m",
            "elasticdl.cli.main",
            "train",
            f"--model_zoo={HERE / 'zoo'}",
            f"--model_def={model}",
            f"--data={data}",
            f"--output={folder / 'out'}",
            f"--minibatch_size={MINIBATCH_SIZE}",
            "--num_epochs=1000",
            f"--num_workers={NUM_WORKERS}",
            f"--num_spare_workers={num_spares}",
            *PACE,
        ]
        return [command]

    return commands


def _ray_train(arrays):
    script = str(HERE / "peers" / "ray_train_elastic.py")

    def commands(folder):
        given = [arrays, folder, MINIBATCH_SIZE, NUM_WORKERS]
        return [[sys.executable, script, *map(str, given)]]

    return commands


def _torchrun(arrays):
    # Without this its workers wait for each other for ever after the first restart: the store they
    # meet in is that of the round before.
    own_store = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
    script = str(HERE / "peers" / "torchrun_elastic.py")

    def commands(folder):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        agent = [
            "env",
            own_store,
            sys.executable,
            "-m",
            "torch.distributed.run",
            f"--nnodes=1:{NUM_WORKERS}",
            "--nproc-per-node=1",
            "--max-restarts=1000",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{port}",
            "--rdzv-id=failures",
            "--local-addr=127.0.0.1",
            script,
            *map(str, [arrays, folder, MINIBATCH_SIZE]),
        ]
        return [agent] * NUM_WORKERS

    return commands


def _as_arrays(path):
    """Return a file of the same records as arrays, which is quicker to read."""
    import numpy as np

    from elasticdl.data.schema import Schema
    from elasticdl.data.sources import open_source

    source = open_source(str(path))
    schema = Schema.from_user(
        [
            {"name": "image", "shape": [28, 28], "dtype": "float32"},
            {"name": "label", "shape": [1], "dtype": "int64"},
        ]
    )
    records = schema.decode_batch(source.read_bytes(0, source.num_records), str)
    arrays = path.with_suffix(".npz")
    np.savez(
        arrays,
        image=np.stack([record["image"] for record in records]),
        label=np.stack([record["label"] for record in records]),
    )
    return arrays
