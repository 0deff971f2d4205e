"""Plain values of layers and optimizers: compiled with what the model file made."""

import itertools
import re

import keras
import numpy as np
import pytest

from elasticdl.definition import Origin
from elasticdl.errors import DefinitionError
from elasticdl.training.keras.attributes import Attributes

ORIGIN = Origin("elasticdl_module", "model.py", 1, "model", "zoo")


class Scale(keras.layers.Layer):
    factor = 1.0


@pytest.fixture
def made():
    model = keras.Sequential([keras.Input((2,)), Scale(), keras.layers.Dropout(0.5)])
    optimizer = keras.optimizers.AdamW(weight_decay=0.1)
    return model, optimizer, Attributes(model, optimizer, ORIGIN)


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
    attributes = Attributes(model, keras.optimizers.SGD(), ORIGIN)

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
    return layer, dense, schedule, Attributes(model, optimizer, ORIGIN)


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
