"""A warning of a worker is read where the command was given.

That of two workers is printed once: `test_keras_on_workers.py`.
"""

import logging

import pytest

import elasticdl
from elasticdl.engines.elastic import worker_warnings
from elasticdl.engines.elastic.worker_warnings import WarningLog
from elasticdl.engines.progress_bar import Silent

_log = logging.getLogger("elasticdl")


def test_each_warning_is_passed_on_once_up_to_a_hundred(caplog):
    with WarningLog().attached() as log:
        _log.warning("%s is odd", "x")
        worker_warnings.repeat(["x is odd", *(f"{number}" for number in range(200))])

    assert log.texts == ("x is odd", *(f"{number}" for number in range(99)))
    assert [record.getMessage() for record in caplog.records] == list(log.texts)


def test_a_program_without_logging_still_sees_warnings(capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging, "lastResort", logging.StreamHandler())
    with WarningLog().attached():
        _log.warning("seen")

    assert capsys.readouterr().err == "seen\n"


ODD = """
import logging

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(1, 3)

    def forward(self, x):
        if not self.training:
            logging.getLogger("elasticdl").warning("an odd batch")
        return self.layer(x.float().sqrt())


classes = ["a", "b", "c", "d"]


def custom_model():
    return Net()


def loss(outputs, labels):
    return torch.nn.functional.cross_entropy(outputs, labels.flatten())


def optimizer(parameters):
    return torch.optim.SGD(parameters, 0.1)
"""


class Notes(Silent):
    def __init__(self):
        self.notes = []

    def note(self, message):
        self.notes.append(message)


@pytest.mark.ray
@pytest.mark.slow
def test_a_prediction_on_workers_has_the_warnings_and_the_note_of_one_process(tmp_path, caplog):
    (tmp_path / "odd.py").write_text(ODD)
    data = tmp_path / "train.csv"
    data.write_text("x,label\n" + "1.5,0\n2.5,1\n3.5,2\n" * 20)
    model = elasticdl.train(
        model_zoo=str(tmp_path), model_def="odd", data=str(data), minibatch_size=10,
        output=str(tmp_path / "model"), reporter=Silent(),
    ).output  # fmt: skip
    data.write_text("x,label\n" + "1.5,0\n-2.5,1\n3.5,2\n" * 20)
    said = []

    for more in ({}, {"num_workers": 2}):
        reporter = Notes()
        caplog.clear()
        elasticdl.predict(
            trained_model=model, data=str(data), output=str(tmp_path / f"{len(said)}"),
            minibatch_size=10, reporter=reporter, **more,
        )  # fmt: skip
        said.append([*dict.fromkeys(caplog.messages), *reporter.notes])

    assert said[0][0] == "an odd batch"
    assert "has names for 4 classes" in said[0][-1]
    assert "20 predictions of 60 have no class" in said[0][-1]
    assert said[1] == said[0]


@pytest.mark.ray
@pytest.mark.slow
def test_a_training_on_workers_has_the_notes_on_the_model_of_one_process(tmp_path, caplog):
    code = ODD.replace("return self.layer(x.float().sqrt())", "return self.layer(x).softmax(1)")
    (tmp_path / "odd.py").write_text(code)
    data = tmp_path / "train.csv"
    data.write_text("x,label\n" + "1.5,0\n2.5,1\n3.5,2\n" * 20)
    said = []

    for more in ({}, {"num_workers": 2}):
        reporter = Notes()
        elasticdl.train(
            model_zoo=str(tmp_path), model_def="odd", data=str(data), minibatch_size=10,
            output=str(tmp_path / f"{len(said)}"), reporter=reporter, **more,
        )  # fmt: skip
        texts = [*dict.fromkeys(caplog.messages), *reporter.notes]
        said.append([text for text in texts if "the model" in text])

    assert len(said[0]) == 2
    assert "names for 4 classes, but its output is for 3" in said[0][0]
    assert "those of a softmax, and the loss expects logits" in said[0][1]
    assert [text.rpartition("odd.py")[2] for text in said[1]] == [
        text.rpartition("odd.py")[2] for text in said[0]
    ]
