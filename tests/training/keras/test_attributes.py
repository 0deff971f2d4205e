"""Plain values of layers and optimizers: compiled with what the model file made."""

import functools
import itertools
import json
import re
import sys
import types

import keras
import numpy as np
import pytest

from elasticdl.definition import Origin
from elasticdl.errors import DefinitionError
from elasticdl.training.keras.attributes import Attributes

ORIGIN = Origin("elasticdl_module", "model.py", 1, "model", "zoo")


class Scale(keras.layers.Layer):
    factor = 1.0


def attributes_of(model, optimizer, *losses):
    attributes = Attributes(ORIGIN)
    attributes.track_of_step(losses)
    attributes.track_model(model, optimizer)
    return attributes


@pytest.fixture
def made():
    model = keras.Sequential([keras.Input((2,)), Scale(), keras.layers.Dropout(0.5)])
    optimizer = keras.optimizers.AdamW(weight_decay=0.1)
    return model, optimizer, attributes_of(model, optimizer)


def test_a_step_is_compiled_with_attributes_of_the_model_file(made):
    model, optimizer, attributes = made
    model.layers[0].factor = 2.0
    model.layers[1].rate = 0.1
    model.layers[1].trainable = False
    optimizer.weight_decay = None

    with attributes.as_in_file():
        seen = (
            model.layers[0].factor,
            model.layers[1].rate,
            model.layers[1].trainable,
            optimizer.weight_decay,
        )

    assert seen == (1.0, 0.5, True, 0.1)
    assert (model.layers[0].factor, model.layers[1].rate) == (2.0, 0.1)
    assert (model.layers[1].trainable, optimizer.weight_decay) == (False, None)


def test_attributes_changed_during_compilation_are_kept(made):
    model, _, attributes = made
    model.layers[1].rate = 0.1

    with attributes.as_in_file():
        model.layers[1].rate = 0.9

    assert model.layers[1].rate == 0.9


def test_a_change_is_refused_with_its_layer(made):
    model, _, attributes = made

    with (
        pytest.raises(DefinitionError, match=r"on_train_begin\(\) changes factor of .*scale"),
        attributes.watched("on_train_begin()", "Do not."),
    ):
        model.layers[0].factor = 2.0


CHANGED_WITHIN = {
    "rows": (lambda: (n for n in range(9)), next),
    "same": (lambda: (1 for _ in [1, 1, 1]), next),
    "cycle": (lambda: itertools.cycle([1.0, 2.0]), next),
    "count": (itertools.count, next),
    "several[0]": (lambda: [itertools.count()], lambda value: next(value[0])),
    "calls[0]": (lambda: [0], lambda value: value.__setitem__(0, 1)),
    "sums['a']": (lambda: {"a": 0.0}, lambda value: value.update({"a": 1.0})),
}


@pytest.mark.parametrize("name", CHANGED_WITHIN)
def test_a_change_within_an_attribute_is_refused_in_eager_steps(name):
    make, change = CHANGED_WITHIN[name]
    model = keras.Sequential([keras.Input((2,)), Scale()])
    attribute = name.partition("[")[0]
    setattr(model.layers[0], attribute, make())
    attributes = attributes_of(model, keras.optimizers.SGD())

    with attributes.watched("the model", "Do not.", within=True):
        pass
    with (
        pytest.raises(DefinitionError, match=f"the model changes {re.escape(name)} of .*scale"),
        attributes.watched("the model", "Do not.", within=True),
    ):
        change(getattr(model.layers[0], attribute))


def test_attributes_unknown_to_the_model_file_may_change(made):
    model, _, attributes = made

    with attributes.watched("on_train_begin()", "Do not."):
        model.stop_training = True
        model.layers[0].seen_by_a_callback = 3


class Settings:
    def __init__(self):
        self.scale = 1.0


@pytest.fixture
def holding():
    """A model whose layers hold arrays, containers and objects."""
    layer = Scale()
    layer.prior = np.full(3, 1.0, np.float32)
    layer.settings = {"scale": 1.0, "sizes": [1, 2]}
    layer.object = Settings()
    constraint = keras.constraints.MaxNorm(1.0)
    dense = keras.layers.Dense(2, kernel_regularizer="l2", bias_constraint=constraint, name="out")
    model = keras.Sequential([keras.Input((2,)), layer, dense])
    schedule = keras.optimizers.schedules.CosineDecay(1.0, 10)
    optimizer = keras.optimizers.SGD(schedule)
    return layer, dense, schedule, attributes_of(model, optimizer)


