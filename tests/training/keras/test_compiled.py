"""A compiled model is trained and measured as Keras does it, on the same batches."""

from dataclasses import replace

import numpy as np
import pytest

from elasticdl.data.batch import Batch
from elasticdl.definition import BatchesInput, ModelDefinition, Origin, RecordInput
from elasticdl.errors import DefinitionError, UserCodeError
from elasticdl.evaluation.metrics import add_states
from elasticdl.training.trainer import Contribution

ORIGIN = Origin("abstractions", "models.py", 7, "models.Builder", "zoo")


@pytest.fixture(scope="module", autouse=True)
def keras():
    import keras

    return keras


def definition_of(create_model):
    made = []

    def create():
        made.append(create_model())
        return made[-1]

    return ModelDefinition(
        origin=ORIGIN,
        framework="keras",
        create_model=create,
        input=BatchesInput(lambda data, mode: None),
        loss=None,
        create_optimizer=lambda: made[-1].optimizer,
        compiled=True,
    )


def trainer_of(create_model, batch, **more):
    from elasticdl.training.keras import KerasTrainer

    return KerasTrainer(definition_of(create_model), batch, minibatch_size=8, **more)


def batch_of(size, seed=0, labels=lambda y: y):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(size, 4)).astype("float32"), rng.integers(0, 3, size)
    weights = rng.uniform(0.1, 2, size).astype("float32")
    return Batch(x, (labels(y), weights), size)


def batches_of(labels=lambda y: y, *, short_last=True):
    """Return four full batches and a short one, unless Keras cannot count what is in it.

    It weighs the loss of each of several outputs by batches, where their size is open.
    """
    full = [batch_of(8, seed, labels) for seed in range(4)]
    return [*full, batch_of(3, 9, labels)] if short_last else full


# --- models -----------------------------------------------------------------------------------


def compiled(model, **more):
    # Without XLA, which rounds differently.
    model.compile(jit_compile=False, **{"optimizer": "adam", **more})
    return model


def mlp(activation=None, regularizer=None, **more):
    import keras

    def create():
        layers = keras.layers
        model = keras.Sequential(
            [
                keras.Input((4,)),
                layers.Dense(6, activation="relu", kernel_regularizer=regularizer),
                layers.BatchNormalization(),
                layers.Dense(3, activation=activation),
            ]
        )
        return compiled(model, **more)

    return create


def logits(**more):
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return mlp(**{"loss": loss, "metrics": ["accuracy"], **more})


def weighted_metrics():
    import keras

    return logits(
        metrics=["accuracy", keras.metrics.SparseTopKCategoricalAccuracy(2, name="top2")],
        weighted_metrics=[
            "accuracy",
            keras.metrics.SparseCategoricalCrossentropy(from_logits=True),
        ],
    )


def regularized():
    return logits(regularizer="l2")


def one_hot():
    import keras

    return mlp(
        loss=keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
        optimizer=keras.optimizers.SGD(0.1, momentum=0.9, clipnorm=1.0),
        metrics=["accuracy", "mse"],
    )


def softmax():
    return mlp("softmax", loss="sparse_categorical_crossentropy", metrics=["accuracy"])


def two_outputs():
    import keras

    def create():
        inputs = keras.Input((4,))
        x = keras.layers.Dense(6, activation="relu", activity_regularizer="l1")(inputs)
        outputs = {
            "kind": keras.layers.Dense(3, name="kind")(x),
            "size": keras.layers.Dense(1, name="size")(x),
        }
        loss = {
            "kind": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "size": "mse",
        }
        return compiled(
            keras.Model(inputs, outputs),
            loss=loss,
            loss_weights={"kind": 1.0, "size": 0.25},
            metrics={"kind": ["accuracy"], "size": ["mae"]},
            weighted_metrics={"size": ["mae"]},
        )

    return create


def sized(y):
    return {"kind": y, "size": (y * 2.0).astype("float32")[:, None]}


def as_one_hot(y):
    return np.eye(3, dtype="float32")[y]


