"""Every trainer keeps the laws of `training/trainer.py`."""

import numpy as np
import pytest

from elasticdl.data.batch import Batch
from elasticdl.definition import (
    BatchesInput,
    MetricFunctions,
    Mode,
    ModelDefinition,
    NamedMetric,
    Origin,
    RecordInput,
)
from elasticdl.testing.trainer import check_parts_make_the_whole, check_trainer

ORIGIN = Origin("elasticdl_module", "model.py", 1, "model", "zoo")


def mean_loss(outputs, labels):
    import tensorflow as tf

    return tf.reduce_mean(
        tf.nn.sparse_softmax_cross_entropy_with_logits(logits=outputs, labels=labels.flatten())
    )


def accuracy(outputs, labels):
    import tensorflow as tf

    right = tf.equal(tf.argmax(outputs, axis=1), labels.flatten())
    return {"accuracy": tf.reduce_mean(tf.cast(right, tf.float32))}


def functional():
    import keras

    inputs = keras.Input((8, 8), name="image")
    x = keras.layers.Reshape((8, 8, 1))(inputs)
    x = keras.layers.Conv2D(4, 3, activation="relu", kernel_regularizer="l2")(x)
    x = keras.layers.BatchNormalization()(x)
    x = keras.layers.Dropout(0.3)(x)
    return keras.Model(inputs, keras.layers.Dense(10)(keras.layers.Flatten()(x)))


def fixed_to_training():
    """As the first model files wrote it: BatchNorm and Dropout always in training mode."""
    import keras

    inputs = keras.Input((8, 8), name="image")
    x = keras.layers.Flatten()(inputs)
    x = keras.layers.BatchNormalization()(x, training=True)
    x = keras.layers.Dropout(0.3)(x, training=True)
    return keras.Model(inputs, keras.layers.Dense(10)(x))


def subclass():
    import keras

    class Counting(keras.Model):
        """Counts its training steps, and has a layer it does not use."""

        def __init__(self):
            super().__init__(name="counting")
            self.embedding = keras.layers.Embedding(16, 4)
            self.drop = keras.layers.Dropout(0.2)
            self.flatten = keras.layers.Flatten()
            self.out = keras.layers.Dense(10)
            self.calls = self.add_weight(shape=(), dtype="int32", trainable=False, name="calls")
            self.unused = self.add_weight(shape=(3,), name="unused")

        def call(self, images, training=False):
            import tensorflow as tf

            if training:
                self.calls.assign_add(1)
            x = self.embedding(tf.cast(tf.clip_by_value(images * 4 + 8, 0, 15), tf.int32))
            return self.out(self.flatten(self.drop(x, training=training)))

    return Counting()


def definition_of(create_model):
    import keras

    def create_optimizer():
        if create_model is subclass:
            # Adam squares the rows of an embedding one by one, which no sum over workers can.
            return keras.optimizers.SGD(0.1, momentum=0.9)
        return keras.optimizers.Adam(0.01)

    return ModelDefinition(
        origin=ORIGIN,
        framework="keras",
        create_model=create_model,
        input=RecordInput(lambda records: records),
        loss=mean_loss,
        create_optimizer=create_optimizer,
        create_metrics=lambda mode: MetricFunctions(
            scalars=accuracy,
            named=[NamedMetric("top2", keras.metrics.SparseTopKCategoricalAccuracy(2))]
            if mode is Mode.EVALUATION
            else [],
        ),
        labels_as_numpy=True,
    )


def compiled_model():
    import keras

    inputs = keras.Input((8, 8))
    x = keras.layers.Flatten()(inputs)
    x = keras.layers.Dense(8, activation="relu", kernel_regularizer="l2")(x)
    x = keras.layers.Dropout(0.3)(keras.layers.BatchNormalization()(x))
    outputs = {
        "digit": keras.layers.Dense(10, name="digit")(x),
        "odd": keras.layers.Dense(1, name="odd")(x),
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer=keras.optimizers.Adam(0.01),
        loss={"digit": keras.losses.SparseCategoricalCrossentropy(from_logits=True), "odd": "mse"},
        loss_weights={"digit": 1.0, "odd": 0.5},
        metrics={"digit": "accuracy"},
        weighted_metrics={"odd": "mae"},
    )
    return model


def compiled_definition():
    made = []

    def create_model():
        made.append(compiled_model())
        return made[-1]

    return ModelDefinition(
        origin=ORIGIN,
        framework="keras",
        create_model=create_model,
        input=BatchesInput(lambda data, mode: None),
        loss=None,
        create_optimizer=lambda: made[-1].optimizer,
        compiled=True,
    )


def torch_loss(outputs, labels):
    from torch.nn import functional

    return functional.cross_entropy(outputs, labels.flatten())


