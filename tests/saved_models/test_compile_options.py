"""What a model is trained with: as the spec says, or else as the file says, and never otherwise."""

import re

import keras
import numpy as np
import pytest

from elasticdl.errors import DefinitionError
from elasticdl.saved_models.compile_options import resolve, takes_one_hot
from elasticdl.saved_models.file_format import identify

WHERE = "model.yml:9"
OLD = {
    "optimizer_config": {
        "class_name": "Adadelta",
        "config": {"lr": 1.0, "rho": 0.95, "decay": 0.0, "epsilon": 1e-07},
    },
    "loss": "categorical_crossentropy",
    "metrics": ["accuracy"],
    "sample_weight_mode": None,
    "loss_weights": None,
}


def optimizer(said):
    return resolve({"optimizer": said, "loss": "mse"}, where=WHERE).create_optimizer()


def rate(made) -> float:
    return float(made.learning_rate)


def old(config, name="SGD"):
    return {"class_name": name, "config": config}


def refused(options, saved=None, **objects) -> str:
    with pytest.raises(DefinitionError, match=f"^{WHERE}: ") as raised:
        resolve(options, saved, custom_objects=objects, where=WHERE)
    return str(raised.value)


# --- who says it ---------------------------------------------------------------------------------


def test_options_of_the_file_are_used() -> None:
    found = resolve(None, OLD, where=WHERE)

    made = found.create_optimizer()
    assert isinstance(made, keras.optimizers.Adadelta)
    assert rate(made) == 1.0
    assert found.description == (
        "Adadelta, learning rate 1.0 (from the file); loss categorical_crossentropy (from the file)"
    )
    assert list(found.create_metrics()) == ["accuracy"]


def test_a_float32_learning_rate_is_shown_as_written() -> None:
    saved = {"optimizer_config": old({"learning_rate": 0.0010000000474974513}), "loss": "mse"}

    found = resolve(None, saved, where=WHERE)

    assert found.description.startswith("SGD, learning rate 0.001 (from the file)")


def test_the_spec_overrides_the_file_option_by_option() -> None:
    found = resolve({"optimizer": old({"lr": 0.5})}, OLD, where=WHERE)

    assert rate(found.create_optimizer()) == 0.5
    assert found.description.startswith("SGD, learning rate 0.5 (from the spec); loss categorical")
    assert "(from the file)" in found.description


def test_a_changed_default_is_reported() -> None:
    found = resolve({"optimizer": "adadelta", "loss": "mse"}, where=WHERE)

    assert rate(found.create_optimizer()) == np.float32(0.001)
    assert "learning rate 0.001 (the default of Keras 3; that of Keras 2.2.4 was 1.0)" in (
        found.description
    )


def test_an_unchanged_default_is_shown_as_a_default() -> None:
    found = resolve({"optimizer": "adam", "loss": "mse"}, where=WHERE)

    assert "Adam (from the spec), learning rate 0.001 (the default of Keras 3)" in found.description


@pytest.mark.parametrize("fixture", ["old_h5", "tfk_h5", "tfk_keras", "tfk_folder", "keras_h5"])
def test_options_of_real_files_are_understood(request, fixture) -> None:
    found = resolve(None, identify(request.getfixturevalue(fixture)).training_config, where=WHERE)

    assert ("Adadelta" if fixture == "old_h5" else "Adam") in found.description
    assert rate(found.create_optimizer()) == {"old_h5": 1.0, "keras_h5": np.float32(0.02)}.get(
        fixture, np.float32(0.001)
    )
    assert "crossentropy" in found.description


