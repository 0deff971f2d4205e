"""A Keras class that says how it is trained becomes a definition."""

from __future__ import annotations

import keras  # noqa: F401 - its counters of layer names are kept while an object is created
import pytest

from elasticdl.definition import DatasetInput, Mode, RecordInput
from elasticdl.errors import DefinitionError, UsageError, UserCodeError

CLASS = """
from fake_keras import Loss, Metric, Model, Optimizer

class MyKerasModel(Model):
    def __init__(self, hidden_units=(8,), learning_rate=0.1):
        super().__init__(units=hidden_units)
        self.rate = learning_rate

    def default_input(self, records):
        return {"x": records}, self.rate

    def default_loss(self, outputs, labels):
        return 2 * outputs - labels, self.number

    def default_optimizer(self):
        return ("Adam", self.rate)
"""


def with_body(loss: str = "", optimizer: str = "", batches: str = "", more: str = "") -> str:
    """Return a class whose three pieces are these lines."""
    batches = batches or "def default_input(records): return records"
    loss = loss or "def default_loss(labels, outputs): return outputs - labels"
    optimizer = optimizer or "def default_optimizer(): return 'never asked'"
    parts = [
        "from fake_keras import Loss, Metric, Model, Optimizer",
        "class MyKerasModel(Model):",
        *("    " + line for part in (batches, loss, optimizer, more) for line in part.split("\n")),
    ]
    return "\n".join(parts)


NAME = "m.MyKerasModel"


def test_a_class_is_read_completely(define) -> None:
    definition = define(CLASS, NAME, params={"hidden_units": [10, 5], "learning_rate": 0.5})

    assert definition.origin.dialect == "keras_class"
    assert str(definition.origin) == "m.py:4"
    assert definition.create_model().kwargs == {"units": [10, 5]}
    assert isinstance(definition.input, RecordInput)
    assert definition.input.input_fn([1]) == ({"x": [1]}, 0.5)
    assert definition.loss(10, 1)[0] == 19
    assert definition.create_optimizer() == ("Adam", 0.5)
    assert definition.create_metrics(Mode.EVALUATION).named == ()
    assert not definition.labels_as_numpy


def test_the_only_class_of_a_file_needs_no_name(define) -> None:
    assert define(CLASS, "m").origin.line == 4


def test_methods_are_called_on_the_newest_model(define) -> None:
    definition = define(CLASS, NAME)

    for _ in range(2):
        model = definition.create_model()
        assert definition.loss(0, 0)[1] == model.number


def test_input_is_created_by_an_object_that_is_never_trained(define) -> None:
    definition = define(CLASS.replace("}, self.rate", "}, self.number"), NAME)

    before = definition.input.input_fn([1])[1]
    model = definition.create_model()

    assert definition.input.input_fn([1])[1] == before != model.number


@pytest.mark.parametrize(
    "loss",
    [
        "def default_loss(labels, outputs): return 2 * outputs - labels",
        "@staticmethod\ndef default_loss(outputs, labels): return 2 * outputs - labels",
        "@classmethod\ndef default_loss(cls, y_true, y_pred): return 2 * y_pred - y_true",
        "def default_loss(self, labels, outputs): return 2 * outputs - labels",
        "default_loss = lambda outputs, labels: 2 * outputs - labels",
        "@property\ndef default_loss(self): return lambda labels, outputs: 2 * outputs - labels",
        "def default_loss(self): return lambda labels, outputs: 2 * outputs - labels",
    ],
)
def test_a_loss_may_have_any_form(define, loss) -> None:
    assert define(with_body(loss=loss), NAME).loss(10, 1) == 19


@pytest.mark.parametrize(
    "loss",
    [
        "default_loss = Loss()",
        "default_loss = Loss",
        "def default_loss(self): return Loss()",
        "@property\ndef default_loss(self): return Loss()",
    ],
)
def test_a_keras_loss_is_called_as_by_keras(define, loss) -> None:
    definition = define(with_body(loss=loss), NAME)

    assert definition.loss("outputs", "labels") == ("y_true", "labels", "y_pred", "outputs")


