"""Reader for a section `model` that names components, and for the data that they read.

Components are the classes that load the data and build the model of a training session; keys such
as `data_loader_class` name them. The section has the same keys as the config of the session
`runs/NAME/config.yaml`, and all of it is passed to the components. Its number of epochs and seed
do not control the training: those in `hyperparams` do. No class is imported here.

Callers: `shared_sections.py`, `reading.py` and `jobs.py`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.dialects.component_classes import COMPONENTS
from elasticdl.engines.federated.config.settings import Data, ModelChoice
from elasticdl.errors import DefinitionError
from elasticdl.job import ModelReference

if TYPE_CHECKING:
    from elasticdl.engines.federated.config.section import Section
    from elasticdl.engines.federated.config.settings import AggregatorConfig

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
    """Return whether a section `model` names the component classes of a training session."""
    return any(key in section for key in CLASS_KEYS)


def read_components(section: Section, file: Path) -> ModelChoice | None:
    """Read a section `model` that names the component classes of a training session.

    Args:
        section: `model` of a config.
        file: The config; `src_code_path` is relative to its folder.

    Returns:
        The model; None if a class or the folder cannot be used, which is recorded as a problem.
    """
    classes = {key: _class_name(section, key) for key in CLASS_KEYS}
    for key in _NEEDED:
        if key not in section:
            section.missing(key, "set the class with its file, such as models.ModelBuilder")
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
            section.missing(SOURCE, "set the folder with the files of the classes, such as src")
        return None
    folder = (_folder(file) / Path(source).expanduser()).resolve()
    if not folder.is_dir():
        section.problem(SOURCE, f"is {source!r}, but the folder {folder} does not exist")
    return folder


def _note_what_decides_nothing(section: Section) -> None:
    for key in _OTHER_WAYS:
        if key in section:
            section.problem(
                key, f"is for other kinds of models and cannot be combined with {MODEL_BUILDER}"
            )
    if DATA_DIR in section:
        section.problem(DATA_DIR, "belongs in the section data: each party has its own data")
    for key, decides in _DECIDED_ELSEWHERE.items():
        if key in section:
            section.warning(key, f"is only passed to the components; the value used is {decides}")


def data_in(section: Section, folder: str) -> Data:
    """Return the settings of data that a `data_loader_class` reads from a folder.

    A missing folder, or a key for other kinds of data, is recorded as a problem.

    Args:
        section: `data` of a config.
        folder: The absolute path or the URI of its `data_dir`.
    """
    for key in ("uri", "validation_uri", "name", "path", "info"):
        if key in section:
            section.problem(
                key,
                f"cannot be combined with {DATA_DIR}; a data_loader_class reads all its data from "
                "that folder",
            )
    if "://" not in folder and not Path(folder).is_dir():
        section.problem(DATA_DIR, f"is {folder}, but that folder does not exist")
    return Data(data_dir=folder)


def check_data(section: Section, data: Data | None, model: ModelChoice | None) -> None:
    """Record a problem if data and model do not fit together.

    A model with components reads a folder, and any other model reads records.

    Args:
        section: `data` of a config.
        data: The data that the section describes; None if it is missing or already has a problem.
        model: The config's model; None if it has none.
    """
    if data is None or model is None:
        return
    if model.has_components and data.data_dir is None:
        key = "uri" if data.uri is not None else "name"
        section.problem(
            key,
            "cannot be read by a data_loader_class, which reads a folder. Set the folder with "
            f"{DATA_DIR}",
        )
    elif not model.has_components and data.data_dir is not None:
        section.problem(
            DATA_DIR,
            "is a folder for a data_loader_class, but the section model has none. Set the uri of "
            "the records",
        )


def check_local(aggregator: AggregatorConfig, model: ModelChoice) -> None:
    """Reject a batch size or learning rate in `hyperparams.local` that would have no effect.

    A session's components make the batches and compile the optimizer themselves.

    Args:
        aggregator: The config with `hyperparams.local`.
        model: The model to train; without components, nothing is checked.

    Raises:
        DefinitionError: There is such a setting.
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
            "model with its own optimizer. Leave it out here, and set it where that class reads "
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
            f"is {value!r}; expected numbers, strings, true or false, and lists and sections of "
            "them. Write a date as a string, in quotes",
        )


def _folder(file: Path) -> Path:
    return file.resolve().parent


def minibatch_size_of(model: ModelChoice) -> int | None:
    """Return `batch_size` of a section `model` with components; None without a valid one."""
    size: Any = model.written.get("batch_size") if model.has_components else None
    return size if isinstance(size, int) and not isinstance(size, bool) and size > 0 else None
