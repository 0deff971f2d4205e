"""A model that changes its trained weights in a call: the same on all workers, or refused there."""

import contextlib

import numpy as np
import pytest
from tests.training.keras.test_random_draws import batch_of, definition_of, same_bits

from elasticdl.definition import Origin
from elasticdl.errors import DefinitionError
from elasticdl.training.trainer import Contribution


def trainer_of(change, **layers):
    import keras

    from elasticdl.training.keras import KerasTrainer

    class Moving(keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(name="scale", shape=(shape[-1],), initializer="ones")

        def call(self, x, training=False):
            if training:
                self.scale.assign(change(self.scale, x))
            return x * self.scale

    def create():
        return keras.Sequential([keras.Input((4,)), Moving(), keras.layers.Dense(1)])

    return KerasTrainer(definition_of(create), batch_of(), minibatch_size=8, **layers)


def by_examples(scale, x):
    import keras

    return 0.9 * scale + 0.1 * keras.ops.std(x, 0)


def by_chance(scale, x):
    import keras

    return scale + 0.1 * keras.random.normal(scale.shape)


def by_itself(scale, x):
    import keras

    return scale / keras.ops.norm(scale)


@pytest.mark.parametrize("is_early", [True, False])
def test_a_change_by_the_second_part_only_is_found_in_early_checks(is_early):
    import keras
    import tensorflow as tf

    from elasticdl.training.keras.loss_part_checks import ExampleBatch
    from elasticdl.training.keras.moved_weights import check_alike

    scale = keras.Variable(1.0, name="scale")
    features = tf.ones((8, 4))
    batch = ExampleBatch(features, None, features, None, 8)

    def call(part, rank):
        if rank:
            scale.assign(2.0)

    origin = Origin("elasticdl_module", "model.py", 1, "model", "zoo")
    expected = pytest.raises(DefinitionError, match="changes its weight scale")
    with expected if is_early else contextlib.nullcontext():
        assert check_alike(call, batch, [scale], [], origin, is_early=is_early) == []
    assert float(scale.value) == 1.0


@pytest.mark.parametrize("change", [by_examples, by_chance])
def test_data_dependent_or_random_changes_are_refused_in_sums(change):
    trainer = trainer_of(change)

    assert np.isfinite(trainer.train_steps([batch_of()]).losses).all()
    with pytest.raises(
        DefinitionError, match=r"changes its weight \S*scale when it is called"
    ) as e:
        trainer.gradients(batch_of())
    assert "set a weight that is trained in build()" in str(e.value)


def test_changes_that_depend_only_on_the_weight_are_trained():
    whole, split = trainer_of(by_itself), trainer_of(by_itself)
    whole.train_steps([batch_of()])

    split.apply(split.gradients(batch_of())[0])

    for path, array in whole.state().items():
        np.testing.assert_allclose(split.state()[path], array, rtol=1e-5, atol=1e-6)


def shrunk(scale, x):
    return 0.9 * scale


def test_computing_gradients_does_not_change_weights():
    whole, split, idle = (trainer_of(shrunk) for _ in range(3))
    whole.train_steps([batch_of()])
    begun = split.state()

    # As in a rehearsal, for two minibatches of an update, and after a quorum that failed.
    first = split.gradients(batch_of())[0]
    again = split.gradients(batch_of())[0]
    assert same_bits(split.state(), begun)
    np.testing.assert_array_equal(first.buffer, again.buffer)
    total = Contribution(first.buffer + again.buffer, 2 * first.num_examples)
    # A worker that has no batch has rehearsed, and applies what the others sum.
    idle.gradients(batch_of(5))
    for trainer in (split, idle):
        trainer.apply(total)

    assert same_bits(split.state(), idle.state())
    for path, array in whole.state().items():
        np.testing.assert_allclose(split.state()[path], array, rtol=1e-5, atol=1e-6)


def at_times(scale, x):
    import tensorflow as tf

    return tf.cond(
        tf.reduce_sum(x) > 1e6, lambda: tf.identity(0.9 * scale), lambda: tf.identity(scale)
    )


def test_an_occasional_change_is_sent_too():
    trainer = trainer_of(at_times)
    begun = trainer.state()

    trainer.apply(trainer.gradients(batch_of())[0])

    # Adam has changed it, the call has not.
    path = next(path for path in begun if path.startswith("model/") and "scale" in path)
    assert np.abs(trainer.state()[path] - begun[path]).max() < 0.05


def test_an_assignment_in_a_later_branch_is_refused():
    import keras
    import tensorflow as tf

    class Sometimes(keras.layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(name="scale", shape=(shape[-1],), initializer="ones")

        def call(self, x, training=False):
            if training:
                tf.cond(
                    tf.reduce_sum(x) > 1e6,
                    lambda: tf.identity(self.scale.assign(self.scale * 0.9)),
                    lambda: tf.identity(self.scale),
                )
            return x * self.scale

    def create():
        return keras.Sequential([keras.Input((4,)), Sometimes(), keras.layers.Dense(1)])

    from elasticdl.training.keras import KerasTrainer

    trainer = KerasTrainer(definition_of(create), batch_of(), minibatch_size=8)
    trainer.train_steps([batch_of()])

    with pytest.raises(DefinitionError, match=r"changes its weight \S*scale in some calls"):
        trainer.gradients(batch_of())


def test_workers_with_different_batches_have_the_same_weights():
    one, other = trainer_of(by_itself), trainer_of(by_itself, rank=1)
    total = one.gradients(batch_of(1))[0]
    other.gradients(batch_of(2))
    one.apply(total)
    other.apply(total)

    assert same_bits(one.state(), other.state())
