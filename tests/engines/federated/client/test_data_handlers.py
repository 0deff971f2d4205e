"""A party's own code that reads its data."""

from __future__ import annotations

import pytest

from elasticdl.engines.federated.client.data_handlers import source_of
from elasticdl.engines.federated.config.settings import DataHandler
from elasticdl.errors import DataError, DefinitionError, UserCodeError

WARD = """
import numpy as np


class Ward:
    def __init__(self, data_config):
        self.first = data_config["first"]
        with open(data_config["asked"], "a") as file:
            file.write("x")

    def get_data(self):
        x = np.arange(6, dtype="float32").reshape(3, 2) + self.first
        return (x, np.array([0, 1, 2])), (x[:1], np.array([2]))
"""


@pytest.fixture
def handler(tmp_path):
    def make(code=WARD, name="Ward"):
        (tmp_path / "ward.py").write_text(code)
        info = {"first": 10, "asked": str(tmp_path / "asked")}
        return DataHandler(name, tmp_path / "ward.py", info)

    return make


def test_training_and_test_parts_become_records(handler):
    opens = source_of(handler())

    train, test = opens("Ward: training"), opens("Ward: test")

    assert (train.num_records, test.num_records) == (3, 1)
    assert train.read_records(2, 3, None)[0]["x"].tolist() == [14, 15]
    assert test.read_records(0, 1, None)[0]["y"].tolist() == [2]


def test_a_data_handler_is_called_once(handler, tmp_path):
    opens = source_of(handler())
    for name in ("Ward: training", "Ward: test", "Ward: training"):
        opens(name)

    assert (tmp_path / "asked").read_text() == "x"


MISTAKES = {
    "no such class": (WARD, "Wart", DefinitionError, "has no class 'Wart'; it has np, Ward"),
    "it raises": (WARD.replace("self.first\n", "1 / 0\n"), "Ward", UserCodeError, "ZeroDivision"),
    "the file raises": ("1 / 0", "Ward", UserCodeError, "raised an error while it was imported"),
    "one pair": (
        WARD.replace("return (x, np.array([0, 1, 2])), (x[:1], np.array([2]))", "return x"),
        "Ward",
        DataError,
        r"expected \(\(x_train, y_train\), \(x_test, y_test\)\)",
    ),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_an_error_in_a_data_handler_is_reported_with_its_file(what, handler):
    code, name, kind, said = MISTAKES[what]

    with pytest.raises(kind, match=said) as raised:
        source_of(handler(code, name))("Ward: training")

    assert "ward.py" in str(raised.value)
