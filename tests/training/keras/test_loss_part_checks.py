"""Where gradients are summed, a loss must follow from those of the parts of a batch."""

import numpy as np
import pytest

from elasticdl.data.batch import Batch
from elasticdl.definition import ModelDefinition, Origin, RecordInput
from elasticdl.errors import DefinitionError

ORIGIN = Origin("elasticdl_module", "model.py", 1, "model", "zoo")


def dense():
    import keras

    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])


def batch_of(size=8, seed=0):
    rng = np.random.default_rng(seed)
    return Batch(rng.normal(size=(size, 4)).astype("float32"), rng.integers(0, 3, size), size)


def trainer_of(loss, create_model=dense):
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
    return KerasTrainer(definition, batch_of(), minibatch_size=8)


def crossentropy(outputs, labels):
    import keras

    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)


def mean(outputs, labels):
    import keras

    return keras.ops.mean(crossentropy(outputs, labels))


def total(outputs, labels):
    import keras

    return keras.ops.sum(crossentropy(outputs, labels))


def in_batch_negatives(outputs, labels):
    import tensorflow as tf

    scores = tf.matmul(outputs, outputs, transpose_b=True)
    positions = tf.range(tf.shape(outputs)[0])
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=positions, logits=scores)


def root_mean_square(outputs, labels):
    import keras

    return keras.ops.sqrt(mean(outputs, labels))


@pytest.mark.parametrize("loss", [mean, crossentropy])
@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_a_mean_over_examples_can_be_split(loss, size):
    whole, split = trainer_of(loss), trainer_of(loss)
    whole.train_steps([batch_of(size)])

    split.apply(split.gradients(batch_of(size))[0])

    for one, other in zip(whole.model.weights, split.model.weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("size", [1, 8])
def test_a_sum_is_refused_with_advice_to_use_the_mean(size):
    with pytest.raises(DefinitionError, match=r"It is a sum.*tf.reduce_mean"):
        trainer_of(total).gradients(batch_of(size))


@pytest.mark.parametrize("loss", [in_batch_negatives, root_mean_square])
def test_a_coupled_loss_is_refused_only_on_workers(loss):
    trainer = trainer_of(loss)

    assert np.isfinite(trainer.train_steps([batch_of()]).losses).all()
    with pytest.raises(DefinitionError, match="It can be trained in one process") as error:
        trainer.gradients(batch_of())

    assert "reduce_mean" not in str(error.value)


def test_a_loss_that_needs_the_whole_batch_is_refused():
    import tensorflow as tf

    def of_eight(outputs, labels):
        return tf.reduce_mean(tf.reshape(crossentropy(outputs, labels), [8]))

    with pytest.raises(DefinitionError, match="it cannot be computed.*one process"):
        trainer_of(of_eight).gradients(batch_of())


def test_constant_outputs_do_not_hide_a_coupled_loss():
    import keras

    def zeros():
        kernel = keras.layers.Dense(3, kernel_initializer="zeros")
        return keras.Sequential([keras.Input((4,)), kernel])

    with pytest.raises(DefinitionError, match="It can be trained in one process"):
        trainer_of(in_batch_negatives, zeros).gradients(batch_of())


def test_a_nan_loss_is_not_mistaken_for_a_sum():
    import keras

    trainer = trainer_of(lambda o, y: mean(o, y) * keras.ops.log(-1.0 + 0.0 * o[0, 0]))

    contribution, result = trainer.gradients(batch_of())

    assert np.isnan(result.losses[0])
    assert contribution.num_examples == 8


def with_activity(penalty):
    import keras

    class Penalty(keras.layers.Layer):
        def call(self, x):
            self.add_loss(penalty(x))
            return x

    return lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), Penalty()])


def test_losses_added_by_layers_can_be_split_too():
    import keras

    def averaged(x):
        return keras.ops.mean(keras.ops.square(x))

    create = with_activity(averaged)
    whole, split = trainer_of(mean, create), trainer_of(mean, create)
    whole.train_steps([batch_of()])

    split.apply(split.gradients(batch_of())[0])

    for one, other in zip(whole.model.weights, split.model.weights, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_a_sum_added_by_layers_is_refused_on_workers():
    import keras

    trainer = trainer_of(mean, with_activity(lambda x: keras.ops.sum(keras.ops.square(x))))

    assert np.isfinite(trainer.train_steps([batch_of()]).losses).all()
    with pytest.raises(DefinitionError, match="loss that layers add"):
        trainer.gradients(batch_of())


def test_a_random_layer_loss_trains_with_a_warning(caplog):
    import keras

    def random(x):
        return keras.ops.mean(x * keras.random.normal(keras.ops.shape(x)))

    contribution, _ = trainer_of(mean, with_activity(random)).gradients(batch_of())

    assert np.isfinite(contribution.buffer).all()
    assert "is a mean over examples, because it is random" in caplog.text


def labelled(*labels):
    batch = batch_of(len(labels))
    return Batch(batch.features, np.array(labels), len(labels))


def ignoring_zeros(outputs, labels):
    import keras

    return keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)(
        labels, outputs
    )


