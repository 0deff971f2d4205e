"""A training that SIGKILL ends, several times, leaves the bits of one that nothing has ended."""

import json
import os
import signal
import subprocess
import sys

import pytest
from tests.parity import runner
from tests.parity.features import FOLDER, Promise, all_features

# The table resumes them from what a kill leaves. Others are killed that have what these have: an
# optimizer's state, what callbacks keep, generators of random numbers.
IMPLIED = {
    "keras-adam", "keras-annealed_attribute", "keras-callback_stops", "keras-table_columns",
    "torch-random_input", "torch-hugging_face", "torch-project_autoencoder",
    "torch-project_lightning",
    "torch-project_segmentation", "torch-project_text_classification", "torch-project_transformer",
}  # fmt: skip
KILLED = [
    pytest.param(
        feature,
        id=feature.id,
        marks=[pytest.mark.exhaustive] if feature.id in IMPLIED else [],
    )
    for feature in all_features()
    if feature.killed
]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("feature", KILLED)
def test_two_kills_do_not_change_the_result(feature, data, tmp_path, train_until):
    trainings = runner.Trainings(feature, tmp_path / "here", data)
    folder = tmp_path / "killed"

    ended = [train_until(step, feature, folder, data) for step in (5, 11)]
    # The last time in this process, which is as new to the training as another one.
    numbers = runner.Trainings(feature, folder, data).killed()

    assert ended == [-signal.SIGKILL, -signal.SIGKILL]
    runner.compare(numbers, trainings.numbers("one process"), Promise("equal", tolerance=0.0))


@pytest.fixture(scope="module")
def train_until(tmp_path_factory):
    """Return what trains in a process that dies after a step, and says how it ended."""
    import torch

    log = tmp_path_factory.mktemp("killing") / "log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            [sys.executable, "-m", "tests.parity.killing"],
            cwd=FOLDER.parents[1],
            # Sums depend on the number of threads, and this process may have begun with one.
            env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):

        def train_until(step, feature, folder, data):
            training = [feature.framework, feature.name, str(folder), str(data), step]
            process.stdin.write(json.dumps(training) + "\n")
            process.stdin.flush()
            ended = process.stdout.readline()
            print(log.read_text()[-2000:])
            return int(ended)

        yield train_until
