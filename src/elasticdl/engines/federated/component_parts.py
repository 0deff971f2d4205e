"""Section `model` of a config that names the components of a training session, and their data.

The section is the session's config: it has the keys of `runs/NAME/config.yaml`, and the components
get all of it. How long and from which seed parties train is not theirs to say: a federation has
that in `hyperparams`. Nothing is imported here.

Callers: `config_parts.py`, `config.py` and `jobs.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.dialects.component_classes import COMPONENTS
from elasticdl.engines.federated.settings import Data, ModelChoice
from elasticdl.errors import DefinitionError
from elasticdl.job import ModelReference

if TYPE_CHECKING:
    from elasticdl.engines.federated.sections import Section
    from elasticdl.engines.federated.settings import AggregatorConfig

DIALECT = "abstractions"
MODEL_BUILDER = "model_builder_class"
DATA_DIR = "data_dir"
CLASS_KEYS = (MODEL_BUILDER, *COMPONENTS)
SOURCE = "src_code_path"
_NEEDED = (MODEL_BUILDER, "data_loader_class", "preprocessor_class")
_OTHER_WAYS = ("model_zoo", "model_def", "dialect", "spec", "trust")
_DECIDED_ELSEWHERE = {
    "epochs": "hyperparams.global.rounds and hyperparams.local.training.epochs",
    "seed": "hyperparams.global.seed",
    "export": "the last round",
}


def names_components(section: Section) -> bool:
    """Return whether a section `model` names component classes."""
    return any(key in section for key in CLASS_KEYS)


def read_components(section: Section, file: Path) -> ModelChoice | None:
    """Return the model that a session's components make.

    Args:
        section: `model` of a config.
        file: The config; `src_code_path` is relative to its folder.

    Returns:
        The model; None where a class or the folder cannot be used, which is noted.
    """
    classes = {key: _class_name(section, key) for key in CLASS_KEYS}
    for key in _NEEDED:
        if key not in section:
            section.missing(key, "name the class and its file, such as models.ModelBuilder")
    folder = _source_folder(section, file)
    _note_what_decides_nothing(section)
    config = section.everything()
    for key, value in config.items():
        _check_value(section, key, value)
    builder = classes.pop(MODEL_BUILDER)
    if builder is None or folder is None:
        return None
    return ModelChoice(
        ModelReference(
            zoo=str(folder),
            model_def=builder,
            dialect=DIALECT,
            params=config,
            overrides={key: name for key, name in classes.items() if name is not None},
            config_file=str(file.resolve()),
        ),
        written=config,
    )


def _source_folder(section: Section, file: Path) -> Path | None:
    source = section.text(SOURCE, "a folder")
    if source is None:
        if SOURCE not in section:
            section.missing(
                SOURCE, "name the folder that has the files of the classes, such as src"
            )
        return None
    folder = (_folder(file) / Path(source).expanduser()).resolve()
    if not folder.is_dir():
        section.problem(SOURCE, f"is {source!r}, and there is no folder {folder}")
    return folder


def _note_what_decides_nothing(section: Section) -> None:
    for key in _OTHER_WAYS:
        if key in section:
            section.problem(key, f"is for other models, and {MODEL_BUILDER} is there as well")
    if DATA_DIR in section:
        section.problem(DATA_DIR, "belongs into the section data: a party's data are its own")
    for key, decides in _DECIDED_ELSEWHERE.items():
        if key in section:
            section.warning(key, f"is for components to read; what is done is decided by {decides}")


def data_in(section: Section, folder: str) -> Data:
    """Return the data of a folder, and note what is wrong with it or stands beside it.

    Args:
        section: `data` of a config.
        folder: What its `data_dir` names, located.
    """
    for key in ("uri", "validation_uri", "name", "path", "info"):
        if key in section:
            section.problem(
                key,
                f"is beside {DATA_DIR}; a data_loader_class reads all its data from that folder",
            )
    if "://" not in folder and not Path(folder).is_dir():
        section.problem(DATA_DIR, f"names {folder}, and there is no such folder")
    return Data(data_dir=folder)


def check_data(section: Section, data: Data | None, model: ModelChoice | None) -> None:
    """Note data that a model cannot read: components take a folder, the others take records.

    Args:
        section: `data` of a config.
        data: What it says; None if that is a problem already.
        model: The config's model; None if it has none.
    """
    if data is None or model is None:
        return
    if model.has_components and data.data_dir is None:
        key = "uri" if data.uri is not None else "name"
        section.problem(
            key,
            f"cannot be read by a data_loader_class, which takes a folder. Name it: {DATA_DIR}",
        )
    elif not model.has_components and data.data_dir is not None:
        section.problem(
            DATA_DIR,
            "is a folder for a data_loader_class, which the section model does not name. Name "
            "records by their uri",
        )


def check_local(aggregator: AggregatorConfig, model: ModelChoice) -> None:
    """Refuse settings for parties that components would not follow.

    Raises:
        DefinitionError: There is one.
    """
    if not model.has_components:
        return
    where, local = f"{aggregator.file}: hyperparams.local", aggregator.local
    own = model.written.get("batch_size")
    if local.minibatch_size not in (None, own):
        raise DefinitionError(
            f"{where}.training.batch_size is {local.minibatch_size}; the preprocessor_class makes "
            f"the batches, and model.batch_size is {own}. Leave it out here."
        )
    if local.learning_rate is not None:
        raise DefinitionError(
            f"{where}: a learning rate cannot be given to a {MODEL_BUILDER}, which compiles the "
            "model with its own optimizer. Leave it out here, and write it where that class reads "
            "it: in the section model."
        )


def _class_name(section: Section, key: str) -> str | None:
    expected = "the name of a class with its file, such as models.ModelBuilder"
    name = section.text(key, expected)
    if name is None:
        return None
    parts = name.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):  # noqa: PLR2004 - file and class
        section.problem(key, f"is {name!r}; expected {expected}")
        return None
    return name


def _check_value(section: Section, key: str, value: object) -> None:
    try:
        json.dumps(value)
    except TypeError:
        section.problem(
            key,
            f"is {value!r}; expected numbers, texts, true or false, and lists and sections of "
            "them. Write a date as a text: with quotes",
        )


def _folder(file: Path) -> Path:
    return file.resolve().parent


def minibatch_size_of(model: ModelChoice) -> int | None:
    """Return the `batch_size` of a session's config; None where it has none."""
    size: Any = model.written.get("batch_size") if model.has_components else None
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None
