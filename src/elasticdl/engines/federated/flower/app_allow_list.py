"""Allow list for Flower apps: restricts the code that a party runs for the aggregator.

For each message Flower unpacks a bundle from the aggregator and imports the modules that it names.
A malicious aggregator could thus run any Python code on every party. Two locks prevent that:

1.  An archive is opened in this process only if it is our app (`flower_app.py`). Any other is
    refused before a byte of it is unpacked, and the aggregator receives the reason.
2.  Modules are imported only from the locations that `sys.path` had when the process started.
    Flower adds the unpacked folder to `sys.path` later, so it is ignored.

The first lock suffices as long as Flower unpacks with `zipfile`; the second as long as it imports
with Python's import system. A foreign app could run only if Flower changed both, and a test with
such an app fails if Flower changes one.

Callers: `prefork_server.py`.
"""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import (
    Distribution,
    DistributionFinder,
    MetadataPathFinder,
)
from pathlib import Path
from types import ModuleType
from typing import Any

from elasticdl.engines.federated.flower import flower_app


class _OurArchive(zipfile.ZipFile):
    """A `ZipFile` that opens only ElasticDL's Flower app, and raises for any other archive."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        foreign = flower_app.what_is_foreign(self)
        if foreign is not None:
            self.close()
            # The message is sent to the aggregator, so it reveals nothing about this machine.
            raise zipfile.BadZipFile(
                f"This party runs only the app {flower_app.NAME} {flower_app.VERSION}, but "
                f"received another one: {foreign}. Both sides need the same version of ElasticDL."
            )


class _FrozenPathFinder:
    """Finds modules only in the import locations that existed when the process started.

    Args:
        path: The import locations, as in `sys.path`.
    """

    def __init__(self, path: Sequence[str]) -> None:
        self._path = [str(Path(place).resolve()) for place in path if place]

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Find a module in the allowed locations; None if it is elsewhere."""
        # The path of a package without __init__ grows with `sys.path`.
        places = self._path if path is None else [one for one in path if self._was_there(one)]
        return PathFinder.find_spec(fullname, places, target)

    def find_distributions(
        self, context: DistributionFinder.Context | None = None
    ) -> Iterable[Distribution]:
        """Find installed packages in the allowed locations."""
        name = None if context is None else context.name
        return MetadataPathFinder.find_distributions(
            DistributionFinder.Context(name=name, path=self._path)
        )

    def invalidate_caches(self) -> None:
        """Clear the import system's caches for the allowed locations."""
        PathFinder.invalidate_caches()

    def _was_there(self, place: str) -> bool:
        return any(Path(place).resolve().is_relative_to(start) for start in self._path)


def lock() -> None:
    """Allow only ElasticDL's Flower app and the current import locations in this process.

    This replaces `zipfile.ZipFile` and the import system's path finder, until the process ends.
    """
    zipfile.ZipFile = _OurArchive  # type: ignore[misc]
    sys.meta_path[:] = [
        _FrozenPathFinder(sys.path) if finder is PathFinder else finder for finder in sys.meta_path
    ]