def changes_of(layer, dense, schedule):
    return {
        "prior of .*scale": lambda: setattr(layer, "prior", np.zeros(3, np.float32)),
        "an entry of prior": lambda: layer.prior.__setitem__(0, 2.0),
        "settings of .*scale": lambda: layer.settings["sizes"].append(3),
        "scale of object of .*scale": lambda: setattr(layer.object, "scale", 2.0),
        "l2 of kernel_regularizer of .*out": lambda: setattr(dense.kernel_regularizer, "l2", 0.3),
        "max_value of bias_constraint of .*out": lambda: setattr(
            dense.bias_constraint, "max_value", 2.0
        ),
        "decay_steps of learning_rate of sgd": lambda: setattr(schedule, "decay_steps", 20),
    }


@pytest.mark.parametrize("change", changes_of(None, None, None))
def test_a_step_is_compiled_with_object_values_of_the_model_file(holding, change):
    *owners, attributes = holding
    changes_of(*owners)[change]()

    with attributes.as_in_file():
        seen = read(*owners)

    assert seen == (1.0, {"scale": 1.0, "sizes": [1, 2]}, 1.0, 0.01, 1.0, 10)
    assert read(*owners) != seen


def read(layer, dense, schedule):
    """Return what a step of these would read."""
    return (
        float(layer.prior.mean()),
        {"scale": layer.settings["scale"], "sizes": list(layer.settings["sizes"])},
        layer.object.scale,
        float(dense.kernel_regularizer.l2),
        dense.bias_constraint.max_value,
        schedule.decay_steps,
    )


@pytest.mark.parametrize("change", changes_of(None, None, None))
def test_a_change_of_objects_held_by_layers_is_refused(holding, change):
    *owners, attributes = holding
    expected = change.replace("an entry of prior", "prior of .*scale")

    with (
        pytest.raises(DefinitionError, match=rf"on_epoch_begin\(\) changes {expected}"),
        attributes.watched("on_epoch_begin()", "Do not."),
    ):
        changes_of(*owners)[change]()


def test_attributes_set_by_callbacks_are_restored_elsewhere(holding):
    layer, dense, _, attributes = holding
    assert attributes.changed() == {}
    layer.settings["sizes"].append(3)
    layer.prior[0] = 5.0
    layer.count = 4
    dense.trainable = False
    changed = attributes.changed()
    layer.settings, layer.prior = {"scale": 1.0, "sizes": [1, 2]}, np.full(3, 1.0, np.float32)
    dense.trainable = True
    del layer.count

    attributes.restore(changed)

    assert layer.settings["sizes"] == [1, 2, 3]
    assert layer.prior.tolist() == [5.0, 1.0, 1.0]
    assert (layer.count, dense.trainable) == (4, False)


def test_a_step_is_compiled_without_attributes_added_by_callbacks(made):
    model, _, attributes = made
    model.layers[0].rounds = 3

    with attributes.as_in_file():
        seen = hasattr(model.layers[0], "rounds")

    assert not seen
    assert model.layers[0].rounds == 3


class Focal(keras.losses.Loss):
    def __init__(self):
        super().__init__(name="focal")
        self.gamma = 2.0

    def call(self, y_true, y_pred):
        return self.gamma * (y_true - y_pred)


weighting = Settings()
focal = Focal()


def of_globals(labels, outputs):
    return weighting.scale * focal(labels, outputs)


def of_closure():
    settings = Settings()

    def loss(labels, outputs):
        return settings.scale * (labels - outputs)

    return loss, settings


def of_wrapper():
    loss, settings = of_closure()

    def ordered(outputs, labels):
        return loss(labels, outputs)

    return ordered, settings


SCALE = 1.0
CONFIG = {"scale": 1.0}
helper = types.ModuleType("helper")
helper.DEPTH = 4


class Halving(keras.losses.Loss):
    factor = 0.5

    @property
    def scale(self):
        return self.factor

    def call(self, y_true, y_pred):
        return self.scale * (y_true - y_pred)


def of_plain_values():
    scale = 1.0

    def set_scale(value):
        nonlocal scale
        scale = value

    def scaled(error):
        return CONFIG["scale"] * scale * error

    def loss(labels, outputs):
        return SCALE * scaled(labels - outputs) * helper.DEPTH

    return loss, set_scale


class Scaling(keras.layers.Layer):
    factor = 1.0

    def call(self, x):
        return SCALE * self.factor * x


