"""Whole jobs with a model file of PyTorch: what is trained goes on, evaluates and predicts."""

import textwrap

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tests.engines.conftest import write_records

import elasticdl
from elasticdl.data.sources import open_source
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import DefinitionError

MODEL = textwrap.dedent(
    """
    import numpy as np
    import torch
    from torch import nn


    def custom_model(units=8):
        return nn.Sequential(
            nn.Linear(4, units), nn.BatchNorm1d(units), nn.ReLU(), nn.Dropout(0.1),
            nn.Linear(units, 3),
        )


    def data_schema():
        return [
            {"name": "x", "shape": [4], "dtype": "float32"},
            {"name": "label", "shape": [], "dtype": "int64"},
        ]


    def input_fn(records):
        labels = [r["label"] for r in records if "label" in r]
        return np.stack([r["x"] for r in records]), np.array(labels)


    loss = nn.CrossEntropyLoss()


    def optimizer(parameters, lr=0.05):
        return torch.optim.Adam(parameters, lr)


    def eval_metrics_fn():
        return {"accuracy": lambda labels, predictions: predictions.argmax(1) == labels}
    """
)


@pytest.fixture
def train(tmp_path):
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "net.py").write_text(MODEL)
    data = write_records(tmp_path / "train.recordio", 150)

    def train(output, **options):
        return elasticdl.train(
            model_zoo=str(tmp_path / "zoo"),
            model_def="net",
            data=str(data),
            output=str(tmp_path / output),
            minibatch_size=16,
            reporter=Silent(),
            **options,
        )

    return train


AVERAGES = textwrap.dedent(
    """
    import os
    import signal
    from pathlib import Path


    class Averages:
        def on_train_begin(self):
            self.average = [p.detach().clone() for p in self.model.parameters()]

        def on_train_batch_end(self, batch):
            for average, p in zip(self.average, self.model.parameters()):
                average.lerp_(p.detach(), 0.1)

        def swap(self):
            for average, p in zip(self.average, self.model.parameters()):
                average.data, p.data = p.data.clone(), average.data.clone()

        def on_test_begin(self):
            self.swap()

        def on_test_batch_end(self, batch):
            self.maybe_interrupt("in the evaluation")

        def on_test_end(self):
            self.swap()
            self.maybe_interrupt("after the evaluation")

        def maybe_interrupt(self, moment):
            marker = Path(__file__).with_name("interrupt")
            if marker.exists() and marker.read_text() == moment:
                marker.unlink()
                os.kill(os.getpid(), signal.SIGINT)


    def callbacks():
        return [Averages()]
    """
)


def column(path, field):
    source = open_source(str(path))
    return np.stack([r[field] for r in source.read_records(0, source.num_records, None)])


def test_pytorch_settings_are_restored_after_a_training(train):
    torch.set_deterministic_debug_mode("default")
    torch.utils.deterministic.fill_uninitialized_memory = True

    train("out", num_epochs=1)

    assert torch.get_deterministic_debug_mode() == 0
    assert torch.utils.deterministic.fill_uninitialized_memory


def test_a_stopped_training_resumes_to_the_same_result(train, tmp_path):
    whole = train("whole", num_epochs=3)
    train("parts", num_epochs=3, max_steps=13)
    parts = train("parts", num_epochs=3)

    assert (whole.step, whole.metrics["loss"]) == (parts.step, parts.metrics["loss"])
    weights = [load_file(tmp_path / name / "params.safetensors") for name in ("whole", "parts")]
    assert weights[0].keys() == weights[1].keys() >= {"0.weight", "1.running_mean"}
    for name in weights[0]:
        np.testing.assert_array_equal(weights[0][name], weights[1][name])


def trained_on_averages(train, tmp_path, output, **options):
    validation = tmp_path / "validation.recordio"
    if not validation.exists():
        write_records(validation, 1100, seed=1)
    more = {"num_epochs": 2, "validation_data": str(validation), "restore_best_weights": True}
    return train(output, **{**more, **options})


@pytest.mark.parametrize("more", [{}, {"global_batch_size": 32}, {"evaluation_steps": 4}])
def test_weights_swapped_in_for_validation_are_published(train, tmp_path, more):
    (tmp_path / "zoo" / "net.py").write_text(MODEL + AVERAGES)

    outcome = trained_on_averages(train, tmp_path, "out", **more)

    found = elasticdl.evaluate(
        trained_model=outcome.output, data=str(tmp_path / "validation.recordio"), reporter=Silent()
    )
    assert found.metrics["loss"] == pytest.approx(outcome.metrics["val_loss"], rel=1e-5)


@pytest.mark.parametrize("moment", ["in the evaluation", "after the evaluation"])
def test_swapped_weights_survive_an_interruption(train, tmp_path, moment):
    (tmp_path / "zoo" / "net.py").write_text(MODEL + AVERAGES)
    # The first validation is the best one, so its weights are published.
    whole = trained_on_averages(train, tmp_path, "whole", num_epochs=1)
    (tmp_path / "zoo" / "interrupt").write_text(moment)
    with pytest.raises(KeyboardInterrupt):
        trained_on_averages(train, tmp_path, "parts", num_epochs=1)

    parts = trained_on_averages(train, tmp_path, "parts", num_epochs=1)

    assert whole.metrics == parts.metrics
    weights = [load_file(tmp_path / name / "params.safetensors") for name in ("whole", "parts")]
    for name in weights[0]:
        np.testing.assert_array_equal(weights[0][name], weights[1][name])


def test_a_trained_model_evaluates_predicts_and_serves(train, tmp_path):
    validation = write_records(tmp_path / "test.recordio", 40, seed=1)
    trained = train("model", num_epochs=5, validation_data=str(validation))
    assert trained.metrics["val_accuracy"] > 0.9
    model = str(tmp_path / "model")

    measured = elasticdl.evaluate(trained_model=model, data=str(validation), reporter=Silent())
    assert measured.metrics["accuracy"] == trained.metrics["val_accuracy"]

    unlabelled = write_records(tmp_path / "new.recordio", 5, fields=("x",))
    output = tmp_path / "predicted.recordio"
    elasticdl.predict(
        trained_model=model, data=str(unlabelled), output=str(output), reporter=Silent()
    )
    rows = column(output, "output")
    served = torch.export.load(tmp_path / "model" / "model.pt2").module()
    outputs = served(torch.from_numpy(column(unlabelled, "x")))
    np.testing.assert_allclose(rows, outputs.detach().numpy(), rtol=1e-5, atol=1e-6)


COUNTING = MODEL.replace(
    "def custom_model(units=8):\n    return nn.Sequential(",
    "class Counting(nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.register_buffer('calls', torch.tensor(0))\n"
    "\n"
    "    def forward(self, x):\n"
    "        self.calls += 1\n"
    "        return x\n"
    "\n\n"
    "def custom_model(units=8):\n    return nn.Sequential(Counting(),",
)


def test_a_model_that_counts_in_validation_is_refused(train, tmp_path):
    (tmp_path / "zoo" / "net.py").write_text(COUNTING)

    data = str(tmp_path / "train.recordio")
    with pytest.raises(DefinitionError, match=r"net.py:\d+: Counting \(0\) changes its calls"):
        train("validated", validation_data=data, checkpoint_steps=1)
    assert not (tmp_path / "validated" / "checkpoints").exists()
    train("trained")

    (tensors,) = (tmp_path / "trained" / "checkpoints").rglob("*.safetensors")
    # 150 records are ten minibatches of at most 16.
    assert load_file(tensors)["model/0.calls"] == 10
