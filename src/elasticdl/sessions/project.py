"""Reads the files of a session: its folders, its config, and the training job they describe.

    PROJECT/                     a repository
      src/                         the components (`src_code_path`)
      runs/NAME/config.yaml        the session
      runs/NAME/training/          checkpoints, events, the trained model: the job's output
      runs/NAME/exported/          the best model, for others
      runs/NAME/reports/           each example of the validation and test data

This module reads the config and inspects the folders; it imports no user code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from elasticdl import user_files
from elasticdl.config_file import ConfigStruct, read_config
from elasticdl.dialects.abstractions import NAME
from elasticdl.dialects.component_classes import COMPONENTS, OPTIONAL_KEYS
from elasticdl.errors import DataError, DefinitionError, ElasticDLError, UsageError
from elasticdl.job import Job, ModelReference, Tracking, TrainingOptions, Workers

RUNS = "runs"
_CLASSES = ("data_loader_class", "preprocessor_class", "model_builder_class")
_OPTIONAL_CLASSES = ("evaluator_class", "augmentor_class")
_MODES = ("min", "max")
_EPOCHS = "epochs"


@dataclass(frozen=True, eq=False)
class SessionProject:
    """A session as described by its files.

    Attributes:
        name: Name of the run.
        project: The repository's folder.
        config: Values of `config.yaml`, with those replaced by `--set`.
        config_file: Path of `config.yaml`.
        data: Data folder.
    """

    name: str
    project: Path
    config: ConfigStruct
    config_file: Path
    data: str

    @property
    def folder(self) -> Path:
        """Folder that the session writes to; its config is there as well."""
        return self.project / RUNS / self.name

    @property
    def source(self) -> Path:
        """Folder that the components are imported from."""
        return self.project / str(self.config.src_code_path)

    @property
    def experiment(self) -> str:
        """Experiment name under which trackers such as MLflow group the project's sessions."""
        return str(self.config.get("project_name") or self.project.name)

    @property
    def output(self) -> Path:
        """The output folder of the training job."""
        return self.folder / "training"

    def job(
        self,
        *,
        num_epochs: int | None = None,
        workers: Workers | None = None,
        checkpoint_steps: int = 0,
        tracking: Tracking | None = None,
    ) -> Job:
        """Return the training job of the session.

        Args:
            num_epochs: Number of epochs. None: that of the config.
            workers: Number of training processes. None: train in this process.
            checkpoint_steps: Steps between checkpoints, as in `TrainingOptions`.
            tracking: Where to track it. None: do not track it.
        """
        config = self.config
        values = config.to_dict()
        # The job has its own value for the epochs, because a session can be trained further.
        del values[_EPOCHS]
        named = {key: config.get(key) for key in COMPONENTS}
        return Job(
            command="train",
            data=self.data,
            output=str(self.output),
            model=ModelReference(
                zoo=str(self.source),
                model_def=str(config.model_builder_class),
                dialect=NAME,
                params=values,
                overrides={key: str(name) for key, name in named.items() if name},
                config_file=str(self.config_file),
            ),
            validation_data=self.data,
            training=TrainingOptions(
                num_epochs=num_epochs or config.epochs,
                minibatch_size=config.batch_size,
                seed=config.get("seed") or 0,
                best_metric=config.export.metric,
                best_mode=config.export.mode,
                restore_best_weights=True,
                checkpoint_steps=checkpoint_steps,
            ),
            workers=workers,
            tracking=tracking,
        )


def open_session(
    run_name: str,
    *,
    project_root: str = ".",
    data_dir: str | None = None,
    settings: Sequence[str] = (),
) -> SessionProject:
    """Read and validate a session's config, and return the session.

    Args:
        run_name: Name of the folder in `runs/`.
        project_root: The repository.
        data_dir: Data folder. None: `data_dir` of the config.
        settings: `key=value` strings that replace values of the config, such as `export.mode=max`.

    Raises:
        UsageError: There is no such session, or a setting is wrong.
        DefinitionError: The config lacks a key, or has a value that cannot be used.
        DataError: The data folder does not exist.
    """
    project, config = read_session(run_name, project_root=project_root, settings=settings)
    for problem in problems(config, project, data_dir):
        raise problem
    return session_of(run_name, project, config, data_dir)


