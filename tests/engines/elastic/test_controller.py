"""The user's code raises; `tests/chaos/test_storm.py` kills workers and the driver."""

import pytest
from tests.engines.elastic.training import MINIBATCH_SIZE, Training, counting_and, write_numbers

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    return write_numbers(tmp_path_factory.mktemp("numbers") / "numbers.recordio")


def arguments(numbers, *more):
    return [f"--data={numbers}", f"--minibatch_size={MINIBATCH_SIZE}", "--num_workers=2", *more]


RAISES = """
careful = input_fn


def input_fn(records):
    if any(record["number"][0] == 700 for record in records):
        raise ZeroDivisionError("record 700 is odd")
    return careful(records)
"""


def test_an_error_in_the_users_function_ends_the_job_at_once(numbers, tmp_path):
    model = counting_and(tmp_path, RAISES)

    with Training(tmp_path / "out", arguments(numbers, "--num_epochs=2"), model=model) as training:
        training.wait_for_the_end(expected=3)

    told = training.log()
    assert "ZeroDivisionError: record 700 is odd" in told
    assert str(model) in told
    assert "records 512 to 999" in told
