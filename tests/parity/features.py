"""The table of features: what each file in `keras/` and `torch/` promises, and where.

A feature is one file: a model file that ElasticDL reads, a function `plain(data)` that is the
script of a Keras or PyTorch user, and a few constants. They are read here without importing
anything, so that the page can be written on a machine without frameworks:

    docstring   its first line is the feature, as people look for it
    GROUP       heading on the page
    EXPECT      what holds in all places, or place -> what holds there; "equal" where not said;
                "workers" stands for one worker and two
    REFUSAL     words of the error that refuses the feature
    JOB         options of the job beside those of all features
    KILLED      whether it is also killed by a signal, in a process of its own
    SAME_WEIGHTS  where it differs, only what is reported does

What holds is one of:

    "equal"                     the plain script's numbers, to rounding; resumed: the same bits
    "equal within 1e-4: why"    the same numbers with a wider tolerance
    "differs: why"              other numbers, stated: the training is still reproducible
    "refused: why"              the job ends with an error that names the feature

Callers: `runner.py`, `page.py` and the tests beside them.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
FRAMEWORKS = ("keras", "torch")
PLACES = ("one process", "resumed", "one worker", "two workers")
KINDS = ("equal", "equal within", "differs", "refused")

_CONSTANTS = ("GROUP", "EXPECT", "REFUSAL", "JOB", "KILLED", "SAME_WEIGHTS")
_PROMISE = re.compile(r"(equal|differs|refused)(?: within (\S+))?(?:: (.+))?$", re.DOTALL)
# Rounding: a sum of some hundred float32 in another order, over eighteen updates.
_ROUNDING = 1e-5


@dataclass(frozen=True)
class Promise:
    """What holds for a feature in a place.

    Attributes:
        kind: One of `KINDS`.
        why: A reason for people; empty where numbers are simply equal.
        tolerance: Relative to the largest number of a tensor.
    """

    kind: str
    why: str = ""
    tolerance: float = _ROUNDING

    @staticmethod
    def from_text(text: str) -> Promise:
        """Return what a text in `EXPECT` says."""
        found = _PROMISE.match(text)
        if found is None:
            raise ValueError(f"{text!r} is not equal, equal within, differs or refused")
        kind, tolerance, why = found.groups()
        if (kind != "equal" or tolerance) and not why:
            raise ValueError(f"{text!r} does not say why")
        if tolerance:
            return Promise("equal within", why, float(tolerance))
        return Promise(kind, why or "")


@dataclass(frozen=True)
class Feature:
    """One row of the table.

    Attributes:
        framework: `keras` or `torch`.
        name: Name of its file.
        title: What people call it.
        group: Heading on the page.
        promises: Place -> what holds there.
        refusal: A pattern that the error matches where it is refused.
        job: Options of the job beside those of all features.
        killed: Whether it is also killed by a signal, in a process of its own.
        same_weights: Where it differs, only what is reported does.
    """

    framework: str
    name: str
    title: str
    group: str
    promises: dict[str, Promise]
    refusal: str
    job: dict[str, Any]
    killed: bool = False
    same_weights: bool = False

    @property
    def path(self) -> Path:
        """The file."""
        return FOLDER / self.framework / f"{self.name}.py"

    @property
    def id(self) -> str:
        """Its name in the output of pytest."""
        return f"{self.framework}-{self.name}"


def read_feature(path: Path) -> Feature:
    """Return the row that a file describes.

    Raises:
        ValueError: A constant is missing, or says nothing that is known.
    """
    tree = ast.parse(path.read_text())
    constants = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and node.targets[0].id in _CONSTANTS
    }
    title = (ast.get_docstring(tree) or "").partition("\n")[0].removesuffix(".")
    if not title or "GROUP" not in constants:
        raise ValueError(f"{path}: a feature has a docstring and a GROUP")
    expected = constants.get("EXPECT", "equal")
    by_place = dict(expected) if isinstance(expected, dict) else dict.fromkeys(PLACES, expected)
    if "workers" in by_place:
        by_place |= dict.fromkeys(("one worker", "two workers"), by_place.pop("workers"))
    if unknown := by_place.keys() - set(PLACES):
        raise ValueError(f"{path}: no such place: {', '.join(unknown)}")
    promises = {place: Promise.from_text(by_place.get(place, "equal")) for place in PLACES}
    refused = any(promise.kind == "refused" for promise in promises.values())
    if refused != ("REFUSAL" in constants):
        raise ValueError(f"{path}: REFUSAL goes with `refused`")
    return Feature(
        framework=path.parent.name,
        name=path.stem,
        title=title,
        group=constants["GROUP"],
        promises=promises,
        refusal=constants.get("REFUSAL", ""),
        job=constants.get("JOB", {}),
        killed=constants.get("KILLED", False),
        same_weights=constants.get("SAME_WEIGHTS", False),
    )


def all_features() -> list[Feature]:
    """Return all rows, ordered by file name; `shared.py` is no feature."""
    return [
        read_feature(path)
        for framework in FRAMEWORKS
        for path in sorted((FOLDER / framework).glob("*.py"))
        if path.stem != "shared"
    ]