def session_of(
    run_name: str, project: Path, config: ConfigStruct, data_dir: str | None = None
) -> SessionProject:
    """Return the session that a config describes.

    Args:
        run_name: Name of the folder in `runs/`.
        project: The repository.
        config: Content of `config.yaml`. It must be valid: `problems` yields nothing for it.
        data_dir: Data folder. None: `data_dir` of the config.
    """
    data = _data_of(config, data_dir, project)
    return SessionProject(run_name, project, config, _config_file(project, run_name), data)


def read_session(
    run_name: str, *, project_root: str = ".", settings: Sequence[str] = ()
) -> tuple[Path, ConfigStruct]:
    """Return a session's project folder and its config, without checking the config's values.

    Args:
        run_name: Name of the folder in `runs/`.
        project_root: The repository.
        settings: `key=value` strings that replace values of the config.

    Raises:
        UsageError: There is no such session, or a setting is wrong.
        DefinitionError: The config is not YAML.
    """
    project = Path(project_root).expanduser().resolve()
    file = _config_file(project, run_name)
    try:
        text = user_files.read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise UsageError(f"{file}: this config cannot be read: {reason}.") from error
    config = read_config(text, str(file), optional=OPTIONAL_KEYS)
    for setting in settings:
        config = _with_setting(config, setting)
    return project, config


def problems(
    config: ConfigStruct, project: Path, data_dir: str | None = None
) -> Iterator[ElasticDLError]:
    """Yield an error for each missing or invalid value of a config, with its line.

    Args:
        config: Content of `config.yaml`.
        project: The repository.
        data_dir: Data folder. None: `data_dir` of the config.
    """
    rules: list[Callable[[], object]] = [
        *(partial(_check_class, config, key) for key in _CLASSES),
        *(partial(_check_class, config, key) for key in _OPTIONAL_CLASSES if config.get(key)),
        *(partial(_check_count, config, key) for key in (_EPOCHS, "batch_size")),
        partial(_check_export, config),
        partial(_check_seed, config),
        partial(_check_source, config, project),
        *(partial(_check_value, config, key, value) for key, value in config.flat().items()),
        partial(_data_of, config, data_dir, project),
    ]
    for rule in rules:
        try:
            rule()
        except ElasticDLError as error:
            yield error


def folder_of(project_root: str, run_name: str) -> Path:
    """Return the folder of a session.

    Raises:
        UsageError: There is no such session.
    """
    return _config_file(Path(project_root).expanduser().resolve(), run_name).parent


def session_names(project_root: str) -> list[str]:
    """Return the names of a project's sessions, the folders in `runs/`.

    Raises:
        UsageError: The project has no folder `runs`.
    """
    runs = Path(project_root).expanduser().resolve() / RUNS
    if not runs.is_dir():
        raise UsageError(
            f"{runs}: there is no such folder. A session is described by "
            f"{RUNS}/NAME/config.yaml of a project; specify the project with --project_root."
        )
    return sorted(folder.name for folder in runs.iterdir() if _configs(folder))


def _configs(folder: Path) -> list[Path]:
    return sorted([*folder.glob("*.yaml"), *folder.glob("*.yml")])


def _config_file(project: Path, run_name: str) -> Path:
    import difflib  # noqa: PLC0415 - needed only for an error

    folder = project / RUNS / run_name
    if Path(run_name).name != run_name or run_name in {"", ".", ".."}:
        raise UsageError(f"--run_name={run_name}: expected the name of a folder in {RUNS}/.")
    if not folder.is_dir():
        known = session_names(str(project))
        near = difflib.get_close_matches(run_name, known, n=1)
        meant = (
            f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(known) or 'none'}."
        )
        raise UsageError(f"{folder}: there is no session with this name. {meant}")
    found = _configs(folder)
    if len(found) != 1:
        there = ", ".join(file.name for file in found) or "none"
        raise UsageError(
            f"{folder} must hold exactly one YAML file, the session's config; it has {there}."
        )
    return found[0]


