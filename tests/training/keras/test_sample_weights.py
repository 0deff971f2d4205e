"""Sample weights count in loss, metrics and gradients as they do in plain Keras."""

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
from elasticdl.dialects.losses import KerasLoss
from elasticdl.errors import DefinitionError
from elasticdl.evaluation.metrics import add_states
from elasticdl.training.trainer import Contribution

ORIGIN = Origin("elasticdl_module", "model.py", 1, "model", "zoo")


def flat():
    import keras

    return keras.Sequential([keras.Input((6,), dtype="int32"), keras.layers.Dense(2)])


def tagger():
    import keras

    inputs = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(10, 4, mask_zero=True)(inputs)
    return keras.Model(inputs, keras.layers.LSTM(2, return_sequences=True)(x))


def batch_of(size, create_model=flat, seed=0):
    rng = np.random.default_rng(seed)
    tokens = rng.integers(1, 10, (size, 6)).astype("int32")
    tokens[np.arange(6) >= rng.integers(1, 7, (size, 1))] = 0
    shape = (size,) if create_model is flat else (size, 6)
    weights = rng.uniform(0.1, 3.0, shape).astype("float32")
    labels = rng.normal(size=(*shape, 2)).astype("float32")
    return Batch(tokens, labels, size, weights)


def function(outputs, labels):
    import keras

    return keras.ops.mean(keras.ops.square(outputs - labels), axis=-1)


def object_of(reduction="sum_over_batch_size"):
    import keras

    return KerasLoss(lambda: keras.losses.MeanSquaredError(reduction=reduction))


LOSSES = {
    "function": (lambda: function, "sum_over_batch_size"),
    "object": (object_of, "sum_over_batch_size"),
    "by weight": (lambda: object_of("mean_with_sample_weight"), "mean_with_sample_weight"),
}
CASES = [(loss, model) for loss in LOSSES for model in (flat, tagger)]


def trainer_of(loss, create_model=flat, metrics=()):
    import keras

    from elasticdl.training.keras import KerasTrainer

    definition = ModelDefinition(
        origin=ORIGIN,
        framework="keras",
        create_model=create_model,
        input=RecordInput(lambda records: records),
        loss=loss,
        create_optimizer=lambda: keras.optimizers.SGD(0.1),
        create_metrics=lambda mode: MetricFunctions(named=[*metrics]),
    )
    return KerasTrainer(definition, batch_of(8, create_model), minibatch_size=8)


def plain(reduction, create_model=flat, **more):
    import keras

    model = trainer_of(object_of(), create_model).model
    loss = keras.losses.MeanSquaredError(reduction=reduction)
    model.compile(keras.optimizers.SGD(0.1), loss, jit_compile=False, **more)
    return model


def parts_of(batch):
    return batch.features, batch.labels, batch.weights


def close(one, other):
    for a, b in zip(one.trainable_variables, other.trainable_variables, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("loss", "model"), CASES)
def test_training_and_evaluation_with_weights_match_keras(loss, model):
    create, reduction = LOSSES[loss]
    trainer, theirs = trainer_of(create(), model), plain(reduction, model)
    batches = [batch_of(8, model, seed) for seed in (1, 2)]
    x, y, w = parts_of(batches[0])
    expected = theirs.evaluate(x, y, sample_weight=w, verbose=0)

    evaluated = trainer.evaluation_metrics.results(trainer.evaluate(batches[0]))["loss"]
    losses = trainer.train_steps(batches).losses

    assert evaluated == pytest.approx(expected, rel=1e-5)
    assert losses[0] == pytest.approx(expected, rel=1e-5)
    for batch in batches:
        x, y, w = parts_of(batch)
        theirs.train_on_batch(x, y, sample_weight=w)
    close(trainer.model, theirs)


@pytest.mark.parametrize(("loss", "model"), CASES)
def test_uneven_batches_of_two_workers_equal_one_keras_batch(loss, model):
    create, reduction = LOSSES[loss]
    batches = [batch_of(5, model, seed=1), batch_of(3, model, seed=2)]
    workers, theirs = [trainer_of(create(), model) for _ in batches], plain(reduction, model)

    given = [w.gradients(b)[0] for w, b in zip(workers, batches, strict=True)]
    total = Contribution(given[0].buffer + given[1].buffer, 8)
    for worker in workers:
        worker.apply(total)

    x, y, w = (np.concatenate(each) for each in zip(*map(parts_of, batches), strict=True))
    theirs.train_on_batch(x, y, sample_weight=w)
    for worker in workers:
        close(worker.model, theirs)


@pytest.mark.parametrize("model", [flat, tagger])
def test_sample_weights_apply_only_to_weighted_metrics(model):
    import keras

    metrics = [
        NamedMetric("mae", keras.metrics.MeanAbsoluteError()),
        NamedMetric("weighted_mae", keras.metrics.MeanAbsoluteError(), weighted=True),
    ]
    trainer = trainer_of(function, model, metrics)
    theirs = plain(
        "sum_over_batch_size",
        model,
        metrics=[keras.metrics.MeanAbsoluteError(name="mae")],
        weighted_metrics=[keras.metrics.MeanAbsoluteError(name="weighted_mae")],
    )
    batches = [batch_of(8, model, seed) for seed in (1, 2)]
    x, y, w = (np.concatenate(each) for each in zip(*map(parts_of, batches), strict=True))

    found = trainer.evaluation_metrics.results(add_states(map(trainer.evaluate, batches)))

    expected = theirs.evaluate(x, y, sample_weight=w, batch_size=8, verbose=0, return_dict=True)
    assert found == pytest.approx(expected, rel=1e-5)


def test_weighted_losses_of_examples_average_to_the_batch_loss():
    batch = batch_of(8)
    examined = trainer_of(function).evaluate_per_example(batch)

    squares = np.square(examined.outputs - batch.labels).mean(-1)
    np.testing.assert_allclose(examined.values["loss"], squares * batch.weights, rtol=1e-5)


def test_weights_for_a_loss_of_the_whole_batch_are_refused():
    import keras

    trainer = trainer_of(lambda o, y: keras.ops.mean(function(o, y)))

    with pytest.raises(DefinitionError, match="one number for the whole batch"):
        trainer.train_steps([batch_of(8)])


def test_one_weight_per_example_is_not_applied_to_its_steps():
    batch = batch_of(6, tagger)
    uneven = Batch(batch.features, batch.labels, 6, batch.weights[:, 0])
    column = Batch(batch.features, batch.labels, 6, batch.weights[:, :1])
    trainer = trainer_of(function, tagger)

    with pytest.raises(DefinitionError, match=r"weights have the shape"):
        trainer.train_steps([uneven])
    theirs = plain("sum_over_batch_size", tagger)
    x, y, w = parts_of(column)
    expected = theirs.train_on_batch(x, y, sample_weight=w)
    assert trainer_of(function, tagger).train_steps([column]).losses[0] == pytest.approx(
        expected, rel=1e-5
    )


def test_class_weights_inside_a_loss_train_in_one_process_only():
    import keras

    def weighted_mean(outputs, labels):
        weights = keras.ops.where(labels[:, 0] > 0, 5.0, 1.0)
        return keras.ops.sum(weights * function(outputs, labels)) / keras.ops.sum(weights)

    batch = batch_of(8)
    batch = Batch(batch.features, batch.labels, 8)
    trainer = trainer_of(weighted_mean)

    assert np.isfinite(trainer.train_steps([batch]).losses).all()
    with pytest.raises(DefinitionError, match="class weights that are divided by their sum"):
        trainer.gradients(batch)