def test_each_optimizer_is_new() -> None:
    found = resolve(None, OLD, where=WHERE)

    assert found.create_optimizer() is not found.create_optimizer()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "there is no optimizer"),
        ({"optimizer": "adam"}, "there is no loss"),
        ({"optimiser": "adam"}, "Did you mean optimizer?"),
        ({"optimizer": "adam", "loss": "mse", "weights": 1}, "has no 'weights'"),
        ({"optimizer": 3, "loss": "mse"}, "the optimizer is 3; expected a name"),
        ({"optimizer": "adm", "loss": "mse"}, "Did you mean 'Adam'?"),
        ({"optimizer": "adam", "loss": "mean_square_error"}, "Did you mean 'mean_squared_error'?"),
        ({"optimizer": "adam", "loss": "mse", "metrics": ["acuracy"]}, "Did you mean 'accuracy'?"),
        ({"optimizer": "adam", "loss": "crossentropy"}, "depends on the shape of the labels"),
        (
            {"optimizer": "adam", "loss": "mse", "metrics": ["ce"]},
            "sparse_categorical_crossentropy",
        ),
        ({"optimizer": "__import__('os')", "loss": "mse"}, "is not part of Keras 3"),
        ({"optimizer": "adam", "loss": {"a": "mse", "b": "mse"}}, "expected a list"),
        ({"optimizer": "adam", "loss": ["mse", None]}, "one for each output"),
    ],
)
def test_unknown_options_are_an_error(options, said) -> None:
    assert said in refused(options)


# --- optimizers ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["adam", "Adam", "SGD", "sgd", "rmsprop", "RMSprop", "nadam"])
def test_an_optimizer_is_found_by_its_name_in_any_case(name) -> None:
    assert type(optimizer(name)).__name__.lower() == name.lower()


def test_old_names_of_arguments_are_understood() -> None:
    made = optimizer(old({"lr": 0.25, "momentum": 0.9, "decay": 0.0, "nesterov": True}))

    assert (rate(made), made.momentum, made.nesterov) == (0.25, 0.9, True)


def test_keras_2_decay_matches_keras_2() -> None:
    found = resolve({"optimizer": old({"lr": 0.5, "decay": 0.25}), "loss": "mse"}, where=WHERE)
    made = found.create_optimizer()

    weight = keras.Variable(0.0)
    made.build([weight])
    for step in range(4):
        before = float(weight)
        made.apply([keras.ops.convert_to_tensor(1.0)], [weight])
        # Keras 2: lr * 1 / (1 + decay * iterations)
        np.testing.assert_allclose(before - float(weight), 0.5 / (1 + 0.25 * step), rtol=1e-5)
    assert "0.5 / (1 + 0.25 * step)" in found.description


def test_an_epsilon_missing_in_keras_2_is_the_default() -> None:
    assert optimizer(old({"lr": 0.1, "epsilon": None}, "Adam")).epsilon == 1e-7


def test_performance_options_of_old_optimizers_are_ignored() -> None:
    config = {"learning_rate": 0.5, "jit_compile": True, "is_legacy_optimizer": False}

    assert rate(optimizer(old(config))) == 0.5


def test_nadam_of_keras_2_is_used_if_its_decay_matches_keras_3() -> None:
    assert rate(optimizer(old({"lr": 0.5, "schedule_decay": 0.004}, "Nadam"))) == 0.5
    said = refused({"optimizer": old({"schedule_decay": 0.01}, "Nadam"), "loss": "mse"})
    assert "takes no 'schedule_decay' (it is 0.01)" in said


def test_options_unsupported_in_keras_3_are_an_error() -> None:
    said = refused({"optimizer": old({"lr": 0.1, "centred": True}), "loss": "mse"})

    assert "SGD of Keras 3 takes no 'centred' (it is True)" in said


@pytest.mark.parametrize("module", [None, "keras.optimizers.schedules"])
def test_a_learning_rate_may_be_a_schedule(module) -> None:
    schedule = {
        "class_name": "ExponentialDecay",
        "config": {"initial_learning_rate": 0.5, "decay_steps": 10, "decay_rate": 0.5},
        **({"module": module} if module else {}),
    }

    found = resolve({"optimizer": old({"learning_rate": schedule}), "loss": "mse"}, where=WHERE)

    assert rate(found.create_optimizer()) == 0.5
    assert "learning rate 0.5 with ExponentialDecay" in found.description


def test_the_detailed_form_accepts_strings_as_numbers() -> None:
    made = optimizer(
        {
            "value": "SGD",
            "path": "tensorflow.keras.optimizers",
            "args": {"learning_rate": "1e-2", "nesterov": "true", "momentum": 0.5},
        }
    )

    assert rate(made) == np.float32(0.01)
    assert made.nesterov is True