def _with_setting(config: ConfigStruct, setting: str) -> ConfigStruct:
    key, equals, text = setting.partition("=")
    path = key.strip().split(".")
    if not equals or not all(path):
        raise UsageError(f"--set {setting}: expected key=value, such as model_builder.dropout=0.5.")
    values = config.to_dict()
    section: Any = values
    at: Any = config
    for part in path[:-1]:
        at = getattr(at, part)
        if not isinstance(at, ConfigStruct):
            raise UsageError(f"--set {setting}: {part} is the value {at!r}, not a section.")
        section = section[part]
    # Keys of a section are all in the file.
    if path[-1] not in section and (len(path) > 1 or path[-1] not in OPTIONAL_KEYS):
        # Raises an error that lists the available keys and their location.
        getattr(at, path[-1])
    if isinstance(section.get(path[-1]), Mapping):
        raise UsageError(f"--set {setting}: {key} is a section; set one of its keys.")
    read = read_config(f"value: {text or 'null'}", f"--set {setting}")
    section[path[-1]] = read.to_dict()["value"]
    return config.with_values(**values)


def _check_class(config: ConfigStruct, key: str) -> None:
    value = getattr(config, key)
    parts = value.split(".") if isinstance(value, str) else []
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):  # noqa: PLR2004 - file and class
        meant = ""
        if isinstance(value, str) and ":" in value:
            meant = f" Did you mean {value.rpartition(':')[2].strip()!r}?"
        raise DefinitionError(
            f"{config.where(key)}: {key} is {value!r}; expected the name of a class with its file, "
            f"such as models.ModelBuilder.{meant}"
        )


def _check_seed(config: ConfigStruct) -> None:
    seed = config.get("seed")
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise DefinitionError(f"{config.where('seed')}: seed is {seed!r}; expected a whole number.")


def _check_source(config: ConfigStruct, project: Path) -> None:
    source = project / str(config.src_code_path)
    if not source.is_dir() or not source.resolve().is_relative_to(project):
        raise DefinitionError(
            f"{config.where('src_code_path')}: src_code_path is {config.src_code_path!r}; expected "
            f"a folder within {project}."
        )


def _check_value(config: ConfigStruct, key: str, value: Any) -> None:
    try:
        json.dumps(value)
    except TypeError:
        raise DefinitionError(
            f"{config.where(key)}: {key} is a {type(value).__name__}, {value}. Expected a "
            f'number, a string, true or false, or a list of them: write "{value}" with quotes.'
        ) from None


def _check_count(config: ConfigStruct, key: str) -> None:
    value = getattr(config, key)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise DefinitionError(
            f"{config.where(key)}: {key} is {value!r}; expected a whole number, at least 1."
        )


def _check_export(config: ConfigStruct) -> None:
    export = config.export
    if not isinstance(export, ConfigStruct):
        raise DefinitionError(
            f"{config.where('export')}: export is {export!r}; expected a section with the keys "
            "metric (val_loss) and mode (min or max)."
        )
    if not isinstance(export.metric, str):
        raise DefinitionError(
            f"{export.where('metric')}: export.metric is {export.metric!r}; expected the name of "
            "a metric, such as val_loss."
        )
    if export.mode not in _MODES:
        raise DefinitionError(
            f"{export.where('mode')}: export.mode is {export.mode!r}; expected min or max."
        )


def _data_of(config: ConfigStruct, data_dir: str | None, project: Path) -> str:
    given = data_dir if data_dir is not None else config.get("data_dir")
    if given is None:
        raise UsageError(
            f"The data folder is not set: use --data_dir, or data_dir in {config.where()}."
        )
    # A relative path in the config is relative to the project; on the command line, to the shell.
    folder = Path(str(given)).expanduser()
    folder = (folder if data_dir is not None else project / folder).resolve()
    if not folder.is_dir():
        where = "--data_dir" if data_dir is not None else config.where("data_dir")
        raise DataError(f"{where}: there is no folder {folder}.")
    return str(folder)