MODELS = [
    pytest.param(logits, lambda y: y, id="metrics"),
    pytest.param(weighted_metrics, lambda y: y, id="weighted metrics"),
    pytest.param(regularized, lambda y: y[:, None], id="regularizers"),
    pytest.param(one_hot, as_one_hot, id="one-hot"),
    pytest.param(softmax, lambda y: y, id="softmax"),
    pytest.param(two_outputs, sized, id="two outputs"),
]


def both(create, labels):
    """Return our trainer, and Keras' own model with the same weights."""
    trainer = trainer_of(create(), batch_of(8, labels=labels), seed=3)
    reference = create()()
    reference.set_weights(trainer.model.get_weights())
    return trainer, reference


def for_keras(batches):
    """Yield what `fit` takes."""
    return ((batch.features, *batch.labels) for batch in batches)


def assert_close(ours, theirs):
    assert sorted(ours) == sorted(theirs)
    for name in ours:
        assert ours[name] == pytest.approx(float(theirs[name]), rel=1e-5, abs=1e-6), name


@pytest.mark.parametrize(("create", "labels"), MODELS)
def test_training_and_evaluation_match_keras(create, labels):
    # One after the other with the same models: most of the time goes into making them.
    trainer, reference = both(create, labels)
    batches = batches_of(labels, short_last=create is not two_outputs)

    states = add_states([trainer.evaluate(batch) for batch in batches])
    theirs = reference.evaluate(for_keras(batches), steps=len(batches), verbose=0, return_dict=True)
    assert_close(trainer.evaluation_metrics.results(states), theirs)

    results = [trainer.train_steps(batches[:4]), *(trainer.train_steps([b]) for b in batches[4:])]
    theirs = reference.fit(
        for_keras(batches), steps_per_epoch=len(batches), shuffle=False, verbose=0
    ).history
    ours = trainer.training_metrics.results(add_states([r.metrics for r in results]))
    assert_close(ours, {name: values[0] for name, values in theirs.items()})
    for mine, other in zip(trainer.model.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("create", "labels"), MODELS[-1:])
def test_sample_weights_of_one_change_nothing(create, labels):
    trainer, reference = both(create, labels)
    batches = [
        Batch(b.features, (b.labels[0], np.ones(8, "float32")), 8) for b in batches_of(labels)[:4]
    ]

    trainer.train_steps(batches)
    for batch in batches:
        reference.train_on_batch(batch.features, batch.labels[0])

    for mine, other in zip(trainer.model.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


# Keras says that it may be a mistake, and computes what was meant.
@pytest.mark.filterwarnings("ignore:.*received `from_logits=True`:UserWarning")
def test_a_softmax_with_a_loss_from_logits_is_evaluated_by_logits():
    import keras

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    create = mlp("softmax", loss=loss)
    batch = batch_of(8)
    labels, _ = batch.labels
    batch = Batch(batch.features, (labels, np.ones(8, "float32")), 8)
    trainer = trainer_of(create, batch)

    found = trainer.evaluation_metrics.results(trainer.evaluate(batch))["loss"]

    probabilities = trainer.predict(batch.features)[np.arange(8), labels]
    assert found == pytest.approx(-np.log(probabilities).mean(), rel=1e-5)
    theirs = trainer.model.evaluate(batch.features, labels, verbose=0)
    assert found == pytest.approx(theirs, rel=1e-5)


def test_a_model_may_have_only_losses_of_layers():
    import keras

    class Pulled(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.mean(keras.ops.square(x)))
            return x

    def create():
        return compiled(keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), Pulled()]))

    batch = batch_of(8)
    trainer = trainer_of(create, batch)
    expected = np.mean(trainer.predict(batch.features) ** 2)

    assert trainer.train_steps([batch]).losses[0] == pytest.approx(expected, rel=1e-5)