def test_a_class_of_another_module_is_not_imported() -> None:
    said = refused({"optimizer": {"value": "Prox", "path": "os.path"}, "loss": "mse"})

    assert "'Prox' of 'os.path' is not part of Keras 3" in said
    assert "custom_objects: [{key: Prox" in said


def test_a_declared_optimizer_is_created_with_its_arguments() -> None:
    class Prox(keras.optimizers.SGD):
        pass

    found = resolve(
        {"optimizer": {"value": "Prox", "args": {"learning_rate": 0.5}}, "loss": "mse"},
        custom_objects={"Prox": Prox},
        where=WHERE,
    )

    assert isinstance(found.create_optimizer(), Prox)
    assert "Prox (a custom object), learning rate 0.5" in found.description
    said = refused({"optimizer": "Prox", "loss": "mse"}, Prox=dict)
    assert "expected one of Keras 3" in said


def test_a_value_out_of_range_is_reported_immediately() -> None:
    assert "cannot be created" in refused(
        {"optimizer": old({"clipnorm": 1.0, "clipvalue": 1.0}), "loss": "mse"}
    )


# --- losses and metrics --------------------------------------------------------------------------

LABELS, OUTPUTS = np.float32([[1, 0]]), np.float32([[0.5, 0.5]])


def loss_of(said, **objects) -> float:
    found = resolve({"optimizer": "sgd", "loss": said}, custom_objects=objects, where=WHERE)
    return float(np.mean(found.loss(OUTPUTS, LABELS)))


@pytest.mark.parametrize(
    "said",
    [
        "mse",
        "MSE",
        "mean_squared_error",
        "MeanSquaredError",
        {"class_name": "MeanSquaredError", "config": {"reduction": "auto", "name": "x"}},
        {"class_name": "MeanSquaredError", "config": {"reduction": "auto", "fn": "x"}},
        {"class_name": "function", "module": "builtins", "config": "mean_squared_error"},
        {"class_name": "LossFunctionWrapper", "config": {"fn": "mean_squared_error"}},
        {"value": "MeanSquaredError", "path": "keras.losses", "args": {}},
        ["mse"],
        {"output_1": "mse"},
    ],
)
def test_a_loss_is_understood_in_every_form(said) -> None:
    assert loss_of(said) == 0.25


def test_a_loss_keeps_its_arguments() -> None:
    logits = {
        "class_name": "BinaryCrossentropy",
        "config": {"from_logits": True, "reduction": "auto"},
    }

    found = resolve({"optimizer": "sgd", "loss": logits}, where=WHERE)
    said = float(found.loss(np.float32([[0.0]]), np.float32([[1.0]])))

    np.testing.assert_allclose(said, np.log(2), rtol=1e-5)


def test_a_loss_argument_missing_in_keras_3_is_an_error() -> None:
    wrong = {"class_name": "MeanSquaredError", "config": {"weighting": 2}}

    assert "takes no 'weighting'" in refused({"optimizer": "sgd", "loss": wrong})


def test_labels_come_first_in_a_custom_loss() -> None:
    def test_loss(labels, predictions):
        return 2 * labels[:, 0] - predictions[:, 0]

    assert loss_of("test_loss", test_loss=test_loss) == 2 * 1 - 0.5


@pytest.mark.parametrize(
    "said",
    ["test_loss", {"class_name": "function", "module": "builtins", "config": "test_loss"}],
)
def test_an_undeclared_custom_loss_is_an_error_with_advice(said) -> None:
    message = refused(None, {**OLD, "loss": said})

    assert "the loss 'test_loss' is not part of Keras 3" in message
    assert "custom_objects: [{key: test_loss, value: test_loss, path:" in message


def test_several_losses_are_summed_with_their_weights() -> None:
    saved = {**OLD, "loss": ["mse", "mae"], "loss_weights": [1.0, 0.5]}

    found = resolve(None, saved, where=WHERE)

    total = float(found.loss([OUTPUTS, OUTPUTS], [LABELS, LABELS]))
    np.testing.assert_allclose(total, 0.25 + 0.5 * 0.5)


def test_sample_weights_are_refused() -> None:
    assert "weighted_metrics" in refused(None, {**OLD, "weighted_metrics": ["mae"]})


