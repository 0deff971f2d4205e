"""The Keras trainer beyond the laws every trainer keeps."""

import dataclasses
import logging

import numpy as np
import pytest
import tensorflow as tf

from elasticdl.data.batch import Batch
from elasticdl.definition import (
    MetricFunctions,
    Mode,
    ModelDefinition,
    NamedMetric,
    Origin,
    RecordInput,
)
from elasticdl.errors import DefinitionError, UserCodeError
from elasticdl.evaluation.metrics import add_states

ORIGIN = Origin("elasticdl_module", "model.py", 1, "model", "zoo")


@pytest.fixture(scope="module", autouse=True)
def keras():
    import keras

    return keras


def small_model():
    import keras

    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])


def mean_loss(outputs, labels):
    import keras

    return keras.ops.mean(
        keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)
    )


def definition_of(create_model=small_model, loss=mean_loss, **more):
    import keras

    return ModelDefinition(
        origin=ORIGIN,
        framework="keras",
        create_model=create_model,
        input=RecordInput(lambda records: records),
        loss=loss,
        create_optimizer=more.pop("create_optimizer", lambda: keras.optimizers.SGD(0.1)),
        **more,
    )


def trainer_of(definition, batch=None, **more):
    from elasticdl.training.keras import KerasTrainer

    return KerasTrainer(definition, batch or batch_of(8), minibatch_size=8, **more)


def batch_of(size, seed=0, features=None):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, 4)).astype("float32")
    return Batch(features(x) if features else x, rng.integers(0, 3, size), size)


def test_initial_weights_depend_only_on_the_seed():
    one, same, other = (trainer_of(definition_of(), seed=seed).state() for seed in (1, 1, 2))

    kernel = next(path for path in one if path.endswith("kernel"))
    np.testing.assert_array_equal(one[kernel], same[kernel])
    assert not np.array_equal(one[kernel], other[kernel])


def one_input():
    import keras

    inputs = keras.Input((4,))
    return keras.Model(inputs, keras.layers.Dense(3)(inputs))


def two_inputs(sizes, structure):
    import keras

    a, b = keras.Input((sizes[0],), name="a"), keras.Input((sizes[1],), name="b")
    joined = keras.layers.Concatenate()([a, b])
    return keras.Model(structure(a, b), keras.layers.Dense(3)(joined))


@pytest.mark.parametrize(
    ("features", "model"),
    [
        (lambda x: x, small_model),
        (lambda x: {"anything": x}, small_model),
        (lambda x: {"anything": x}, one_input),
        (
            lambda x: {"b": x[:, :2], "a": x[:, 2:], "unused": x},
            lambda: two_inputs((2, 2), lambda a, b: [a, b]),
        ),
        (
            lambda x: {"b": x[:, :3], "a": x[:, 3:]},
            lambda: two_inputs((1, 3), lambda a, b: {"a": a, "b": b}),
        ),
    ],
)
def test_features_reach_the_inputs_with_their_names(features, model):
    batch = batch_of(8, features=features)
    trainer = trainer_of(definition_of(model), batch)

    assert np.isfinite(trainer.train_steps([batch]).losses).all()
    assert trainer.predict(batch.features).shape == (8, 3)


def test_a_subclass_model_may_take_a_dict_or_a_tensor(keras):
    class TakesDict(keras.Model):
        def __init__(self):
            super().__init__()
            self.out = keras.layers.Dense(3)

        def call(self, inputs):
            return self.out(inputs["x"])

    class TakesTensor(TakesDict):
        def call(self, inputs):
            return self.out(keras.ops.reshape(inputs, (-1, 4)))

    batch = batch_of(8, features=lambda x: {"x": x})

    for model in (TakesDict, TakesTensor):
        assert trainer_of(definition_of(model), batch).predict(batch.features).shape == (8, 3)


def test_mismatched_features_are_refused_with_both_sides(keras):
    batch = batch_of(8, features=lambda x: {"left": x, "right": x})

    def model():
        inputs = keras.Input((4,), name="image")
        return keras.Model(inputs, keras.layers.Dense(3)(inputs))

    with pytest.raises(DefinitionError, match=r"inputs image; .* returns left, right"):
        trainer_of(definition_of(model), batch)