def test_a_custom_compute_loss_gets_features_and_training_flag():
    import keras

    class Own(keras.Model):
        def __init__(self):
            super().__init__(name="own")
            self.out = keras.layers.Dense(3)

        def call(self, x):
            return self.out(x)

        def compute_loss(self, x, y, y_pred, sample_weight, training=True):
            return keras.ops.mean(x[:, 0]) + (1.0 if training else 2.0) + 0 * keras.ops.mean(y_pred)

    batch = batch_of(8)
    mean = float(batch.features[:, 0].mean())
    trainer = trainer_of(lambda: compiled(Own(), loss="mse"), batch)

    trained = trainer.train_steps([batch]).losses[0]
    contributed = trainer.gradients(batch)[1].losses[0]
    evaluated = trainer.evaluation_metrics.results(trainer.evaluate(batch))["loss"]

    assert [trained, contributed] == pytest.approx([mean + 1] * 2, rel=1e-5)
    assert evaluated == pytest.approx(mean + 2, rel=1e-5)


def test_metrics_start_at_zero_for_each_epoch():
    batch = batch_of(8)
    trainer = trainer_of(logits(), batch)

    once = trainer.evaluation_metrics.results(trainer.evaluate(batch))
    again = trainer.evaluation_metrics.results(trainer.evaluate(batch))

    assert once == again


def test_metrics_of_parts_add_up_to_those_of_the_whole():
    batches = batches_of()
    trainer = trainer_of(weighted_metrics(), batches[0])

    def of(some):
        return add_states([trainer.evaluate(batch) for batch in some])

    whole = trainer.evaluation_metrics.results(of(batches))
    parts = trainer.evaluation_metrics.results(add_states([of(batches[:2]), of(batches[2:])]))

    assert whole == parts


# --- what is refused --------------------------------------------------------------------------


def test_an_uncompiled_model_is_refused():
    import keras

    def create():
        return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)], name="mine")

    with pytest.raises(DefinitionError, match=r"models.py:7: the model 'mine' is not compiled"):
        trainer_of(create, batch_of(8))


@pytest.mark.parametrize("step", ["train_step", "test_step"])
def test_a_custom_train_step_is_refused(step):
    import keras

    kind = type("Stepping", (keras.Sequential,), {step: lambda self, data: {}})

    with pytest.raises(DefinitionError, match=rf"Stepping has its own {step}\(\)"):
        trainer_of(
            lambda: compiled(kind([keras.Input((4,)), keras.layers.Dense(3)]), loss="mse"),
            batch_of(8),
        )


def with_results(name, change):
    """Return a function that creates a model whose method `name` changes what its base returns."""
    import keras

    def create():
        class Changes(keras.Model):
            pass

        def method(self, *args, **more):
            return change(getattr(super(Changes, self), name)(*args, **more))

        setattr(Changes, name, method)
        x = keras.Input((4,))
        return compiled(Changes(x, keras.layers.Dense(1)(x)), loss="mse", metrics=["mae"])

    return create


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("get_metrics_result", lambda found: {**found, "mae": 100 * found["mae"]}),
        ("get_metrics_result", lambda found: {**found, "loss": 100 * found["loss"]}),
        ("compute_metrics", lambda found: {**found, "twice": 2 * found["mae"]}),
    ],
)
def test_results_that_are_not_those_of_metrics_are_refused(name, change):
    with pytest.raises(DefinitionError, match=rf"test_compiled.py:\d+: {name}\(\) of Changes ret"):
        trainer_of(with_results(name, change), batch_of(8))


def test_own_methods_that_return_the_results_of_metrics_are_accepted():
    for name in ("get_metrics_result", "compute_metrics"):
        trainer_of(with_results(name, lambda found: found), batch_of(8))


def test_labels_unsuitable_for_the_loss_are_a_user_code_error():
    batch = batch_of(8, labels=lambda y: np.zeros((len(y), 5), "float32"))

    with pytest.raises((DefinitionError, UserCodeError), match="models.py:7"):
        trainer_of(mlp(loss="categorical_crossentropy"), batch).train_steps([batch])


def test_unsuitable_sample_weights_are_named_with_their_shape():
    import keras

    def create():
        model = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Conv2D(1, 1)])
        model.compile("sgd", "binary_crossentropy")
        return model

    pixels = np.zeros((8, 4, 4, 1), np.float32)
    batch = Batch(pixels, (pixels, np.ones(8, np.float32)), 8)

    with pytest.raises(UserCodeError) as raised:
        trainer_of(create, batch)

    assert "sample weights float32[8]" in str(raised.value)
    assert "(n, 1, 1)" in str(raised.value)