@pytest.mark.parametrize(
    ("labels", "predictions", "right"),
    [
        ([[1.0]], [[0.9]], 1),
        ([[0.0]], [[0.9]], 0),
        ([[0.0, 1.0]], [[0.2, 0.8]], 1),
        ([1], [[0.2, 0.8]], 1),
        ([[0]], [[0.2, 0.8]], 0),
    ],
)
def test_accuracy_depends_on_the_shapes(labels, predictions, right) -> None:
    found = resolve({"optimizer": "sgd", "loss": "mse", "metrics": "acc"}, where=WHERE)

    metric = found.create_metrics()["accuracy"]
    assert float(np.mean(metric(np.float32(labels), np.float32(predictions)))) == right


@pytest.mark.parametrize(
    ("said", "name"),
    [
        ("mae", "mae"),
        (["accuracy"], "accuracy"),
        ([["accuracy"]], "accuracy"),
        (["AUC"], "auc"),
        (
            [{"class_name": "MeanMetricWrapper", "config": {"name": "accuracy", "dtype": "float32",
              "fn": "categorical_accuracy"}}],
            "accuracy",
        ),
        (
            [{"class_name": "SparseCategoricalAccuracy", "config": {"name": "accuracy",
              "dtype": {"module": "keras", "class_name": "DTypePolicy", "config": {}}}}],
            "accuracy",
        ),
        ([{"value": "mean_absolute_error", "path": "keras.metrics"}], "mean_absolute_error"),
        ({"out": ["mse"]}, "mse"),
    ],
)  # fmt: skip
def test_a_metric_is_understood_in_every_form(said, name) -> None:
    found = resolve({"optimizer": "sgd", "loss": "mse", "metrics": said}, where=WHERE)

    metrics = found.create_metrics()
    # Keras numbers the metrics of a process that have one name.
    assert [re.sub(r"_\d+$", "", each) for each in metrics] == [name]
    assert all(callable(metric) for metric in metrics.values())


def test_a_declared_metric_is_used() -> None:
    def right(labels, predictions):
        return labels + predictions

    found = resolve(
        {"optimizer": "sgd", "loss": "mse", "metrics": ["right"]},
        custom_objects={"right": right},
        where=WHERE,
    )

    assert found.create_metrics() == {"right": right}


COLUMN = np.float32([[0.2], [0.9], [0.4], [0.7]])
SCORES = np.float32([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.3, 0.4, 0.3], [0.2, 0.6, 0.2]])


def by_keras(loss, labels, outputs):
    """Return the loss that `compile` and `evaluate` give."""
    model = keras.Sequential([keras.layers.Activation("linear")])
    model.compile("sgd", loss)
    return model.evaluate(outputs, labels, verbose=0, batch_size=len(outputs))


def ours(loss, labels, outputs, **objects):
    found = resolve({"optimizer": "sgd", "loss": loss}, custom_objects=objects, where="m.yml:1")
    return float(np.mean(found.loss(keras.ops.convert_to_tensor(outputs), labels)))


@pytest.mark.parametrize(
    "loss",
    [
        "mse", "mae", "mape", "msle", "hinge", "squared_hinge", "binary_crossentropy", "bce",
        "binary_focal_crossentropy", "log_cosh", "huber", "poisson", "kl_divergence",
        "cosine_similarity", "dice", "tversky",
        "Hinge", "Poisson", "BinaryCrossentropy", "Huber", "Dice",
    ],
)  # fmt: skip
@pytest.mark.parametrize("labels", [np.int64([0, 1, 1, 0]), np.float32([0.1, 0.8, 0.9, 0.3])])
def test_class_numbers_against_a_column_match_the_keras_loss(loss, labels):
    expected = by_keras(loss, labels, COLUMN)

    np.testing.assert_allclose(ours(loss, labels, COLUMN), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "loss",
    [
        "categorical_crossentropy", "categorical_focal_crossentropy", "categorical_hinge",
        "kl_divergence", "mse", "hinge", "dice", "CategoricalCrossentropy",
    ],
)  # fmt: skip
def test_rows_against_rows_match_the_keras_loss(loss):
    rows = np.eye(3, dtype=np.float32)[[0, 2, 1, 1]]

    np.testing.assert_allclose(ours(loss, rows, SCORES), by_keras(loss, rows, SCORES), rtol=1e-6)


