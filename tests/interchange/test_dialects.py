"""The same model, written in each dialect, is the same training.

200 steps over epoch boundaries with Adam, BatchNorm, dropout and shuffled records.
"""

import textwrap

import numpy as np
import pytest
from tests.engines.conftest import write_records

import elasticdl
from elasticdl.engines.progress import Silent
from elasticdl.events import EpochFinished, read_events

BODY = """
import keras
import numpy as np
import tensorflow as tf


def build():
    inputs = keras.Input((4,), name="x")
    x = keras.layers.Dense(16, activation="relu")(inputs)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Dropout(0.2)(x)
    return inputs, keras.layers.Dense(3)(x)


def cross_entropy(outputs, labels):
    labels = tf.reshape(labels, [-1])
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(logits=outputs, labels=labels)
    )


SCHEMA = [
    {"name": "x", "shape": [4], "dtype": "float32"},
    {"name": "label", "shape": [1], "dtype": "int64"},
]


def batch_of(records):
    return (
        {"x": np.stack([r["x"] for r in records])},
        np.stack([r["label"] for r in records]),
    )
"""

DIALECTS = {
    "elasticdl_module": (
        "written",
        """
        def custom_model():
            return keras.Model(*build())

        def loss(output, labels):
            return cross_entropy(output, labels)

        def optimizer():
            return keras.optimizers.Adam(0.01)

        def data_schema():
            return SCHEMA

        def input_fn(records):
            return batch_of(records)

        def eval_metrics_fn(predictions, labels):
            return {}
        """,
    ),
    "elasticdl_module, later names": (
        "written",
        """
        def custom_model():
            return keras.Model(*build())

        def loss(labels, predictions):
            return cross_entropy(predictions, labels)

        def optimizer():
            return keras.optimizers.Adam(0.01)

        def feed(dataset, mode, metadata):
            def parse(record):
                spec = {
                    "x": tf.io.FixedLenFeature([4], tf.float32),
                    "label": tf.io.FixedLenFeature([1], tf.int64),
                }
                parsed = tf.io.parse_single_example(record, spec)
                return {"x": parsed["x"]}, parsed["label"]

            return dataset.map(parse)

        def eval_metrics_fn():
            return {}
        """,
    ),
    "elasticdl_spec": (
        "written.Spec",
        """
        from elasticdl import ElasticDLSpec

        class Spec(ElasticDLSpec):
            def create_model(self):
                return keras.Model(*build())

            def create_optimizer(self, lr=0.01):
                return keras.optimizers.Adam(lr)

            def create_loss(self, outputs=None, labels=None):
                return cross_entropy(outputs, labels)

            def create_metrics(self, mode=None, outputs=None, labels=None, predictions=None):
                return {}

            def create_dataset(self, dataset, mode):
                def parse(record):
                    spec = {
                        "x": tf.io.FixedLenFeature([4], tf.float32),
                        "label": tf.io.FixedLenFeature([1], tf.int64),
                    }
                    parsed = tf.io.parse_single_example(record, spec)
                    return {"x": parsed["x"]}, parsed["label"]

                return dataset.map(parse)
        """,
    ),
    "keras_class": (
        "written.Classifier",
        """
        class Classifier(keras.Model):
            def __init__(self):
                inputs, outputs = build()
                super().__init__(inputs, outputs)

            @staticmethod
            def default_input(records):
                return batch_of(records)

            @staticmethod
            def default_loss(outputs, labels):
                return cross_entropy(outputs, labels)

            @staticmethod
            def default_optimizer():
                return keras.optimizers.Adam(0.01)

            @staticmethod
            def data_schema():
                return SCHEMA
        """,
    ),
}


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interchange")
    data = write_records(folder / "train.recordio", 450)

    def of(dialect):
        model_def, code = DIALECTS[dialect]
        zoo = folder / dialect.replace(",", "").replace(" ", "_")
        zoo.mkdir(exist_ok=True)
        (zoo / "written.py").write_text(BODY + textwrap.dedent(code))
        outcome = elasticdl.train(
            model_zoo=str(zoo),
            model_def=model_def,
            data=str(data),
            output=str(zoo / "out"),
            num_epochs=7,
            minibatch_size=16,
            reporter=Silent(),
        )
        assert outcome.step >= 200
        events = read_events(zoo / "out" / "events.jsonl")
        return [e.metrics["loss"] for e in events if isinstance(e, EpochFinished)]

    return of


@pytest.fixture(scope="module")
def reference(losses):
    return losses("elasticdl_module")


@pytest.mark.parametrize("dialect", [name for name in DIALECTS if name != "elasticdl_module"])
def test_a_model_trains_the_same_whichever_way_it_is_written(dialect, losses, reference):
    assert reference[-1] < reference[0] / 2
    np.testing.assert_allclose(losses(dialect), reference, rtol=1e-5)
