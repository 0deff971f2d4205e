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


class Sum(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, *inputs):
        return self.layer(sum(inputs))


class SumOfMore(Sum):
    def forward(self, x, *rest):
        return super().forward(x, *rest)


@pytest.mark.parametrize(
    "model",
    [lambda: torch.compile(nn.Linear(4, 3), backend="eager"), Sum, SumOfMore],
    ids=["compiled", "of *inputs", "without more inputs"],
)
def test_a_forward_of_any_number_of_arguments_is_exported(model, tmp_path):
    batch = batch_of(8)
    trainer = trainer_of(definition_of(model), batch)

    assert trainer.export(tmp_path) == ["model.pt2"]

    served = torch.export.load(tmp_path / "model.pt2").module()
    outputs = served(torch.from_numpy(batch.features)).detach().numpy()
    np.testing.assert_allclose(outputs, trainer.predict(batch.features), rtol=1e-5, atol=1e-6)


def test_an_export_neither_changes_the_model_nor_keeps_examples(tmp_path):
    batch = batch_of(8, features=lambda x: x + np.float32(1234.5))
    trainer = trainer_of(batch=batch)
    trainer.train_steps([batch])
    before = trainer.state()
    trainer.export(tmp_path)

    assert same_bits(trainer.state(), before)
    assert batch.features[0].tobytes() not in (tmp_path / "model.pt2").read_bytes()


class Encoder(nn.Module):
    """Reads texts; 0 is padding."""

    def __init__(self, *, nested=True, masks_after=False):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
        self.out = nn.Linear(8, 3)
        self.masks_after = masks_after

    def forward(self, tokens):
        padding = tokens == 0
        x = self.encoder(self.embedding(tokens), src_key_padding_mask=padding)
        if self.masks_after:
            x = x * ~padding[..., None]
        return self.out(x.mean(1))


class WithLengths(Encoder):
    def forward(self, tokens, lengths):
        padding = torch.arange(tokens.shape[1]) >= lengths[:, None]
        return self.out(self.encoder(self.embedding(tokens), None, padding).mean(1))


class WithMask(Encoder):
    def forward(self, tokens, mask):
        return self.out(self.encoder(self.embedding(tokens), None, mask == 0).mean(1))


def exported_with(model, tmp_path, caplog, *, padded=False, more=None, **options):
    """Export a model of texts; return what is logged."""
    tokens = np.random.default_rng(0).integers(1, 20, (8, 5))
    if padded:
        tokens[0, 3:] = 0
    batch = batch_of(8, features=lambda _: {"tokens": tokens, **(more or {})})
    trainer = trainer_of(definition_of(model, **options), batch)
    with caplog.at_level(logging.WARNING, "elasticdl"):
        assert trainer.export(tmp_path) == ["model.pt2"]
    return caplog.text


@pytest.mark.parametrize(
    ("model", "padded", "more"),
    [
        (Encoder, True, {}),
        (Encoder, False, {}),
        (WithLengths, False, {"lengths": np.full(8, 5)}),
        (WithMask, False, {"mask": np.ones((8, 5), np.float32)}),
        (WithMask, False, {"mask": np.ones((8, 5), np.int64)}),
    ],
)
def test_an_encoder_whose_export_computes_padding_differently_is_reported(
    model, padded, more, tmp_path, caplog
):
    text = exported_with(model, tmp_path, caplog, padded=padded, more=more)

    assert "model.pt2 gives other outputs than the model: on two examples" in text
    assert ("one of them padded" in text) is not padded
    assert "nn.TransformerEncoder (encoder) sets the padded positions to 0" in text
    assert len(caplog.records) == 1


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("options", [{"nested": False}, {"masks_after": True}])
def test_an_encoder_whose_export_gives_its_outputs_is_not_reported(
    options, padded, tmp_path, caplog
):
    assert exported_with(lambda: Encoder(**options), tmp_path, caplog, padded=padded) == ""


def test_an_export_is_not_compared_with_a_model_in_mixed_precision(tmp_path, caplog):
    assert exported_with(Encoder, tmp_path, caplog, padded=True, precision="bf16") == ""


class OtherExported(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)

    def forward(self, x):
        return super().forward(x) + (1 if torch.compiler.is_compiling() else 0)


class Sampling(OtherExported):
    def forward(self, x):
        return nn.Linear.forward(self, x + torch.randn_like(x))


def test_a_model_that_computes_something_else_while_exported_is_reported(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "elasticdl"):
        assert trainer_of(definition_of(OtherExported)).export(tmp_path) == ["model.pt2"]

    assert re.search(r"the largest difference is 1, where .* while it is exported", caplog.text)


def test_the_export_of_a_model_that_samples_is_not_compared(tmp_path, caplog):
    with caplog.at_level(logging.WARNING, "elasticdl"):
        assert trainer_of(definition_of(Sampling)).export(tmp_path) == ["model.pt2"]

    assert caplog.text == ""


def test_a_failed_comparison_does_not_fail_the_export(tmp_path, monkeypatch, caplog):
    def fail(*arguments):
        raise RuntimeError(f"{len(arguments)} arguments")

    monkeypatch.setattr("elasticdl.training.torch.export.difference_found", fail)

    with caplog.at_level(logging.WARNING, "elasticdl"):
        assert trainer_of().export(tmp_path) == ["model.pt2"]

    assert caplog.text == ""


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


class Counting(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)

    def forward(self, x):
        outputs = super().forward(x)
        return outputs[torch.arange(self.number_of(outputs))]

    def number_of(self, outputs):
        return len(outputs)


class InNumpy(Looping):
    def forward(self, x):
        return nn.Linear.forward(self, x) * float(self.bias.detach().numpy().size / 3)


class Distances(Looping):
    def forward(self, x):
        return torch.cdist(x, self.weight)


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Distances, r"one number of examples only\. It may .* call torch.cdist\(\) or an einsum"),
        (Gated, r"conftest.py:\d+: forward\(\) depends on the value of a tensor"),
        (Packed, r"test_export.py:\d+: sequences packed by pack_padded_sequence\(\) cannot be"),
        (Looping, r"serving: the exported forward\(\) works for one number of examples only"),
        (Counting, r"may call len\(tensor\), .* \(use tensor.shape\[0\]\)"),
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


class CountingByShape(Counting):
    def number_of(self, outputs):
        return outputs.shape[0]


def test_the_number_of_examples_may_be_read_from_a_shape(tmp_path):
    assert trainer_of(definition_of(CountingByShape)).export(tmp_path) != []


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
