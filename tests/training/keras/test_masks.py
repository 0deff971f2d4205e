"""Masks count in loss, metrics and gradients as they do in plain Keras."""

import numpy as np
import pytest

from elasticdl.data.batch import Batch
from elasticdl.definition import (
    MetricFunctions,
    ModelDefinition,
    NamedMetric,
    Origin,
    RecordInput,
)
from elasticdl.errors import DefinitionError
from elasticdl.training.trainer import Contribution

ORIGIN = Origin("elasticdl_module", "model.py", 1, "model", "zoo")


def tagger():
    import keras

    inputs = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(10, 4, mask_zero=True)(inputs)
    return keras.Model(inputs, keras.layers.LSTM(1, return_sequences=True)(x))


def batch_of(size, seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, 10, (size, 6)).astype("int32")
    tokens[np.arange(6) >= rng.integers(1, 7, (size, 1))] = 0
    return Batch(tokens, rng.normal(size=(size, 6, 1)).astype("float32"), size)


def per_step(outputs, labels):
    import keras

    return keras.ops.mean(keras.ops.square(outputs - labels), axis=-1)


def loss_object():
    import keras

    from elasticdl.dialects.losses import KerasLoss

    return KerasLoss(keras.losses.MeanSquaredError)


def inside_a_function(outputs, labels):
    import keras

    return keras.losses.MeanSquaredError()(labels, outputs)


def ignoring_the_mask(outputs, labels):
    import keras

    return keras.ops.mean(keras.ops.square(outputs - labels))


LOSSES = {
    "function": lambda: per_step,
    "object": loss_object,
    "inside": lambda: inside_a_function,
    "unmasked": lambda: ignoring_the_mask,
}


def trainer_of(loss, create_model=tagger, metrics=(), rate=0.5):
    import keras

    from elasticdl.training.keras import KerasTrainer

    definition = ModelDefinition(
        origin=ORIGIN,
        framework="keras",
        create_model=create_model,
        input=RecordInput(lambda records: records),
        loss=loss,
        create_optimizer=lambda: keras.optimizers.SGD(rate),
        create_metrics=lambda mode: MetricFunctions(named=[*metrics]),
    )
    return KerasTrainer(definition, batch_of(8), minibatch_size=8)


def plain(loss, metrics=(), create_model=tagger):
    """The same model in plain Keras, with the same initial weights."""
    import keras

    trainer = trainer_of(loss_object(), create_model)
    model = trainer.model
    model.compile(keras.optimizers.SGD(0.5), loss, metrics=list(metrics), jit_compile=False)
    return model


def keras_order(loss):
    return lambda y_true, y_pred: loss(y_pred, y_true)


PLAIN = {
    "function": lambda: keras_order(per_step),
    "object": lambda: "mse",
    "inside": lambda: keras_order(inside_a_function),
    "unmasked": lambda: keras_order(ignoring_the_mask),
}


def weights_of(model):
    return [np.array(v) for v in model.trainable_variables]


def close(one, other, rtol=1e-5):
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol, atol=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_training_and_evaluation_with_a_mask_match_keras(loss):
    batch = batch_of(8)
    trainer, model = trainer_of(LOSSES[loss]()), plain(PLAIN[loss]())
    expected = model.evaluate(batch.features, batch.labels, verbose=0)

    evaluated = trainer.evaluation_metrics.results(trainer.evaluate(batch))["loss"]
    trained = trainer.train_steps([batch]).losses[0]

    assert evaluated == pytest.approx(expected, rel=1e-5)
    assert trained == pytest.approx(expected, rel=1e-5)
    model.train_on_batch(batch.features, batch.labels)
    close(weights_of(trainer.model), weights_of(model))


@pytest.mark.parametrize("loss", LOSSES)
def test_uneven_batches_of_two_workers_equal_one_keras_batch(loss):
    batches = [batch_of(5, seed=1), batch_of(3, seed=2)]
    workers = [trainer_of(LOSSES[loss]()) for _ in batches]
    model = plain(PLAIN[loss]())
    joined = [np.concatenate(parts) for parts in zip(*map(_arrays, batches), strict=True)]

    added = add([w.gradients(b)[0] for w, b in zip(workers, batches, strict=True)])
    for worker in workers:
        worker.apply(added)

    model.train_on_batch(*joined)
    for worker in workers:
        close(weights_of(worker.model), weights_of(model))


