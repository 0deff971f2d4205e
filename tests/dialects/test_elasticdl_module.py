"""A model file of either generation becomes a definition whose argument order is settled."""

from __future__ import annotations

import pytest

from elasticdl.definition import DatasetInput, Mode, RecordInput
from elasticdl.errors import DefinitionError, UsageError, UserCodeError

FIRST = """
from fake_keras import Model

model = Model()

def data_schema():
    return [{"name": "x", "shape": [2], "dtype": "float32"}]

def input_fn(records):
    return {"x": records}, "labels"

def loss(output, labels):
    return 2 * output - labels

def eval_metrics_fn(predictions, labels):
    return {"difference": predictions - labels}

def optimizer(lr=0.1):
    return ("SGD", lr)
"""

LATER = """
from elasticdl.python.common.constants import Mode
from elasticdl.python.worker.prediction_outputs_processor import BasePredictionOutputsProcessor
from fake_keras import Model

def custom_model(units=8):
    return Model(units=units)

def loss(labels, predictions):
    return 2 * predictions - labels

def optimizer(lr=0.1):
    return ("SGD", lr)

def feed(dataset, mode, metadata):
    return (dataset, mode is Mode.TRAINING, metadata)

def eval_metrics_fn():
    return {"accuracy": lambda labels, predictions: predictions - labels}

def callbacks():
    return ["stop"]

class PredictionOutputsProcessor(BasePredictionOutputsProcessor):
    def process(self, predictions, worker_id):
        return (predictions, worker_id)
"""


# --- both generations ----------------------------------------------------------------------------


def test_a_first_generation_file_is_read_completely(define) -> None:
    definition = define(FIRST)

    assert definition.origin.dialect == "elasticdl_module"
    assert (definition.origin.file, definition.origin.symbol) == ("m.py", "m")
    assert isinstance(definition.input, RecordInput)
    assert definition.input.schema.names == ("x",)
    assert definition.input.input_fn([1]) == ({"x": [1]}, "labels")
    assert not definition.input.takes_mode
    assert definition.loss(10, 1) == 19
    assert definition.create_metrics(Mode.EVALUATION).scalars(10, 1) == {"difference": 9}
    assert definition.create_metrics(Mode.TRAINING).scalars is None
    assert definition.create_optimizer() == ("SGD", 0.1)
    assert definition.labels_as_numpy


def test_a_later_file_is_read_completely(define) -> None:
    definition = define(LATER, "m.custom_model")

    assert (definition.origin.line, definition.origin.symbol) == (6, "m.custom_model")
    assert definition.create_model().kwargs == {"units": 8}
    assert isinstance(definition.input, DatasetInput)
    assert definition.input.create_dataset("ds", Mode.TRAINING) == ("ds", True, None)
    assert definition.loss(10, 1) == 19
    (accuracy,) = definition.create_metrics(Mode.EVALUATION).named
    assert accuracy.name == "accuracy"
    assert accuracy.metric(1, 10) == 9
    assert definition.create_callbacks() == ["stop"]
    assert definition.create_outputs_processor().process(5, 0) == (5, 0)
    assert not definition.labels_as_numpy


@pytest.mark.parametrize("arguments", ["dataset, mode", "dataset, mode, _", "dataset"])
def test_a_dataset_fn_may_take_fewer_arguments(define, arguments) -> None:
    text = LATER.replace("def feed(dataset, mode, metadata):", f"def dataset_fn({arguments}):")
    text = text.replace("return (dataset, mode is Mode.TRAINING, metadata)", "return dataset")

    assert define(text).input.create_dataset("ds", Mode.TRAINING) == "ds"


def test_a_dataset_fn_may_have_its_arguments_in_another_order(define) -> None:
    text = LATER.replace("def feed(dataset, mode, metadata):", "def feed(mode, dataset):")
    text = text.replace(", metadata)", ")")

    assert define(text).input.create_dataset("ds", Mode.TRAINING) == ("ds", True)


