"""Settings of another library's trainer are refused if numbers depend on them, else noted."""

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
MODULE = """
import lightning as L
import torch

class Net(L.LightningModule):
    def training_step(self, batch, batch_idx): ...
    def configure_optimizers(self): ...

def input_fn(records): return records
"""
QUIET = "accelerator='cpu', logger=False, enable_checkpointing=False"


@pytest.mark.parametrize("text", [FILE + "import lightning as L\n", MODULE], ids=["file", "module"])
@pytest.mark.parametrize(
    ("given", "advice"),
    [
        ("gradient_clip_val=0.5", "gradient_clipping in the file instead of gradient_clip_val=0.5"),
        ("accumulate_grad_batches=4", "--global_batch_size (the examples in an update) instead of"),
        ("precision='bf16-mixed'", "precision in the file instead of precision='bf16-mixed'."),
        ("limit_train_batches=1", "Nothing takes the place of limit_train_batches."),
        (
            "callbacks=[L.pytorch.callbacks.StochasticWeightAveraging(0.1)]",
            "averaged_model(model) in the file instead of callbacks=[StochasticWeightAveraging].",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_trainer_settings_that_change_results_are_refused(refused, text, given, advice):
    line = f"trainer = L.Trainer(max_epochs=3, {given}, {QUIET})\n"

    message = refused(text + line, DefinitionError)

    assert f"m.py:{(text + line).count(chr(10))}: trainer, a Trainer of Lightning, has " in message
    assert advice in message


@pytest.mark.filterwarnings("ignore")
def test_trainer_settings_replaced_by_the_file_are_not_refused(define):
    line = f"trainer = L.Trainer(max_epochs=3, gradient_clip_val=0.5, {QUIET})\n"

    (note,) = define(MODULE + "gradient_clipping = 0.5\n" + line).notes()

    assert note == (
        f"m.py:{MODULE.count(chr(10)) + 2}: trainer, a Trainer of Lightning, is not used: the "
        "options of elasticdl take its place. Use --num_epochs instead of max_epochs=3."
    )


@pytest.mark.filterwarnings("ignore")
def test_a_trainer_with_defaults_has_no_settings(define):
    line = f"trainer = L.Trainer(max_steps=-1, max_epochs=-1, {QUIET})\n"

    (note,) = define(MODULE + line).notes()

    assert note.endswith("is not used: the options of elasticdl take its place.")


@pytest.mark.parametrize("name", ["TRAINER_ARGS", "trainer_kwargs"])
def test_arguments_in_a_dict_are_refused_or_noted_too(define, refused, name):
    clipped = f"{name} = {{'max_steps': 9, 'gradient_clip_val': 1.0}}\n"

    message = refused(FILE + clipped, DefinitionError)
    (note,) = define(FILE + "gradient_clipping = 1.0\n" + clipped).notes()

    assert f"m.py:8: {name} has gradient_clip_val=1.0, which ElasticDL does not apply" in message
    assert note == (
        f"m.py:9: {name} is not used: the options of elasticdl take its place. Use --max_steps "
        "instead of max_steps=9."
    )


@pytest.mark.parametrize(
    ("call", "named"),
    [
        ("L.Trainer(max_epochs=3, gradient_clip_val=0.5)", "gradient_clip_val=0.5"),
        ("Trainer(**settings)", "accumulate_grad_batches=2"),
        ("Trainer(precision=chosen)", "precision=chosen"),
        ("Trainer(callbacks=[ModelCheckpoint(), EarlyStopping('a')])", "callbacks=[EarlyStopping]"),
    ],
)
def test_a_call_in_unexecuted_code_is_noted(define, call, named):
    script = f'\nif __name__ == "__main__":\n    {call}.fit(Net(), Data())\n'

    (note,) = define(FILE + "settings = {'accumulate_grad_batches': 2}\n" + script).notes()

    assert note.startswith(
        f"m.py:11: the Trainer of Lightning has {named}, which ElasticDL does not apply. Use "
    )


@pytest.mark.parametrize(
    "text",
    [
        'if __name__ == "__main__": Trainer(max_epochs=10, accelerator="cpu", logger=False)',
        'if __name__ == "__main__": Trainer(callbacks=[ModelCheckpoint()], precision="32-true")',
        "def train(model): transformers.Trainer(model=model, args=None).train()",
        "trainer = 'lightning'",
        "trainer_names = {'north': 1}",
        "settings = {'max_epochs': 1}",
    ],
)
def test_harmless_settings_and_other_objects_are_not_noted(define, text):
    assert define(FILE + text).notes() == []


def test_an_accelerator_is_treated_the_same(refused):
    accelerator = """
        class Accelerator:
            gradient_accumulation_steps, mixed_precision = 1, "bf16"
        Accelerator.__module__ = "accelerate.accelerator"
        accelerator = Accelerator()
    """

    message = refused(FILE + textwrap.dedent(accelerator), DefinitionError)

    assert "accelerator, an Accelerator, has mixed_precision='bf16', which" in message
