"""What a user's model class replaces of Keras' training is called, or refused before a step."""

import logging
import os

import numpy as np
import pytest

from elasticdl.data.batch import Batch
from elasticdl.definition import ModelDefinition, Origin, RecordInput
from elasticdl.errors import DefinitionError
from elasticdl.training.trainer import Contribution

ORIGIN = Origin("elasticdl_module", "model.py", 1, "model", "zoo")


def mse(outputs, labels):
    import keras

    return keras.ops.mean(keras.ops.square(outputs - labels))


def batch_of(size, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(size, 4)).astype("float32")
    return Batch(features, rng.normal(size=(size, 1)).astype("float32"), size)


def net(**methods):
    """Return what makes a subclass model with methods of its own."""
    import keras

    def init(self):
        keras.Model.__init__(self, name="net")
        self.out = keras.layers.Dense(1, kernel_regularizer=keras.regularizers.L2(0.1))

    members = {"__init__": init, "call": lambda self, x, training=False: self.out(x)}
    return type("Net", (keras.Model,), {**members, **methods})


def trainer_of(create_model, loss=mse):
    import keras

    from elasticdl.training.keras import KerasTrainer

    definition = ModelDefinition(
        origin=ORIGIN,
        framework="keras",
        create_model=create_model,
        input=RecordInput(lambda records: records),
        loss=loss,
        create_optimizer=lambda: keras.optimizers.SGD(0.1),
    )
    return KerasTrainer(definition, batch_of(8), minibatch_size=8)


def own_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
    import keras

    base = super(type(self), self).compute_loss(x, y, y_pred, sample_weight, training)
    return base + keras.ops.mean(keras.ops.square(x)) * (5.0 if training else 1.0) * y_pred[0, 0]


def without_training(self, x, y, y_pred, sample_weight):
    import keras

    return keras.ops.mean(keras.ops.abs(y - y_pred))


@pytest.mark.parametrize("method", [without_training, own_loss])
def test_compute_loss_is_called_as_by_keras(method):
    import keras

    batch = batch_of(8)
    kind = net(compute_loss=method)
    trainer, model = trainer_of(kind), trainer_of(kind).model
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    expected = model.evaluate(batch.features, batch.labels, verbose=0)

    evaluated = trainer.evaluation_metrics.results(trainer.evaluate(batch))["loss"]
    trained = trainer.train_steps([batch]).losses[0]

    assert evaluated == pytest.approx(expected, rel=1e-5)
    assert trained == pytest.approx(model.train_on_batch(batch.features, batch.labels), rel=1e-5)
    for mine, theirs in zip(trainer.model.weights, model.weights, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_compute_loss_of_halves_adds_up_to_the_whole():
    kind = net(compute_loss=without_training)
    whole, split = trainer_of(kind), trainer_of(kind)
    batch = batch_of(8)
    whole.train_steps([batch])

    split.apply(split.gradients(batch)[0])

    for mine, theirs in zip(whole.model.weights, split.model.weights, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_compute_loss_that_couples_examples_is_refused_on_workers():
    # own_loss looks at the first example of the batch for all of them.
    trainer = trainer_of(net(compute_loss=own_loss))

    with pytest.raises(DefinitionError, match="depends on the others of its batch"):
        trainer.gradients(batch_of(8))


@pytest.mark.parametrize(
    "name",
    [
        "train_step", "test_step", "predict_step", "fit", "make_train_function", "compute_metrics",
        "get_metrics_result",
    ],
)  # fmt: skip
def test_a_method_that_would_not_be_called_is_refused_with_its_line(name):
    def method(self, *args, **kwargs):
        raise AssertionError("called")

    line = method.__code__.co_firstlineno
    expected = rf"test_overrides.py:{line}: Net has its own {name}\(\)"

    with pytest.raises(DefinitionError, match=expected):
        trainer_of(net(**{name: method}))


def test_reset_metrics_that_changes_more_than_metrics_is_refused_with_its_line():
    def reset_metrics(self):
        self.num_resets = getattr(self, "num_resets", 0) + 1
        self.weights[0].assign(0 * self.weights[0])

    line = reset_metrics.__code__.co_firstlineno
    expected = rf"test_overrides.py:{line}: reset_metrics\(\) of Net changes .*, num_resets"

    with pytest.raises(DefinitionError, match=expected):
        trainer_of(net(reset_metrics=reset_metrics))


def test_reset_metrics_that_resets_metrics_is_accepted():
    def reset_metrics(self):
        for metric in self.metrics:
            metric.reset_state()

    trainer_of(net(reset_metrics=reset_metrics))


def test_a_method_set_on_the_object_is_refused_too():
    def create():
        model = net()()
        model.train_step = lambda data: {}
        return model

    with pytest.raises(DefinitionError, match=r"Net has its own train_step\(\)"):
        trainer_of(create)


def test_a_model_compiled_with_its_own_loss_is_refused():
    def create():
        model = net()()
        model.compile("adam", "mae")
        return model

    with pytest.raises(DefinitionError, match="compiled with its own loss.*compile=False"):
        trainer_of(create)


def test_an_ordinary_subclass_and_a_sequential_model_are_trained():
    import keras

    for create in (net(), lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])):
        assert np.isfinite(trainer_of(create).train_steps([batch_of(8)]).losses).all()