def test_an_input_fn_may_take_the_mode(define) -> None:
    text = FIRST.replace("def input_fn(records):", "def input_fn(records, mode):")

    definition = define(text.replace('"labels"', "mode"))

    assert definition.input.takes_mode
    assert definition.input.input_fn([1], Mode.EVALUATION) == ({"x": [1]}, Mode.EVALUATION)


def test_the_arguments_of_an_input_fn_take_precedence_over_its_name(define) -> None:
    text = FIRST.replace("def input_fn(records):", "def input_fn(dataset, mode):")

    definition = define(text.replace('{"x": records}', "dataset"))

    assert definition.input.create_dataset("ds", Mode.TRAINING) == ("ds", "labels")
    assert not definition.labels_as_numpy


# --- the order of the arguments ------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [
        "output, labels",
        "outputs, label",
        "logits, y_true",
        "prediction, targets",
        "y_pred, target",
        "outputs, masks",
        "output, y",
        "out, labels",
        "y_hat, y_true",
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("kind", ["", "*, ", "/"])
def test_argument_names_determine_the_order_of_a_loss(define, arguments, swapped, kind) -> None:
    outputs, labels = arguments.split(", ")
    order = f"{labels}, {outputs}" if swapped else f"{outputs}, {labels}"
    order = f"{order}, /" if kind == "/" else kind + order
    text = FIRST.replace("def loss(output, labels):", f"def loss({order}):")

    definition = define(text.replace("2 * output - labels", f"2 * {outputs} - {labels}"))

    assert definition.loss(10, 1) == 19


@pytest.mark.parametrize(
    "arguments",
    [
        "a, b",
        "outputs, x",
        "x, labels",
        "y, target",
        "a, b, labels",
        "outputs, predictions",
        "outputs, a, b",
    ],
)
def test_ambiguous_argument_names_are_refused(refused, arguments) -> None:
    text = FIRST.replace("def loss(output, labels):", f"def loss({arguments}):")

    message = refused(text, DefinitionError)

    assert message.startswith(f"m.py:12: loss({arguments})")
    assert "Rename them: loss(outputs, labels) or loss(labels, predictions)" in message


def test_a_loss_of_one_argument_is_refused_with_its_line_and_reading(refused) -> None:
    message = refused(LATER.replace("loss(labels, predictions)", "loss(labels)"), DefinitionError)

    assert message == (
        "m.py:9: loss() takes 1 argument; it is called as loss(labels, predictions).\n"
        "  The file was read as an ElasticDL module (it has custom_model, feed, loss, optimizer, "
        "eval_metrics_fn, callbacks, PredictionOutputsProcessor).\n"
        "  Add the missing argument, or specify the dialect yourself: --dialect=NAME"
    )


def test_a_keras_loss_object_is_called_as_by_keras(define) -> None:
    definition = define(
        FIRST.split("def loss", maxsplit=1)[0]
        + """
from fake_keras import Loss
loss = Loss()
def optimizer(): ...
"""
    )

    assert definition.loss("outputs", "labels") == ("y_true", "labels", "y_pred", "outputs")


@pytest.mark.parametrize("arguments", ["labels, predictions", "predictions, labels"])
def test_argument_names_determine_the_order_of_a_metric(define, arguments) -> None:
    definition = define(LATER.replace("lambda labels, predictions:", f"lambda {arguments}:"))

    assert definition.create_metrics(Mode.EVALUATION).named[0].metric(1, 10) == 9


def test_metrics_of_several_outputs_have_their_output(define) -> None:
    definition = define(
        LATER.replace('{"accuracy": ', '{"a": {"acc": ').replace("- labels}", "- labels}}")
    )

    (metric,) = definition.create_metrics(Mode.EVALUATION).named
    assert (metric.name, metric.output) == ("a_acc", "a")


def test_a_metric_that_is_a_number_is_refused(define) -> None:
    definition = define(LATER.replace("lambda labels, predictions: predictions - labels", "0.5"))

    with pytest.raises(DefinitionError, match="metric 'accuracy' of eval_metrics_fn is a float"):
        definition.create_metrics(Mode.EVALUATION)