@pytest.mark.parametrize(
    "optimizer",
    [
        "default_optimizer = Optimizer(rate=0.25)",
        "def default_optimizer(self): return Optimizer(rate=0.25)",
        "def default_optimizer(): return Optimizer(rate=0.25)",
        "@property\ndef default_optimizer(self): return Optimizer(rate=0.25)",
    ],
)
def test_each_optimizer_is_new(define, optimizer) -> None:
    definition = define(with_body(optimizer=optimizer), NAME)

    first, second = definition.create_optimizer(), definition.create_optimizer()

    assert first is not second
    assert first.rate == second.rate == 0.25


def test_an_optimizer_class_takes_the_params_it_declares(define) -> None:
    definition = define(
        with_body(optimizer="default_optimizer = Optimizer"), NAME, params={"rate": 0.125}
    )

    assert definition.create_optimizer().rate == 0.125


def test_an_input_may_be_a_pipeline_or_take_the_mode(define) -> None:
    pipeline = define(
        with_body(batches="def default_input(self, dataset, mode): return dataset, mode"), NAME
    )
    with_mode = define(
        with_body(batches="def default_input(self, records, mode): return records, mode"), NAME
    )

    assert isinstance(pipeline.input, DatasetInput)
    assert pipeline.input.create_dataset("ds", Mode.TRAINING) == ("ds", Mode.TRAINING)
    assert with_mode.input.takes_mode
    assert with_mode.input.input_fn(["r"], Mode.TRAINING) == (["r"], Mode.TRAINING)


def test_an_input_with_ambiguous_arguments_is_refused(refused) -> None:
    message = refused(
        with_body(batches="def default_input(self, data): ..."), DefinitionError, model_def=NAME
    )

    assert message.startswith("m.py:3: default_input(data, ...) has an unclear first argument")


@pytest.mark.parametrize("mode", [Mode.TRAINING, Mode.EVALUATION])
def test_metrics_are_measured_in_training_and_evaluation_and_never_shared(define, mode) -> None:
    definition = define(with_body(more="default_metrics = [Metric(name='far')]"), NAME)

    (first,), (second,) = (definition.create_metrics(mode).named for _ in range(2))

    assert first.name == second.name == "far"
    assert first.metric is not second.metric
    assert definition.create_metrics(Mode.PREDICTION).named == ()


def test_metrics_may_be_values_of_a_batch(define) -> None:
    more = "def default_metrics(self, labels, outputs): return {'d': outputs - labels}"

    definition = define(with_body(more=more), NAME)

    assert definition.create_metrics(Mode.EVALUATION).scalars(10, 1) == {"d": 9}


@pytest.mark.parametrize(
    "form",
    [
        "data_schema = {}",
        "def data_schema(): return {}",
        "def data_schema(self): return {}",
        "@classmethod\ndef data_schema(cls): return {}",
        "@staticmethod\ndef data_schema(): return {}",
        "@property\ndef data_schema(self): return {}",
    ],
)
def test_the_data_schema_of_the_class_is_used(define, form) -> None:
    schema = form.replace("{}", "[{'name': 'x', 'shape': [], 'dtype': 'int64'}]")

    assert define(with_body(more=schema), NAME).input.schema.names == ("x",)


def test_the_data_schema_of_the_file_is_used(define) -> None:
    text = with_body() + "\ndata_schema = [{'name': 'x', 'shape': [], 'dtype': 'int64'}]"

    assert define(text, NAME).input.schema.names == ("x",)


def test_all_missing_pieces_are_named_with_their_flags(refused) -> None:
    message = refused(
        "from fake_keras import Model\nclass MyKerasModel(Model):\n    default_loss = 'mse'",
        DefinitionError,
        model_def=NAME,
    )

    assert message.startswith("m.py:2: MyKerasModel has no default_input, no default_optimizer.")
    assert "--input_fn=FILE.FUNCTION --optimizer=FILE.FUNCTION" in message


def test_flags_override_the_class(define, write) -> None:
    write(
        "def batches(records): return 'mine'\n"
        "def loss(labels, outputs): return 'mine'\n"
        "def optimizer(): return ['mine']\n"
        "def metrics(labels, outputs): return 'mine'\n",
        "other.py",
    )
    definition = define(
        CLASS,
        NAME,
        overrides={
            "input_fn": "other.batches",
            "loss": "other.loss",
            "optimizer": "other.optimizer",
            "eval_metrics_fn": "other.metrics",
        },
    )

    assert definition.input.input_fn(1) == "mine"
    assert definition.loss(1, 2) == "mine"
    assert definition.create_optimizer() == ["mine"]
    assert definition.create_metrics(Mode.EVALUATION).scalars(1, 2) == "mine"
    assert definition.create_metrics(Mode.TRAINING).scalars is None