def changes_of_plain_variables(monkeypatch):
    """Return name of the changed variable -> a loss or layer, and a change of what it reads."""
    loss, set_scale = of_plain_values()
    put, here = monkeypatch.setattr, sys.modules[__name__]
    return {
        "SCALE of test_attributes.py": (loss, lambda: put(here, "SCALE", 2.0)),
        "CONFIG of test_attributes.py": (
            functools.partial(loss, outputs=0),
            lambda: monkeypatch.setitem(CONFIG, "scale", 2.0),
        ),
        "scale of .*scaled": (loss, lambda: set_scale(2.0)),
        "DEPTH of helper": (loss, lambda: put(helper, "DEPTH", 5)),
        "factor of Halving": (Halving(), lambda: put(Halving, "factor", 1.0)),
        "factor of Scaling": (Scaling(), lambda: put(Scaling, "factor", 2.0)),
        "SCALE of test_attributes.py .": (
            keras.layers.Lambda(lambda x: SCALE * x),
            lambda: put(here, "SCALE", 3.0),
        ),
    }


@pytest.mark.parametrize("name", changes_of_plain_variables(pytest.MonkeyPatch()))
def test_a_change_of_variables_that_a_step_reads_is_refused(name, monkeypatch):
    reader, apply = changes_of_plain_variables(monkeypatch)[name]
    layers = [reader] if isinstance(reader, keras.layers.Layer) else []
    model = keras.Sequential([keras.Input((2,)), *layers])
    losses = [] if layers else [reader]
    attributes = attributes_of(model, keras.optimizers.SGD(), *losses)

    with (
        pytest.raises(DefinitionError, match=rf"on_train_begin\(\) changes {name}"),
        attributes.watched("on_train_begin()", "Do not."),
    ):
        apply()

    changed = attributes.changed()
    with attributes.as_in_file():
        assert attributes.changed() == {}
    assert len(changed) == 1
    assert attributes.changed() == changed
    other = attributes_of(model, keras.optimizers.SGD(), *losses)
    assert other.changed() == {}


def test_variables_that_no_step_reads_may_change(monkeypatch):
    loss, _ = of_plain_values()
    attributes = attributes_of(keras.Sequential([keras.Input((2,))]), keras.optimizers.SGD(), loss)
    changed = {"ORIGIN": None, "weighting": Settings()}
    for name, value in changed.items():
        monkeypatch.setattr(sys.modules[__name__], name, value)

    assert attributes.changed() == {}


def changes_of_losses():
    """Return name of the changed attribute -> a loss and a change of what it reads."""
    own, power = Focal(), keras.losses.CategoricalGeneralizedCrossEntropy(q=0.7)
    held = Focal()
    held.settings = Settings()
    (closing, closed), (wrapping, wrapped) = of_closure(), of_wrapper()
    inner, inside = of_closure()
    return {
        "scale of settings of .*<locals>.loss .": (
            keras.metrics.MeanMetricWrapper(inner),
            lambda: setattr(inside, "scale", 2.0),
        ),
        "gamma of focal": (own, lambda: setattr(own, "gamma", 0.5)),
        "fn_kwargs of categorical_gen": (power, lambda: power._fn_kwargs.update(q=0.2)),
        "fn of categorical_gen": (
            power,
            lambda: setattr(power, "fn", keras.losses.mean_squared_error),
        ),
        "scale of settings of focal": (held, lambda: setattr(held.settings, "scale", 2.0)),
        "scale of weighting of of_globals": (
            of_globals,
            lambda: setattr(weighting, "scale", weighting.scale + 1),
        ),
        "gamma of focal of of_globals": (
            of_globals,
            lambda: setattr(focal, "gamma", focal.gamma + 1),
        ),
        "scale of settings of .*loss": (closing, lambda: setattr(closed, "scale", 2.0)),
        "scale of settings of .*<locals>.loss": (wrapping, lambda: setattr(wrapped, "scale", 2.0)),
    }


@pytest.mark.parametrize("change", changes_of_losses())
def test_a_change_of_what_a_loss_reads_is_refused(change):
    loss, apply = changes_of_losses()[change]
    attributes = attributes_of(keras.Sequential([keras.Input((2,))]), keras.optimizers.SGD(), loss)

    with (
        pytest.raises(DefinitionError, match=rf"on_train_begin\(\) changes {change}"),
        attributes.watched("on_train_begin()", "Do not."),
    ):
        apply()


@pytest.mark.parametrize("change", changes_of_losses())
def test_a_change_of_what_a_loss_reads_is_undone_for_compilation_and_stored(change):
    loss, apply = changes_of_losses()[change]
    attributes = attributes_of(keras.Sequential([keras.Input((2,))]), keras.optimizers.SGD(), loss)
    apply()
    changed = attributes.changed()

    with attributes.as_in_file():
        seen = attributes.changed()

    assert (len(changed), seen) == (1, {})
    assert attributes.changed() == changed


