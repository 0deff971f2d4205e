"""Metric names for a tracker: readable, unique, and the same in every attempt.

A user's metric may be called `dice@0.5` or `acc (macro)`; MLflow accepts letters, digits and
`_-.: /`. A valid name is unchanged. In any other, `_` replaces each invalid character, and a number
is appended if another metric already has that name. The tracker stores the changed names with the
run, and passes them in again at its next start.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping

_LONGEST = 250
_ROOM_FOR_NUMBER = 8


class MetricNames:
    """Two-way mapping between metric names and their names in the tracker.

    Args:
        known: `renamed` of the job's earlier attempts, so that metrics keep their names.
        kept: Names in the tracker that no metric may get, because the tracker uses them itself.

    Attributes:
        renamed: Name in the tracker -> original name, only where they differ.

    Example:
        >>> names = MetricNames()
        >>> names.of(["dice@0.5", "dice_0.5"])
        {'dice@0.5': 'dice_0.5_2', 'dice_0.5': 'dice_0.5'}
        >>> names.renamed
        {'dice_0.5_2': 'dice@0.5'}
    """

    def __init__(self, known: Mapping[str, str] | None = None, kept: Iterable[str] = ()) -> None:
        self.renamed = dict(known or {})
        self._names = {original: name for name, original in self.renamed.items()}
        self._taken = {*self.renamed, *kept}

    def of(self, originals: Iterable[str]) -> dict[str, str]:
        """Return each metric's name -> its name in the tracker, assigning new names where needed.

        Valid names are assigned first, so that they stay unchanged.
        """
        originals = list(originals)
        for original in sorted(originals, key=lambda name: allowed(name) != name):
            if original not in self._names:
                self._give(original)
        return {original: self._names[original] for original in originals}

    def _give(self, original: str) -> None:
        wanted = name = allowed(original)
        number = 1
        while name in self._taken:
            number += 1
            name = f"{wanted[: _LONGEST - _ROOM_FOR_NUMBER]}_{number}"
        self._taken.add(name)
        self._names[original] = name
        if name != original:
            self.renamed[name] = original


def allowed(name: str) -> str:
    """Replace the characters of a name that MLflow does not accept; a valid name is unchanged.

    Example:
        >>> [allowed(name) for name in ("loss", "iou%", "a//b", "..", "")]
        ['loss', 'iou_', 'a__b', '__', '_']
    """
    name = re.sub(r"[^\w.:/ -]", "_", name, flags=re.ASCII)[:_LONGEST]
    # It may become a file name, which must differ from those of other metrics.
    if posixpath.normpath(name) != name or name.startswith(("/", "..")) or name == ".":
        name = re.sub(r"^\.+", lambda dots: "_" * len(dots[0]), name.replace("/", "_")) or "_"
    return name
