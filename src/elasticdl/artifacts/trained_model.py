"""Trained model: a folder with all that is needed to predict, to evaluate, and to trace its origin.

    OUTPUT/
      trained_model.pb     its description (`Description`) and the hash of the rest: written last
      params.safetensors   path -> tensor
      zoo/                 a copy of the user's code
      saved_model/ ...     for serving, whatever the trainer exports

A folder without `trained_model.pb` is not a trained model (yet). When one model replaces another,
that file is removed first, so that an old description never accompanies new tensors. A run that
dies in between rebuilds the trained model from its last checkpoint. The caller passes functions
that copy the zoo and write a framework's exports, so this module imports no zoo and no framework.

Callers: the engines save, `api.py` and `prediction/` load.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
import time
import weakref
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from elasticdl import scratch
from elasticdl.artifacts import trained_model_pb2
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.local_storage import output_errors
from elasticdl.artifacts.tensors import read_tensors, write_tensors
from elasticdl.did_you_mean import nearest
from elasticdl.errors import OutputError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

FORMAT_VERSION = 1
MODEL_FILE = "trained_model.pb"
PARAMS_FILE = "params.safetensors"
ZOO_FOLDER = "zoo"

_RESERVED = frozenset(
    {MODEL_FILE, PARAMS_FILE, ZOO_FOLDER, "checkpoints", "job.json", "events.jsonl"}
)

MetricValues: TypeAlias = "Mapping[str, float | list[float]]"


@dataclass(frozen=True)
class Description:
    """Description of a trained model, as stored in `trained_model.pb`; missing strings are empty.

    Attributes:
        model_def: Dotted name within the zoo: file, then class or function.
        model_def_params: Params of the model, as the text that was given with `--params`.
        input_function: Dotted name that was given with `--input_fn`.
        loss: Dotted name that was given with `--loss`.
        optimizer: Dotted name that was given with `--optimizer`.
        docker_commit_id: Name of the container image, with the zoo in it, in which the model was
            trained; empty if it was trained without an image.
        dialect: Dialect in which the model was described.
        model_zoo: Folder or URL the model came from; empty for the prebuilt zoo.
        zoo_commit: Commit of the zoo, if it is a git repository.
        framework: Framework whose trainer runs the model.
        versions: Package name -> its version when the model was trained.
        data_schema_json: The result of `data_schema()`, as JSON (`Schema.to_json`).
        job_id: Identifies the job.
        job_json: The whole job (`Job.to_json`).
        created_unix_s: When it was saved, in seconds since 1970-01-01 UTC.
        overrides: Functions that replace functions of the model file: replaced name, such as
            `loss` -> dotted name of the function to use in its place.
        metrics: Metric name -> its value when the model was saved, or one value per class or
            threshold.
        step: Number of updates made.
        classes: Names of the classes in the order of the model's outputs; empty if unknown.
        record_fields_json: If there was no `data_schema()`: the fields of the first record of the
            training data, in the form of `data_schema_json`.
        class_columns_json: If columns of the training data hold class numbers and name the classes:
            column -> list of the names, in the order of the numbers, as JSON; see
            `data/class_names.py`. Otherwise empty.
        data_fingerprint_json: Fingerprint of the training data, as JSON, by which an evaluation
            recognizes the data; see `engines/data_changes.py`. Empty if unknown.
        exports: Names of the files and folders for serving, such as `saved_model`, in the folder of
            the trained model; filled in by `save_trained_model`.
        params_filename: Name of the file with the tensors; filled in by `save_trained_model`.
        params_sha256: SHA-256 of the tensors' file; filled in by `save_trained_model`.
        format_version: Format version of the folder; filled in by `save_trained_model`.
    """

    model_def: str
    model_def_params: str = ""
    input_function: str = ""
    loss: str = ""
    optimizer: str = ""
    docker_commit_id: str = ""
    dialect: str = ""
    model_zoo: str = ""
    zoo_commit: str = ""
    framework: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    data_schema_json: str = ""
    job_id: str = ""
    job_json: str = ""
    created_unix_s: float = 0.0
    overrides: Mapping[str, str] = field(default_factory=dict)
    metrics: MetricValues = field(default_factory=dict)
    step: int = 0
    classes: Sequence[str] = ()
    record_fields_json: str = ""
    data_fingerprint_json: str = ""
    class_columns_json: str = ""
    exports: Sequence[str] = ()
    params_filename: str = PARAMS_FILE
    params_sha256: str = ""
    format_version: int = FORMAT_VERSION


class TrainedModel:
    """A saved model; its description is in memory, its tensors are read on first use.

    Attributes:
        folder: The folder that contains the model.
        description: The stored description of the model.
    """

    def __init__(self, folder: OutputFolder, description: Description) -> None:
        self.folder = folder
        self.description = description

    def __repr__(self) -> str:
        return f"TrainedModel({self.folder.uri!r}, {self.description.model_def!r})"

    @cached_property
    def params(self) -> Mapping[str, np.ndarray[Any, Any]]:
        """Path -> tensor, read and checked at first use.

        Raises:
            OutputError: The file is missing or damaged, or differs from the one that was saved.
        """
        name = self.description.params_filename
        _refuse_way_out(self.folder, name)
        data = self.folder.read_bytes(name)
        found = hashlib.sha256(data).hexdigest()
        if found != self.description.params_sha256:
            raise OutputError(
                f"{self.folder.where(name)}: damaged: expected SHA-256 "
                f"{self.description.params_sha256:.12}..., found {found:.12}... in {len(data)} "
                "bytes. Copy the folder again, or run the training again: it resumes from its last "
                "checkpoint."
            )
        return read_tensors(data, self.folder.where(name))

    @cached_property
    def zoo(self) -> Path:
        """Local folder with the user's code; the code of a remote model is downloaded once.

        Raises:
            OutputError: There is no code, or it cannot be downloaded.
        """
        return self._on_this_machine(ZOO_FOLDER)

    def exported(self, name: str) -> Path:
        """Return the local path of an export: a file or folder for serving, such as `saved_model`.

        If the model is not on this machine, the export is downloaded once.

        Args:
            name: One of `description.exports`.

        Raises:
            OutputError: There is no such export, or it cannot be downloaded.
        """
        if name not in self.description.exports:
            raise OutputError(
                f"{self.folder.uri}: contains no {name}; it has "
                f"{', '.join(self.description.exports) or 'nothing for serving'}."
            )
        return self._on_this_machine(name)

    def _on_this_machine(self, name: str) -> Path:
        path = self.folder.local_path(name)
        if path is None:
            path = self._downloads / name
            if not path.exists():
                self.folder.fetch(name, path)
        elif not path.exists():
            raise OutputError(f"{path}: is missing from the trained model. Copy the folder again.")
        return path

    @cached_property
    def _downloads(self) -> Path:
        path = tempfile.mkdtemp(prefix="model-", dir=scratch.folder())
        # Kept as long as this object: code in this folder is imported while the model is used.
        weakref.finalize(self, shutil.rmtree, path, ignore_errors=True)
        return Path(path)


def save_trained_model(
    folder: OutputFolder,
    description: Description,
    params: Mapping[str, np.ndarray[Any, Any]],
    *,
    copy_zoo: Callable[[Path], None] | None = None,
    export: Callable[[Path], None] | None = None,
) -> TrainedModel:
    """Write a trained model into a folder, replacing an existing one.

    Args:
        folder: The job's output.
        description: Description of the model; the fields about files are filled in here.
        params: Path -> tensor.
        copy_zoo: Function (empty folder): copies the user's code into it. None: store no code.
        export: Function (empty folder): writes files and folders for serving into it, which are
            then stored under the same names in `folder`. None: store no exports.

    Returns:
        The model, as `load_trained_model` would return it.

    Raises:
        OutputError: The model cannot be written, or an export has a reserved name. Then there is
            no trained model; the checkpoints are unchanged.

    Example:
        >>> folder = OutputFolder("memory://doc-model")
        >>> saved = save_trained_model(folder, Description("mnist.model"), {"w": np.zeros(2)})
        >>> load_trained_model("memory://doc-model").params
        {'w': array([0., 0.])}
    """
    with folder.scratch() as scratch, output_errors(folder.where()):
        exports = _prepare(scratch, params, copy_zoo, export)
        with (scratch / PARAMS_FILE).open("rb") as file:
            params_sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        stale = {ZOO_FOLDER, *_exports_of(folder)} - {path.name for path in scratch.iterdir()}
        # From here until the description is written there is no trained model.
        folder.delete(MODEL_FILE)
        for name in sorted(stale):
            folder.delete(name)
        for path in sorted(scratch.iterdir()):
            folder.publish(path, path.name)
    description = replace(
        description,
        created_unix_s=description.created_unix_s or time.time(),
        exports=tuple(exports),
        params_filename=PARAMS_FILE,
        params_sha256=params_sha256,
        format_version=FORMAT_VERSION,
    )
    folder.write_bytes(MODEL_FILE, _encode(description))
    return TrainedModel(folder, description)


def load_trained_model(uri: str | os.PathLike[str]) -> TrainedModel:
    """Open the trained model in a folder; its tensors are read on first use.

    Args:
        uri: The folder, as a local path or a URI.

    Raises:
        OutputError: There is no finished model, its file is damaged, or another version of
            elasticdl wrote it.
    """
    folder = OutputFolder(uri)
    if not folder.exists(MODEL_FILE):
        raise OutputError(_why_none(folder))
    return TrainedModel(folder, _decode(folder.read_bytes(MODEL_FILE), folder.where(MODEL_FILE)))


def _why_none(folder: OutputFolder) -> str:
    path = folder.local_path()
    if not folder.exists():
        return (
            f"{folder.uri}: there is no such folder{_near(path)} Pass the output of a finished run."
        )
    if path is not None and path.is_file():
        return f"{folder.uri} is a file. Pass its folder, the output of a finished run."
    if folder.exists("checkpoints"):
        return (
            f"{folder.uri}: its training is not finished, so it contains checkpoints but no "
            f"{MODEL_FILE}. Run the same `elasticdl train` again to resume."
        )
    return f"{folder.uri}: contains no {MODEL_FILE}. Pass the output of a finished run."


def _near(path: Path | None) -> str:
    """Return the end of a missing-folder error: a similarly named model, or a period.

    Args:
        path: The folder; None if it is not on this machine.
    """
    if path is None:
        return "."
    try:
        models = sorted(each.parent.name for each in path.parent.glob(f"*/{MODEL_FILE}"))
    except OSError:
        models = []
    # Names, because all paths in a folder are similar.
    near = nearest(path.name, models)
    return "." if near is None else f"; did you mean {str(path.with_name(near))!r}?"


def _prepare(
    scratch: Path,
    params: Mapping[str, np.ndarray[Any, Any]],
    copy_zoo: Callable[[Path], None] | None,
    export: Callable[[Path], None] | None,
) -> list[str]:
    """Write everything except `trained_model.pb` into a folder; return the names of the exports.

    Args:
        scratch: An empty folder on this machine.
        params: Path -> tensor.
        copy_zoo: Function (empty folder): copies the user's code into it. None: store no code.
        export: Function (empty folder): writes files and folders for serving into it. None: store
            no exports.

    Raises:
        OutputError: An export has a reserved name, or a tensor cannot be stored.
    """
    if export is not None:
        export(scratch)
    exports = sorted(path.name for path in scratch.iterdir())
    taken = sorted(_RESERVED.intersection(exports))
    if taken:
        raise OutputError(
            f"The export wrote {', '.join(taken)}, which is a reserved name in the output folder. "
            "Give the export another name, such as saved_model."
        )
    write_tensors(scratch / PARAMS_FILE, params)
    if copy_zoo is not None:
        (scratch / ZOO_FOLDER).mkdir()
        copy_zoo(scratch / ZOO_FOLDER)
    return exports


def _exports_of(folder: OutputFolder) -> Sequence[str]:
    """Return the names of the exports of the model in the folder, which is about to be replaced.

    The caller removes those that the new model lacks.
    """
    try:
        data = folder.read_bytes(MODEL_FILE)
        names = _decode(data, folder.where(MODEL_FILE)).exports
    except OutputError:
        # There is no model, or its description is unreadable: the exports are unknown.
        return ()
    return [name for name in names if "/" not in name and name not in _RESERVED]


def _refuse_way_out(folder: OutputFolder, name: str) -> None:
    """Raise `OutputError` if a file name leads, or is a link that leads, out of the folder.

    A model from elsewhere could otherwise name any file of this machine as its tensors.
    """
    path = folder.local_path(name)
    root = folder.local_path()
    if path is None or root is None or path.resolve().is_relative_to(root.resolve()):
        return
    raise OutputError(
        f"{folder.where(MODEL_FILE)}: names {name!r} as its tensors, which is outside the folder. "
        "Use the model only if you trust its origin, with its files in one folder."
    )


def _encode(description: Description) -> bytes:
    metrics = {name: _metric_value(value) for name, value in description.metrics.items()}
    plain = {f.name: getattr(description, f.name) for f in fields(description)}
    message = trained_model_pb2.TrainedModel(**{**plain, "metrics": metrics})
    body: bytes = message.SerializeToString(deterministic=True)
    return body + _seal(body)


def _metric_value(value: Any) -> Any:
    array = np.asarray(value, dtype=np.float64)
    return trained_model_pb2.MetricValue(values=array.ravel().tolist(), is_list=array.ndim > 0)


def _seal(body: bytes) -> bytes:
    """Return the hash of a serialized description, as a field to append to it.

    With this hash, `load_trained_model` detects a damaged description.
    """
    sha256 = hashlib.sha256(body).digest()
    return bytes(trained_model_pb2.TrainedModel(sha256=sha256).SerializeToString())


def _decode(data: bytes, where: str) -> Description:
    body = data[: -len(_seal(b""))]
    if data != body + _seal(body):
        raise OutputError(
            f"{where}: damaged, or not written by elasticdl: its {len(data)} bytes do not end with "
            "their hash. Copy the folder again, or run the training again: it resumes from its "
            "last checkpoint."
        )
    message = trained_model_pb2.TrainedModel.FromString(body)
    if message.format_version != FORMAT_VERSION:
        # There is no older format yet; the first one will be converted here.
        raise OutputError(
            f"{where}: has format version {message.format_version} and was written by elasticdl "
            f"{message.versions.get('elasticdl', 'of an unknown version')}; this version reads "
            f"{FORMAT_VERSION}. Use that version of elasticdl, or one newer than this."
        )
    values: dict[str, Any] = {f.name: getattr(message, f.name) for f in fields(Description)}
    return Description(
        **{
            **values,
            "versions": dict(message.versions),
            "overrides": dict(message.overrides),
            "classes": tuple(message.classes),
            "exports": tuple(message.exports),
            "metrics": {
                name: list(metric.values) if metric.is_list else metric.values[0]
                for name, metric in message.metrics.items()
            },
        }
    )
