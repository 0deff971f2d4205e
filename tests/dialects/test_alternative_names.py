"""Names of a model file that nothing reads are noted, where they may mean another one."""

import textwrap

import pytest

from elasticdl.errors import DefinitionError

FILE = """
import torch

def custom_model(): return torch.nn.Linear(4, 3)
def input_fn(records): return records
loss = torch.nn.CrossEntropyLoss()
def optimizer(parameters): return torch.optim.SGD(parameters, 0.1)
"""


@pytest.fixture
def notes_of(define):
    return lambda text: define(FILE + textwrap.dedent(text)).notes()


@pytest.mark.parametrize(
    ("text", "name", "meant"),
    [
        ("def scheduler(optimizer): pass", "scheduler", "lr_scheduler"),
        ("def lr_schedulers(optimizer): pass", "lr_schedulers", "lr_scheduler"),
        ("grad_clip = 1.0", "grad_clip", "gradient_clipping"),
        ("gradient_clip = {'value': 1.0}", "gradient_clip", "gradient_clipping"),
        ("def ema_model(model): pass", "ema_model", "averaged_model"),
        ("def callback(): return []", "callback", "callbacks"),
        ("def validation_dataloader(data): pass", "validation_dataloader", "val_dataloader"),
    ],
)
def test_an_alternative_to_a_name_of_the_contract_is_noted(notes_of, text, name, meant):
    (note,) = notes_of(text)

    assert note.endswith(
        f": {name} is not used: nothing in the file uses it, and ElasticDL looks for {meant}. If "
        "you meant that, rename it."
    )
    assert "m.py:8" in note


def test_an_alternative_name_of_the_loader_is_noted_in_a_file_without_an_input_function(define):
    text = "def train_loader(data): pass\n"
    notes = define(FILE.replace("def input_fn(records): return records\n", text)).notes()

    assert "train_loader is not used" in notes[1]
    assert "looks for train_dataloader" in notes[1]
    assert define(FILE + text).notes() == []


@pytest.mark.parametrize(
    "text",
    [
        "def lr_scheduler(optimizer): return scheduler(optimizer)\ndef scheduler(optimizer): pass",
        "grad_clip = 1.0\ndef gradient_clipping(parameters): pass",
        "def helper(model): return ema_model(model)\ndef ema_model(model): pass",
        "scheduler = 'cosine'",
        "def scheduler(): pass",
        "class callback: pass",
        "from torch.nn.utils import clip_grad_norm_ as clip_grad",
        "grad_clip = None",
    ],
)
def test_helpers_and_other_objects_are_not_noted(notes_of, text):
    assert notes_of(text) == []


KERAS_FILE = """
import keras

def custom_model(): return keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
def input_fn(records): return records
def loss(predictions, labels): return keras.losses.mean_squared_error(labels, predictions)
def optimizer(): return keras.optimizers.SGD(0.1)
"""


@pytest.mark.parametrize(
    ("text", "name", "meant"),
    [
        ("def metrics(): return {}", "metrics", "eval_metrics_fn"),
        ("def get_callbacks(): return []", "get_callbacks", "callbacks"),
        ("metrics = ['accuracy']", "metrics", "eval_metrics_fn"),
    ],
)
def test_alternative_names_in_a_keras_file_are_noted(define, text, name, meant):
    (note,) = define(KERAS_FILE + text).notes()

    assert f": {name} is not used" in note
    assert f"looks for {meant}" in note


@pytest.mark.parametrize(
    "text",
    [
        "metrics = [keras.metrics.MeanAbsoluteError()]\ncompiled = dict(metrics=metrics)",
        "from keras import metrics",
        "def scheduler(optimizer): pass",
        "def metrics(): return {}\ndef eval_metrics_fn(): return metrics()",
    ],
)
def test_other_names_in_a_keras_file_are_not_noted(define, text):
    assert define(KERAS_FILE + text).notes() == []


@pytest.mark.parametrize(
    ("right", "wrong", "meant"),
    [
        ("loss =", "los =", "loss"),
        ("loss =", "criterion =", "loss"),
        ("def custom_model", "def custom_mdel", "custom_model"),
        ("def optimizer", "def optimiser", "optimizer"),
        ("def optimizer", "def get_optimizer", "optimizer"),
        ("def input_fn", "def input_func", "input_fn"),
        ("def input_fn", "def inputfn", "input_fn"),
    ],
)
def test_a_misspelled_required_part_is_named(define, right, wrong, meant):
    found = wrong.removeprefix("def ").removesuffix(" =")

    try:
        message = " ".join(define(FILE.replace(right, wrong)).notes())
    except DefinitionError as error:
        message = str(error)

    line = 1 + FILE[: FILE.index(right)].count("\n")
    assert f"The file has `{found}` (line {line}); did you mean `{meant}`?" in message


def test_a_used_or_imported_name_is_not_taken_for_a_misspelled_part(define):
    text = FILE.replace("loss =", "from torch.optim import Optimizer\nlos =")

    with pytest.raises(DefinitionError) as caught:
        define(text.replace("optimizer(", "optimiser(") + "print(los)\n")

    assert str(caught.value).count("did you mean") == 1
    assert "`optimiser`" in str(caught.value)