# --- what is missing or wrong --------------------------------------------------------------------


def test_all_missing_functions_are_named_at_once(refused) -> None:
    message = refused("def custom_model(): ...\ndef input_fn(records): ...", DefinitionError)

    assert message.startswith("m.py: loss, optimizer are missing.")
    assert "--loss=FILE.FUNCTION --optimizer=FILE.FUNCTION" in message


def test_a_file_with_a_loader_is_told_what_it_lacks(refused) -> None:
    text = "import torch\nmodel = torch.nn.Linear(2, 1)\ndef train_dataloader(data): ..."
    message = refused(text, DefinitionError)

    assert message.startswith("m.py: loss, optimizer are missing.")
    assert "it has model, train_dataloader" in message


def test_a_file_without_a_model_is_refused(refused) -> None:
    message = refused(FIRST.replace("model = Model()", ""), DefinitionError)

    assert "model (or custom_model) is missing" in message


def test_a_file_with_two_models_is_refused(refused) -> None:
    message = refused(FIRST + "def custom_model(): ...", DefinitionError)

    assert "the file has model and custom_model" in message
    assert "--model_def=m.model or --model_def=m.custom_model" in message


def test_a_file_with_two_input_functions_is_refused(refused) -> None:
    message = refused(FIRST + "def feed(dataset, mode): ...", DefinitionError)

    assert "input_fn and feed" in message
    assert "--input_fn=input_fn" in message


def test_one_input_function_under_two_names_is_unambiguous(define) -> None:
    assert define(FIRST + "feed = input_fn").input.input_fn([1]) == ({"x": [1]}, "labels")


def test_an_object_that_is_not_a_model_is_refused(refused) -> None:
    assert "model is a list, not a model" in refused(
        FIRST.replace("model = Model()", "model = [1]"), DefinitionError
    )


@pytest.mark.parametrize("function", ["custom_model", "optimizer"])
def test_a_function_that_returns_nothing_is_reported(define, function) -> None:
    definition = define(LATER + f"\ndef {function}(): pass")
    create = definition.create_model if function == "custom_model" else definition.create_optimizer

    with pytest.raises(DefinitionError, match=rf"{function}\(\) returned None"):
        create()


@pytest.mark.parametrize(
    ("function", "create"),
    [
        ("custom_model", lambda definition: definition.create_model()),
        ("optimizer", lambda definition: definition.create_optimizer()),
        ("callbacks", lambda definition: definition.create_callbacks()),
        ("eval_metrics_fn", lambda definition: definition.create_metrics(Mode.EVALUATION)),
        ("feed", lambda definition: definition.input.create_dataset(1, Mode.TRAINING)),
    ],
)
def test_errors_in_functions_show_only_the_users_lines(define, function, create) -> None:
    arguments = "dataset, mode" if function == "feed" else ""
    definition = define(f"{LATER}\ndef {function}({arguments}):\n    raise OSError('gone')\n")

    with pytest.raises(UserCodeError) as caught:
        create(definition)

    message = str(caught.value)
    assert message.startswith(f"m.py:{LATER.count(chr(10)) + 3}: {function}() raised:")
    assert "OSError: gone" in message
    assert "dialect_reader.py" not in message


def test_a_data_schema_that_raises_is_reported_immediately(refused) -> None:
    message = refused(FIRST + "def data_schema(): return 1 / 0", UserCodeError)

    assert "data_schema() raised" in message


def test_an_outputs_processor_without_process_is_refused(refused) -> None:
    text = LATER.replace(
        "BasePredictionOutputsProcessor):\n    def process", "object):\n    def go"
    )

    assert "no method process" in refused(text, DefinitionError)


# --- a model that is made at import --------------------------------------------------------------


def test_each_create_model_call_gives_a_new_model(define) -> None:
    definition = define(FIRST)

    first, second = definition.create_model(), definition.create_model()

    assert first is not second


