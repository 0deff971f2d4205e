"""A class with the five methods becomes a definition; one object of it serves one run."""

from __future__ import annotations

from elasticdl.definition import DatasetInput, Mode
from elasticdl.errors import DefinitionError, UsageError, UserCodeError

SPEC = """
from elasticdl import ElasticDLSpec
from elasticdl.python.common.constants import Mode
from fake_keras import Model

class Mine(ElasticDLSpec):
    def __init__(self, context=None, **kwargs):
        super().__init__(context=context)
        self.kwargs = kwargs
        self.model = None

    def create_model(self):
        self.model = Model(**self.kwargs)
        return self.model

    def create_optimizer(self, lr=0.1):
        return ("SGD", lr)

    def create_loss(self, outputs=None, labels=None):
        return 2 * outputs - labels

    def create_metrics(self, mode=Mode.TRAINING, outputs=None, labels=None):
        if mode == Mode.EVALUATION:
            return {"difference": outputs - labels}
        return {}

    def create_dataset(self, dataset, mode):
        return (dataset, mode, self._context)
"""


def test_a_spec_is_read_completely(define) -> None:
    definition = define(SPEC, "m.Mine")

    assert definition.origin.dialect == "elasticdl_spec"
    assert str(definition.origin) == "m.py:6"
    assert isinstance(definition.input, DatasetInput)
    assert definition.loss(10, 1) == 19
    assert definition.create_optimizer() == ("SGD", 0.1)
    assert definition.create_metrics(Mode.EVALUATION).scalars(10, 1) == {"difference": 9}
    assert definition.create_metrics(Mode.TRAINING).scalars(10, 1) == {}
    assert definition.create_metrics(Mode.PREDICTION).scalars is None
    assert not definition.labels_as_numpy


def test_the_only_spec_of_a_file_needs_no_name(define) -> None:
    assert define(SPEC, "m").origin.line == 6


def test_the_context_has_worker_world_size_job_and_mode(define) -> None:
    alone = define(SPEC, "m.Mine")
    worker = define(SPEC, "m.Mine", context={"worker_id": 3, "world_size": 8})

    assert alone.input.create_dataset("ds", Mode.TRAINING) == (
        "ds",
        Mode.TRAINING,
        {"worker_id": 0, "world_size": 1, "job_id": "local", "mode": Mode.TRAINING},
    )
    context = worker.input.create_dataset("ds", Mode.TRAINING)[2]
    assert (context["worker_id"], context["world_size"]) == (3, 8)


def test_all_params_reach_the_constructor_and_lr_the_optimizer(define) -> None:
    definition = define(SPEC, "m.Mine", params={"lr": 0.5, "units": 3})

    assert definition.create_model().kwargs == {"lr": 0.5, "units": 3}
    assert definition.create_optimizer() == ("SGD", 0.5)


def test_a_constructor_with_named_params_refuses_others(refused) -> None:
    text = SPEC.replace("**kwargs", "units=8").replace("= kwargs", "= {'units': units}")

    message = refused(text, UsageError, model_def="m.Mine", params={"unit": 3})

    assert "Did you mean 'units'?" in message


def test_metrics_may_also_take_the_predictions(define) -> None:
    text = SPEC.replace("labels=None):\n        if", "labels=None, predictions=None):\n        if")

    definition = define(text.replace("outputs - labels}", "predictions - labels}"), "m.Mine")

    assert definition.create_metrics(Mode.EVALUATION).scalars(10, 1) == {"difference": 9}


def test_metrics_without_return_measure_nothing(define) -> None:
    definition = define(SPEC.replace("        return {}\n", ""), "m.Mine")

    assert definition.create_metrics(Mode.TRAINING).scalars(10, 1) == {}


def test_a_spec_without_metrics_measures_nothing(define) -> None:
    start, end = SPEC.index("    def create_metrics"), SPEC.index("    def create_dataset")

    definition = define(SPEC[:start] + SPEC[end:], "m.Mine")

    assert definition.create_metrics(Mode.EVALUATION).scalars(10, 1) == {}


def test_metrics_with_other_argument_names_are_refused(refused) -> None:
    text = SPEC.replace("mode=Mode.TRAINING, outputs=None, labels=None", "mode, out, lab")

    message = refused(text, DefinitionError, model_def="m.Mine")

    assert "create_metrics() has unknown arguments: out, lab" in message


def test_methods_share_the_object_of_their_run(define) -> None:
    definition = define(SPEC.replace("2 * outputs - labels", "self.model"), "m.Mine")

    first = definition.create_model()
    assert definition.loss(0, 0) is first
    second = definition.create_model()
    assert definition.loss(0, 0) is second is not first


def test_a_constructor_draws_random_numbers_after_seeding(define) -> None:
    import random

    definition = define(SPEC.replace("= kwargs", "= {'w': __import__('random').random()}"))
    weights = []
    for _ in range(2):
        random.seed(5)
        weights.append(definition.create_model().kwargs["w"])

    random.seed(5)
    assert weights == [random.random()] * 2


def test_all_missing_methods_are_named_at_once(refused) -> None:
    start, end = SPEC.index("    def create_optimizer"), SPEC.index("    def create_metrics")

    message = refused(SPEC[:start] + SPEC[end:], DefinitionError, model_def="m.Mine")

    assert message.startswith("m.py:6: Mine lacks create_optimizer, create_loss.")
    assert "(it has create_model, create_metrics, create_dataset)" in message


def test_a_missing_method_can_be_taken_from_another_file(define, write) -> None:
    write("def mine(y_true, y_pred): return 'mine'", "other.py")
    start, end = SPEC.index("    def create_loss"), SPEC.index("    def create_metrics")

    definition = define(SPEC[:start] + SPEC[end:], "m.Mine", overrides={"loss": "other.mine"})

    assert definition.loss(1, 2) == "mine"


def test_a_class_with_the_five_methods_needs_no_base_class(define) -> None:
    text = SPEC.replace("(ElasticDLSpec)", "").replace(
        "super().__init__(context=context)", "self._context = context"
    )

    assert define(text, "m.Mine").origin.dialect == "elasticdl_spec"


def test_a_constructor_that_raises_is_reported_immediately(refused) -> None:
    message = refused(
        SPEC.replace("self.model = None\n", "self.model = [][0]\n"),
        UserCodeError,
        model_def="m.Mine",
    )

    assert message.startswith("m.py:10: Mine() raised:")
    assert "IndexError" in message
