"""Federations on one machine: how long a whole job takes beside Flower's own, and how good it is.

The job is 10 parties x 30 rounds x 2 epochs of an MLP on scikit-learn's digits, dealt out iid.
Each side is a command of its own, imports and all; Flower's is its simulation on Ray
(`peers/flower_simulation.py`). Accuracy is that of the last model on 360 images nobody trained on.

The table of fusions is ours alone: what iid, Dirichlet 0.5 and two shards a party come to, clean
and with two of ten parties that send four times their step, turned around.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.record import ratio

HERE = Path(__file__).parent
NUM_PARTIES, NUM_ROUNDS, NUM_EPOCHS, MINIBATCH_SIZE = 10, 30, 2, 32
RUNS = 5
SPLITS = {"iid": {}, "dirichlet": {"alpha": 0.5}, "shards": {"shards_per_party": 2}}
FUSIONS = {
    "fedavg": ("fedavg", {}),
    "fedprox": ("fedprox", {"mu": 0.1}),
    "coordinate_median": ("coordinate_median", {}),
    "coordinate_median_mixed": ("coordinate_median", {"byzantine_threshold": 2}),
    "trimmed_mean": ("trimmed_mean", {"beta": 0.2}),
    "trimmed_mean_mixed": ("trimmed_mean", {"beta": 0.2, "byzantine_threshold": 2}),
    "geometric_median": ("geometric_median", {}),
    "geometric_median_mixed": ("geometric_median", {"byzantine_threshold": 2}),
    "krum": ("krum", {"byzantine_threshold": 2}),
    "multi_krum": ("multi_krum", {"byzantine_threshold": 2, "num_chosen": 6}),
}
LIARS = ("party0", "party1")


def run():
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        ours_s, peer_s, ours_found, peer_found = [], [], [], []
        for seed in range(RUNS):
            folder = _federation(work / f"iid{seed}", "iid", seed)
            for found, seconds, go in (
                (ours_found, ours_s, _ours),
                (peer_found, peer_s, _flower),
            ):
                started = time.perf_counter()
                found.append(go(folder, seed))
                seconds.append(time.perf_counter() - started)
                print(f"seed {seed} {go.__name__}: {seconds[-1]:.1f} s, {found[-1]:.4f}")
        table = _table(work)
    difference = statistics.mean(ours_found) - statistics.mean(peer_found)
    return {
        "whole_job_s": ratio(ours_s, peer_s, 5.0, higher_is_better=False),
        "accuracy": {
            "ours": statistics.mean(ours_found),
            "peer": statistics.mean(peer_found),
            "difference_points": 100 * difference,
            "bar_points": 0.5,
            "met": abs(100 * difference) <= 0.5,
            "runs": {"ours": ours_found, "peer": peer_found},
        },
        "table": table,
        "dirichlet_fedavg": _held(table["dirichlet"]["clean"]["fedavg"], 0.89),
    }


def _held(found, bar):
    return {"ours": found["mean"], "bar": bar, "met": found["mean"] >= bar}


def _federation(folder, split, seed):
    """Deal the digits to parties, as records for us and as arrays for the peer."""
    from sklearn.datasets import load_digits

    from elasticdl import federated
    from elasticdl.data import recordio
    from elasticdl.data.example import encode
    from elasticdl.data.sources import open_source

    x, y = load_digits(return_X_y=True)
    x = x.astype(np.float32)
    order = np.random.default_rng(seed).permutation(len(x))
    folder.mkdir()
    for name, rows in (("test", order[:360]), ("train", order[360:])):
        with recordio.Writer(str(folder / f"{name}.recordio")) as writer:
            for i in rows:
                writer.write(encode({"image": x[i], "label": np.int64([y[i]])}))
    made = federated.init(
        str(folder / "parties"),
        data=str(folder / "train.recordio"),
        num_parties=NUM_PARTIES,
        model_zoo=str(HERE / "zoo"),
        model_def="digits_mlp",
        split=split,
        seed=seed,
        num_rounds=NUM_ROUNDS,
        num_epochs=NUM_EPOCHS,
        minibatch_size=MINIBATCH_SIZE,
        **SPLITS[split],
    )
    arrays = {"x_test": x[order[:360]] / np.float32(16), "y_test": y[order[:360]]}
    for number, config in enumerate(made.parties):
        source = open_source(str(config.with_suffix("") / "train.recordio"))
        records = source.read_records(0, source.num_records, None)
        arrays[f"x{number}"] = np.stack([r["image"] for r in records]) / np.float32(16)
        arrays[f"y{number}"] = np.stack([r["label"] for r in records])[:, 0]
    np.savez(folder / "arrays.npz", **arrays)
    return folder


def _ours(folder, seed):
    command = [sys.executable, "-m", "elasticdl.cli.main", "federated", "simulate", "--quiet"]
    subprocess.run([*command, str(folder / "parties" / "aggregator.yml")], check=True)
    return _accuracy(folder / "parties" / "trained_model", folder)


def _flower(folder, seed):
    numbers = (NUM_PARTIES, NUM_ROUNDS, NUM_EPOCHS, MINIBATCH_SIZE, seed)
    command = [sys.executable, str(HERE / "peers" / "flower_simulation.py")]
    done = subprocess.run(
        [*command, str(folder / "arrays.npz"), *map(str, numbers)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
    )
    line = next(line for line in done.stdout.splitlines() if line.startswith("accuracy"))
    return float(line.split()[1])


def _accuracy(trained, folder):
    import torch

    from elasticdl.artifacts.trained_model import load_trained_model

    params = {k: torch.from_numpy(v) for k, v in load_trained_model(str(trained)).params.items()}
    with np.load(folder / "arrays.npz") as arrays:
        x, y = torch.from_numpy(arrays["x_test"]), arrays["y_test"]
    hidden = torch.relu(x @ params["0.weight"].T + params["0.bias"])
    said = (hidden @ params["2.weight"].T + params["2.bias"]).argmax(1).numpy()
    return float(np.mean(said == y))


# --- the table of fusions ------------------------------------------------------------------------


def _table(work):
    table = {}
    for split in SPLITS:
        folders = [_federation(work / f"{split}-{seed}", split, seed) for seed in range(RUNS)]
        for what in ("clean", "two_liars"):
            for name, (fusion, params) in FUSIONS.items():
                found = [
                    _simulated(folder, fusion, params, liars=what == "two_liars")
                    for folder in folders
                ]
                entry = {"mean": statistics.mean(found), "sd": statistics.stdev(found)}
                table.setdefault(split, {}).setdefault(what, {})[name] = entry
                print(f"{split:10} {what:10} {name:24} {entry['mean']:.3f} +- {entry['sd']:.3f}")
    return table


def _simulated(folder, fusion, params, *, liars):
    from elasticdl.engines.federated.config import jobs
    from elasticdl.engines.federated.config.reading import read_aggregator, read_party
    from elasticdl.engines.federated.protocol.messages import Reply
    from elasticdl.engines.federated.simulation import simulate
    from elasticdl.engines.progress_bar import Silent

    config = read_aggregator(folder / "parties" / "aggregator.yml")
    parties = [
        read_party(folder / "parties" / f"party{number}.yml") for number in range(NUM_PARTIES)
    ]
    with tempfile.TemporaryDirectory() as output:
        job = jobs.job_of(config, parties, output=output)
        job = replace(job, federation=replace(job.federation, fusion=fusion, fusion_params=params))
        members = [jobs.member_of(party) for party in parties]

        def lie(request, answer):
            if not (liars and answer.party in LIARS and request.kind == "train"):
                return answer
            assert isinstance(answer, Reply)
            start = request.weights
            turned = {n: start[n] - 4 * (a - start[n]) for n, a in answer.weights.items()}
            return replace(answer, weights=turned)

        simulate.train(job, Silent(), members, num_processes=None, change=lie)
        return _accuracy(Path(output), folder)