def test_other_functions_belong_to_the_newest_model(define) -> None:
    definition = define(FIRST.replace("2 * output - labels", "id(model)"))

    for _ in range(2):
        model = definition.create_model()
        assert definition.loss(0, 0) == id(model)


def test_a_model_made_in_another_file_is_recreated_too(define, write) -> None:
    write("from fake_keras import Model\nnet = Model()", "net.py")
    definition = define(FIRST.replace("model = Model()", "from net import net as model"))

    assert definition.create_model() is not definition.create_model()


def test_weights_depend_only_on_the_seed_set_before_create_model(define) -> None:
    import random

    definition = define("import random\n" + FIRST.replace("Model()", "Model(w=random.random())"))
    weights = []
    for _ in range(2):
        random.seed(5)
        weights.append(definition.create_model().kwargs["w"])

    random.seed(5)
    assert weights == [random.random()] * 2


# --- params and overrides ------------------------------------------------------------------------


def test_params_reach_every_function_that_declares_them(define) -> None:
    text = FIRST.replace("loss(output, labels)", "loss(output, labels, lr)").replace(
        "2 * output - labels", "lr"
    )

    definition = define(
        text.replace("input_fn(records)", "input_fn(records, scale=1)"),
        params={
            "lr": 0.5,
            "scale": 3,
        },
    )

    assert definition.create_optimizer() == ("SGD", 0.5)
    assert definition.loss(1, 2) == 0.5
    assert definition.input.input_fn([1]) == ({"x": [1]}, "labels")
    assert definition.params == {"lr": 0.5, "scale": 3}


def test_params_reach_the_model(define) -> None:
    definition = define(LATER, params={"units": 3})

    assert definition.create_model().kwargs == {"units": 3}


def test_remaining_params_reach_a_model_that_accepts_any(define) -> None:
    text = LATER.replace("def custom_model(units=8)", "def custom_model(units=8, **rest)").replace(
        "Model(units=units)", "Model(units=units, **rest)"
    )

    definition = define(text, params={"lr": 0.5, "depth": 2})

    assert definition.create_model().kwargs == {"units": 8, "depth": 2}


def test_a_contract_argument_is_not_a_param(refused) -> None:
    message = refused(FIRST, UsageError, params={"labels": 1})

    assert "no function of the model has a parameter 'labels'" in message


def test_an_unknown_param_is_reported_with_a_similar_name_and_all_names(refused) -> None:
    message = refused(LATER, UsageError, params={"unit": 1})

    assert "no function of the model has a parameter 'unit'. Did you mean 'units'?" in message
    assert "m.py:12: optimizer(lr)" in message


def test_params_are_checked_before_user_code_runs(refused) -> None:
    refused(FIRST + "def data_schema(): return 1 / 0", UsageError, params={"no": 1})


@pytest.mark.parametrize(
    ("flag", "function", "observe", "expected"),
    [
        ("loss", "def mine(labels, outputs): return 'mine'", lambda d: d.loss(1, 2), "mine"),
        ("optimizer", "def mine(): return ['mine']", lambda d: d.create_optimizer(), ["mine"]),
        ("input_fn", "def mine(records): return 'mine'", lambda d: d.input.input_fn(1), "mine"),
        (
            "eval_metrics_fn",
            "def mine(labels, outputs): return {'mine': outputs - labels}",
            lambda d: d.create_metrics(Mode.EVALUATION).scalars(3, 1),
            {"mine": 2},
        ),
    ],
)
@pytest.mark.parametrize("text", [FIRST, LATER])
def test_a_function_can_be_overridden_from_another_file(
    define, write, text, flag, function, observe, expected
):
    write(function, "other.py")

    definition = define(text, overrides={flag: "other.mine"})

    assert observe(definition) == expected


