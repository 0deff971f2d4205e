"""Two jobs on one cluster: each waits for all its workers, or begins with those there are.

The experiment ElasticDL was first shown with. A cluster has room for six workers; two jobs of the
same size want up to four each, the second comes some seconds after the first.

- *gang*: a job begins with four workers and not before (`--num_workers=4..4`);
- *elastic*: with what there is (`--num_workers=1..4`), and takes more when there is more;
- *priority*: the first takes all six (`1..6`, low), the second comes with `--priority=high`.

What a worker computes is a pause (`zoo/paced.py`), so that six of them fit on two cores. Measured
from the start of the first job to the end of the last: how long that took, and which share of
the six places trained meanwhile. `docs/images/two-jobs.png` is drawn from the same figures.
"""

import itertools
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.training import HERE, write_data

PICTURE = HERE.parent / "docs" / "images" / "two-jobs.png"
NUM_PLACES = 6
NUM_RECORDS, MINIBATCH_SIZE, NUM_EPOCHS = 8192, 16, 1
SECOND_COMES_S = 10
WAYS = {
    "gang": (["--num_workers=4..4"], ["--num_workers=4..4"]),
    "elastic": (["--num_workers=1..4"], ["--num_workers=1..4"]),
    "priority": (
        ["--num_workers=1..6", "--priority=low"],
        ["--num_workers=1..4", "--priority=high"],
    ),
}


def run():
    result = {}
    curves = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        data = write_data(work, "mlp", NUM_RECORDS)
        for way, options in WAYS.items():
            began, ended, outputs = both(work / way, data, options)
            curves[way] = [
                [(at - began, count) for at, count in training(output)] for output in outputs
            ]
            result[way] = summary(curves[way], ended - began)
            print(way, result[way], file=sys.stderr)
    draw(curves, result)
    for way in ("elastic", "priority"):
        result[way]["seconds_of_gang"] = result[way]["seconds"] / result["gang"]["seconds"]
    return result


def both(work, data, options):
    """Run two jobs on a cluster of their own; return when it began and ended, and the outputs."""
    from elasticdl.engines import elastic  # noqa: F401 - sets Ray's environment

    import ray.cluster_utils  # isort: skip

    cluster = ray.cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": NUM_PLACES}
    )
    outputs = [work / "first", work / "second"]
    try:
        began = time.time()
        jobs = [job(cluster.address, data, outputs[0], options[0])]
        time.sleep(SECOND_COMES_S)
        jobs.append(job(cluster.address, data, outputs[1], options[1]))
        for process in jobs:
            text, _ = process.communicate()
            if process.returncode:
                sys.exit(text)
        return began, time.time(), outputs
    finally:
        cluster.shutdown()


def job(address, data, output, options):
    command = [
        sys.executable, "-m", "elasticdl.cli.main", "train", f"--model_zoo={HERE / 'zoo'}",
        "--model_def=paced", f"--data={data}", f"--output={output}", f"--ray_address={address}",
        f"--minibatch_size={MINIBATCH_SIZE}", f"--num_epochs={NUM_EPOCHS}", *options,
    ]  # fmt: skip
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def training(output):
    """Return (time, how many workers train from then on), for one job."""
    changes = {"worker_joined": 1, "worker_left": -1}
    count, curve = 0, []
    for line in Path(output, "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        count = 0 if event["event"] == "job_finished" else count + changes.get(event["event"], 0)
        curve.append((event["time"], count))
    return curve


def summary(curves, seconds):
    places_s = sum(
        count * (following - at)
        for curve in curves
        for (at, count), (following, _) in itertools.pairwise(curve)
    )
    return {
        "seconds": round(seconds, 1),
        "utilisation": round(places_s / (NUM_PLACES * seconds), 3),
        "second_began_after_s": round(
            next(at for at, count in curves[1] if count) - SECOND_COMES_S, 1
        ),
    }


def draw(curves, result):
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(len(curves), 1, figsize=(8, 6.5), sharex=True, sharey=True)
    for axis, (way, (first, second)) in zip(axes, curves.items(), strict=True):
        times = sorted({0.0, *(at for at, _ in [*first, *second])})
        layers = [[number_at(curve, at) for at in times] for curve in (first, second)]
        axis.stackplot(
            times, layers, step="post", labels=["first job", "second job"],
            colors=["#4878a8", "#e49444"],
        )  # fmt: skip
        axis.axhline(NUM_PLACES, color="gray", linewidth=0.8, linestyle=":")
        told = result[way]
        axis.set_title(
            f"{way}: {told['seconds']:.0f} s, {told['utilisation']:.0%} of the places train",
            loc="left",
            fontsize=10,
        )
        axis.set_ylabel("workers")
    axes[0].legend(loc="upper right", fontsize=9)
    axes[-1].set_xlabel("seconds since the first job was started")
    figure.tight_layout()
    PICTURE.parent.mkdir(exist_ok=True)
    figure.savefig(PICTURE, dpi=110)


def number_at(curve, at):
    return next((count for time_s, count in reversed(curve) if time_s <= at), 0)
