"""Points that layers write with `tf.summary`: one for each training step, none for checks."""

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl.data.batch import Batch
from elasticdl.definition import ModelDefinition, Origin, RecordInput
from elasticdl.training.keras import KerasTrainer
from elasticdl.training.trainer import checking


class Writes(keras.layers.Layer):
    """Writes a point for each call; its step is the number of training calls before it.

    If it is `rare`, it writes in every second call only.
    """

    def __init__(self, writer=None, *, rare=False):
        super().__init__()
        self._writer, self._rare = writer, rare

    def build(self, _):
        self.calls = self.add_weight(shape=(), dtype="int64", initializer="zeros", trainable=False)

    def call(self, x, training=False):
        def write():
            even = lambda: tf.equal(self.calls.value % 2, 0)  # noqa: E731 - a condition
            with tf.summary.record_if(even if self._rare else True):
                tf.summary.scalar("training" if training else "inference", 1.0, self.calls.value)

        if self._writer is None:
            write()
        else:
            with self._writer.as_default():
                write()
        if training:
            self.calls.assign_add(1)
        return x


def trainer_of(writer=None, *, layer=None, rank=0, callbacks=()):
    definition = ModelDefinition(
        origin=Origin("elasticdl_module", "model.py", 1, "model", "zoo"),
        framework="keras",
        create_model=lambda: keras.Sequential(
            [keras.Input((4,)), layer or Writes(writer), keras.layers.Dense(1)]
        ),
        input=RecordInput(lambda records: records),
        loss=lambda outputs, labels: keras.ops.mean((outputs - labels) ** 2),
        create_optimizer=lambda: keras.optimizers.SGD(0.1),
        create_callbacks=lambda: list(callbacks),
    )
    return KerasTrainer(definition, batch_of(0), minibatch_size=8, rank=rank)


def batch_of(seed):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(8, 4)).astype("float32"), rng.normal(size=(8, 1)).astype("float32")
    return Batch(x, y, 8)


def begin(trainer):
    trainer.hooks.committed(leads=trainer.rank == 0)
    trainer.hooks.train_begin(num_epochs=1, num_steps=3, resumes=False)
    trainer.hooks.epoch_begin(0)


def train(trainer, num_steps=3):
    for step in range(num_steps):
        trainer.hooks.batch_begin(step)
        trainer.apply(trainer.gradients(batch_of(step))[0])
        trainer.hooks.batch_end(step, {"loss": 1.0})


def points(folder: Path, tag: str) -> list[int]:
    """Return the steps of the points of a tag in the event files of a folder."""
    found = []
    for path in sorted(folder.rglob("*tfevents*")):
        for record in tf.data.TFRecordDataset(str(path)):
            event = tf.compat.v1.Event.FromString(record.numpy())
            found += [event.step for each in event.summary.value if each.tag.endswith(tag)]
    return found


@pytest.mark.parametrize(("rank", "steps"), [(0, [0, 1, 2]), (1, [])])
def test_a_layer_writes_one_point_for_each_step_of_rank_0(tmp_path, rank, steps) -> None:
    writer = tf.summary.create_file_writer(str(tmp_path))
    trainer = trainer_of(writer, rank=rank)
    trainer.warm_up(trainer.gradients(batch_of(9))[0])
    begin(trainer)

    train(trainer)

    writer.flush()
    assert points(tmp_path, "training") == steps
    assert points(tmp_path, "inference") == []


def test_a_layer_writes_to_the_writer_of_a_callback_after_the_warm_up(tmp_path) -> None:
    trainer = trainer_of(callbacks=[keras.callbacks.TensorBoard(tmp_path, update_freq=1)])
    trainer.warm_up(trainer.gradients(batch_of(9))[0])
    begin(trainer)

    train(trainer)

    trainer.hooks.train_end({})
    assert points(tmp_path / "train", "training") == [0, 1, 2]


def test_a_layer_writes_one_point_for_each_evaluated_batch_and_none_for_an_export(tmp_path) -> None:
    writer = tf.summary.create_file_writer(str(tmp_path / "events"))
    trainer = trainer_of(writer)

    for seed in range(2):
        trainer.evaluate(batch_of(seed))
    trainer.why_not_exported()
    trainer.export(tmp_path)

    writer.flush()
    assert points(tmp_path / "events", "inference") == [0, 0]
    assert points(tmp_path / "events", "training") == []


def test_a_layer_may_write_points_under_a_condition(tmp_path) -> None:
    plain = trainer_of(layer=Writes(rare=True))
    callback = keras.callbacks.TensorBoard(tmp_path, update_freq=1)
    watched = trainer_of(layer=Writes(rare=True), callbacks=[callback])
    for trainer in (plain, watched):
        trainer.warm_up(trainer.gradients(batch_of(9))[0])
        begin(trainer)
        train(trainer)
        assert "saved_model" not in trainer.why_not_exported()
        trainer.hooks.train_end({})

    assert points(tmp_path / "train", "training") == [0, 2]


def test_checks_of_a_trainer_write_no_points(tmp_path) -> None:
    writer = tf.summary.create_file_writer(str(tmp_path))
    trainer = trainer_of(writer)

    with checking(trainer):
        trainer.evaluate(batch_of(0))
        trainer.predict(batch_of(0).features)
    trainer.evaluate(batch_of(1))

    writer.flush()
    assert points(tmp_path, "inference") == [0]


def test_a_step_is_not_traced_again_if_the_model_writes_no_points(tmp_path) -> None:
    callback = keras.callbacks.TensorBoard(tmp_path, update_freq=1)
    trainer = trainer_of(layer=keras.layers.Identity(), callbacks=[callback])
    trainer.gradients(batch_of(9))
    traced = trainer._functions._compiled.last[1]
    begin(trainer)

    train(trainer)

    assert trainer._functions._compiled.last[1] is traced
