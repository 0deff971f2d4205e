"""What Ray is asked for on behalf of a worker."""

from __future__ import annotations

import pytest

from elasticdl import api, job_options
from elasticdl.errors import UsageError


@pytest.mark.ray
@pytest.mark.timeout(120)
def test_missing_gpus_are_refused_immediately(tmp_path, digits):
    with pytest.raises(UsageError, match="2 workers need 4 GPUs, but Ray finds 0 on this machine"):
        api.train(
            model_def="mnist",
            data=str(digits / "train"),
            output=str(tmp_path / "out"),
            num_workers="2..3",
            gpus_per_worker=2,
        )


def test_gpus_without_workers_are_refused():
    with pytest.raises(UsageError, match="Add --num_workers"):
        job_options.training_job(model_def="mnist", data="d", output="o", gpus_per_worker=1)