def test_a_missing_function_can_be_taken_from_another_file(define, write) -> None:
    write("def mine(records): return 'mine'", "other.py")

    definition = define(
        "def custom_model(): ...\ndef loss(labels, outputs): ...\ndef optimizer(): ...",
        overrides={"input_fn": "other.mine"},
    )

    assert definition.input.input_fn(1) == "mine"


def test_an_override_with_ambiguous_arguments_is_refused(refused, write) -> None:
    write("def mine(data): return 'mine'", "other.py")

    message = refused(FIRST, DefinitionError, overrides={"input_fn": "other.mine"})

    assert "mine(records) or mine(dataset, mode)" in message


# --- a model class in a model file ---------------------------------------------------------------

CLASS = LATER.replace(
    "def custom_model(units=8):\n    return Model(units=units)",
    "class CustomModel(Model):\n"
    "    def __init__(self, units=8):\n"
    "        super().__init__(u=units)",
)


@pytest.mark.parametrize("model_def", ["m", "m.CustomModel"])
def test_a_class_without_defaults_is_the_model_of_its_file(define, model_def) -> None:
    definition = define(CLASS, model_def, params={"units": 2})

    assert definition.origin.dialect == "elasticdl_module"
    assert definition.create_model().kwargs == {"u": 2}


# --- a reader of the user's own ------------------------------------------------------------------

READER = (
    LATER
    + """
from elasticdl.python.data.reader.data_reader import AbstractDataReader, Metadata

class Reader(AbstractDataReader):
    def __init__(self, data_origin, size, sep=","):
        self.data_origin, self.size, self.sep = data_origin, size, sep
    def create_shards(self):
        return {"a": (10, 3), "b": (0, 2)}
    def read_records(self, task):
        assert (task.shard_name, task.start, task.end) == (
            task.shard.name, task.shard.start, task.shard.end
        )
        for i in range(task.shard.start, task.shard.end):
            yield f"{task.shard.name}{self.sep}{i}"
    @property
    def metadata(self):
        return Metadata(column_names=["name", "number"])

def custom_data_reader(data_origin, records_per_task, **kwargs):
    return Reader(data_origin, records_per_task, **kwargs)
"""
)


def test_a_custom_reader_becomes_a_source_of_numbered_records(define) -> None:
    source = define(READER).open_source("somewhere")

    assert [(f.uri, f.num_records) for f in source.files] == [("a", 3), ("b", 2)]
    assert source.num_records == 5
    assert source.read_bytes(0, 5) == [b"a,10", b"a,11", b"a,12", b"b,0", b"b,1"]
    assert source.read_bytes(2, 4) == [b"a,12", b"b,0"]
    assert source.read_bytes(5, 5) == []
    with pytest.raises(IndexError):
        source.read_bytes(4, 6)


def test_params_reach_a_custom_reader_and_its_metadata_reaches_feed(define) -> None:
    definition = define(READER, params={"sep": "|"})

    source = definition.open_source("somewhere")

    assert source.read_bytes(0, 1) == [b"a|10"]
    metadata = definition.input.create_dataset("ds", Mode.TRAINING)[2]
    assert metadata.column_names == ["name", "number"]


def test_a_custom_reader_of_mappings_gives_decoded_records(define) -> None:
    text = READER.replace('yield f"{task.shard.name}{self.sep}{i}"', 'yield {"x": [i, i + 1]}')

    (record,) = define(text).open_source("somewhere").read_records(1, 2, None)

    assert record["x"].tolist() == [11, 12]


def test_a_custom_reader_that_yields_too_few_records_is_reported(define) -> None:
    from elasticdl.errors import DataError

    source = define(READER.replace("task.shard.end):", "task.shard.end - 1):")).open_source("x")

    with pytest.raises(DataError, match=r"yielded 2 records of 'a' .* expected 3"):
        source.read_bytes(0, 3)


def test_an_object_that_is_not_a_reader_is_refused(define) -> None:
    definition = define(LATER + "def custom_data_reader(data_origin): return 5")

    with pytest.raises(DefinitionError, match=r"returned an int without create_shards\(\)"):
        definition.open_source("x")
