"""Keys of a config that nobody reads, and packages a project says it needs."""

from __future__ import annotations

import difflib
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elasticdl.config import ConfigStruct
from elasticdl.dialects.source_lines import shown_path
from elasticdl.sessions.checks.finding import Finding, info, warning

# Read by us, not by components.
_OURS = (
    "augmentor_class",
    "batch_size",
    "data_dir",
    "data_loader_class",
    "do_train_augmentation",
    "do_validation_augmentation",
    "epochs",
    "evaluator_class",
    "export",
    "export.metric",
    "export.mode",
    "model_builder_class",
    "preprocessor_class",
    "project_name",
    "seed",
    "src_code_path",
)


class NotingConfig(ConfigStruct):
    """A config that notes which of its keys are asked for, those it does not have included.

    Args:
        plain: What it says.
        asked: Key paths that were asked for; added to.
        section: The key path of this one.
    """

    __slots__ = ("_asked", "_plain")

    def __init__(self, plain: ConfigStruct, asked: set[str], section: str = "") -> None:
        super().__init__(section=section)
        object.__setattr__(self, "_plain", plain)
        object.__setattr__(self, "_asked", asked)
        own = object.__getattribute__(self, "__dict__")
        for key, value in vars(plain).items():
            path = f"{section}.{key}" if section else key
            own[key] = (
                NotingConfig(value, asked, path) if isinstance(value, ConfigStruct) else value
            )

    def __getattribute__(self, name: str) -> Any:
        own = object.__getattribute__(self, "__dict__")
        if name in own:
            self._asked.add(self._path(name))
        elif name == "__dict__":
            # `vars(config)`, or one of the methods that go through all keys.
            self._asked.update(self._path(key) for key in self._plain.flat())
            self._asked.update(self._path(key) for key in own)
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("_"):
            self._asked.add(self._path(name))
        return getattr(self._plain, name)

    def __contains__(self, name: object) -> bool:
        self._asked.add(self._path(str(name)))
        return name in self._plain

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or the default where the file does not have it."""
        return getattr(self, name) if name in self else default

    def with_values(self, **values: Any) -> NotingConfig:
        """Return the same config with other values, noting in the same place."""
        return NotingConfig(self._plain.with_values(**values), self._asked, self._section)

    def where(self, name: str = "") -> str:
        """Return `file:line` of a key of this section."""
        return str(self._plain.where(name))


def unread_keys(config: ConfigStruct, asked: set[str]) -> Iterator[Finding]:
    """Yield the keys of a config that no component has asked for.

    Args:
        config: What the file says.
        asked: Key paths that were.
    """
    known = {*asked, *_OURS}
    unread = [key for key in config.flat() if key not in known]
    absent = sorted(known - {*config.flat()})
    left = []
    for key in unread:
        section, _, name = key.rpartition(".")
        beside = {
            path.rpartition(".")[2]: path for path in absent if path.rpartition(".")[0] == section
        }
        near = difflib.get_close_matches(name, beside, n=1, cutoff=0.7)
        if near:
            meant = beside[near[0]]
            yield warning(
                f"{key} is read by no component; {meant} is asked for, and not there.",
                _where(config, key),
                f"Did you mean {meant}?",
            )
        else:
            left.append(key)
    if left:
        yield info(
            f"read by no component: {', '.join(left)}.",
            _where(config, left[0]),
            "Changing them changes nothing: read them in _load_params, or leave them out.",
        )


def requirements(project: Path) -> Iterator[Finding]:
    """Yield what `requirements.txt` asks for and the environment does not have."""
    from packaging.requirements import InvalidRequirement, Requirement  # noqa: PLC0415 - one use

    file = project / "requirements.txt"
    if not file.is_file():
        return
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()
    for number, line in enumerate(lines, 1):
        text = line.partition(" #")[0].strip()
        if not text or text.startswith(("#", "-")):
            continue
        try:
            wanted = Requirement(text)
        except InvalidRequirement:
            # A URL or a folder: pip's own business.
            continue
        if wanted.marker is not None and not wanted.marker.evaluate():
            continue
        try:
            there = importlib.metadata.version(wanted.name)
        except importlib.metadata.PackageNotFoundError:
            there = ""
        if not there or not wanted.specifier.contains(there, prereleases=True):
            yield warning(
                f"{text} is required; {f'installed is {there}' if there else 'not installed'}.",
                f"{shown_path(file)}:{number}",
                f"pip install '{text}'",
            )


def _where(config: ConfigStruct, key: str) -> str:
    section, _, name = key.rpartition(".")
    at: ConfigStruct = config
    for part in section.split(".") if section else ():
        at = vars(at)[part]
    return at.where(name)