def test_an_uncompiled_step_keeps_what_it_changes_in_a_loss():
    loss = Focal()
    attributes = attributes_of(keras.Sequential([keras.Input((2,))]), keras.optimizers.SGD(), loss)
    for _ in range(2):
        with attributes.as_in_file(runs=True):
            loss.gamma += 1.0

    assert loss.gamma == 4.0


def test_losses_and_metrics_of_a_compiled_model_are_tracked():
    loss, metric = (
        Focal(),
        keras.metrics.MeanMetricWrapper(keras.losses.mean_squared_error, name="error"),
    )
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", loss)
    attributes = Attributes(ORIGIN)
    attributes.track_model(model, model.optimizer)
    attributes.track_of_step([metric])
    loss.gamma, metric._fn = 1.0, keras.losses.mean_absolute_error

    with attributes.as_in_file():
        assert (loss.gamma, metric._fn) == (2.0, keras.losses.mean_squared_error)
    assert (loss.gamma, metric._fn) == (1.0, keras.losses.mean_absolute_error)


@pytest.fixture
def calling():
    """A model whose layers call functions and hold objects, and changes of these."""
    layers = [
        keras.layers.Dense(2, "relu", name="first"),
        keras.layers.Lambda(lambda x: x),
        Scale(name="scale"),
    ]
    layers[2].object, layers[2].function = Settings(), None
    layers[2].functions = [keras.ops.relu, keras.ops.tanh]
    optimizer = keras.optimizers.SGD(0.1)
    model = keras.Sequential([keras.Input((2,)), *layers])
    changes = {
        "activation of .*first": lambda: setattr(layers[0], "activation", keras.ops.tanh),
        "function of .*lambda": lambda: setattr(layers[1], "function", lambda x: x * 2),
        "regularizer of .*first/kernel": lambda: setattr(
            layers[0].kernel, "regularizer", keras.regularizers.L2(0.1)
        ),
        "constraint of .*first/kernel": lambda: setattr(
            layers[0].kernel, "constraint", keras.constraints.NonNeg()
        ),
        "object of .*scale": lambda: setattr(layers[2], "object", Settings()),
        "function of .*scale": lambda: setattr(layers[2], "function", keras.ops.relu),
        "functions of .*scale": layers[2].functions.reverse,
        "call of .*scale": lambda: setattr(layers[2], "call", keras.ops.relu),
    }
    return changes, attributes_of(model, optimizer)


NAMES_OF_FUNCTIONS = (
    "activation of .*first",
    "function of .*lambda",
    "regularizer of .*first/kernel",
    "constraint of .*first/kernel",
    "object of .*scale",
    "function of .*scale",
    "functions of .*scale",
    "call of .*scale",
)


@pytest.mark.parametrize("name", NAMES_OF_FUNCTIONS)
def test_a_replaced_function_or_object_is_refused(calling, name):
    changes, attributes = calling

    with (
        pytest.raises(DefinitionError, match=rf"on_train_begin\(\) changes {name}"),
        attributes.watched("on_train_begin()", "Do not."),
    ):
        changes[name]()


@pytest.mark.parametrize("name", NAMES_OF_FUNCTIONS)
def test_a_step_is_compiled_with_the_functions_and_objects_of_the_model_file(calling, name):
    changes, attributes = calling
    changes[name]()
    changed = attributes.changed()

    with attributes.as_in_file():
        seen = attributes.changed()

    assert (len(changed), seen) == (1, {})
    assert attributes.changed() == changed


def test_an_object_that_a_step_creates_while_it_is_compiled_stays(made):
    model, _, attributes = made
    model.layers[0].object = None
    attributes = attributes_of(model, keras.optimizers.SGD())
    with attributes.as_in_file():
        model.layers[0].object = created = Settings()

    with attributes.as_in_file():
        assert model.layers[0].object is created
    assert attributes.changed() == {}


def test_a_callback_may_add_itself_and_other_objects_to_the_model(made):
    model, _, attributes = made
    model.observer = None
    attributes = attributes_of(model, keras.optimizers.SGD())

    with attributes.watched("on_train_begin()", "Do not."):
        model.observer = keras.callbacks.Callback()
        model.settings = Settings()

    assert attributes.changed() == {}


