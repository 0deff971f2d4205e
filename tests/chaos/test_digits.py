"""What a storm costs a real model: nothing. Its accuracy is that of one process.

By hand: a table of what came out is printed with `pytest -s`.
"""

import json
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from tests.chaos.storm import DRIVER, ELSEWHERE, Storm

MODEL = Path(__file__).parent.parent.parent / "examples" / "mnist_torch.py"
SEEDS = range(5)
# An update is of 96 records whoever trains: 15 of them are an epoch of the 1,437 digits.
NUM_EPOCHS, NUM_STEPS = 10, 150
KILLS = [
    ELSEWHERE, "late", "voted", ELSEWHERE, "summed", DRIVER, ELSEWHERE, "adding", "publishing",
    ELSEWHERE, "evaluating",
]  # fmt: skip
NUM_KILLS = 10
# So slowly that replacements come long before the training is over, and almost as fast as it can.
# Who rests must still be waited for, or workers are left out of steps by turns.
SLOWLY_S, QUICKLY_S, JOIN_TIMEOUT_S = 1.5, 0.02, 5

pytestmark = [pytest.mark.chaos, pytest.mark.ray, pytest.mark.timeout(0)]


def arguments(digits, seed):
    return [
        f"--data={digits}/train", f"--validation_data={digits}/test", f"--seed={seed}",
        f"--num_epochs={NUM_EPOCHS}", "--minibatch_size=32", "--global_batch_size=96",
    ]  # fmt: skip


def elasticdl(*arguments):
    subprocess.run(
        [sys.executable, "-m", "elasticdl.cli.main", *arguments],
        check=True, capture_output=True, text=True,
    )  # fmt: skip


def accuracy_of(output, digits):
    elasticdl("evaluate", f"--trained_model={output}", f"--data={digits}/test")
    return json.loads((output / "evaluation.json").read_text())["metrics"]["accuracy"]


def train_in_one_process(digits, folder, seed):
    output = folder / "alone"
    elasticdl(
        "train", f"--model_zoo={MODEL.parent}", f"--model_def={MODEL.stem}", f"--output={output}",
        *arguments(digits, seed),
    )  # fmt: skip
    return output


def train_in_a_storm(digits, folder, seed):
    """Ten kills, a death of the driver, and workers that join: three at least, one to grow."""
    more = ["--num_workers=2..3", "--checkpoint_steps=5", f"--join_timeout={JOIN_TIMEOUT_S}"]
    storm = Storm(folder, MODEL, [*arguments(digits, seed), *more], seed=seed, pause_s=SLOWLY_S)
    storm.hold_one_back()
    with storm:
        storm.wait_for_steps_of(2)
        # The driver is to know of them before the third comes: it says at which step that was.
        storm.wait_for(lambda: storm.step() > 0, "a step that was told")
        storm.release()
        storm.wait_for_steps_of(3)
        for number, strike in enumerate(KILLS):
            due = number * NUM_STEPS // (len(KILLS) + 2)
            storm.rest(QUICKLY_S)
            storm.wait_for(lambda due=due: storm.step() >= due, f"step {due}")
            storm.strike(strike)
            storm.rest(SLOWLY_S)
            storm.wait_for_steps_of(2)
        storm.rest(0)
        storm.wait_for_the_end()

    code, report = storm.audit()
    assert (code, report["wrong"]) == (0, []), report
    assert len(report["epochs"]) == NUM_EPOCHS
    told = storm.events()
    joined = [event for event in told if event["event"] == "worker_joined"]
    assert sum(event["replaces"] > 0 for event in joined) >= 3
    # The third of three that came when two trained already.
    assert joined[2]["replaces"] == 0
    assert joined[2]["step"] > joined[1]["step"]
    assert sum(len(strikes) for strikes in storm.done) == NUM_KILLS + 1
    return storm


def test_accuracy_after_a_storm_is_within_a_point_of_one_process(digits, tmp_path):
    alone, stormy = [], []
    for seed in SEEDS:
        folder = tmp_path / str(seed)
        folder.mkdir()
        alone.append(accuracy_of(train_in_one_process(digits, folder, seed), digits))
        storm = train_in_a_storm(digits, folder, seed)
        stormy.append(accuracy_of(storm.output, digits))
        print(
            f"seed {seed}: one process {alone[-1]:.2%}, storm {stormy[-1]:.2%}; "
            f"{storm.num_starts()} starts, audit clean",
            flush=True,
        )
    one, three = statistics.mean(alone), statistics.mean(stormy)
    print(f"mean: one process {one:.2%}, storm {three:.2%}, {three - one:+.2%}")

    assert abs(three - one) <= 0.01
