"""Options of Keras optimizers give what `train_on_batch` gives: here, resumed, on workers."""

import numpy as np
import pytest

from elasticdl.data.batch import Batch
from elasticdl.definition import ModelDefinition, Origin, RecordInput
from elasticdl.errors import UserCodeError
from elasticdl.training.trainer import Contribution

ORIGIN = Origin("elasticdl_module", "model.py", 1, "model", "zoo")
NUM_STEPS = 6


@pytest.fixture(autouse=True)
def keras():
    import keras

    yield keras
    keras.config.set_dtype_policy("float32")


def small_model():
    import keras

    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(
                6, activation="tanh", kernel_constraint=keras.constraints.MaxNorm(1.0)
            ),
            keras.layers.Dense(3),
        ]
    )


def squared(outputs, labels):
    import keras

    return keras.ops.mean(keras.ops.square(keras.ops.cast(outputs, "float32") - labels))


def batches(size=8, num_batches=NUM_STEPS):
    rng = np.random.default_rng(3)
    return [
        Batch(
            rng.normal(size=(size, 4)).astype("float32"),
            rng.normal(size=(size, 3)).astype("float32"),
            size,
        )
        for _ in range(num_batches)
    ]


def trainer_of(create_optimizer, create_model=small_model, loss=squared):
    from elasticdl.training.keras import KerasTrainer

    definition = ModelDefinition(
        origin=ORIGIN,
        framework="keras",
        create_model=create_model,
        input=RecordInput(lambda records: records),
        loss=loss,
        create_optimizer=create_optimizer,
    )
    return KerasTrainer(definition, batches()[0], minibatch_size=8)


def plain(create_optimizer, create_model=small_model, loss=squared, some=None):
    """Return losses and weights of a plain script that begins with the trainer's weights."""
    made = trainer_of(create_optimizer, create_model, loss)
    model = create_model()
    model.compile(optimizer=create_optimizer(), loss=lambda labels, outputs: loss(outputs, labels))
    model.set_weights(made.model.get_weights())
    losses = [model.train_on_batch(b.features, b.labels) for b in some or batches()]
    return losses, model


def joined(trainers, parts):
    """Let each trainer bring in its part, and all apply the sum."""
    contributions = [t.gradients(part)[0] for t, part in zip(trainers, parts, strict=True)]
    total = Contribution(
        np.sum([c.buffer for c in contributions], axis=0),
        sum(c.num_examples for c in contributions),
    )
    for trainer in trainers:
        trainer.apply(total)


def uneven(batch):
    """Return parts of five and three examples."""
    return [
        Batch(batch.features[:5], batch.labels[:5], 5),
        Batch(batch.features[5:], batch.labels[5:], 3),
    ]


def schedule():
    import keras

    return keras.optimizers.schedules.CosineDecay(0.1, 5, warmup_target=0.2, warmup_steps=2)


def excluding():
    import keras

    optimizer = keras.optimizers.AdamW(0.05, weight_decay=0.3)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


def several():
    import keras

    sgd, adam = keras.optimizers.SGD(0.1, momentum=0.5), keras.optimizers.Adam(0.1)
    chosen = keras.optimizers.OptimizerMap(sgd)
    chosen[".*bias"] = adam
    return keras.optimizers.MultiOptimizer(chosen)


def overriding():
    """Return what overrides both methods that `fit` reaches, and one that it does not call."""
    import keras

    class Centralized(keras.optimizers.Adam):
        def apply_gradients(self, grads_and_vars):
            pairs = [(g - keras.ops.mean(g, axis=0, keepdims=True), v) for g, v in grads_and_vars]
            return super().apply_gradients(pairs)

        def apply(self, grads, trainable_variables=None):
            return super().apply([g * 2.0 + 0.01 for g in grads], trainable_variables)

        def stateless_apply(self, *_args, **_options):
            raise AssertionError

    return Centralized(0.1)


