"""Finds a call at the top level of a model file that seeds a framework.

    keras.utils.set_random_seed(42)     has no effect on the model that custom_model() creates later

A script with this line would have other initial weights than a job with another `--seed`, so the
user gets a note. A seed set in `custom_model()` does take effect and gets none.

Callers: `dialects/__init__.py`.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.dialects.source_lines import calls_on_import, shown_path
from elasticdl.training.import_seed import seed_of_import

if TYPE_CHECKING:
    from types import ModuleType

    from elasticdl.dialects.model_code import ModelCode

_SEEDING = frozenset(
    {
        "keras.utils.set_random_seed",
        "tf_keras.utils.set_random_seed",
        "tensorflow.keras.utils.set_random_seed",
        "tensorflow.random.set_seed",
        "torch.manual_seed",
        "torch.random.manual_seed",
        "lightning.seed_everything",
        "lightning.fabric.seed_everything",
        "lightning.pytorch.seed_everything",
        "pytorch_lightning.seed_everything",
        "accelerate.utils.set_seed",
        "transformers.set_seed",
    }
)


def note_on_seeds(model_code: ModelCode) -> list[str]:
    """Return a note on the last call in a model's files that seeds a framework on import.

    It is returned as a list of one note. The list is empty if there is no such call, or if it sets
    the seed that the job has.
    """
    job_seed = seed_of_import()
    for module in model_code.modules:
        file = Path(module.__file__ or "")
        calls = [call for name, call in calls_on_import(file) if name in _SEEDING]
        if not calls:
            continue
        last = calls[-1]
        seed = _seed(last, module)
        if seed is not None and seed == job_seed:
            return []
        # The weights of a model at the top level are drawn on import, after the call.
        parts = "the initial weights, shuffling and dropout"
        if _is_object(model_code):
            parts = "shuffling and dropout"
        which = "" if job_seed is None else f", which is {job_seed}"
        note = (
            f"{shown_path(file)}:{last.lineno}: {ast.unparse(last):.60} does not determine "
            f"{parts}: --seed does{which}. Set --seed={'...' if seed is None else seed} instead."
        )
        return [note]
    return []


def _seed(call: ast.Call, module: ModuleType) -> int | None:
    """Return the seed that a call sets: a number, or a variable of the file; None if unknown."""
    given = [*call.args, *(keyword.value for keyword in call.keywords)]
    value = given[0] if given else None
    if isinstance(value, ast.Name):
        seed = getattr(module, value.id, None)
    else:
        seed = getattr(value, "value", None)
    return seed if isinstance(seed, int) else None


def _is_object(model_code: ModelCode) -> bool:
    """Return whether the model is an object at the top level of a file, not a function or class."""
    model = model_code.find("model") if model_code.names_a_file else model_code.symbol
    return model is not None and not (
        inspect.isroutine(model.value) or inspect.isclass(model.value)
    )
