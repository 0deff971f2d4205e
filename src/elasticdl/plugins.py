"""Plugins: dialects, record formats, trackers and engines of other packages.

A package registers them as entry points in its `pyproject.toml`, and they work once it is
installed:

    [project.entry-points."elasticdl.dialects"]
    my_dialect = "my_package.my_dialect"        # a `dialects.Dialect`

    [project.entry-points."elasticdl.formats"]
    jsonl = "my_package.jsonl"                  # a `data.sources.FormatPlugin`

    [project.entry-points."elasticdl.trackers"]
    aim = "my_package.aim:AimTracker"           # makes a `tracking.tracker.Tracker`: aim://...

    [project.entry-points."elasticdl.engines"]
    slurm = "my_package.slurm:train"            # a function from `engines.run.Run` to `TrainResult`

Built-in names take precedence, so a plugin can add a name but not replace one. A plugin is imported
only when it is needed. docs/guides/plugins.md has an example of each.

Callers: `dialects/__init__.py`, `data/formats.py`, `data/sources.py`, `tracking/create.py`,
`api.py`.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from elasticdl.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Group: TypeAlias = Literal["dialects", "formats", "trackers", "engines"]


def names(group: Group) -> tuple[str, ...]:
    """Return the names of the installed plugins of a group, sorted."""
    return tuple(_entry_points(group))


def load(group: Group, name: str) -> Any:
    """Import a plugin and return the object that its entry point names.

    Args:
        group: Kind of the plugin.
        name: One of `names(group)`.

    Raises:
        KeyError: No installed package has a plugin of this name.
        UsageError: The plugin cannot be imported, or two packages have one of this name.
    """
    found = _entry_points(group)[name]
    if len(found) > 1:
        raise UsageError(
            f"{name}: {' and '.join(_package(each) for each in found)} both have a plugin of this "
            f"name (entry points elasticdl.{group}). Uninstall one of them."
        )
    try:
        return found[0].load()
    # A plugin may raise anything while it is imported.
    except Exception as error:
        raise UsageError(
            f"{name}: the plugin {found[0].value} of {_package(found[0])} cannot be imported: "
            f"{type(error).__name__}: {error}. Update or uninstall that package."
        ) from error


@functools.cache
def _entry_points(group: Group) -> dict[str, tuple[EntryPoint, ...]]:
    from importlib.metadata import entry_points  # noqa: PLC0415 - not for `--help`

    found: dict[str, tuple[EntryPoint, ...]] = {}
    for each in sorted(entry_points(group=f"elasticdl.{group}"), key=lambda each: each.name):
        # An editable installation may be listed twice.
        others = [other for other in found.get(each.name, ()) if other.value != each.value]
        found[each.name] = (*others, each)
    return found


def _package(point: EntryPoint) -> str:
    return f"{point.dist.name} {point.dist.version}" if point.dist is not None else "a package"
