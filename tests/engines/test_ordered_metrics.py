"""A metric whose state is a maximum says so after whole jobs, interrupted or not."""

import numpy as np
import pytest

import elasticdl
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.data.recordio import RecordIOSource
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import DefinitionError

NET = """

class Largest(keras.metrics.Metric):
    def __init__(self, name="largest", **options):
        super().__init__(name=name, **options)
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(keras.ops.abs(y_pred))))

    def result(self):
        return self.value


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, x):
        return self.dense(x)

    @staticmethod
    def default_input(records):
        return input_fn(records)

    @staticmethod
    def data_schema():
        return data_schema()

    def default_loss(self):
        return keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def default_optimizer(self):
        return optimizer()

    def default_metrics(self):
        return {"largest": Largest()}
"""


@pytest.fixture
def net(zoo, train, data):
    zoo(NET)

    def run(**options):
        more = {
            "model_def": "small.Net",
            "dialect": "keras_class",
            "validation_data": str(data),
            "num_epochs": 1,
        }
        return train(**{**more, **options})

    return run


def test_a_maximum_covers_all_batches_across_an_interruption(net, data, tmp_path):
    whole = net(output=str(tmp_path / "whole"))

    # Ten steps an epoch: the fourth is in its middle, and a checkpoint.
    net(output=str(tmp_path / "cut"), max_steps=4)
    resumed = net(output=str(tmp_path / "cut"))
    assert resumed.metrics == whole.metrics

    found = elasticdl.evaluate(trained_model=whole.output, data=str(data), reporter=Silent())
    assert found.metrics["largest"] == whole.metrics["val_largest"]
    source = RecordIOSource([str(data)])
    x = np.stack([record["x"] for record in source.read_records(0, source.num_records, None)])
    params = load_trained_model(whole.output).params
    kernel, bias = sorted(params.values(), key=np.ndim, reverse=True)
    outputs = x @ kernel + bias
    assert found.metrics["largest"] == pytest.approx(np.abs(outputs).max(), rel=1e-5)


def test_a_maximum_is_carried_across_batches_of_an_update(net, tmp_path):
    found = net(output=str(tmp_path / "many"), global_batch_size=32)

    assert 0 < found.metrics["largest"] < 100


@pytest.mark.exhaustive  # tests/parity has a maximum on two workers.
@pytest.mark.ray
def test_a_maximum_is_refused_on_workers_before_the_first_step(net, tmp_path):
    with pytest.raises(DefinitionError, match="'largest'.*do not add up.*several workers"):
        net(output=str(tmp_path / "workers"), num_workers=1)
