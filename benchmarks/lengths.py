"""Sequences padded to the longest of each batch: our steps against Keras' `train_on_batch`.

Thirty lengths in one pass. The first pass compiles; what is compared is that pass and a later one,
in processor time, because compiling takes as long as whatever else the machine does lets it.
"""

import json
import subprocess
import sys

from benchmarks.record import ratio

ROUNDS = 1
# At most 1.3 times what Keras takes.
BAR = round(1 / 1.3, 3)


def run():
    found = {}
    for model in ("lstm", "transformer"):
        passes = {how: [] for how in ("ours", "gradients", "keras")}
        # In turns, so that all of them see the machine alike.
        for _ in range(ROUNDS):
            for how, runs in passes.items():
                command = [sys.executable, "-m", "benchmarks.padding", model, how]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                runs.append(json.loads(done.stdout.splitlines()[-1]))
        for which in ("first", "later"):
            peer = [run[which][1] for run in passes["keras"]]
            for how, name in (("ours", "train_steps"), ("gradients", "gradients_and_apply")):
                ours = [run[which][1] for run in passes[how]]
                found[f"{model}_{which}_pass_{name}_cpu_s"] = ratio(
                    ours, peer, BAR, higher_is_better=False
                )
        found[f"{model}_wall_s"] = {
            how: [run["first"][0] for run in runs] for how, runs in passes.items()
        }
    return found
