"""A framework's seed at the top level of a model file gets a note, because --seed is used."""

import pytest

from elasticdl.dialects.source_lines import calls_on_import
from elasticdl.training.import_seed import seeded_import

FILE = """
import torch

def custom_model():
    torch.manual_seed(1)
    return torch.nn.Linear(4, 3)
def input_fn(records): return records
loss = torch.nn.CrossEntropyLoss()
def optimizer(parameters): return torch.optim.SGD(parameters, 0.1)
"""
KERAS = """
def custom_model(): return keras.Sequential()
def input_fn(records): return records
def loss(labels, predictions): return 0.0
def optimizer(): return keras.optimizers.SGD()
"""
LINE = FILE.count("\n") + 1


@pytest.fixture
def notes(define):
    def notes(text, *, seed=0, **kwargs):
        with seeded_import(seed):
            return define(text, **kwargs).notes()

    return notes


def test_a_seed_at_the_top_level_gets_a_note(notes):
    (note,) = notes(FILE + "torch.manual_seed(42)\n")

    assert note == (
        f"m.py:{LINE}: torch.manual_seed(42) does not determine shuffling, dropout, or the initial "
        "weights of a model created after the import. The job's seed does, which is 0 (--seed; "
        "`seed` in the config of a federation). Set it to 42 instead."
    )


@pytest.mark.parametrize(
    "line",
    [
        "torch.random.manual_seed(42)",
        "from torch import manual_seed as s; s(42)",
        "used = torch.manual_seed(seed=42)",
        "SEED = 42; torch.manual_seed(SEED)",
        "import lightning as L; L.seed_everything(42)",
        "from lightning.pytorch import seed_everything; seed_everything(42, workers=True)",
        "import lightning as L; L.seed_everything(workers=True, seed=42)",
        "if True: torch.manual_seed(42)",
        'if __name__ != "__main__": torch.manual_seed(42)',
        "seeds = list(map(lambda i=torch.manual_seed(42): i, []))",
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_seed_may_be_set_by_any_name(notes, line, monkeypatch):
    # Lightning sets it.
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    (note,) = notes(FILE + line + "\n")

    assert "Set it to 42 instead" in note


@pytest.mark.parametrize(
    "lines",
    [
        "import keras, tensorflow as tf\nkeras.utils.set_random_seed(42)",
        "import keras\nfrom keras.utils import set_random_seed\nset_random_seed(42)",
        "import keras, tensorflow as tf\ntf.random.set_seed(42)",
    ],
)
def test_seeds_of_keras_and_tensorflow_get_the_note_too(notes, lines):
    (note,) = notes(f"{lines}\n{KERAS}")

    assert note.startswith(f"m.py:{lines.count(chr(10)) + 1}: {lines.splitlines()[-1]} does not")


@pytest.mark.parametrize(
    "line",
    [
        "import numpy as np; np.random.seed(42)",
        "import random; random.seed(42)",
        "torch.Generator().manual_seed(42)",
        'if __name__ == "__main__": torch.manual_seed(42)',
        'if __name__ != "__main__": pass\nelse: torch.manual_seed(42)',
        "def main(): torch.manual_seed(42)",
        "seed_worker = lambda worker: torch.manual_seed(worker)",
    ],
)
def test_other_seeds_get_no_note(notes, line):
    assert notes(FILE + line + "\n") == []


def test_the_seed_of_the_job_needs_no_note(notes):
    assert notes(FILE + "torch.manual_seed(42)\n", seed=42) == []


def test_the_last_seed_counts(notes):
    (note,) = notes(FILE + "torch.manual_seed(0)\ntorch.manual_seed(int('7'))\n")

    assert note.startswith(f"m.py:{LINE + 1}: torch.manual_seed(int('7')) does not determine")
    assert note.endswith("of a federation).")


@pytest.mark.parametrize(
    "call", ["seed_everything(workers=True)", "seed_everything(True)", "seed_everything(None)"]
)
@pytest.mark.filterwarnings("ignore")
def test_a_call_without_a_known_seed_suggests_none(notes, call, monkeypatch):
    monkeypatch.setenv("PL_GLOBAL_SEED", "0")
    (note,) = notes(f"{FILE}from lightning import {call.partition('(')[0]}\n{call}\n")

    assert note.endswith("of a federation).")


def test_a_function_of_the_users_package_is_none_of_the_framework(tmp_path):
    file = tmp_path / "m.py"
    file.write_text(
        "from .keras import utils\nutils.set_random_seed(1)\n"
        "from . import torch\ntorch.manual_seed(1)\n"
    )

    assert [name for name, _ in calls_on_import(file)] == [
        ".keras.utils.set_random_seed",
        ".torch.manual_seed",
    ]


def test_a_long_call_is_shortened(notes):
    (note,) = notes(f"{FILE}torch.manual_seed(int('{'0' * 80}7'))\n")

    assert "0 ... does not determine" in note