def test_a_mismatched_shape_is_refused(keras):
    batch = batch_of(8, features=lambda x: {"image": x[:, :3]})

    with pytest.raises(
        DefinitionError, match=r"cannot take .*\(image float32\[8, 3\], of the first"
    ):
        trainer_of(definition_of(), batch)


@pytest.mark.parametrize("asked", [lambda x: float(x[0, 0]), lambda x: 1 if x[0, 0] > 0 else 2])
def test_reading_a_tensors_values_explains_that_steps_are_compiled(keras, asked):
    class Asking(keras.Model):
        def __init__(self):
            super().__init__()
            self.out = keras.layers.Dense(3)

        def call(self, x):
            return self.out(x) * asked(x)

    def model():
        made = Asking()
        made.compile(run_eagerly=True)
        return made

    with pytest.raises(DefinitionError, match=r"compiled here, even with run_eagerly=True"):
        trainer_of(definition_of(model))


def test_steps_that_cannot_be_compiled_run_uncompiled_with_a_note(caplog):
    import tensorflow as tf

    def loss(outputs, labels):
        one_hot = np.eye(3, dtype="float32")[labels]
        return tf.reduce_mean(tf.nn.softmax_cross_entropy_with_logits(one_hot, outputs))

    numpy_only = trainer_of(definition_of(loss=loss, labels_as_numpy=True))
    compiled = trainer_of(definition_of())
    batches = [batch_of(8, seed) for seed in range(3)]
    with caplog.at_level(logging.WARNING, "elasticdl"):
        losses = numpy_only.train_steps(batches).losses

    np.testing.assert_allclose(losses, compiled.train_steps(batches).losses, rtol=1e-5)
    assert "model.py uses" in caplog.text
    assert "steps run uncompiled" in caplog.text


@pytest.mark.parametrize(
    ("loss", "labels", "advice"),
    [
        ("sparse_categorical_crossentropy", lambda y: np.eye(3)[y], "use CategoricalCrossentropy"),
        (
            "binary_crossentropy",
            lambda y: y[:, None] % 2,
            "use SparseCategoricalCrossentropy; for ",
        ),
        ("categorical_crossentropy", lambda y: y, "use SparseCategoricalCrossentropy; for "),
    ],
)
@pytest.mark.parametrize("phase", ["training", "evaluation"])
def test_an_error_about_the_shape_of_labels_has_advice(keras, loss, labels, advice, phase):
    batch = batch_of(8)
    batch = dataclasses.replace(batch, labels=labels(batch.labels).astype("float32"))
    function = getattr(keras.losses, loss)

    with pytest.raises(UserCodeError, match=rf"in {phase} on(?s:.*)\n  .*{advice}"):
        # The loss is tried on the example when the trainer is created.
        trainer = trainer_of(definition_of(loss=lambda o, y: function(y, o)))
        trainer.train_steps([batch]) if phase == "training" else trainer.evaluate(batch)


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_an_error_about_the_type_of_labels_has_advice(keras, run_eagerly):
    batch = dataclasses.replace(batch_of(8), labels=np.ones((8, 3), np.int64))

    def loss(o, y):
        # A lookup, so that the loss does not accept float labels.
        return keras.ops.mean((y - o) ** 2 + tf.gather(tf.zeros(3), y))

    tf.config.run_functions_eagerly(run_eagerly)
    try:
        with pytest.raises(UserCodeError, match=r"labels are of type int64\. .*ops\.cast"):
            # The loss is tried on the example when the trainer is created.
            trainer_of(definition_of(loss=loss), batch).train_steps([batch])
    finally:
        tf.config.run_functions_eagerly(False)


def test_text_labels_of_named_classes_are_to_be_their_numbers():
    batch = dataclasses.replace(batch_of(8), labels=np.array(["red"] * 8))
    definition = dataclasses.replace(definition_of(), classes=("red",))

    with pytest.raises(UserCodeError, match=r"needs numbers\. Return their numbers in classes: np"):
        trainer_of(definition, batch)


