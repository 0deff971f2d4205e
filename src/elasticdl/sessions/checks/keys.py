"""Rules of the session check for config keys that are never read, such as misspelt ones."""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from elasticdl.config_file import ConfigStruct
from elasticdl.sessions.checks.finding import CheckFinding, info, warning

# Keys read by ElasticDL, not by components.
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
    """A config that records which of its keys are read, to find the unused ones.

    Args:
        plain: The config to read from.
        asked: Set to which the paths of read keys are added, such as `export.mode`; also paths of
            keys that the config lacks.
        section: Path of this section of the config, such as `export`; empty for the whole config.
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
            # `vars(config)`, or one of the methods that iterate over all keys.
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
        """Return a value, or the default if the file does not have it."""
        return getattr(self, name) if name in self else default

    def with_values(self, **values: Any) -> NotingConfig:
        """Return a copy with some values changed; its reads are recorded in the same set."""
        return NotingConfig(self._plain.with_values(**values), self._asked, self._section)

    def where(self, name: str = "") -> str:
        """Return `file:line` of a key of this section."""
        return str(self._plain.where(name))


def unread_keys(config: ConfigStruct, asked: set[str]) -> Iterator[CheckFinding]:
    """Yield a finding for each key of a config that no component has read.

    Args:
        config: Content of the file.
        asked: Paths of the keys that components have read, such as `export.mode`.
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
                f"{key} is not read by any component; {meant} is read, but missing.",
                _where(config, key),
                f"Did you mean {meant}?",
            )
        else:
            left.append(key)
    if left:
        yield info(
            f"not read by any component: {', '.join(left)}.",
            _where(config, left[0]),
            "Changing them has no effect: read them in _load_params, or leave them out.",
        )


def _where(config: ConfigStruct, key: str) -> str:
    section, _, name = key.rpartition(".")
    at: ConfigStruct = config
    for part in section.split(".") if section else ():
        at = vars(at)[part]
    return at.where(name)
