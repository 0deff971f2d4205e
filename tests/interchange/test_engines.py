"""The same job in one process and on one worker is the same training.

200 steps over epoch boundaries with Adam, BatchNorm, dropout and shuffled records.
"""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
from safetensors.numpy import load_file
from tests.engines.conftest import write_records
from tests.interchange.test_dialects import BODY, DIALECTS

from elasticdl.events import EpochFinished, read_events


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("dialect", ["elasticdl_module", "elasticdl_spec"])
def test_one_worker_trains_as_one_process_does(tmp_path, dialect):
    data = write_records(tmp_path / "train.recordio", 450)
    model_def, code = DIALECTS[dialect]
    (tmp_path / "written.py").write_text(BODY + textwrap.dedent(code))

    def train(name, *more):
        # In processes of their own: the number of threads is fixed when TensorFlow is loaded.
        arguments = [
            sys.executable, "-m", "elasticdl.cli.main", "train", f"--model_zoo={tmp_path}",
            f"--model_def={model_def}", f"--data={data}", f"--output={tmp_path / name}",
            "--num_epochs=7", "--minibatch_size=16", "--quiet", *more,
        ]  # fmt: skip
        done = subprocess.run(arguments, check=False, capture_output=True, text=True, timeout=200)
        assert done.returncode == 0, done.stderr
        events = read_events(tmp_path / name / "events.jsonl")
        losses = [e.metrics["loss"] for e in events if isinstance(e, EpochFinished)]
        return losses, events[-1].step, load_file(tmp_path / name / "params.safetensors")

    losses, step, weights = train("here")
    theirs, their_step, their_weights = train("there", "--num_workers=1")

    assert step == their_step >= 200
    np.testing.assert_allclose(theirs, losses, rtol=0, atol=1e-5)
    assert set(weights) == set(their_weights)
    for path, array in weights.items():
        np.testing.assert_allclose(their_weights[path], array, rtol=0, atol=1e-5, err_msg=path)
