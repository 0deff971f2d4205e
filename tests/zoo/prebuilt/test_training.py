"""Every prebuilt model trains on the sample data it is for, by its name alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from safetensors.numpy import load_file

import elasticdl
from elasticdl.zoo import catalogue

if TYPE_CHECKING:
    from pathlib import Path

# Model -> sample, options, and what must be reached: at least, or at most where it is negative.
RUNS = {
    # A bar for any seed: over 40 seeds, 3 epochs of a plain script reach 0.908 to 0.969. That the
    # weights are those of a plain script is a test of its own, below.
    "mnist": ("digits", {"num_epochs": 3}, ("val_accuracy", 0.9)),
    "cifar10": ("patches", {"num_epochs": 1, "max_steps": 10}, ("val_accuracy", 0.05)),
    "classifier.DNN": (
        "iris",
        {"num_epochs": 20, "params": "num_classes=3, learning_rate=0.01"},
        ("val_accuracy", 0.8),
    ),
    "wide_and_deep.Classifier": (
        "wine",
        {"num_epochs": 20, "params": "num_classes=3, learning_rate=0.01"},
        ("val_accuracy", 0.8),
    ),
    "regressor.DNN": (
        "diabetes",
        {"num_epochs": 20, "params": "label_mean=150, label_scale=80, learning_rate=0.01"},
        ("val_mean_absolute_error", -60.0),
    ),
    "wide_and_deep.Regressor": (
        "diabetes",
        {"num_epochs": 20, "params": "label_mean=150, label_scale=80, learning_rate=0.01"},
        ("val_mean_absolute_error", -60.0),
    ),
}


def test_every_prebuilt_model_is_tested() -> None:
    assert sorted(RUNS) == [entry.name for entry in catalogue.entries()]


@pytest.mark.slow
@pytest.mark.parametrize("model_def", RUNS)
def test_prebuilt_model_learns(model_def: str, tmp_path: Path, request) -> None:
    sample, options, (metric, bound) = RUNS[model_def]
    data = request.getfixturevalue(sample)

    outcome = elasticdl.train(
        model_def=model_def,
        data=f"{data}/train",
        validation_data=f"{data}/test",
        output=str(tmp_path / "trained"),
        **options,
    )

    value = outcome.metrics[metric]
    assert value >= bound if bound > 0 else value <= -bound
    # It is written only if Keras reads it back and it predicts the same.
    assert (tmp_path / "trained" / "model.keras").exists()


@pytest.mark.slow
def test_mnist_weights_match_a_plain_fit_in_the_same_order(digits: Path, tmp_path) -> None:
    import keras
    import tensorflow as tf

    from elasticdl.data.schema import Schema
    from elasticdl.data.sources import open_source
    from elasticdl.sharding.epoch_order import ShardPlan
    from elasticdl.zoo.prebuilt import mnist

    output, seed, num_epochs = tmp_path / "trained", 7, 3
    elasticdl.train(
        model_def="mnist",
        params="dropout=0.0",
        data=f"{digits}/train",
        output=str(output),
        num_epochs=num_epochs,
        seed=seed,
    )

    source = open_source(f"{digits}/train")
    schema = Schema.from_user(mnist.data_schema())
    features, labels = mnist.input_fn(source.read_records(0, source.num_records, schema))
    plan = ShardPlan(source.num_records, minibatch_size=64, seed=seed)
    # As in the job: XLA, which Keras uses otherwise, rounds in another order.
    tf.config.experimental.enable_op_determinism()
    keras.utils.set_random_seed(seed)
    plain = mnist.custom_model(dropout=0.0)
    initial = plain.get_weights()
    plain.compile(mnist.optimizer(), "sparse_categorical_crossentropy")
    for epoch in range(num_epochs):
        order = np.concatenate([plan.record_numbers(epoch, i) for i in range(plan.num_shards)])
        assert sorted(order) == list(range(source.num_records))
        plain.fit(features["image"][order], labels[order], 64, shuffle=False, verbose=0)

    trained = keras.models.load_model(output / "model.keras").get_weights()
    for before, mine, theirs in zip(initial, trained, plain.get_weights(), strict=True):
        assert np.abs(theirs - before).max() > 0.01
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-4)


def test_summed_minibatches_give_the_weights_of_whole_batches(iris: Path, tmp_path) -> None:
    for minibatch_size in (32, 16):
        elasticdl.train(
            model_def="classifier.DNN",
            data=f"{iris}/train",
            params="num_classes=3, hidden_units=[8]",
            output=str(tmp_path / str(minibatch_size)),
            minibatch_size=minibatch_size,
            global_batch_size=32,
            max_steps=6,
        )

    whole, summed = (load_file(tmp_path / size / "params.safetensors") for size in ("32", "16"))
    for name in whole:
        np.testing.assert_allclose(whole[name], summed[name], rtol=1e-5, atol=1e-7)
