"""Finds a call at the top level of a model file that seeds a framework.

    keras.utils.set_random_seed(42)     has no effect on the model that custom_model() creates later

A script with this line would have other initial weights than a job with another `--seed`, so the
user gets a note. A seed set in `custom_model()` does take effect and gets none.

Callers: `dialects/__init__.py`.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

from elasticdl.data.wording import shortened
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
    """Return a note on a call that seeds a framework on import.

    Names the last such call in the first file that has one. The list has at most one note; it is
    empty if there is no such call, or if it sets the seed that the job has.
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
        which = "" if job_seed is None else f", which is {job_seed}"
        note = (
            f"{shown_path(file)}:{last.lineno}: {shortened(ast.unparse(last))} does not determine "
            "shuffling, dropout, or the initial weights of a model created after the import. The "
            f"job's seed does{which} (--seed; `seed` in the config of a federation)."
        )
        return [note if seed is None else f"{note} Set it to {seed} instead."]
    return []


def _seed(call: ast.Call, module: ModuleType) -> int | None:
    """Return the seed that a call sets: a number, or a variable of the file; None if unknown."""
    named = [keyword.value for keyword in call.keywords if keyword.arg == "seed"]
    value = next(iter([*call.args, *named]), None)
    if isinstance(value, ast.Name):
        seed = getattr(module, value.id, None)
    else:
        seed = getattr(value, "value", None)
    # A boolean is an int, too.
    return seed if type(seed) is int else None