@pytest.mark.parametrize("labels", [np.int64([0, 1, 1, 0]), np.float32([0.1, 0.8, 0.9, 0.3])])
def test_a_custom_loss_is_called_as_by_keras(labels):
    def own(labels, outputs):
        return keras.ops.mean((labels - outputs) ** 2, axis=-1)

    expected = by_keras(own, labels, COLUMN)

    np.testing.assert_allclose(ours("own", labels, COLUMN, own=own), expected, rtol=1e-6)


def test_integers_stay_integers_for_a_loss_that_accepts_them():
    def own(labels, outputs):
        rows = keras.ops.one_hot(labels, 3)
        return keras.ops.mean((rows - outputs) ** 2, axis=-1)

    labels = np.int64([0, 2, 1, 1])
    rows = np.eye(3, dtype=np.float32)[labels]
    np.testing.assert_allclose(
        ours("own", labels, SCORES, own=own), by_keras("mse", rows, SCORES), rtol=1e-6
    )


def test_errors_of_a_custom_loss_are_raised_unchanged():
    def own(labels, outputs):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        ours("own", np.int64([0, 1, 1, 0]), COLUMN, own=own)


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (keras.losses.categorical_crossentropy, True),
        (lambda y, p: -keras.ops.sum(y * keras.ops.log(p), axis=-1), True),
        (keras.losses.sparse_categorical_crossentropy, False),
        (lambda y, p: keras.losses.sparse_categorical_crossentropy(y, p) + 1000, False),
        # Takes both: whole numbers stay.
        (lambda y, p: keras.ops.mean(p, axis=-1), False),
        # Takes neither: what it raises is reported when it is called.
        (lambda y, p: keras.ops.reshape(y, (7, 7)), False),
    ],
)
def test_one_hot_support_of_a_loss_is_detected_by_calling_it(function, expected):
    found = resolve(
        {"optimizer": "sgd", "loss": "own"}, custom_objects={"own": function}, where="m.yml:1"
    )

    assert found.own_loss == "own"
    assert takes_one_hot(found.loss, 3) is expected


def test_the_string_accuracy_is_never_a_class():
    found = resolve({"optimizer": "sgd", "loss": "mse", "metrics": ["Accuracy"]}, where="m.yml:1")

    (metric,) = found.create_metrics().values()
    # A label of 1 and a probability of 0.9 agree.
    agreed = np.asarray(metric(np.float32([[0], [1], [1], [0]]), COLUMN))
    assert agreed.ravel().tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize(
    ("saved", "why"),
    [
        (None, "has none either: it was not compiled, or was saved with include_optimizer=False"),
        ({"loss": "mse", "metrics": ["mae"]}, "has loss and metrics but no optimizer"),
    ],
)
def test_the_reason_for_a_missing_optimizer_is_reported(saved, why):
    assert (
        f"there is no optimizer: the spec does not set one, and the model file {why}."
        in refused({"loss": "mse"} if saved is None else None, saved)
    )


def test_a_spec_may_weight_its_losses():
    found = resolve(
        {"optimizer": "sgd", "loss": ["mse", "mae"], "loss_weights": [1.0, 0.5]}, where=WHERE
    )

    outputs = [keras.ops.ones((2, 1)), keras.ops.ones((2, 1))]
    assert float(found.loss(outputs, [np.zeros((2, 1)), np.zeros((2, 1))])) == 1.5


def test_weighted_metrics_are_refused_by_name():
    said = refused({"optimizer": "sgd", "loss": "mse", "weighted_metrics": ["mae"]})

    assert "compile_model_options has weighted_metrics" in said


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("adadelta", True),
        ({"value": "Adadelta", "args": {"learning_rate": 1.0}}, False),
        ("adam", False),
    ],
)
def test_an_adadelta_that_hardly_learns_is_recognized(said, expected):
    assert resolve({"optimizer": said, "loss": "mse"}, where=WHERE).hardly_learns is expected