def test_gradients_of_masked_steps_are_not_averaged_by_examples():
    trainer = trainer_of(loss_object())
    contribution, _ = trainer.gradients(batch_of(5))

    with pytest.raises(DefinitionError, match="the loss of 5 examples was divided by"):
        trainer.by_name(contribution)


def _arrays(batch):
    return batch.features, batch.labels


def add(contributions):
    return Contribution(
        np.sum([c.buffer for c in contributions], axis=0),
        sum(c.num_examples for c in contributions),
    )


def test_metrics_omit_masked_steps():
    import keras

    def far(y_true, y_pred):
        return keras.ops.squeeze(keras.ops.abs(y_true - y_pred), -1)

    def named(name, metric):
        return NamedMetric(name, metric)

    metrics = [named("far", far), named("mae", keras.metrics.MeanAbsoluteError(name="mae"))]
    trainer = trainer_of(per_step, metrics=metrics)
    model = plain("mse", metrics=[far, "mae"])
    batches = [batch_of(8, seed=seed) for seed in (1, 2)]
    both = [np.concatenate(parts) for parts in zip(*map(_arrays, batches), strict=True)]

    from elasticdl.evaluation.metrics import add_states

    found = trainer.evaluation_metrics.results(add_states(map(trainer.evaluate, batches)))

    expected = model.evaluate(*both, batch_size=8, verbose=0, return_dict=True)
    assert found == pytest.approx(expected, rel=1e-5)


def two_outputs():
    import keras

    inputs = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(10, 4, mask_zero=True)(inputs)
    a = keras.layers.LSTM(1, return_sequences=True, name="a")(x)
    return keras.Model(inputs, {"inner": [a, keras.layers.GRU(2, name="b")(x)]})


def test_masks_of_nested_outputs_reach_the_loss_in_evaluation():
    import keras

    def loss(outputs, labels):
        (steps, last) = outputs["inner"]
        return keras.losses.MeanSquaredError()(labels, steps) + 0.0 * keras.ops.mean(last)

    batch = batch_of(8)
    trainer = trainer_of(loss, two_outputs)
    steps = trainer.predict(batch.features)["inner"][0]
    there = batch.features != 0
    expected = np.square(steps - batch.labels)[there].mean()

    found = trainer.evaluation_metrics.results(trainer.evaluate(batch))["loss"]

    assert found == pytest.approx(expected, rel=1e-5)


def test_the_loss_of_an_example_covers_its_steps():
    batch = batch_of(8)
    examined = trainer_of(per_step).evaluate_per_example(batch)

    squares = np.square(examined.outputs - batch.labels)[..., 0]
    there = batch.features != 0
    expected = [row[mask].mean() for row, mask in zip(squares, there, strict=True)]
    np.testing.assert_allclose(examined.values["loss"], expected, rtol=1e-5)


def test_a_fully_masked_batch_adds_nothing():
    batch = batch_of(8)
    nothing = Batch(np.zeros_like(batch.features), batch.labels, 8)
    trainer = trainer_of(per_step)
    trainer.gradients(batch)
    before = weights_of(trainer.model)

    contribution, result = trainer.gradients(nothing)
    trainer.apply(contribution)

    assert result.losses[0] == 0
    close(weights_of(trainer.model), before, rtol=0)


def test_mixing_masked_and_unmasked_losses_is_refused():
    import keras

    def loss(outputs, labels):
        return keras.losses.MeanSquaredError()(labels, outputs) + ignoring_the_mask(outputs, labels)

    trainer = trainer_of(loss)

    assert np.isfinite(trainer.train_steps([batch_of(8)]).losses).all()
    with pytest.raises(DefinitionError, match="It can be trained in one process"):
        trainer.gradients(batch_of(8))
