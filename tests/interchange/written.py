"""One model, written in each dialect: what is tested is that this makes no difference.

The initial weights are drawn when it is made. Records lie in a folder, as train.recordio and
test.recordio, which the components of a session read by themselves.

Callers: the tests beside this file.
"""

import textwrap
from dataclasses import dataclass

from elasticdl.job import ModelReference


@dataclass(frozen=True)
class Kind:
    """What of the model differs between experiments.

    Attributes:
        batch_size: Of the pipeline of a session's preprocessor.
        batch_norm: Whether there is a BatchNorm.
        dropout: Whether there is a dropout.
        optimizer: In Keras' words.
    """

    batch_size: int = 16
    batch_norm: bool = True
    dropout: bool = True
    optimizer: str = "Adam(0.01)"


USUAL = Kind()

BODY = """
import keras
import numpy as np
import tensorflow as tf


def build():
    inputs = keras.Input((4,), name="x")
    x = keras.layers.Dense(16, activation="relu")(inputs)
    x = keras.layers.BatchNormalization()(x) if BATCH_NORM else x
    x = keras.layers.Dropout(0.2)(x) if DROPOUT else x
    return inputs, keras.layers.Dense(3)(x)


def cross_entropy(outputs, labels):
    labels = tf.reshape(labels, [-1])
    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(logits=outputs, labels=labels)
    )


def make_optimizer():
    return keras.optimizers.OPTIMIZER


def accuracy_of(outputs, labels):
    right = tf.equal(tf.argmax(outputs, 1), tf.reshape(labels, [-1]))
    return tf.reduce_mean(tf.cast(right, tf.float32))


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
            return make_optimizer()

        def data_schema():
            return SCHEMA

        def input_fn(records):
            return batch_of(records)

        def eval_metrics_fn(predictions, labels):
            return {"accuracy": accuracy_of(predictions, labels)}
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
            return make_optimizer()

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
            return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
        """,
    ),
    "elasticdl_spec": (
        "written.Spec",
        """
        from elasticdl import ElasticDLSpec

        class Spec(ElasticDLSpec):
            def create_model(self):
                return keras.Model(*build())

            def create_optimizer(self):
                return make_optimizer()

            def create_loss(self, outputs=None, labels=None):
                return cross_entropy(outputs, labels)

            def create_metrics(self, mode=None, outputs=None, labels=None):
                return {"accuracy": accuracy_of(outputs, labels)}

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
                return make_optimizer()

            @staticmethod
            def default_metrics(outputs, labels):
                return {"accuracy": accuracy_of(outputs, labels)}

            @staticmethod
            def data_schema():
                return SCHEMA
        """,
    ),
    "abstractions": (
        "written.Builder",
        """
        from abstractions import DataLoaderBase, ModelBuilderBase, PreprocessorBase
        from elasticdl.data.sources import open_source

        class Part:
            def _set_defaults(self): ...
            def _load_params(self, config): ...

        class Loader(Part, DataLoaderBase):
            def read(self, name):
                source = open_source(str(self.data_dir / name))
                x, labels = batch_of(source.read_records(0, source.num_records, None))
                ones = np.ones(len(labels), "float32")
                return tf.data.Dataset.from_tensor_slices((x["x"], labels, ones)), len(labels)

            def create_training_generator(self):
                return self.read("train.recordio")

            def create_validation_generator(self):
                return self.read("test.recordio")

            create_test_generator = create_validation_generator

        class Preprocessor(Part, PreprocessorBase):
            def add_image_preprocess(self, generator):
                return generator

            add_label_preprocess = add_image_preprocess

            def batchify(self, generator, n):
                return generator.batch(BATCH_SIZE).repeat(), -(-n // BATCH_SIZE)

        class Builder(Part, ModelBuilderBase):
            def get_compiled_model(self):
                model = keras.Model(*build())
                loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
                model.compile(make_optimizer(), loss, metrics=["accuracy"])
                return model
        """,
    ),
    "ibmfl_spec": (
        "model.yml",
        """
        def save(path):
            model = keras.Model(*build())
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            model.compile(make_optimizer(), loss, metrics=["accuracy"])
            model.save(path)
        """,
    ),
}

COMPONENTS = {
    "data_loader_class": "written.Loader",
    "preprocessor_class": "written.Preprocessor",
}
SPEC = """
model:
  name: TensorFlowFLModel
  spec:
    model_name: small
    model_definition: model.keras
"""
LATER_NAMES = "elasticdl_module, later names"
ROWS = [name for name in DIALECTS if name != LATER_NAMES]


def write(dialect, folder, seed, kind):
    """Write the model in a dialect; returns what names it.

    Args:
        dialect: One of `DIALECTS`.
        folder: Where to.
        seed: A model that is saved has the weights that this seed would draw.
        kind: Which model.
    """
    name, code = DIALECTS[dialect]
    code = _settings(kind) + BODY.replace("OPTIMIZER", kind.optimizer) + textwrap.dedent(code)
    if dialect != "ibmfl_spec":
        (folder / "written.py").write_text(code)
        overrides = COMPONENTS if dialect == "abstractions" else {}
        return ModelReference(str(folder), name, overrides=overrides)
    import keras

    names = {}
    exec(code, names)
    keras.utils.set_random_seed(seed)
    names["save"](str(folder / "model.keras"))
    (folder / name).write_text(SPEC)
    return ModelReference(str(folder), name)


def _settings(kind):
    settings = (kind.batch_size, kind.batch_norm, kind.dropout)
    return f"BATCH_SIZE, BATCH_NORM, DROPOUT = {settings}\n"


def section(dialect, model):
    """Return the section `model` of a config that names a written model.

    Args:
        dialect: One of `DIALECTS`.
        model: What `write` returned.
    """
    if dialect == "abstractions":
        return {"src_code_path": model.zoo, "model_builder_class": model.model_def, **COMPONENTS}
    if dialect == "ibmfl_spec":
        file = f"{model.zoo}/model.keras"
        spec = {"model_name": "small", "model_definition": file}
        return {"name": "TensorFlowFLModel", "spec": spec}
    return {"model_zoo": model.zoo, "model_def": model.model_def}