def test_flags_alone_suffice_for_a_plain_class(define, write) -> None:
    write(
        "def batches(records): return 'mine'\ndef f(labels, outputs): return 'mine'\n"
        "def g(): ...\n",
        "other.py",
    )
    overrides = {"input_fn": "other.batches", "loss": "other.f", "optimizer": "other.g"}

    definition = define(
        "from fake_keras import Model\nclass Plain(Model): ...", "m.Plain", overrides=overrides
    )

    assert definition.origin.dialect == "keras_class"


def test_unknown_params_are_refused_before_an_object_is_made(refused) -> None:
    text = CLASS.replace("self.rate = learning_rate", "raise RuntimeError")

    message = refused(text, UsageError, model_def=NAME, params={"hidden_unit": [1]})

    assert "Did you mean 'hidden_units'?" in message


def test_params_are_checked_before_a_property_is_read(refused) -> None:
    text = with_body(
        more="def __init__(self, n=1): 1 / 0\n@property\ndef default_metrics(self): return []"
    )

    refused(text, UsageError, model_def=NAME, params={"n": "x"})


def test_a_constructor_that_raises_is_reported(refused) -> None:
    message = refused(
        CLASS.replace("self.rate = learning_rate", "1 / 0"), UserCodeError, model_def=NAME
    )

    assert message.startswith("m.py:7: MyKerasModel() raised:")


def test_a_missing_constructor_argument_is_reported(refused) -> None:
    message = refused(
        CLASS.replace("hidden_units=(8,)", "hidden_units"), UsageError, model_def=NAME
    )

    assert message.startswith("--params: hidden_units missing. m.py:4: MyKerasModel(hidden_units")
    assert '--params="hidden_units=..."' in message


@pytest.mark.parametrize(
    "more",
    [
        "def default_predictions(self, outputs): return {'twice': 2 * outputs}",
        "def default_predictions(outputs): return {'twice': 2 * outputs}",
        "@staticmethod\ndef default_predictions(outputs): return {'twice': 2 * outputs}",
    ],
)
def test_a_class_may_define_its_predictions(define, more) -> None:
    definition = define(with_body(more=more), NAME)

    assert definition.predictions(3) == {"twice": 6}
    assert definition.where("predictions").line > definition.origin.line


@pytest.mark.parametrize(
    "more",
    [
        "default_classes = ['no', 'yes']",
        "def default_classes(self): return ('no', 'yes')",
        "@property\ndef default_classes(self): return ['no', 'yes']",
    ],
)
def test_a_class_may_name_its_classes(define, more) -> None:
    assert define(with_body(more=more), NAME).classes == ("no", "yes")


def test_classes_that_are_numbers_are_written_as_text(define) -> None:
    assert define(with_body(more="default_classes = [3, 5]"), NAME).classes == ("3", "5")


def test_a_class_has_no_class_names_by_default(define) -> None:
    assert define(CLASS, NAME).classes == ()
    assert define(with_body(more="def default_classes(self): pass"), NAME).classes == ()


@pytest.mark.parametrize("wrong", ["3", "['one']", "['one', 'one']", "[['a'], ['b']]"])
def test_class_names_must_be_different_strings(define, wrong) -> None:
    with pytest.raises(DefinitionError, match="default_classes is .*\n.*\n.*different names"):
        define(with_body(more=f"default_classes = {wrong}"), NAME)


def test_outputs_are_written_unchanged_by_default(define) -> None:
    assert define(CLASS, NAME).predictions is None


def test_predictions_that_cannot_be_called_are_refused(define) -> None:
    with pytest.raises(DefinitionError, match="default_predictions is a dict"):
        define(with_body(more="default_predictions = {}"), NAME)


def test_a_class_may_have_no_schema_for_some_params(define) -> None:
    more = "def data_schema(self): return None"

    assert define(with_body(more=more), NAME).input.schema is None
