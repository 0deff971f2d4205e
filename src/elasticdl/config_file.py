"""Config files: reads YAML into nested attributes, and records the line of each value.

`read_config` returns the file as nested attributes (`config.data_loader.shuffle`), the form in
which the components of a training session (data loader, model builder, ...) read it. Reading a
missing name is an error that lists the available names and says where the name belongs. This module
does not define which names a config must have.

Callers: components of a session, and the code that creates them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from elasticdl import user_files
from elasticdl.errors import DefinitionError, MissingExtraError

# Quoted parts of a file in PyYAML's messages: tags, aliases; single characters and '<scalar>' help.
_QUOTED_NAME = re.compile(r" '[^'<]{3,}'")


class ConfigKeyError(DefinitionError, AttributeError):
    """A config has no key of the requested name.

    Also an `AttributeError`, so that `hasattr` returns False.
    """


class ConfigStruct:
    """A config, or a section of one, with its values as attributes.

    Args:
        values: Key -> value; mappings become sections.
        file: File name for errors.
        lines: Key path, joined by dots -> line of the file.
        section: The key path of this section; empty for the whole file.
        optional: Keys outside of sections that read as None if the file does not have them.

    Raises:
        DefinitionError: A key has the name of a method of a config.
    """

    # `vars(config)` contains only the values.
    __slots__ = ("__dict__", "_file", "_lines", "_optional", "_section")

    def __init__(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        file: str = "config",
        lines: Mapping[str, int] | None = None,
        section: str = "",
        optional: Collection[str] = (),
    ) -> None:
        object.__setattr__(self, "_file", file)
        object.__setattr__(self, "_lines", lines or {})
        object.__setattr__(self, "_section", section)
        object.__setattr__(self, "_optional", frozenset(optional))
        for key, value in (values or {}).items():
            if key in _METHODS:
                raise DefinitionError(
                    f"{self.where(key)}: {self._path(key)} cannot be read, because a config has a "
                    f"method {key}(). Rename the key."
                )
            self.__dict__[key] = (
                ConfigStruct(value, file=file, lines=lines, section=self._path(key))
                if isinstance(value, Mapping)
                else value
            )

    def __getattr__(self, name: str) -> Any:
        if name in self._optional:
            return None
        if name.startswith("__"):
            raise AttributeError(name)
        raise ConfigKeyError(self._missing(name))

    def __contains__(self, name: object) -> bool:
        return name in self.__dict__

    def __iter__(self) -> Iterator[str]:
        return iter(self.__dict__)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConfigStruct) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        inside = ", ".join(f"{key}={value!r}" for key, value in self.__dict__.items())
        return f"ConfigStruct({inside})"

    def __reduce__(self) -> Any:
        return (_made_again, (self.to_dict(), self._file, self._lines, self._optional))

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or the default if it is missing in the file."""
        return self.__dict__.get(name, default)

    def with_values(self, **values: Any) -> ConfigStruct:
        """Return a copy of the config with some values changed or added."""
        return ConfigStruct(
            {**self.to_dict(), **values},
            file=self._file,
            lines=self._lines,
            section=self._section,
            optional=self._optional,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the values as nested dicts."""
        return {
            key: value.to_dict() if isinstance(value, ConfigStruct) else value
            for key, value in self.__dict__.items()
        }

    def flat(self) -> dict[str, Any]:
        """Return all values by key path, joined by dots: `{"data_loader.shuffle": True}`."""
        found = {}
        for key, value in self.__dict__.items():
            if isinstance(value, ConfigStruct):
                found.update({f"{key}.{inner}": v for inner, v in value.flat().items()})
            else:
                found[key] = value
        return found

    def where(self, name: str = "") -> str:
        """Return `file:line` of a key in this section, or of the section if it has no such key."""
        line = self._lines.get(self._path(name), self._lines.get(self._section))
        return self._file if line is None else f"{self._file}:{line}"

    def _path(self, name: str) -> str:
        return ".".join(part for part in (self._section, name) if part)

    def _missing(self, name: str) -> str:
        place = self._section or "the config"
        near = difflib.get_close_matches(name, self.__dict__, n=1)
        if near:
            meant = f"Did you mean {near[0]} ({self.where(near[0])})?"
        elif self.__dict__:
            meant = f"It has {', '.join(self.__dict__)}. Add it."
        else:
            meant = "It is empty. Add it."
        return f"{self.where()}: {place} has no key {name!r}. {meant}"


_MAX_VALUES = 100_000
# A 64-bit number has 20 digits; Python itself reads up to 4,300.
_MAX_DIGITS = 1_000
_TYPES = {"int": "whole number", "float": "number", "bool": "boolean", "timestamp": "date"}
_TOP_KEY = re.compile(r"[\w<][\w .<-]{0,99}")
_METHODS = frozenset(name for name in vars(ConfigStruct) if not name.startswith("_"))


def _shown(key: object) -> str:
    """Format a key for an error message, in quotes and with a space in front: " 'loss'".

    Returns an empty string if the key does not look like a key of a config: the file may then be of
    another kind, whose content must not be printed.
    """
    return f" {key!r}" if _TOP_KEY.fullmatch(str(key)) else ""


def _made_again(
    values: Mapping[str, Any], file: str, lines: Mapping[str, int], optional: Collection[str]
) -> ConfigStruct:
    return ConfigStruct(values, file=file, lines=lines, optional=optional)


def read_config(text: str, file: str, *, optional: Collection[str] = ()) -> ConfigStruct:
    """Parse the YAML source of a config.

    Args:
        text: The YAML source.
        file: Name of the file, for errors.
        optional: Keys outside of sections that read as None if the file does not have them.

    Raises:
        DefinitionError: The text is not YAML, does not consist of keys and values, or has a key
            twice.
        MissingExtraError: The package that reads YAML is not installed.
    """
    try:
        import yaml  # noqa: PLC0415 - only where there is a config
    except ModuleNotFoundError as error:
        raise MissingExtraError("yaml", "sessions", "Reading a config file") from error

    try:
        loader = yaml.SafeLoader(text)
    except yaml.YAMLError:
        raise DefinitionError(
            f"{file}: this is not YAML: it contains characters that are not text. Pass a config "
            "file, with lines like `batch_size: 8`."
        ) from None
    try:
        reader = _Reader(loader, file)
        return ConfigStruct(reader.values(), file=file, lines=reader.lines, optional=optional)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = file if mark is None else f"{file}:{mark.line + 1}"
        column = "" if mark is None else f", at column {mark.column + 1}"
        # Quoted names are content of the file, and it may be any file.
        problem = _QUOTED_NAME.sub("", error.problem or "it cannot be parsed")
        raise DefinitionError(
            f"{place}: this is not YAML: {problem}{column}. A config has lines like `batch_size: "
            "8`; put a string that contains a colon or a backtick in quotes."
        ) from error
    except RecursionError:
        raise DefinitionError(
            f"{file}: lists or sections are nested too deeply. Use fewer levels."
        ) from None
    finally:
        loader.dispose()


def lines_of(file: str) -> Mapping[str, int]:
    """Return key path -> line number of a config file, to name the line of a key in an error.

    Empty if the file cannot be read.
    """
    try:
        return dict(read_config(user_files.read_text(file), file)._lines)  # noqa: SLF001 - of this file
    except (OSError, UnicodeDecodeError, DefinitionError):
        return {}


class _Reader:
    """Builds values from PyYAML's parsed nodes, and records their lines.

    Args:
        loader: A `yaml.SafeLoader` of the source.
        file: Name of the file, for errors.
    """

    def __init__(self, loader: Any, file: str) -> None:
        self._loader, self._file = loader, file
        self._construct = loader.construct_object
        # PyYAML builds the items of a list through this name, so that errors have an item's line.
        loader.construct_object = self._constructed
        self.lines: dict[str, int] = {}

    def values(self) -> dict[str, Any]:
        """Return the values of the whole file."""
        node = self._loader.get_single_node()
        if node is None:
            raise DefinitionError(f"{self._file} is empty; expected `key: value` lines.")
        if node.id != "mapping":
            found = {"sequence": "a list", "scalar": "a single value"}[node.id]
            raise DefinitionError(
                f"{self._place_of(node)}: this is {found}, not `key: value` lines. A config that "
                "was copied from a document may have kept its dashes and backticks: write "
                "`batch_size: 8`, not `- batch_size: 8`."
            )
        self._check_size(node)
        return self._section(node, "")

    def _check_size(self, root: Any) -> None:
        """Raise `DefinitionError` if aliases expand to too many values ("billion laughs")."""
        sizes: dict[int, int | None] = {}

        def size_of(node: Any) -> int:
            if id(node) in sizes:
                size = sizes[id(node)]
                if size is None:
                    raise DefinitionError(
                        f"{self._place_of(node)}: this value contains itself through an alias. "
                        "Write it out."
                    )
                return size
            sizes[id(node)] = None
            size = 1
            if node.id != "scalar":
                for child in node.value:
                    size += sum(map(size_of, child if isinstance(child, tuple) else (child,)))
            if size > _MAX_VALUES:
                raise DefinitionError(
                    f"{self._place_of(node)}: with its aliases (`*name`), this stands for more "
                    f"than {_MAX_VALUES:,} values. Use fewer of them."
                )
            sizes[id(node)] = size
            return size

        size_of(root)

    def _constructed(self, node: Any, deep: bool = False) -> Any:
        """Construct a node's value; any error of PyYAML becomes a `DefinitionError`.

        Args:
            node: A parsed node of the file.
            deep: Whether to construct nested lists and mappings at once, as in PyYAML.
        """
        kind = str(node.tag).rpartition(":")[2]
        problem = None
        if kind in {"int", "float"} and len(node.value) > _MAX_DIGITS:
            problem = (
                f"a number of {len(node.value):,} characters; at most {_MAX_DIGITS:,} are allowed"
            )
        else:
            try:
                return self._construct(node, deep=deep)
            except (ValueError, ArithmeticError, LookupError, TypeError, AttributeError):
                problem = f"not a valid {_TYPES.get(kind, kind)}"
        raise DefinitionError(
            f"{self._place_of(node)}: this value is {problem}. Put it in quotes if it is a string."
        )

    def _section(self, node: Any, path: str) -> dict[str, Any]:
        own: dict[str, Any] = {}
        for key, _ in node.value:
            if not path and not _TOP_KEY.fullmatch(str(key.value)):
                # This may be any file, and its content may be private.
                raise DefinitionError(
                    f"{self._place_of(key)}: the key on this line is not a name. A config has "
                    "lines like `batch_size: 8`, with letters, digits and '_' before the colon; "
                    "is this a config file?"
                )
            if key.tag not in {"tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"}:
                raise DefinitionError(
                    f"{self._place_of(key)}: the key{_shown(key.value)} is not a name; components "
                    "read keys as attributes (config.batch_size). Use a word that is not a number."
                )
            if key.value in own:
                first = own[key.value].start_mark.line + 1
                raise DefinitionError(
                    f"{self._place_of(key)}: the key{_shown(key.value)} is given twice, first on "
                    f"line {first}. Remove one of them."
                )
            own[key.value] = key
        # The keys from `<<: *another` come first, so that the section's own keys override them.
        self._loader.flatten_mapping(node)
        values = {}
        for key, value in node.value:
            inner = f"{path}.{key.value}" if path else key.value
            self.lines[inner] = own.get(key.value, key).start_mark.line + 1
            if value.id == "mapping":
                values[key.value] = self._section(value, inner)
            else:
                values[key.value] = self._loader.construct_object(value, deep=True)
        return values

    def _place_of(self, node: Any) -> str:
        return f"{self._file}:{node.start_mark.line + 1}"