@pytest.mark.parametrize(("text", "number"), [("red", "label"), (b"red", "label.decode()")])
def test_text_labels_are_refused_before_training_with_how_to_number_them(text, number):
    batch = batch_of(8)
    labels = np.array([text] * 8)

    with pytest.raises(UserCodeError) as caught:
        trainer_of(definition_of(), Batch(batch.features, labels, 8))
    assert "such as 'red', and a loss needs numbers" in str(caught.value)
    assert "evaluation" not in str(caught.value)
    assert f"classes.index({number})" in str(caught.value)


def test_a_loss_may_take_text_labels(keras):
    numbers = keras.layers.StringLookup(vocabulary=["red", "blue"], num_oov_indices=0)

    def loss(outputs, labels):
        return mean_loss(outputs, numbers(labels))

    features, labels = batch_of(8).features, np.array(["red", "blue"] * 4)
    trainer = trainer_of(definition_of(loss=loss), Batch(features, labels, 8))
    expected = trainer_of(definition_of(), Batch(features, np.array([0, 1] * 4), 8))

    batches = [Batch(features, each, 8) for each in (labels, np.array([0, 1] * 4))]
    assert trainer.train_steps(batches[:1]).losses == expected.train_steps(batches[1:]).losses


def test_an_error_about_other_types_has_no_advice_on_labels(keras):
    def loss(o, y):
        return keras.ops.mean(keras.ops.arange(3) * tf.cast(o, "float64"))

    with pytest.raises(UserCodeError) as refused:
        trainer_of(definition_of(loss=loss)).train_steps([batch_of(8)])

    assert "labels are of type" not in str(refused.value)


def test_a_loss_with_one_value_per_example_is_averaged():
    import keras

    def loss(outputs, labels):
        return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=True)

    batch = batch_of(8)

    np.testing.assert_allclose(
        trainer_of(definition_of(loss=loss)).train_steps([batch]).losses,
        trainer_of(definition_of()).train_steps([batch]).losses,
        rtol=1e-6,
    )


def test_metrics_of_uneven_batches_are_weighted_by_examples(keras):
    # AUC and a mean of a short last batch are what an average of batch means gets wrong.
    def metrics(mode):
        if mode is not Mode.EVALUATION:
            return MetricFunctions()
        return MetricFunctions(
            scalars=lambda outputs, labels: {"mean_output": keras.ops.mean(outputs)},
            named=[NamedMetric("top", keras.metrics.SparseTopKCategoricalAccuracy(2))],
        )

    trainer = trainer_of(definition_of(create_metrics=metrics))
    parts = [batch_of(8, 1), batch_of(8, 2), batch_of(3, 3)]
    whole = Batch(
        np.concatenate([b.features for b in parts]), np.concatenate([b.labels for b in parts]), 19
    )

    merged = trainer.evaluation_metrics.results(add_states(trainer.evaluate(b) for b in parts))
    at_once = trainer.evaluation_metrics.results(trainer.evaluate(whole))

    assert merged.keys() == {"loss", "mean_output", "top"}
    for name, value in at_once.items():
        np.testing.assert_allclose(merged[name], value, rtol=1e-5, err_msg=name)


def test_sums_do_not_depend_on_the_grouping_of_steps():
    """The size of a group depends on timing; the state of a plateau must not."""
    batches = [batch_of(8, number) for number in range(24)]
    sums = []
    for size in (24, 5, 1):
        trainer = trainer_of(definition_of())
        groups = [batches[i : i + size] for i in range(0, len(batches), size)]
        states = add_states(trainer.train_steps(group).metrics for group in groups)
        sums.append(
            {name: [np.asarray(a).tobytes() for a in arrays] for name, arrays in states.items()}
        )

    assert sums[0]
    assert sums[0] == sums[1] == sums[2]


def test_an_object_that_is_not_an_optimizer_is_refused():
    with pytest.raises(DefinitionError, match="the optimizer is a builtins.str"):
        trainer_of(definition_of(create_optimizer=lambda: "adam"))


