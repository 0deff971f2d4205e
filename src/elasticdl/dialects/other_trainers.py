"""Finds settings for another library's trainer in a model file; ElasticDL would ignore them.

    trainer = L.Trainer(max_epochs=5, gradient_clip_val=0.5)    an object at the top level
    TRAINER_ARGS = {"accumulate_grad_batches": 4}               its arguments in a dict
    if __name__ == "__main__":                                  a call in code that is not run here
        L.Trainer(precision="bf16-mixed").fit(Net(), Data())

Settings of an object or a dict that change the trained weights or the validation results are
refused, unless the file also defines ElasticDL's own setting for the same purpose; others are
noted. A call may be one of several, or for debugging, so its settings are only noted, and only
those that change these results.

Callers: `dialects/__init__.py`.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.dialects.model_code import symbol_of
from elasticdl.dialects.source_lines import calls_of, shown_path
from elasticdl.errors import DefinitionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from elasticdl.dialects.model_code import ModelCode


@dataclass(frozen=True, eq=False)
class _Setting:
    """A setting of another library's trainer, and what ElasticDL has in its place.

    Attributes:
        name: Its name.
        instead: What ElasticDL offers instead, worded to follow "Use" in a message; empty if
            nothing.
        unset: Values with which the setting has no effect.
        covered_by: Names of ElasticDL's own settings for the same purpose. The setting is accepted
            if the model file defines one of them.
        changes_numbers: Whether trained weights or validation results depend on it.
        attribute: Name of the trainer's attribute that holds its value, if it differs from `name`.
    """

    name: str
    instead: str
    unset: Sequence[Any] = (None,)
    covered_by: Sequence[str] = ()
    changes_numbers: bool = True
    attribute: str = ""


def _only_noted(name: str, instead: str, *unset: Any, attribute: str = "") -> _Setting:
    return _Setting(name, instead, (None, *unset), (), changes_numbers=False, attribute=attribute)


_CLIPPING = "gradient_clipping in the file"
_PRECISION = "precision in the file"
_ACCUMULATION = "--global_batch_size (the examples in an update)"
_OF_LIGHTNING = (
    _Setting("gradient_clip_val", _CLIPPING, (None, 0, 0.0), ("gradient_clipping",)),
    _Setting("accumulate_grad_batches", _ACCUMULATION, (None, 1)),
    _Setting("precision", _PRECISION, (None, 32, "32", "32-true"), ("precision",)),
    _Setting(
        "callbacks",
        "callbacks() or averaged_model(model) in the file",
        (None, []),
        ("callbacks", "averaged_model"),
    ),
    _Setting("limit_train_batches", "", (None, 1.0)),
    _Setting("limit_val_batches", "", (None, 1.0)),
    _Setting("overfit_batches", "", (0, 0.0)),
    _Setting("fast_dev_run", "", (False, 0)),
    _Setting("reload_dataloaders_every_n_epochs", "", (0,)),
    _only_noted("max_epochs", "--num_epochs", -1),
    _only_noted("max_steps", "--max_steps", -1),
    _only_noted("devices", "--num_workers", 1, "auto", attribute="num_devices"),
    _only_noted("num_nodes", "--num_workers", 1),
    _only_noted("check_val_every_n_epoch", "--evaluation_steps", 1),
    _only_noted("val_check_interval", "--evaluation_steps", 1.0),
)
# Its default format is chosen by `accelerate launch`.
_OF_ACCELERATE = (
    _Setting("gradient_accumulation_steps", _ACCUMULATION, (None, 1)),
    _Setting("mixed_precision", _PRECISION, (None, "no"), ("precision",)),
)
# Package and class -> name for messages, and settings.
_KINDS: Mapping[tuple[str, str], tuple[str, Sequence[_Setting]]] = {
    ("lightning", "Trainer"): ("a Trainer of Lightning", _OF_LIGHTNING),
    ("pytorch_lightning", "Trainer"): ("a Trainer of Lightning", _OF_LIGHTNING),
    ("accelerate", "Accelerator"): ("an Accelerator", _OF_ACCELERATE),
}
# Callbacks whose names end in one of these only display, measure or save something.
_WITHOUT_EFFECT = (
    "DeviceStatsMonitor",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "ModelSummary",
    "OnExceptionCheckpoint",
    "ProgressBar",
    "ThroughputMonitor",
    "Timer",
)


@dataclass(frozen=True)
class _Found:
    """A trainer's settings in a model file.

    Attributes:
        where: `file:line`.
        what: The object, dict or call that has them, as the subject of a sentence in messages.
        settings: The settings with an effect -> their values, as text.
        is_run: Whether the settings are those of an object or a dict, which exists after the import
            of the file. If False, they are the arguments of a call that ElasticDL does not run.
    """

    where: str
    what: str
    settings: Mapping[_Setting, str]
    is_run: bool = True


def notes_on_other_trainers(model_code: ModelCode) -> list[str]:
    """Return notes on the settings of other trainers in a model's files.

    Raises:
        DefinitionError: A setting changes trained weights or validation results, and the file does
            not define a replacement.
    """
    found = [*_objects(model_code), *_dicts(model_code)] or list(_calls(model_code))
    notes = []
    for each in found:
        changing = {
            setting: value
            for setting, value in each.settings.items()
            if setting.changes_numbers and not any(map(model_code.find, setting.covered_by))
        }
        named = " and ".join(f"{setting.name}={value}" for setting, value in changing.items())
        if changing and each.is_run:
            raise DefinitionError(
                f"{each.where}: {each.what} has {named}, which ElasticDL does not apply, so the "
                f"numbers would be others. {_advice(changing)} To keep the rest of it for another "
                'script, move it below `if __name__ == "__main__":`.'
            )
        if each.is_run:
            others = {s: value for s, value in each.settings.items() if not s.changes_numbers}
            notes.append(
                f"{each.where}: {each.what} is not used: the options of elasticdl take its place."
                f"{' ' if others else ''}{_advice(others)}"
            )
        elif changing:
            notes.append(
                f"{each.where}: {each.what} has {named}, which ElasticDL does not apply. "
                f"{_advice(changing)}"
            )
    return notes


def _advice(settings: Mapping[_Setting, str]) -> str:
    replaced = [
        f"{setting.instead} instead of {setting.name}={value}"
        for setting, value in settings.items()
        if setting.instead
    ]
    others = [setting.name for setting in settings if not setting.instead]
    return " ".join(
        ([f"Use {', and '.join(replaced)}."] if replaced else [])
        + ([f"Nothing takes the place of {' and '.join(others)}."] if others else [])
    )


def _objects(model_code: ModelCode) -> Iterator[_Found]:
    for module in model_code.modules:
        for name, value in list(vars(module).items()):
            for kind in type(value).__mro__:
                title, settings = _KINDS.get(
                    (str(kind.__module__).partition(".")[0], kind.__name__), ("", ())
                )
                if title:
                    given = {
                        each.name: getattr(value, each.attribute or each.name, None)
                        for each in settings
                    }
                    yield _Found(
                        str(symbol_of(name, value, module)),
                        f"{name}, {title},",
                        _with_effect(given, settings),
                    )


def _dicts(model_code: ModelCode) -> Iterator[_Found]:
    for module in model_code.modules:
        for name, value in list(vars(module).items()):
            if "trainer" in name.lower() and isinstance(value, Mapping):
                settings = _with_effect(value, _OF_LIGHTNING)
                if settings:
                    yield _Found(str(symbol_of(name, value, module)), name, settings)


def _calls(model_code: ModelCode) -> Iterator[_Found]:
    """Yield the calls of a class named `Trainer`, with their arguments that Lightning knows.

    They are read from the source, because the code may not run on import.
    """
    for module in model_code.modules:
        file = Path(module.__file__ or "")
        for call in calls_of(file, "Trainer"):
            given: dict[str, Any] = {}
            for keyword in call.keywords:
                if keyword.arg is not None:
                    given[keyword.arg] = _value_of(keyword.value)
                elif isinstance(keyword.value, ast.Name):
                    more = getattr(module, keyword.value.id, None)
                    given |= more if isinstance(more, Mapping) else {}
            yield _Found(
                f"{shown_path(file)}:{call.lineno}",
                "the Trainer of Lightning",
                _with_effect(given, _OF_LIGHTNING),
                is_run=False,
            )


class _Source(str):
    """String with a repr without quotes, for messages: an argument's source, a callback's name."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _value_of(node: ast.expr) -> Any:
    """Return the value of an argument that is a literal, else its source text.

    A list of calls, such as callbacks, becomes a list of the called names.
    """
    if isinstance(node, (ast.List, ast.Tuple)) and all(isinstance(e, ast.Call) for e in node.elts):
        return [_Source(ast.unparse(each.func)) for each in node.elts if isinstance(each, ast.Call)]
    try:
        return ast.literal_eval(node)
    except ValueError:
        return _Source(ast.unparse(node))