def test_sample_weights_with_axes_of_1_apply_to_a_loss_of_pixels():
    import keras

    def create():
        model = keras.Sequential(
            [keras.Input((4, 4, 1)), keras.layers.Conv2D(1, 1, kernel_initializer="ones")]
        )
        model.compile("sgd", "mse")
        return model

    pixels = np.random.default_rng(0).normal(size=(8, 4, 4, 1)).astype("float32")
    labels, weights = np.zeros_like(pixels), np.arange(8, dtype=np.float32).reshape(8, 1, 1)

    trainer = trainer_of(create, Batch(pixels, (labels, weights), 8))
    found = trainer.train_steps([Batch(pixels, (labels, weights), 8)]).losses[0]

    expected = create().train_on_batch(pixels, labels, sample_weight=weights)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


# --- on workers -------------------------------------------------------------------------------


def tagger(**more):
    import keras

    def create():
        inputs = keras.Input((6,), dtype="int32")
        x = keras.layers.Embedding(10, 4, mask_zero=True)(inputs)
        outputs = keras.layers.LSTM(2, return_sequences=True, name="steps")(x)
        if "second" in more:
            outputs = {"steps": outputs, "last": keras.layers.GRU(2, name="last")(x)}
        return compiled(
            keras.Model(inputs, outputs), loss="mse", optimizer=keras.optimizers.SGD(1.0)
        )

    return create


def sentences(size, *, second=False):
    rng = np.random.default_rng(size)
    tokens = rng.integers(1, 10, (size, 6)).astype("int32")
    tokens[np.arange(6) >= rng.integers(1, 7, (size, 1))] = 0
    steps = rng.normal(size=(size, 6, 2)).astype("float32")
    weights = rng.uniform(0.5, 2.0, (size, 6)).astype("float32")
    if not second:
        return Batch(tokens, (steps, weights), size)
    labels = {"steps": steps, "last": steps[:, 0]}
    return Batch(tokens, (labels, {"steps": weights, "last": weights[:, 0]}), size)


def test_uneven_batches_with_masks_equal_one_keras_batch():
    batches = [sentences(5), sentences(3)]
    workers = [trainer_of(tagger(), batches[0]) for _ in batches]
    theirs = trainer_of(tagger(), batches[0]).model

    given = [w.gradients(b)[0] for w, b in zip(workers, batches, strict=True)]
    total = Contribution(given[0].buffer + given[1].buffer, 8)
    for worker in workers:
        worker.apply(total)

    x = np.concatenate([batch.features for batch in batches])
    y, w = (np.concatenate([batch.labels[i] for batch in batches]) for i in (0, 1))
    theirs.train_on_batch(x, y, sample_weight=w)
    for worker in workers:
        for mine, other in zip(worker.model.weights, theirs.weights, strict=True):
            np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)


def test_summing_outputs_with_and_without_a_mask_is_refused():
    batch = sentences(8, second=True)
    trainer = trainer_of(tagger(second=True), batch)

    assert np.isfinite(trainer.train_steps([batch]).losses).all()
    with pytest.raises(DefinitionError, match="It can be trained in one process"):
        trainer.gradients(batch)


@pytest.mark.parametrize(("loss", "width", "num_notes"), [("mse", 3, 1), ("mse", 1, 0)])
def test_one_label_compared_with_several_outputs_causes_a_note(caplog, loss, width, num_notes):
    import keras

    from elasticdl.training.keras import KerasTrainer

    def create():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(width)])
        return compiled(model, loss=loss)

    def trained(*, is_default):
        batch = batch_of(8, labels=lambda y: y[:, None].astype("float32"))
        how = BatchesInput(lambda data, mode: None)
        if is_default:
            how = RecordInput(lambda records: records, is_default=True)
        definition = replace(definition_of(create), input=how)
        KerasTrainer(definition, batch, minibatch_size=8).train_steps([batch, batch])

    trained(is_default=False)
    assert "all 3 outputs" not in caplog.text
    trained(is_default=True)
    assert caplog.text.count("the loss compares each label with all 3 outputs") == num_notes