def test_predictions_of_the_export_match_the_trainer(keras, tmp_path):
    import tensorflow as tf

    trainer = trainer_of(definition_of())
    batch = batch_of(8)
    trainer.train_steps([batch])

    written = trainer.export(tmp_path)

    assert sorted(written) == ["model.keras", "saved_model"]
    expected = trainer.predict(batch.features)
    served = tf.saved_model.load(str(tmp_path / "saved_model"))
    np.testing.assert_allclose(served.serve(batch.features), expected, rtol=1e-5)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_allclose(loaded.predict(batch.features, verbose=0), expected, rtol=1e-5)


def test_the_note_on_a_class_that_keras_cannot_create_again_has_the_cause_and_advice(
    keras, tmp_path, caplog
):
    from elasticdl.training.keras.export import Example, export

    class Net(keras.Model):
        def __init__(self, units=3):
            super().__init__()
            self.scores = keras.layers.Dense(units)

        def call(self, x):
            return self.scores(x)

    class Forgetful(keras.Model):
        def __init__(self, units, **kwargs):
            super().__init__(**kwargs)
            self.scores = keras.layers.Dense(units)

        def get_config(self):
            return {"name": "forgetful"}

        def call(self, x):
            return self.scores(x)

    x = np.float32([[1, 2]])
    for model in (Net(), keras.Sequential([keras.Input((2,)), Net()]), Forgetful(3)):
        assert export(model, tmp_path, Example(x, model(x).numpy())) == ["saved_model"]

    lines = [each for each in caplog.messages if "model.keras" in each]
    for line in lines[:2]:
        assert "Net.__init__() got an unexpected keyword argument 'trainable'. Let " in line
        assert "Let Net.__init__ take **kwargs and pass them on, super().__init__(**kwargs)" in line
    assert "Return 'units' from Forgetful.get_config() as well" in lines[2]


def test_a_model_that_keras_cannot_save_is_still_exported(keras, tmp_path, caplog):
    import tensorflow as tf

    from elasticdl.training.keras.export import Example, export

    class Calling(keras.layers.Layer):
        def __init__(self, function):
            super().__init__()
            self.function = function

        def call(self, x):
            return self.function(x)

    model = keras.Sequential([keras.Input((2,)), Calling(lambda x: x + 1)])

    x = np.float32([[1, 2]])
    assert export(model, tmp_path, Example(x, x + 1)) == ["saved_model"]
    assert [path.name for path in tmp_path.iterdir()] == ["saved_model"]
    assert "cannot be saved as model.keras" in caplog.text
    served = tf.saved_model.load(str(tmp_path / "saved_model"))
    assert served.serve(np.float32([[1, 2]])).numpy().tolist() == [[2, 3]]


def test_an_added_loss_of_each_example_is_summed_as_in_fit(keras):
    class Extra(keras.layers.Layer):
        def call(self, x):
            self.add_loss(keras.ops.sum(x, axis=-1))
            return x

    def create(total):
        extra = Extra() if not total else keras.layers.ActivityRegularization(0.0)
        return keras.Sequential([keras.Input((4,)), extra, keras.layers.Dense(3)])

    batch = batch_of(8)
    with_extra = trainer_of(definition_of(lambda: create(False)))
    without = trainer_of(definition_of(lambda: create(True)))
    losses = [float(each.train_steps([batch]).losses[0]) for each in (with_extra, without)]

    np.testing.assert_allclose(losses[0] - losses[1], batch.features.sum(), rtol=1e-4)


@pytest.mark.parametrize("is_read", [False, True])
def test_a_metric_that_the_model_reads_is_refused(keras, is_read):
    class Centered(keras.layers.Layer):
        def __init__(self):
            super().__init__()
            self.mean = keras.metrics.Mean(name="center")

        def call(self, x):
            found = self.mean(x)
            return x - found if is_read else x

    def create():
        return keras.Sequential([keras.Input((4,)), Centered(), keras.layers.Dense(3)])

    trainer = trainer_of(definition_of(create))
    if not is_read:
        trainer.train_steps([batch_of(8)])
        return
    with pytest.raises(DefinitionError, match="loss depends on the metric 'center'"):
        trainer.train_steps([batch_of(8)])
