"""Parts of a model beside the class that describes it are used, refused or noted, never ignored."""

from __future__ import annotations

import keras  # noqa: F401 - its counters of layer names are kept while an object is created
import pytest

from elasticdl.errors import DefinitionError

CLASS = """
from fake_keras import Model


class Net(Model):
    def default_input(records): return records
    def default_loss(labels, outputs): return outputs - labels
    def default_optimizer(): return "Adam"
"""
SPEC = """
from elasticdl import ElasticDLSpec

class Net(ElasticDLSpec):
    def create_model(self): return "model"
    def create_optimizer(self, lr=0.1): return "SGD"
    def create_loss(self, outputs=None, labels=None): return outputs - labels
    def create_dataset(self, dataset, mode): return dataset
"""
DIALECTS = {CLASS: "keras_class", SPEC: "elasticdl_spec"}
FILES = pytest.mark.parametrize("text", [CLASS, SPEC])


@FILES
def test_callbacks_beside_a_class_are_used(define, text) -> None:
    definition = define(text + "def callbacks(name='stop'): return [name]", params={"name": "end"})

    assert definition.create_callbacks() == ["end"]
    assert definition.places["callbacks"] == ("m.py", 9)


@pytest.mark.parametrize(
    "more",
    [
        "def default_callbacks(self): return [self.number]",
        "@property\n    def default_callbacks(self): return [self.number]",
    ],
)
def test_a_keras_class_may_define_its_callbacks(define, more) -> None:
    definition = define(f"{CLASS}    {more}")
    model = definition.create_model()

    assert definition.create_callbacks()[0] in {model.number, model.number - 1}


def test_a_spec_may_define_its_callbacks(define) -> None:
    more = "    def create_callbacks(self): return [type(self).__name__]"

    assert define(SPEC + more).create_callbacks() == ["Net"]


def test_a_class_without_callbacks_has_none(define) -> None:
    assert define(CLASS).create_callbacks() == define(SPEC).create_callbacks() == []


@pytest.mark.parametrize(
    ("text", "name"), [(CLASS, "default_callbacks"), (SPEC, "create_callbacks")]
)
def test_callbacks_in_and_beside_a_class_are_refused(refused, define, text, name) -> None:
    both = f"{text}    def {name}(self): return []\ndef callbacks(): return [1]\n"

    error = refused(both, DefinitionError)

    assert error.startswith(
        f"m.py:10: callbacks would be ignored, because Net.{name} (m.py:9) is used."
    )
    helper = both.replace("return []", "return callbacks()")
    assert define(helper).create_callbacks() == [1]


@pytest.mark.parametrize(
    ("text", "name", "new"),
    [
        (CLASS, "eval_metrics_fn", "default_metrics"),
        (CLASS, "weighted_metrics_fn", "default_weighted_metrics"),
        (CLASS, "class_weight", "default_class_weight"),
        (SPEC, "eval_metrics_fn", "create_metrics"),
        (SPEC, "class_weight", "class_weight"),
    ],
)
def test_a_part_that_a_class_replaces_is_refused_beside_it(refused, text, name, new) -> None:
    error = refused(f"{text}\ndef {name}(): pass", DefinitionError)

    assert error.startswith(
        f"m.py:10: {name} would be ignored, because Net describes the whole model."
    )
    assert error.endswith(f"Move it into the class as {new}, or give it another name.")


@pytest.mark.parametrize(
    ("text", "name"), [(CLASS, "loss"), (CLASS, "input_fn"), (SPEC, "optimizer"), (SPEC, "feed")]
)
def test_a_function_that_a_class_has_itself_is_noted(define, text, name) -> None:
    (note,) = define(f"{text}\ndef {name}(): pass", "m.Net", dialect=DIALECTS[text]).notes()

    assert note == (
        f"m.py:10: {name} is not used: nothing in the file uses it, and Net has its own."
    )


@FILES
def test_a_part_that_a_class_cannot_have_is_refused_beside_it(refused, text) -> None:
    error = refused(f"{text}\nclass PredictionOutputsProcessor: pass", DefinitionError)

    assert "PredictionOutputsProcessor would be ignored" in error
    assert error.endswith("Remove it, or give it another name.")


def test_a_helper_of_the_class_is_not_refused(define) -> None:
    used = CLASS.replace("return outputs - labels", "return loss(outputs, labels)")

    definition = define(used + "\ndef loss(a, b): return a * b", "m.Net", dialect="keras_class")

    assert (definition.loss(3, 2), definition.notes()) == (6, [])


def test_a_part_that_a_flag_names_is_not_refused(define) -> None:
    text = CLASS + "\ndef loss(outputs, labels): return outputs * labels"

    definition = define(text, "m.Net", overrides={"loss": "m.loss"}, dialect="keras_class")

    assert (definition.loss(3, 2), definition.notes()) == (6, [])


def test_functions_of_another_model_in_the_file_are_not_refused(define) -> None:
    text = CLASS + "\ndef custom_model(): pass\ndef eval_metrics_fn(): return {}"

    assert define(text, "m.Net", dialect="keras_class").create_callbacks() == []


@pytest.mark.parametrize(
    ("text", "name", "meant"),
    [
        (CLASS, "default_callback", "default_callbacks"),
        (CLASS, "default_metric", "default_metrics"),
        (SPEC, "create_callback", "create_callbacks"),
    ],
)
def test_an_unused_setting_of_a_class_is_noted(define, text, name, meant) -> None:
    (note,) = define(f"{text}    def {name}(self): return []").notes()

    assert note == (
        f"m.py:9: Net.{name} is not used: nothing in the file uses it, and ElasticDL looks for "
        f"{meant}. If you meant that, rename it."
    )


def test_a_setting_that_the_class_uses_itself_is_not_noted(define) -> None:
    used = CLASS + "    default_units = 3\n    def units(self): return self.default_units"

    assert define(used).notes() == []
