"""A training that SIGKILL ends, several times, leaves the bits of one that nothing has ended."""

import shutil
import signal
import subprocess
import sys

import pytest
from tests.parity import runner
from tests.parity.features import FOLDER, Promise, all_features

KILLED = [feature for feature in all_features() if feature.killed]


@pytest.mark.slow
@pytest.mark.parametrize("feature", KILLED, ids=lambda feature: feature.id)
def test_two_kills_change_no_bit(feature, data, tmp_path):
    trainings = runner.Trainings(feature, tmp_path / "here", data)
    folder = tmp_path / "killed"
    for step in (5, 11):
        command = ["-m", "tests.parity.killing", feature.framework, feature.name]
        process = subprocess.run(
            [sys.executable, *command, str(folder), str(data), str(step)],
            cwd=FOLDER.parents[1],
            check=False,
            capture_output=True,
            text=True,
        )
        assert process.returncode == -signal.SIGKILL, process.stderr

    shutil.copytree(folder / "killed", tmp_path / "here" / "killed")

    bits = Promise("equal", tolerance=0.0)
    runner.compare(trainings.killed(), trainings.numbers("one process"), bits)