def torch_accuracy(outputs, labels):
    return {"accuracy": (outputs.argmax(1) == labels.flatten()).float().mean()}


def torch_cnn():
    from torch import nn

    return nn.Sequential(
        nn.Unflatten(1, (1, 8)),
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(144, 10),
    )


def torch_embedding():
    import torch
    from torch import nn

    class Counting(nn.Module):
        """Counts its training steps in a new tensor each, and has parameters it does not use."""

        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(16, 4)
            self.drop = nn.Dropout(0.2)
            self.out = nn.Linear(256, 10)
            self.register_buffer("calls", torch.zeros((), dtype=torch.int32))
            self.unused = nn.Parameter(torch.ones(3))
            self.frozen = nn.Parameter(torch.ones(2), requires_grad=False)

        def forward(self, image):
            if self.training:
                self.calls = self.calls + 1
            x = self.embedding((image * 4 + 8).clamp(0, 15).long())
            return self.out(self.drop(x).flatten(1))

    return Counting()


def torch_definition_of(create_model, create_optimizer):
    return ModelDefinition(
        origin=ORIGIN,
        framework="torch",
        create_model=create_model,
        input=RecordInput(lambda records: records),
        loss=torch_loss,
        create_optimizer=lambda: lambda parameters, model: create_optimizer(parameters),
        create_metrics=lambda mode: MetricFunctions(
            scalars=torch_accuracy,
            named=[NamedMetric("right", lambda y, p: p.argmax(1) == y.flatten())]
            if mode is Mode.EVALUATION
            else [],
        ),
    )


def torch_adam(parameters):
    import torch

    return torch.optim.Adam(parameters, 0.01, weight_decay=0.1)


def torch_momentum(parameters):
    import torch

    return torch.optim.SGD(parameters, 0.1, momentum=0.9, dampening=0.5)


def batch(rng, size):
    images = rng.normal(size=(size, 8, 8)).astype("float32")
    return Batch({"image": images}, rng.integers(0, 10, (size, 1)), size)


@pytest.mark.filterwarnings("ignore:Gradients do not exist:UserWarning")
@pytest.mark.parametrize("create_model", [functional, fixed_to_training, subclass])
@pytest.mark.timeout(300)  # It compiles many functions.
def test_the_keras_trainer_satisfies_the_contract(create_model):
    from elasticdl.training.keras import KerasTrainer

    rng = np.random.default_rng(0)
    batches = [batch(rng, 32) for _ in range(4)] + [batch(rng, 7)]

    def create(rank):
        return KerasTrainer(
            definition_of(create_model), batches[0], minibatch_size=32, seed=3, rank=rank
        )

    check_trainer(create, batches)


@pytest.mark.timeout(300)  # It compiles many functions.
def test_the_keras_trainer_satisfies_the_contract_when_compiled():
    from elasticdl.training.keras import KerasTrainer

    rng = np.random.default_rng(0)

    def weighted(size):
        made = batch(rng, size)
        labels = {"digit": made.labels, "odd": (made.labels % 2).astype("float32")}
        weights = rng.uniform(0.1, 2, size).astype("float32")
        return Batch(made.features["image"], (labels, weights), size)

    batches = [weighted(32) for _ in range(4)] + [weighted(7)]

    def create(rank):
        return KerasTrainer(compiled_definition(), batches[0], minibatch_size=32, seed=3, rank=rank)

    check_trainer(create, batches)


@pytest.mark.parametrize("create_optimizer", [torch_adam, torch_momentum])
@pytest.mark.parametrize("create_model", [torch_cnn, torch_embedding])
def test_the_torch_trainer_satisfies_the_contract(create_model, create_optimizer):
    from elasticdl.training.torch import TorchTrainer

    rng = np.random.default_rng(0)
    batches = [batch(rng, 32) for _ in range(4)] + [batch(rng, 7)]

    def create(rank):
        return TorchTrainer(
            torch_definition_of(create_model, create_optimizer),
            batches[0],
            minibatch_size=32,
            seed=3,
            rank=rank,
        )

    check_trainer(create, batches)


def keras_trainer():
    import keras

    from elasticdl.training.keras import KerasTrainer

    def small():
        inputs = keras.Input((8, 8), name="image")
        hidden = keras.layers.Dense(8, "relu", kernel_regularizer="l2")
        return keras.Model(inputs, keras.layers.Dense(10)(hidden(keras.layers.Flatten()(inputs))))

    example = batch(np.random.default_rng(0), 8)
    return lambda rank: KerasTrainer(
        definition_of(small), example, minibatch_size=8, seed=3, rank=rank
    )


def test_uneven_parts_add_up_to_a_whole_step_in_keras():
    rng = np.random.default_rng(1)

    check_parts_make_the_whole(keras_trainer(), [batch(rng, 8), batch(rng, 3), batch(rng, 1)])
