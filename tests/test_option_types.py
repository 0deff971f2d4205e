"""`help` and editors show every option of `train`, `evaluate` and `predict`."""

import dataclasses
import inspect
import pydoc
from typing import get_type_hints

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
