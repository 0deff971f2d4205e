"""A training that SIGKILL ends, several times, leaves the bits of one that nothing has ended."""

import signal
import subprocess
import sys

import pytest
from tests.parity import records, runner
from tests.parity.features import FOLDER, Promise, all_features

KILLED = [feature for feature in all_features() if feature.killed]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("feature", KILLED, ids=lambda feature: feature.id)
def test_two_kills_change_no_bit(feature, data, tmp_path):
    trainings = runner.Trainings(feature, tmp_path / "here", data)
    folder = tmp_path / "killed"

    ended = [train_until(step, feature, folder, data) for step in (5, 11, records.STEPS)]

    assert ended == [-signal.SIGKILL, -signal.SIGKILL, 0]
    numbers = runner.read_numbers(folder / "killed")
    runner.compare(numbers, trainings.numbers("one process"), Promise("equal", tolerance=0.0))


def train_until(step, feature, folder, data):
    """Train in a process that dies after a step; return how it ended."""
    command = ["-m", "tests.parity.killing", feature.framework, feature.name]
    process = subprocess.run(
        [sys.executable, *command, str(folder), str(data), str(step)],
        cwd=FOLDER.parents[1],
        check=False,
        capture_output=True,
        text=True,
    )
    print(process.stderr[-2000:])
    return process.returncode
