"""What is exported says what the model predicts, and a model that cannot be says so at once."""

import logging

import numpy as np
import pytest

from elasticdl.data.batch import Batch
from elasticdl.definition import ModelDefinition, Origin, RecordInput
from elasticdl.errors import UserCodeError

ORIGIN = Origin("elasticdl_module", "model.py", 1, "model", "zoo")


@pytest.fixture(scope="module", autouse=True)
def keras():
    import keras

    return keras


def augmented():
    import keras

    layers = keras.layers
    x = keras.Input((6, 6, 1))
    y = layers.RandomContrast(0.9)(layers.RandomFlip("horizontal_and_vertical")(x))
    y = layers.RandomTranslation(0.5, 0.5)(layers.RandomRotation(0.5)(layers.RandomZoom(0.5)(y)))
    y = layers.Dropout(0.5)(layers.GaussianNoise(1.0)(y))
    return keras.Model(x, layers.Dense(2)(layers.Flatten()(y)))


def subclass():
    """Keras cannot say how it is made: its argument is a function."""
    import keras

    class Net(keras.Model):
        def __init__(self, activation):
            super().__init__()
            self.dense = keras.layers.Dense(2, activation=activation)
            self.flatten, self.dropout = keras.layers.Flatten(), keras.layers.Dropout(0.5)

        def call(self, x, training=False):
            if training:
                x = self.dropout(x, training=True)
            return self.dense(self.flatten(x))

    return Net(lambda x: x * 2)


def registered():
    import keras

    @keras.saving.register_keras_serializable("test_export")
    class Registered(keras.Model):
        def __init__(self, units, **options):
            super().__init__(**options)
            self.units = units
            self.flatten, self.dense = keras.layers.Flatten(), keras.layers.Dense(units)

        def call(self, x):
            return self.dense(self.flatten(x))

        def get_config(self):
            return {"units": self.units}

    return Registered(2)


def unregistered():
    import keras

    class Unregistered(keras.Model):
        def __init__(self, **options):
            super().__init__(**options)
            self.flatten, self.dense = keras.layers.Flatten(), keras.layers.Dense(2)

        def call(self, x):
            return self.dense(self.flatten(x))

    return Unregistered()


def random_when_used():
    import keras

    class Noisy(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.seeds = keras.random.SeedGenerator(1)

        def call(self, x):
            return x + keras.random.normal(keras.ops.shape(x), seed=self.seeds)

    x = keras.Input((6, 6, 1))
    return keras.Model(x, keras.layers.Dense(2)(keras.layers.Flatten()(Noisy()(x))))


def by_numpy():
    """What it computes it computes outside of TensorFlow."""
    import keras

    class ByNumPy(keras.layers.Layer):
        def call(self, x):
            return keras.ops.convert_to_tensor(np.asarray(x) * 2)

        def compute_output_shape(self, shape):
            return shape

        def compute_output_spec(self, x):
            return keras.KerasTensor(x.shape, x.dtype)

    x = keras.Input((6, 6, 1))
    return keras.Model(x, ByNumPy()(x))


def batch(size=4, wrap=lambda x: x):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(size, 6, 6, 1)).astype("float32")
    return Batch(wrap(x), rng.normal(size=(size, 2)).astype("float32"), size)


def trainer_of(create, example=None):
    import keras

    from elasticdl.training.keras import KerasTrainer

    definition = ModelDefinition(
        origin=ORIGIN,
        framework="keras",
        create_model=create,
        input=RecordInput(lambda records: records),
        loss=lambda outputs, labels: keras.ops.mean(keras.ops.square(outputs - labels)),
        create_optimizer=lambda: keras.optimizers.SGD(0.01),
    )
    return KerasTrainer(definition, example or batch(), minibatch_size=4)


def served(folder, x):
    import tensorflow as tf

    loaded = tf.saved_model.load(str(folder / "saved_model"))
    return np.asarray(loaded.serve(x))


