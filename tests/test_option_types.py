"""`help` and editors show every option of `train`, `evaluate` and `predict`."""

import dataclasses
import inspect
import pydoc
import re
from typing import get_type_hints

import numpy as np
import pytest

import elasticdl
from elasticdl import job_options, option_types
from elasticdl.errors import UsageError
from elasticdl.job import TrainingOptions

FUNCTIONS = {
    "train": (job_options.training_job, option_types.TrainOptions),
    "evaluate": (job_options.evaluation_job, option_types.EvaluateOptions),
    "predict": (job_options.prediction_job, option_types.PredictOptions),
}


def options_of(name):
    """Return the options of a function that are not its own parameters, with their defaults."""
    of_job = inspect.signature(FUNCTIONS[name][0]).parameters
    found = {each.name: each.default for each in of_job.values() if each.name != "options"}
    if "options" in of_job:
        found |= {each.name: each.default for each in dataclasses.fields(TrainingOptions)}
    own = ("data", "output", "trained_model", "model_def", "model_zoo", "params", "validation_data")
    return {option: default for option, default in found.items() if option not in own}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_option_is_typed_for_editors(name):
    typed = get_type_hints(FUNCTIONS[name][1]).keys() - {"batch_size"}

    assert typed == options_of(name).keys()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_lists_each_option_with_type_default_and_description(name):
    shown = pydoc.plain(pydoc.render_doc(getattr(elasticdl, name)))

    for option, default in options_of(name).items():
        assert f"{option}: " in shown.split("\n    ")[0]
        assert f" = {default!r}" in shown
        [described] = [line for line in shown.split("\n") if line.startswith(f"        {option}: ")]
        assert len(described) > len(f"        {option}: ") + 4
    assert "**options" not in shown


@pytest.mark.parametrize("name", FUNCTIONS)
def test_help_mentions_the_other_name_of_the_minibatch_size(name):
    assert "`batch_size`" in pydoc.plain(pydoc.render_doc(getattr(elasticdl, name)))


def test_an_unknown_option_is_refused_by_name():
    with pytest.raises(UsageError, match="num_epoch"):
        elasticdl.train(model_def="mnist", data="d", output="o", num_epoch=3)


REQUIRED = {
    "train": {"data": "d", "output": "o", "model_def": "mnist"},
    "evaluate": {"data": "d", "trained_model": "t"},
    "predict": {"data": "d", "output": "o", "trained_model": "t"},
}
EVERY_OPTION = [
    (name, option)
    for name, (job_function, _) in FUNCTIONS.items()
    for option in (
        {*options_of(name), *inspect.signature(job_function).parameters, "batch_size"} - {"options"}
    )
]


@pytest.mark.parametrize(("name", "option"), sorted(EVERY_OPTION))
def test_none_is_an_option_that_is_not_given_unless_it_is_required(name, option):
    build, required = FUNCTIONS[name][0], REQUIRED[name]
    named = {option: None}
    if name != "train":
        named = job_options.checked_options(named, build)
    if option in required:
        with pytest.raises(UsageError, match="[Ee]xpected"):
            build(**required | named)
    else:
        assert build(**required | named) == build(**required)


@pytest.mark.parametrize(("name", "option"), sorted(EVERY_OPTION))
def test_an_object_of_a_wrong_type_is_refused_with_the_name_of_the_option(name, option):
    if option in {"data", "validation_data"}:
        return  # Data in memory is an object.
    options = REQUIRED[name] | {option: object()}
    called = option.replace("batch_size", "(mini)?batch_size").replace("mini(mini)?", "mini")
    with pytest.raises(UsageError, match=rf"^{called} is .*object.*; expected "):
        getattr(elasticdl, name)(**options)


@pytest.mark.parametrize(("name", "option"), sorted(EVERY_OPTION))
def test_no_value_of_an_option_ends_in_an_internal_error(name, option, tmp_path, monkeypatch):
    """Other values are refused later: the data does not exist."""
    monkeypatch.chdir(tmp_path)
    for wrong in ([1], {"a": 1}, b"x", 1.5):
        options = REQUIRED[name] | {option: wrong}
        with pytest.raises(elasticdl.errors.ElasticDLError):
            getattr(elasticdl, name)(**options)


@pytest.mark.parametrize("call", [elasticdl.train, elasticdl.predict])
def test_none_as_output_is_refused(call):
    name = call.__name__
    with pytest.raises(UsageError, match=r"^output is None; expected a path\.$"):
        call(**REQUIRED[name] | {"output": None})


def test_none_as_trained_model_or_data_is_refused():
    with pytest.raises(UsageError, match=r"^trained_model is None; expected the folder that"):
        elasticdl.load(None)
    for name, required in REQUIRED.items():
        with pytest.raises(UsageError, match=r"^data is None; expected the name of files"):
            getattr(elasticdl, name)(**required | {"data": None})


def test_columns_may_be_the_columns_of_a_table():
    pandas = pytest.importorskip("pandas")
    columns = pandas.DataFrame({"a": [1], "b": [2]}).columns

    job = job_options.prediction_job(**REQUIRED["predict"], columns=columns)

    assert job.columns == ("a", "b")

    several = pandas.MultiIndex.from_product([["a"], ["b", "c"]])
    job = job_options.prediction_job(**REQUIRED["predict"], columns=several)
    assert job.columns == ("('a', 'b')", "('a', 'c')")


@pytest.mark.parametrize(
    ("name", "option", "wrong", "message"),
    [
        ("evaluate", "report", 5, "report is 5; expected True or False, or a path."),
        ("train", "tensorboard", 1.0, "tensorboard is 1.0; expected True or False."),
        ("train", "num_epochs", True, "num_epochs is True; expected a whole number."),
        ("train", "num_epochs", 2.0, "num_epochs=2.0: expected a whole number, such as 2."),
        ("train", "validation_split", 0.2j, "validation_split is 0.2j; expected a number."),
        ("train", "quiet", "no", "quiet is 'no'; expected True or False."),
        ("predict", "columns", {"a": 1}, "columns is an object of type dict; expected a string"),
        ("predict", "columns", {"a"}, "columns is an object of type set; expected a string"),
        ("predict", "columns", [None], "columns has None; expected names"),
    ],
)  # fmt: skip
def test_a_value_of_another_type_is_refused_with_the_types_expected(name, option, wrong, message):
    with pytest.raises(UsageError, match=f"^{re.escape(message)}"):
        getattr(elasticdl, name)(**REQUIRED[name] | {option: wrong})


def test_numpy_numbers_mean_the_same_as_numbers_of_python():
    required = REQUIRED["train"] | {"num_workers": 1}
    plain = {"validation_split": 0.2, "num_epochs": 2, "give_up_after": 2.3}
    numpy = {
        "validation_split": np.float32(0.2),
        "num_epochs": np.int64(2),
        "give_up_after": np.array(2.3, np.float32),
    }
    params = {"rate": np.float32(0.1), "units": [np.int64(3)], "sizes": {"a": np.float64(0.5)}}

    of_numpy = job_options.training_job(**required, **numpy, params=params)

    assert of_numpy == job_options.training_job(
        **required, **plain, params={"rate": 0.1, "units": [3], "sizes": {"a": 0.5}}
    )


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("wrong", [object(), "quiet", print])
def test_a_reporter_without_its_methods_is_refused(name, wrong):
    with pytest.raises(UsageError, match="^reporter is an object of type .*; expected .*methods"):
        getattr(elasticdl, name)(**REQUIRED[name], reporter=wrong)