def _with_effect(given: Mapping[str, Any], settings: Sequence[_Setting]) -> dict[_Setting, str]:
    """Return the settings that a trainer is given and that have an effect.

    Args:
        given: Name of a setting -> its value in the model file.
        settings: Settings of this trainer to look for.

    Returns:
        Setting -> its value, as text.
    """
    found = {}
    for setting in settings:
        value = given.get(setting.name)
        if setting.name == "callbacks":
            value = _callbacks(value)
        # Compared as text, because 1 is one batch, and 1.0 all of them.
        if setting.name in given and repr(value) not in map(repr, setting.unset):
            found[setting] = f"{value!r:.60}"
    return found


def _callbacks(value: Any) -> Any:
    """Return the names of those callbacks of Lightning that change how a model is trained.

    Args:
        value: The trainer's argument `callbacks`: one, a list of callbacks or of their class names,
            or None. Source text of an unknown value is returned unchanged.
    """
    if isinstance(value, _Source):
        return value
    given = value if isinstance(value, (list, tuple)) else [] if value is None else [value]
    names = [
        each if isinstance(each, _Source) else _Source(type(each).__name__)
        for each in given
        # Lightning adds one that begins, and remains, at accumulate_grad_batches.
        if list(getattr(each, "scheduling", ())) != [0]
    ]
    return [name for name in names if not name.endswith(_WITHOUT_EFFECT)]