def test_augmentation_layers_are_inactive_in_an_export(tmp_path, keras):
    trainer = trainer_of(augmented)
    trainer.train_steps([batch()])

    assert not trainer.why_not_exported()
    assert set(trainer.export(tmp_path)) == {"saved_model", "model.keras"}

    # Another number of examples than it was trained on.
    x = batch(7).features
    expected = trainer.predict(x)
    np.testing.assert_allclose(served(tmp_path, x), expected, rtol=1e-5, atol=1e-6)
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(again.predict(x, verbose=0), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("wrap", [lambda x: x, lambda x: {"picture": x}])
def test_a_subclass_model_can_be_served(tmp_path, wrap):
    trainer = trainer_of(subclass, batch(wrap=wrap))
    trainer.train_steps([batch(wrap=wrap)])

    assert set(trainer.why_not_exported()) <= {"model.keras"}
    assert "saved_model" in trainer.export(tmp_path)

    x = batch(7).features
    np.testing.assert_allclose(served(tmp_path, x), trainer.predict(wrap(x)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [np.str_, np.bytes_, object])
def test_a_subclass_model_that_takes_text_can_be_served(tmp_path, keras, dtype):
    class Reads(keras.Model):
        def __init__(self, **options):
            super().__init__(**options)
            self.words = keras.layers.TextVectorization(vocabulary=["a", "b"], output_mode="count")
            self.dense = keras.layers.Dense(2)

        def call(self, x):
            return self.dense(self.words(x))

    texts = np.array(["a b a", "b", "c", "a"], dtype)
    trainer = trainer_of(Reads, Batch(texts, np.zeros((4, 2), np.float32), 4))

    assert not trainer.why_not_exported()
    assert set(trainer.export(tmp_path)) == {"saved_model", "model.keras"}
    np.testing.assert_allclose(served(tmp_path, texts), trainer.predict(texts), rtol=1e-5)


@pytest.mark.parametrize("create", [registered, unregistered])
def test_a_subclass_model_with_a_config_can_be_saved_and_loaded(tmp_path, keras, create):
    trainer = trainer_of(create)
    trainer.train_steps([batch()])

    assert not trainer.why_not_exported()
    assert set(trainer.export(tmp_path)) == {"saved_model", "model.keras"}

    classes = {type(trainer.model).__name__: type(trainer.model)}
    again = keras.saving.load_model(tmp_path / "model.keras", classes, compile=False)
    x = batch(7).features
    np.testing.assert_allclose(again(x), trainer.predict(x), rtol=1e-5, atol=1e-6)


def test_a_model_that_draws_random_numbers_can_be_served(tmp_path):
    trainer = trainer_of(random_when_used)

    assert "saved_model" not in trainer.why_not_exported()

    assert "saved_model" in trainer.export(tmp_path)
    loaded = pytest.importorskip("tensorflow").saved_model.load(str(tmp_path / "saved_model"))
    first, second = (np.asarray(loaded.serve(batch().features)) for _ in range(2))
    assert first.shape == second.shape == (4, 2)
    assert not np.array_equal(first, second)


def test_a_model_that_cannot_be_compiled_is_reported_immediately():
    (reason,) = [
        reason
        for name, reason in trainer_of(by_numpy).why_not_exported().items()
        if name == "saved_model"
    ]

    assert "numpy" in reason.lower()
    # Keras prints a part of it bold.
    assert "\x1b" not in reason


def test_many_models_in_one_process_are_exported_without_a_warning(tmp_path, caplog):
    for number in range(6):
        trainer_of(subclass).export(tmp_path / str(number))

    assert "retracing" not in caplog.text


def test_an_export_does_not_configure_the_logging_of_the_process(tmp_path, monkeypatch):
    monkeypatch.setattr(logging.root, "handlers", [])

    trainer_of(augmented).export(tmp_path)

    assert logging.root.handlers == []


def of_required_units():
    import keras

    class Required(keras.Model):
        def __init__(self, units, **options):
            super().__init__(**options)
            self.flatten, self.dense = keras.layers.Flatten(), keras.layers.Dense(units)

        def call(self, x):
            return self.dense(self.flatten(x))

        def get_config(self):
            return {}

    return Required(2)


def without_options():
    import keras

    class Bare(keras.Model):
        def __init__(self):
            super().__init__()
            self.flatten, self.dense = keras.layers.Flatten(), keras.layers.Dense(2)

        def call(self, x):
            return self.dense(self.flatten(x))

    return Bare()


def of_a_bare_layer():
    import keras

    class BareLayer(keras.layers.Layer):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def call(self, x):
            return x * self.factor

        def get_config(self):
            return {**super().get_config(), "factor": self.factor}

    return keras.Sequential([keras.layers.Flatten(), BareLayer(2.0), keras.layers.Dense(2)])


@pytest.mark.parametrize(
    ("create", "advice"),
    [
        (of_required_units, "Return 'units' from Required.get_config()"),
        (without_options, "Let Bare.__init__ take **kwargs"),
        (of_a_bare_layer, "Let BareLayer.__init__ take **kwargs"),
    ],
)
def test_a_model_that_keras_cannot_load_is_reported_immediately(tmp_path, caplog, create, advice):
    trainer = trainer_of(create)

    assert advice in trainer.why_not_exported()["model.keras"]

    assert trainer.export(tmp_path) == ["saved_model"]
    assert advice not in caplog.text
    assert trainer_of(create).export(tmp_path) == ["saved_model"]
    assert advice in caplog.text


def test_an_error_of_a_model_that_is_tried_before_training_does_not_call_it_a_prediction(keras):
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.flatten, self.dense = keras.layers.Flatten(), keras.layers.Dense(2)

        def call(self, x, training=False):
            y = self.dense(self.flatten(x))
            return y if training else keras.ops.reshape(y, (7, 2))

    with pytest.raises(UserCodeError, match=r"raised in a trial with training=False, as in evalua"):
        trainer_of(Net).why_not_exported()


@pytest.mark.parametrize("create", [augmented, registered])
def test_checking_whether_a_model_can_be_exported_changes_nothing(create):
    asked, other = trainer_of(create), trainer_of(create)
    asked.why_not_exported()
    for trainer in (asked, other):
        trainer.train_steps([batch()])

    for path, array in asked.state().items():
        np.testing.assert_array_equal(array, other.state()[path], err_msg=path)


def test_always_active_dropout_is_inactive_in_an_export(tmp_path, keras):
    def create():
        x = keras.Input((6, 6, 1))
        dropped = keras.layers.Dropout(0.5)(keras.layers.Flatten()(x), training=True)
        return keras.Model(x, keras.layers.Dense(2)(dropped))

    trainer = trainer_of(create)
    trainer.export(tmp_path)

    x = batch(7).features
    expected = trainer.model.predict(x, verbose=0)
    np.testing.assert_allclose(served(tmp_path, x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("structure", "features"),
    [
        (lambda a, b, c: {"x": [b, a], "c": c}, lambda a, b, c: {"a": a, "b": b, "c": c}),
        (lambda a, b, c: [a, [b, c]], lambda a, b, c: {"c": c, "b": b, "a": a}),
        (lambda a, b, c: [a, [b, c]], lambda a, b, c: (a, (b, c))),
        (lambda a, b, c: [a, b, c], lambda a, b, c: (a, b, c)),
    ],
)
@pytest.mark.filterwarnings("error:The structure of")
def test_nested_inputs_and_tuples_of_features_are_trained_on_and_served(
    tmp_path, keras, structure, features
):
    def create():
        a, b, c = (keras.Input((size,), name=name) for size, name in enumerate("abc", start=1))
        joined = keras.layers.Concatenate()([a, b, c])
        return keras.Model(structure(a, b, c), keras.layers.Dense(2)(joined))

    arrays = [np.ones((4, size), np.float32) for size in (1, 2, 3)]
    example = Batch(features(*arrays), np.zeros((4, 2), np.float32), 4)
    trainer = trainer_of(create, example)
    trainer.train_steps([example])

    assert set(trainer.export(tmp_path)) == {"saved_model", "model.keras"}


@pytest.mark.parametrize("structure", [lambda a: {"a": a}, lambda a: {"x": [a]}, lambda a: [[a]]])
@pytest.mark.parametrize("features", [lambda a: a, lambda a: {"a": a}, lambda a: {"a": a, "b": a}])
@pytest.mark.filterwarnings("error:The structure of")
def test_nested_inputs_with_a_single_tensor_are_trained_on_and_served(
    tmp_path, keras, structure, features
):
    def create():
        a = keras.Input((3,), name="a")
        return keras.Model(structure(a), keras.layers.Dense(2)(a))

    example = Batch(features(np.ones((4, 3), np.float32)), np.zeros((4, 2), np.float32), 4)
    trainer = trainer_of(create, example)
    trainer.train_steps([example])

    assert set(trainer.export(tmp_path)) == {"saved_model", "model.keras"}


def test_scalar_inputs_are_served_with_the_trained_shape(tmp_path, keras):
    def scaled():
        x, scale = keras.Input((4,), name="x"), keras.Input((1,), name="scale")
        return keras.Model([x, scale], keras.layers.Dense(2)(x * scale[:, 0:1]))

    rng = np.random.default_rng(0)
    features = {
        "x": rng.normal(size=(4, 4)).astype("float32"),
        "scale": rng.normal(size=4).astype("float32"),
    }
    trainer = trainer_of(scaled, Batch(features, np.zeros((4, 2), np.float32), 4))

    assert not trainer.why_not_exported()
    assert set(trainer.export(tmp_path)) == {"saved_model", "model.keras"}


@pytest.mark.parametrize("is_sequential", [False, True])
def test_images_with_a_channel_are_exported_for_an_input_without_one(
    tmp_path, keras, is_sequential
):
    def create():
        layers = [keras.layers.Flatten(), keras.layers.Dense(2)]
        model = keras.Sequential([keras.Input((8, 8)), *layers])
        return model if is_sequential else keras.Model(model.inputs, model.outputs)

    images = np.random.default_rng(0).normal(size=(4, 8, 8, 1)).astype("float32")
    trainer = trainer_of(create, Batch(images, np.zeros((4, 2), np.float32), 4))

    assert not trainer.why_not_exported()
    assert set(trainer.export(tmp_path)) == {"saved_model", "model.keras"}


def in_half_precision(policy, last, state=1.0):
    """Return what makes a deep model of half precision, with a last layer of another one.

    Args:
        policy: The policy of its layers.
        last: That of the last one.
        state: Each call multiplies its outputs by it once more, outside of the variables.
    """

    def create():
        import keras

        class Scaled(keras.layers.Layer):
            by = 1.0

            def call(self, x):
                self.by *= state
                return x * self.by

        y = x = keras.Input((6, 6, 1))
        y = keras.layers.Dense(32, dtype=policy)(keras.layers.Flatten()(y))
        for _ in range(6):
            z = keras.layers.Dense(32, "gelu", dtype=policy)(y)
            y = keras.layers.LayerNormalization(dtype=policy)(
                keras.layers.Add(dtype=policy)([y, z])
            )
        if state != 1.0:
            y = Scaled(dtype=policy)(y)
        return keras.Model(x, keras.layers.Dense(2, dtype=last)(y))

    return create


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16", "bfloat16"])
@pytest.mark.parametrize("last", [None, "float32"])
def test_a_model_in_half_precision_can_be_served(tmp_path, policy, last):
    trainer = trainer_of(in_half_precision(policy, last or policy))
    trainer.train_steps([batch()])

    assert not trainer.why_not_exported()
    assert "saved_model" in trainer.export(tmp_path)


def test_state_outside_the_variables_of_a_model_in_half_precision_is_reported():
    trainer = trainer_of(in_half_precision("mixed_bfloat16", "float32", state=1.5))

    assert "keep state outside the model's variables" in trainer.why_not_exported()["saved_model"]