def test_an_evaluation_is_compiled_with_what_changed_before_the_first_one(made):
    model, _, attributes = made
    model.layers[0].factor = 2.0

    assert attributes.begin_evaluation()
    model.layers[0].factor = 3.0
    assert not attributes.begin_evaluation()

    with attributes.as_in_file(in_evaluation=True):
        assert model.layers[0].factor == 2.0
    with attributes.as_in_file():
        assert model.layers[0].factor == 1.0
    assert model.layers[0].factor == 3.0


def test_a_resumed_evaluation_is_compiled_as_the_first_one(made):
    model, _, attributes = made
    model.layers[0].factor = 2.0
    attributes.begin_evaluation()
    in_evaluation = attributes.changed_in_evaluation()
    model.layers[0].factor = 3.0
    changed = attributes.changed()
    model.layers[0].factor = 1.0

    attributes.restore(changed, in_evaluation)

    assert model.layers[0].factor == 3.0
    with attributes.as_in_file(in_evaluation=True):
        assert model.layers[0].factor == 2.0


def test_a_counter_that_steps_change_is_not_compiled_into_evaluations(made):
    model, _, attributes = made
    with attributes.as_in_file():
        model.layers[0].factor += 1.0

    assert not attributes.begin_evaluation()
    with attributes.as_in_file(in_evaluation=True):
        assert model.layers[0].factor == 1.0


class Anneal(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.weight, self.count = 0.0, 0


annealing = Anneal()


def of_callback(labels, outputs):
    return annealing.weight * (labels - outputs)


def test_of_a_callback_only_what_the_loss_reads_may_not_change():
    model = keras.Sequential([keras.Input((2,))])
    attributes = attributes_of(model, keras.optimizers.SGD(), of_callback)

    with attributes.watched("on_epoch_begin()", "Do not."):
        annealing.count += 1
    with (
        pytest.raises(DefinitionError, match=r"changes weight of annealing of of_callback"),
        attributes.watched("on_epoch_begin()", "Do not."),
    ):
        annealing.weight += 0.1


@pytest.mark.parametrize(
    "value",
    [
        ["Popen", {"args": "true"}],
        ["subprocess.Popen", {"args": "true"}],
        ["Dense", {"units": 1}],
        ["serialize", {}],
    ],
)
def test_a_checkpoint_creates_only_objects_that_keras_has_for_its_layers(value) -> None:
    from elasticdl.training.keras import callback_state

    kept = {"$configured": json.dumps(value)}

    assert callback_state.decode(kept, None, {}) is None
    assert callback_state.decode({"$activation": "__name__"}, None, {}) is None


def test_configured_objects_and_activations_of_keras_are_restored_by_name() -> None:
    import keras

    from elasticdl.training.keras import callback_state

    for value in (
        keras.regularizers.L2(0.5),
        keras.constraints.MaxNorm(3),
        keras.optimizers.schedules.CosineDecay(0.1, 10),
    ):
        again = callback_state.decode(callback_state.encode(value, "x", {}), None, {})
        assert (type(again), again.get_config()) == (type(value), value.get_config())
    kept = callback_state.encode(keras.activations.tanh, "x", {})
    assert callback_state.decode(kept, None, {}) is keras.activations.tanh


class Annealed(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self._factor, self._settings, self.ids = 1.0, Settings(), {1, 2}
        self._losses_seen = None

    def call(self, inputs):
        return inputs * self._factor * self._settings.scale


PRIVATE_CHANGES = {
    "_factor": lambda layer: setattr(layer, "_factor", 2.0),
    "scale": lambda layer: setattr(layer._settings, "scale", 2.0),
    "ids": lambda layer: setattr(layer, "ids", {1, 2, 3}),
}


@pytest.mark.parametrize("name", PRIVATE_CHANGES)
def test_a_private_attribute_of_a_users_class_is_tracked(name):
    model = keras.Sequential([keras.Input((2,)), Annealed()])
    (layer,) = model.layers
    attributes = attributes_of(model, keras.optimizers.SGD())

    with (
        pytest.raises(DefinitionError, match=rf"changes {name} of .*annealed"),
        attributes.watched("on_train_begin()", "Do not."),
    ):
        PRIVATE_CHANGES[name](layer)
    (value,) = attributes.changed().values()
    assert value in (2.0, {1, 2, 3})


def test_private_attributes_of_keras_are_not_tracked():
    model = keras.Sequential([keras.Input((2,)), Annealed()])
    model.compile("sgd", "mse")
    attributes = attributes_of(model, keras.optimizers.SGD())

    model(np.ones((1, 2)), training=True)
    model.layers[0].add_loss(keras.ops.ones(()))
    model.layers[0]._of_a_callback = 3

    assert attributes.changed() == {}