def test_a_loss_is_refused_when_a_later_batch_shows_a_sum():
    trainer = trainer_of(ignoring_zeros)
    # The first two batches are looked at more closely.
    for _ in range(2):
        trainer.gradients(labelled(1, 2, 1, 2, 1, 2))

    with pytest.raises(DefinitionError, match="the average of its first third and the rest"):
        trainer.gradients(labelled(0, 2, 1, 2, 1, 2))


def test_a_loss_with_an_ignored_class_is_refused_in_advance():
    import keras

    from elasticdl.dialects.losses import KerasLoss

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)

    with pytest.raises(DefinitionError, match="ignore_class=0"):
        trainer_of(KerasLoss(lambda: loss)).gradients(labelled(1, 2, 1, 2, 1, 2))


def warming_up(penalty):
    """A model whose layer adds a penalty from the second step on."""
    import keras

    class Penalty(keras.layers.Layer):
        def build(self, shape):
            self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False)

        def call(self, x, training=False):
            if training:
                self.add_loss(penalty(x) * keras.ops.minimum(self.calls, 1.0))
                self.calls.assign_add(1.0)
            return x

    return lambda: keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), Penalty()])


def squares(x):
    import keras

    return keras.ops.sum(keras.ops.square(x))


def averaged_squares(x):
    import keras

    return keras.ops.mean(keras.ops.square(x))


def trained(trainer, num_steps):
    for seed in range(num_steps):
        trainer.apply(trainer.gradients(batch_of(seed=seed))[0])


def test_a_sum_that_layers_add_later_is_refused_when_it_appears():
    trainer = trainer_of(mean, warming_up(squares))
    trained(trainer, 1)

    with pytest.raises(DefinitionError, match="loss that layers add"):
        trained(trainer, 2)


def test_a_mean_that_layers_add_later_is_trained():
    trained(trainer_of(mean, warming_up(averaged_squares)), 5)


def test_a_random_layer_loss_is_reported_once(caplog):
    import keras

    def random(x):
        return keras.ops.mean(x * keras.random.normal(keras.ops.shape(x)))

    trained(trainer_of(mean, with_activity(random)), 5)

    assert caplog.text.count("because it is random") == 1


def in_training_only(penalty, *before):
    import keras

    class Penalty(keras.layers.Layer):
        def call(self, x, training=False):
            if training:
                self.add_loss(penalty(x))
            return x

    layers = [keras.Input((4,)), keras.layers.Dense(3), *(make() for make in before), Penalty()]
    return lambda: keras.Sequential(layers)


def dropout():
    import keras

    return keras.layers.Dropout(0.1)


def batch_norm():
    import keras

    return keras.layers.BatchNormalization()


@pytest.mark.parametrize("before", [[], [dropout], [batch_norm]])
def test_a_sum_that_layers_add_only_in_training_is_refused(before):
    with pytest.raises(DefinitionError, match="loss that layers add"):
        trainer_of(mean, in_training_only(squares, *before)).gradients(batch_of(32))


@pytest.mark.parametrize(("before", "told"), [([], 0), ([dropout], 1), ([batch_norm], 1)])
def test_a_mean_that_layers_add_only_in_training_is_trained(before, told, caplog):
    trained(trainer_of(mean, in_training_only(averaged_squares, *before)), 3)

    assert caplog.text.count("cannot determine") == told


def test_nearly_equal_draws_are_recognized_as_random():
    from elasticdl.training.keras.loss_part_checks import ExampleBatch, check_added
    from elasticdl.training.keras.reduction import Divisor

    def added(part, seed):
        # A unit is dropped that hardly counts, in one of the parts and in the third draw.
        is_dropped = part.num_examples == 6 or seed == 2
        return part.features, 1.008 - 0.006 * is_dropped

    import tensorflow as tf

    features, labels = tf.constant(batch_of().features), tf.constant(batch_of().labels)
    trial = ExampleBatch(features, features, labels, None, 8)

    why = check_added(
        added, trial, Divisor.EXAMPLES, ORIGIN, in_training=True, differs_in_parts=False
    )

    assert why == "it is random"


def test_a_coupled_loss_that_layers_add_only_in_training_is_refused():
    import keras

    def of_means(x):
        return keras.ops.sum(keras.ops.square(keras.ops.mean(x, axis=0)))

    with pytest.raises(DefinitionError, match="loss that layers add"):
        trainer_of(mean, in_training_only(of_means)).gradients(batch_of(32))
