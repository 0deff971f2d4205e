"""On Ray, with processes of their own, two workers give the plain script's numbers as well."""

import pytest
from tests.parity import records, runner
from tests.parity.features import FOLDER, read_feature

from elasticdl import api
from elasticdl.engines.progress_bar import Silent


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "name",
    [
        # `tests/interchange` compares Keras on Ray with one process, which the table compares with
        # the plain script. With masks, Keras does all that it does without.
        pytest.param("keras/adam", marks=pytest.mark.exhaustive),
        pytest.param("keras/masking", marks=pytest.mark.exhaustive),
        "torch/adamw",
    ],
)
def test_two_workers_on_ray_match_the_plain_script(name, data, tmp_path):
    feature = read_feature(FOLDER / f"{name}.py")
    trainings = runner.Trainings(feature, tmp_path / "zoo", data)
    job = trainings.job(
        tmp_path / "output",
        data="train_by_halves",
        num_workers=2,
        minibatch_size=records.BATCH_SIZE // 2,
        global_batch_size=records.BATCH_SIZE,
    )

    api.run(job, Silent())

    numbers = runner.read_numbers(tmp_path / "output")
    runner.compare(numbers, trainings.plain, feature.promises["two workers"])
