"""Random generators that a user's file makes at its top level, and that draw in a training.

    rng = np.random.default_rng(0)          in the file, used by its input function or its model

Such a generator is one sequence for the whole run. No checkpoint holds how far it is, and on
workers each has its own, so a training that is resumed draws other numbers. One that draws while
the file is imported or the model is made is harmless: it draws the same each time.

Callers: `material.py` finds the folder, `loop.py` checks.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from elasticdl.errors import DefinitionError


class FileGenerators:
    """The generators among the variables of a zoo's modules.

    Args:
        folder: Where their files are; None if there are none.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._found: list[tuple[str, str, Any, Any]] | None = None

    def check_unmoved(self) -> None:
        """Make sure that none has drawn since the first call.

        Raises:
            DefinitionError: One has.
        """
        if self._found is None:
            self._found = [
                (file, name, value, state)
                for file, name, value in self._variables()
                if (state := _state_of(value)) is not None
            ]
        for file, name, value, before in self._found:
            if _state_of(value) != before:
                raise DefinitionError(
                    f"{file}: the generator {name!r} at the top level of the file has drawn random "
                    "numbers in the training. No checkpoint holds how far it is, so a resumed "
                    "training would draw others. Draw from the functions of np.random, random, tf "
                    "or torch, which are seeded for each batch and step, or make a generator from "
                    "them where you draw: rng = np.random.default_rng(np.random.randint(2**31))."
                )

    def _variables(self) -> Iterator[tuple[str, str, Any]]:
        if self._folder is None:
            return
        for name, module in list(sys.modules.items()):
            # The name must be the path: what is installed below the folder is not the user's.
            path = self._folder.joinpath(*name.split("."))
            if getattr(module, "__file__", None) in (f"{path}.py", f"{path}/__init__.py"):
                for variable, value in list(vars(module).items()):
                    yield str(module.__file__), variable, value


def _state_of(value: Any) -> Any:
    """Return what changes when a generator draws; None if it is no generator."""
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.Generator):
        return repr(value.bit_generator.state)
    if isinstance(value, np.random.RandomState):
        return repr(value.get_state(legacy=False))
    # Frameworks are not imported here.
    match type(value).__module__.partition(".")[0], type(value).__name__:
        case "torch", "Generator":
            return value.get_state().numpy().tobytes()
        case "tensorflow", "Generator":
            return value.state.numpy().tobytes()
    return None
