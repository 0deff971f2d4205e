"""Callbacks monitor metrics that are measured, and know which values of them are better."""

import pytest
from tests.training.keras.test_hooks import Checkpointed
from tests.training.keras.test_trainer import definition_of, trainer_of

from elasticdl.definition import MetricFunctions, Mode, NamedMetric
from elasticdl.errors import DefinitionError


@pytest.fixture(autouse=True)
def keras():
    import keras

    return keras


def test_a_callback_gets_the_direction_of_a_metric(keras):
    stopping = keras.callbacks.EarlyStopping("val_good", patience=1)
    metrics = MetricFunctions(
        named=[NamedMetric("good", keras.metrics.SparseCategoricalAccuracy())]
    )
    hooks = trainer_of(
        definition_of(create_callbacks=lambda: [stopping], create_metrics=lambda mode: metrics)
    ).hooks
    hooks.train_begin(num_epochs=3, num_steps=1, resumes=False)
    for epoch, value in enumerate([0.1, 0.2, 0.3]):
        hooks.epoch_end(epoch, {"val_good": value})

    assert not hooks.stop_requested


@pytest.mark.parametrize(("mode", "is_noted"), [("min", True), ("max", False), ("auto", False)])
def test_a_callback_that_takes_a_rising_accuracy_for_a_worse_one_is_noted(
    keras, mode, is_noted, caplog
):
    metrics = MetricFunctions(
        named=[NamedMetric("accuracy", keras.metrics.SparseCategoricalAccuracy())]
    )
    stopping = keras.callbacks.EarlyStopping("val_accuracy", mode=mode)
    hooks = trainer_of(
        definition_of(create_callbacks=lambda: [stopping], create_metrics=lambda _: metrics)
    ).hooks
    hooks.train_begin(num_epochs=2, num_steps=2, resumes=False)

    notes = [text for text in caplog.messages if "rising value for a worse one" in text]
    assert len(notes) == is_noted
    assert all("EarlyStopping monitors 'val_accuracy' with mode=\"min\"" in each for each in notes)


def test_monitoring_a_validation_metric_without_val_is_refused(keras):
    def hooks(name):
        return Checkpointed(lambda: [keras.callbacks.EarlyStopping(name, mode="min")]).hooks

    with pytest.raises(DefinitionError, match="monitors 'mae'.*'val_mae'"):
        hooks("mae").epoch_end(0, {"loss": 1.0, "val_loss": 1.0, "val_mae": 1.0})
    hooks("val_mae").epoch_end(0, {"loss": 1.0, "val_loss": 1.0, "val_mae": 1.0})


def test_a_callback_that_monitors_an_unmeasured_metric_is_refused(keras):
    definition = definition_of(
        create_callbacks=lambda: [keras.callbacks.EarlyStopping("mae", mode="min")],
        create_metrics=lambda mode: MetricFunctions(
            named=[NamedMetric("mae", keras.metrics.MeanAbsoluteError())]
            if mode is Mode.EVALUATION
            else []
        ),
    )

    hooks = trainer_of(definition).hooks

    with pytest.raises(DefinitionError, match="EarlyStopping monitors 'mae'.*'val_mae'"):
        hooks.train_begin(num_epochs=1, num_steps=None, resumes=False)


def test_an_unknown_direction_of_a_monitored_metric_is_refused_before_the_first_step(keras):
    def trainer(callback, metric):
        named = NamedMetric("close", metric)
        return trainer_of(
            definition_of(
                create_callbacks=lambda: [callback],
                create_metrics=lambda _: MetricFunctions(named=[named]),
            )
        )

    def begin(callback, metric=keras.metrics.sparse_categorical_accuracy):
        trainer(callback, metric).hooks.train_begin(num_epochs=1, num_steps=1, resumes=False)

    stopping = keras.callbacks.EarlyStopping
    with pytest.raises(DefinitionError, match="EarlyStopping monitors 'val_close'.*mode='max'"):
        begin(stopping("val_close"))
    begin(stopping("val_close", mode="max"))
    begin(stopping("val_loss"))
    begin(stopping("val_close"), keras.metrics.SparseCategoricalAccuracy())


def test_the_direction_of_a_named_metric_is_known(keras):
    metric = NamedMetric("close", keras.metrics.sparse_categorical_accuracy, direction="max")
    stopping = keras.callbacks.EarlyStopping("val_close", patience=0)
    hooks = trainer_of(
        definition_of(
            create_callbacks=lambda: [stopping],
            create_metrics=lambda _: MetricFunctions(named=[metric]),
        )
    ).hooks

    hooks.train_begin(num_epochs=3, num_steps=1, resumes=False)
    for epoch, value in enumerate([0.1, 0.2]):
        hooks.epoch_end(epoch, {"val_close": value})

    assert not hooks.stop_requested