KINDS = {
    "Adadelta": {"learning_rate": 1.0},
    "Adafactor": {"learning_rate": 0.1},
    "Adagrad": {"learning_rate": 0.1},
    "Adam": {"learning_rate": 0.1, "amsgrad": True},
    "AdamW": {"learning_rate": 0.1, "weight_decay": 0.1},
    "Adamax": {"learning_rate": 0.1},
    "Ftrl": {"learning_rate": 0.1, "l1_regularization_strength": 0.01},
    "Lamb": {"learning_rate": 0.1},
    "Lion": {"learning_rate": 0.01},
    "Muon": {"learning_rate": 0.1},
    "Nadam": {"learning_rate": 0.1},
    "RMSprop": {"learning_rate": 0.05, "centered": True, "momentum": 0.5},
    "SGD": {"learning_rate": 0.1, "momentum": 0.9, "nesterov": True},
}
OPTIONS = {
    "clipnorm": {"clipnorm": 0.05},
    "clipvalue": {"clipvalue": 0.02},
    "global_clipnorm": {"global_clipnorm": 0.05},
    "weight_decay": {"weight_decay": 0.1},
    "accumulation": {"gradient_accumulation_steps": 2},
    "averages": {"use_ema": True, "ema_momentum": 0.7},
    "overwriting": {"use_ema": True, "ema_momentum": 0.7, "ema_overwrite_frequency": 2},
    "loss_scale": {"loss_scale_factor": 1000.0},
}


def factory(name):
    import keras

    if name in KINDS:
        return lambda: getattr(keras.optimizers, name)(**KINDS[name])
    if name in OPTIONS:
        return lambda: keras.optimizers.Adam(0.1, **OPTIONS[name])
    return {
        "schedule": lambda: keras.optimizers.SGD(schedule()),
        "clipped SGD": lambda: keras.optimizers.SGD(0.1, clipvalue=0.02),
        "excluding": excluding,
        "several": several,
        "overriding": overriding,
        "scaled": lambda: keras.optimizers.LossScaleOptimizer(
            keras.optimizers.Adam(0.1), initial_scale=64.0, dynamic_growth_steps=2
        ),
    }[name]


# `tests/parity` trains the others too: in one process, resumed and on two workers.
ONLY_HERE = {"Adam", "accumulation", "several", "overriding", "weight_decay"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in ONLY_HERE else pytest.mark.exhaustive)
        for name in [*KINDS, *OPTIONS, "schedule", "excluding", "several", "overriding", "scaled"]
    ],
)
def test_updates_of_an_optimizer_match_a_plain_script(name, keras):
    create = factory(name)
    losses, model = plain(create)

    whole, resumed = trainer_of(create), trainer_of(create)
    begun = whole.train_steps(batches()[:3]).losses
    resumed.load_state(whole.state())
    ended = whole.train_steps(batches()[3:]).losses
    np.testing.assert_allclose([*begun, *ended], losses, rtol=1e-5)
    resumed.train_steps(batches()[3:])
    workers = [trainer_of(create), trainer_of(create)]
    for batch in batches():
        joined(workers, uneven(batch))

    assert_same_bits(resumed.state(), whole.state())
    for each in (whole, resumed, *workers):
        each.finish()
        # `fit` does it at its end; `train_on_batch` does not.
    model.optimizer.finalize_variable_values(model.trainable_variables)
    for trained, rtol in ((whole, 1e-5), (workers[0], 1e-4)):
        for mine, theirs in zip(trained.model.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_allclose(mine, theirs, rtol=rtol, atol=1e-5)
    assert_same_bits(workers[0].state(), workers[1].state())


def assert_same_bits(one, other):
    assert one.keys() == other.keys()
    differing = [path for path in one if one[path].tobytes() != other[path].tobytes()]
    assert not differing


# --- half precision -----------------------------------------------------------------------------


def tiny_loss(outputs, labels):
    """Its gradients are below what float16 can hold."""
    return squared(outputs, labels) * 1e-7


def test_float16_gradients_are_scaled_as_in_fit(keras):
    keras.config.set_dtype_policy("mixed_float16")

    def create():
        return keras.optimizers.SGD(1e5)

    _, model = plain(create, loss=tiny_loss)
    trainer, split = trainer_of(create, loss=tiny_loss), trainer_of(create, loss=tiny_loss)
    before = trainer.model.get_weights()
    trainer.train_steps(batches())
    for batch in batches():
        joined([split], [batch])

    assert any(path.endswith("dynamic_scale") for path in trainer.state())
    moved = max(np.abs(a - b).max() for a, b in zip(before, model.get_weights(), strict=True))
    assert moved > 0.001
    for trained in (trainer, split):
        for mine, theirs in zip(trained.model.get_weights(), model.get_weights(), strict=True):
            np.testing.assert_allclose(mine, theirs, atol=moved * 1e-3)


def test_an_overflow_on_one_worker_skips_the_update_on_all(keras):
    keras.config.set_dtype_policy("mixed_float16")
    huge, ordinary = batches()[0], batches()[1]
    huge = Batch(huge.features, huge.labels * 3e4, 8)
    create = factory("SGD")
    both = Batch(
        np.concatenate([huge.features, ordinary.features]),
        np.concatenate([huge.labels, ordinary.labels]),
        16,
    )
    _, model = plain(create, some=[both, ordinary])
    workers = [trainer_of(create), trainer_of(create)]
    before = workers[0].model.get_weights()

    joined(workers, [huge, ordinary])

    for worker in workers:
        assert float(worker.optimizer.dynamic_scale) == 2.0**14
        for old, new in zip(before, worker.model.get_weights(), strict=True):
            np.testing.assert_array_equal(old, new)
    joined(workers, uneven(ordinary))
    assert_same_bits(workers[0].state(), workers[1].state())
    assert float(model.optimizer.dynamic_scale) == 2.0**14
    for mine, theirs in zip(workers[0].model.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=2e-4)


def test_gradients_by_name_are_not_scaled(keras):
    create = factory("scaled")
    batch = batches()[0]
    scaled, bare = trainer_of(create), trainer_of(factory("Adam"))

    found, _ = scaled.by_name(scaled.gradients(batch)[0])
    expected, _ = bare.by_name(bare.gradients(batch)[0])

    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-5)


