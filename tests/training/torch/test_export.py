"""What serving needs, written from a trained module."""

import logging
import re

import numpy as np
import pytest
import torch
from tests.training.torch.conftest import (
    ByName,
    Gated,
    TakesDict,
    batch_of,
    definition_of,
    same_bits,
    trainer_of,
)
from torch import nn


@pytest.mark.parametrize(
    ("features", "model"),
    [
        (lambda x: x, lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Dropout(), nn.Linear(4, 3))),
        (lambda x: {"left": x[:, :1], "right": x[:, 1:]}, ByName),
        (lambda x: {"x": x, "y": x}, TakesDict),
    ],
)
def test_predictions_of_the_export_match_the_trainer(features, model, tmp_path):
    one = batch_of(1, features=features)
    trainer = trainer_of(definition_of(model), one)
    batch = batch_of(8, features=features)
    trainer.train_steps([batch])

    assert trainer.export(tmp_path) == ["model.pt2"]

    served = torch.export.load(tmp_path / "model.pt2").module()
    tensors = {
        name: torch.from_numpy(np.array(a))
        for name, a in (batch.features.items() if isinstance(batch.features, dict) else ())
    }
    if model is ByName:
        outputs = served(**tensors)
    else:
        outputs = served(tensors or torch.from_numpy(batch.features))
    np.testing.assert_allclose(
        outputs.detach().numpy(), trainer.predict(batch.features), rtol=1e-5, atol=1e-6
    )


def test_an_export_neither_changes_the_model_nor_keeps_examples(tmp_path):
    batch = batch_of(8, features=lambda x: x + np.float32(1234.5))
    trainer = trainer_of(batch=batch)
    trainer.train_steps([batch])
    before = trainer.state()
    trainer.export(tmp_path)

    assert same_bits(trainer.state(), before)
    assert batch.features[0].tobytes() not in (tmp_path / "model.pt2").read_bytes()


class Packed(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(1, 3, batch_first=True)

    def forward(self, x):
        lengths = torch.full((len(x),), 2)
        packed = nn.utils.rnn.pack_padded_sequence(x[:, :, None], lengths, batch_first=True)
        return self.rnn(packed)[1][-1]


class Looping(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)

    def forward(self, x):
        return torch.stack([super(Looping, self).forward(each) for each in x])


class InNumpy(Looping):
    def forward(self, x):
        return nn.Linear.forward(self, x) * float(self.bias.detach().numpy().size / 3)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Gated, r"conftest.py:\d+: forward\(\) depends on the value of a tensor"),
        (Packed, r"test_export.py:\d+: sequences packed by pack_padded_sequence\(\) cannot be"),
        (Looping, r"serving: the exported forward\(\) works for one number of examples only"),
        (InNumpy, r"test_export.py:\d+: torch.export raised RuntimeError: .* subclasses\. Train"),
    ],
)
def test_a_model_that_cannot_be_exported_is_reported_with_the_reason(
    tmp_path, caplog, model, reason
):
    trainer = trainer_of(definition_of(model))

    with caplog.at_level(logging.WARNING, "elasticdl"):
        assert trainer.export(tmp_path) == []

    assert "cannot be exported for serving: " in caplog.text
    assert re.search(reason, caplog.text)
    assert list(tmp_path.iterdir()) == []


class DataDependent(nn.Linear):
    """PyTorch prints graphs and logs when it cannot export such a branch."""

    def __init__(self):
        super().__init__(4, 3)

    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else super().forward(-x)


def test_an_export_prints_nothing(tmp_path, caplog, capfd):
    trainer = trainer_of(definition_of(DataDependent))
    capfd.readouterr()

    with caplog.at_level(logging.WARNING, "elasticdl"):
        assert trainer.export(tmp_path) == []

    assert [record.name for record in caplog.records] == ["elasticdl"]
    assert capfd.readouterr() == ("", "")


def test_torch_logs_are_shown_if_requested(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TORCH_LOGS", "dynamic")
    trainer = trainer_of(definition_of(DataDependent))
    capsys.readouterr()

    trainer.export(tmp_path)

    assert "torch.ops.aten" in "".join(capsys.readouterr())


def test_a_failed_export_leaves_no_file(tmp_path, monkeypatch):
    def save(program, path):
        path.write_bytes(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch.export, "save", save)

    assert trainer_of().export(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