def test_custom_metrics_of_a_model_are_reported(caplog):
    import keras

    def init(self):
        keras.Model.__init__(self, name="net")
        self.out = keras.layers.Dense(1)
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, x, training=False):
        self.seen.update_state(x)
        return self.out(x)

    with caplog.at_level(logging.WARNING):
        trainer = trainer_of(net(__init__=init, call=call))

    assert "seen" in trainer.train_steps([batch_of(8)]).metrics
    assert "seen" not in caplog.text


def two_layers(trainable_weights):
    """Return what makes a model of two layers that names what it trains."""
    import keras

    class Net(keras.Model):
        def __init__(self):
            super().__init__(name="net")
            self.body = keras.layers.Dense(3, activation="tanh", name="body")
            self.head = keras.layers.Dense(1, name="head")

        def call(self, x):
            return self.head(self.body(x))

    Net.trainable_weights = property(trainable_weights)
    return Net


def test_a_model_may_select_its_trainable_weights_as_in_fit():
    import keras

    kind = two_layers(lambda self: self.head.trainable_weights)
    whole, parts = trainer_of(kind), [trainer_of(kind), trainer_of(kind)]
    model = trainer_of(kind).model
    body = np.array(model.body.kernel)
    model.compile(keras.optimizers.SGD(0.1), "mse", jit_compile=False)
    batch = batch_of(8)
    model.train_on_batch(batch.features, batch.labels)

    whole.train_steps([batch])
    shares = [
        Batch(batch.features[rows], batch.labels[rows], 4) for rows in (slice(4), slice(4, 8))
    ]
    given = [each.gradients(share)[0] for each, share in zip(parts, shares, strict=True)]
    for each in parts:
        each.apply(Contribution(given[0].buffer + given[1].buffer, 8))

    assert "model/net/body/kernel" in whole.state()
    np.testing.assert_array_equal(whole.model.body.kernel, body)
    for trainer in (whole, *parts):
        for mine, theirs in zip(trainer.model.weights, model.weights, strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-6)


def test_invalid_trainable_weights_are_refused(monkeypatch):
    import keras

    def strange(self):
        return [*self.head.trainable_weights, STRANGER]

    def twice(self):
        return self.head.trainable_weights * 2

    def growing(self):
        # A variable of the file would not be read again.
        more = self.body.trainable_weights if "GROWN" in os.environ else []
        return [*self.head.trainable_weights, *more]

    STRANGER = keras.Variable(0.0)  # noqa: N806 - as a file would name it
    where = rf"{__file__}:\d+: trainable_weights of Net returns "
    for wrong, what in ((strange, ".*not a weight of it"), (twice, "a weight twice")):
        with pytest.raises(DefinitionError, match=where + what):
            trainer_of(two_layers(wrong))
    trainer = trainer_of(two_layers(growing))
    monkeypatch.setenv("GROWN", "1")
    with pytest.raises(DefinitionError, match=where + "4 weights in training and returned 2"):
        trainer.train_steps([batch_of(8)])