# --- embeddings -----------------------------------------------------------------------------------


def embedding():
    import keras

    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Rescaling(1.0),
            keras.layers.Embedding(3, 2),
            keras.layers.Flatten(),
            keras.layers.Dense(3),
        ]
    )


def ids():
    return [
        Batch(np.floor(np.abs(b.features)).clip(0, 2).astype("float32"), b.labels, 8)
        for b in batches()
    ]


@pytest.mark.parametrize(
    ("name", "effect"),
    [("SGD", ""), ("Adam", "Adam squares them"), ("clipped SGD", "SGD clips them")],
)
def test_ids_that_repeat_in_a_batch_train_as_in_a_plain_script(name, effect, keras, caplog):
    losses, model = plain(factory(name), embedding, some=ids())
    trainer = trainer_of(factory(name), embedding)
    np.testing.assert_allclose(trainer.train_steps(ids()).losses, losses, rtol=1e-5)

    workers = [trainer_of(factory(name), embedding) for _ in range(2)]
    for batch in ids():
        joined(workers, uneven(batch))

    equal = all(
        np.allclose(mine, theirs, rtol=1e-4, atol=1e-5)
        for mine, theirs in zip(workers[0].model.get_weights(), model.get_weights(), strict=True)
    )
    # Where it is not what a plain script gives, it is said.
    assert equal == (not effect)
    assert ("nothing needs to be done" in caplog.text) == bool(effect)
    assert effect in caplog.text


def test_an_optimizer_that_raises_is_a_user_code_error_in_sums(keras):
    class Raising(keras.optimizers.SGD):
        def update_step(self, gradient, variable, learning_rate):
            raise KeyError("no such slot")

    trainer = trainer_of(lambda: Raising(0.1))
    contribution, _ = trainer.gradients(batches()[0])

    with pytest.raises(UserCodeError, match=r"test_optimizers\.py:\d+: the optimizer.* step 1:"):
        trainer.apply(contribution)


def test_a_learning_rate_schedule_counts_updates():
    import keras

    from elasticdl.training.keras.optimizers import schedule_of

    schedule = keras.optimizers.schedules.CosineDecay(0.1, 9)
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(schedule))

    assert schedule_of(keras.optimizers.SGD(schedule)) == "CosineDecay"
    assert schedule_of(scaled) == "CosineDecay"
    assert schedule_of(keras.optimizers.SGD(0.1)) == ""


def test_a_model_that_is_compiled_without_loss_scaling_is_trained_without(keras):
    keras.config.set_dtype_policy("mixed_float16")

    def create_model():
        model = small_model()
        model.compile(auto_scale_loss=False)
        return model

    trainer = trainer_of(lambda: keras.optimizers.SGD(0.1), create_model)

    assert isinstance(trainer.optimizer, keras.optimizers.SGD)


@pytest.mark.parametrize(
    ("compiled_with", "warns"), [({}, 0), ({"optimizer": "adam"}, 1), ({"optimizer": "sgd"}, 0)]
)
def test_a_replaced_optimizer_of_compile_has_a_warning(keras, compiled_with, warns, caplog):
    def create_model():
        model = small_model()
        model.compile(**compiled_with)
        return model

    trainer_of(lambda: keras.optimizers.SGD(0.01), create_model)

    assert caplog.text.count("compiled with an optimizer of its own (Adam)") == warns
