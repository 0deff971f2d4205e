"""Creation of a new federation: distributes records to parties and writes all configs.

    DIR/
      aggregator.yml
      party0.yml   party0/train.recordio   party0/test.recordio
      party1.yml   ...
      model/           only if the model is a saved file

A seeded split assigns every record to one party. A party's folder holds only its own records, so
that it can be moved to another machine (with `model/`).

Callers: `elasticdl.federated`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data import recordio
from elasticdl.data.selected_records import SelectedRecords
from elasticdl.data.sources import open_source
from elasticdl.data.units import HasDecodedSize
from elasticdl.engines.federated.simulation import partition
from elasticdl.errors import DataError, MissingExtraError, OutputTakenError, UsageError

if TYPE_CHECKING:
    from elasticdl.data.record_source import RecordSource
    from elasticdl.engines.federated.simulation.partition import PartitionSummary

SPLITS: Mapping[str, Callable[..., list[Any]]] = {
    "iid": partition.iid,
    "dirichlet": partition.dirichlet,
    "shards": partition.shards,
    "size": partition.by_size,
}
_LABELS = ("label", "labels", "y", "y_train", "target", "class")
_READ_AT_ONCE = 4096
MODEL_FOLDER = "model"
_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class FederationFiles:
    """The files that were written for a federation.

    Attributes:
        aggregator: The aggregator's config.
        parties: The parties' configs.
        summary: Number of records per party and label; None if the parties already have data.
        data_dirs: Data folders of parties that already had data; otherwise empty.
    """

    aggregator: Path
    parties: Sequence[Path]
    summary: PartitionSummary | None = None
    data_dirs: Sequence[Path] = ()

    def remove(self) -> None:
        """Undo the creation of a federation whose new configs turn out to be invalid.

        Delete the configs, the records written for parties and the folder `model`. Folders of
        parties that already had data are kept.
        """
        for path in self.parties:
            if self.summary is not None:
                shutil.rmtree(path.with_suffix(""), ignore_errors=True)
            path.unlink(missing_ok=True)
        self.aggregator.unlink(missing_ok=True)
        shutil.rmtree(self.aggregator.parent / MODEL_FOLDER, ignore_errors=True)


def write_federation(
    folder: Path,
    *,
    data: str,
    validation_data: str | None,
    num_parties: int,
    split: str,
    settings: Mapping[str, Any],
    label: str | None,
    seed: int,
    address: Mapping[str, Any],
    aggregator: Mapping[str, Any],
    model: Callable[[Path], Mapping[str, Any]],
) -> FederationFiles:
    """Distribute records to parties, and write the configs of the aggregator and the parties.

    Args:
        folder: Created if it does not exist.
        data: Location of the records to distribute.
        validation_data: Location of records for the parties to evaluate on, which are distributed
            evenly at random; None means none.
        num_parties: Number of parties.
        split: How the records are distributed: a name in `SPLITS`.
        settings: Keyword arguments of the split's function, such as `alpha` of `dirichlet`.
        label: Name of the field by whose values the split distributes the records. None: use the
            first field with a usual name, such as `label` or `y`.
        seed: Seed of the split.
        address: The `ip` and `port` by which parties reach the aggregator.
        aggregator: Sections of the aggregator's config, except `model`.
        model: Function that is called with `folder` and returns the section `model` for all
            configs. It may write the files of a saved model to `folder / "model"`.

    Raises:
        UsageError: The split is not possible with these settings.
        DataError: There are no records, or they have no such label.
        OutputTakenError: The folder already has a federation.
    """
    _check_free(folder)
    source = _opened(data)
    labels = _labels_of(source, label, needed=split not in {"iid", "size"})
    parts = SPLITS[split](labels, num_parties, seed, **settings)
    tests: list[Any] = [None] * num_parties
    test_source = None
    if validation_data is not None:
        test_source = _opened(validation_data)
        tests = partition.iid(np.zeros(test_source.num_records), num_parties, seed)
    folder.mkdir(parents=True, exist_ok=True)
    section = model(folder)
    parties = []
    for number, (part, test) in enumerate(zip(parts, tests, strict=True)):
        name = f"party{number}"
        (folder / name).mkdir(exist_ok=True)
        _write(folder / name / "train.recordio", source, part)
        uris = {"uri": f"{name}/train.recordio"}
        if test_source is not None:
            _write(folder / name / "test.recordio", test_source, test)
            uris["validation_uri"] = f"{name}/test.recordio"
        parties.append(_write_party(folder, name, address, uris, section))
    path = _write_aggregator(folder, address, {**aggregator, "model": section})
    return FederationFiles(path, parties, partition.summary(labels, parts))


def write_component_federation(
    folder: Path,
    *,
    data_dirs: Sequence[Path],
    address: Mapping[str, Any],
    aggregator: Mapping[str, Any],
    model: Mapping[str, Any],
) -> FederationFiles:
    """Write configs for parties that already have their data, each in a folder of its own.

    The components of a training session read these folders.

    Args:
        folder: Created if it does not exist.
        data_dirs: The parties' data folders, one party for each. They are not copied.
        address: The `ip` and `port` by which parties reach the aggregator.
        aggregator: Sections of the aggregator's config, except `model`.
        model: The section `model` of all configs.

    Raises:
        OutputTakenError: The folder already has a federation.
    """
    _check_free(folder)
    folder.mkdir(parents=True, exist_ok=True)
    parties = []
    for number, data_dir in enumerate(data_dirs):
        data = {"data_dir": os.path.relpath(data_dir, folder)}
        parties.append(_write_party(folder, f"party{number}", address, data, model))
    path = _write_aggregator(folder, address, {**aggregator, "model": model})
    return FederationFiles(path, parties, data_dirs=data_dirs)


def _opened(data: str) -> RecordSource:
    """Open records to distribute to parties; a folder of images is rejected.

    Raises:
        DataError: The data are image files, or there are no records.
    """
    source = open_source(data)
    if isinstance(source, HasDecodedSize):
        raise DataError(
            f"{data} is a folder of images, which cannot be distributed to parties as it is. "
            "Convert it to records first (elasticdl data prepare), or write the configs by hand: "
            "the `data` of a party may name a folder of images."
        )
    return source


def _check_free(folder: Path) -> None:
    if (folder / "aggregator.yml").exists():
        raise OutputTakenError(
            f"{folder} already contains a federation. Choose another folder, or remove it."
        )


def _write_party(
    folder: Path,
    name: str,
    address: Mapping[str, Any],
    data: Mapping[str, Any],
    model: Mapping[str, Any],
) -> Path:
    config = {
        "connection": {"info": {"id": name}},
        "aggregator": dict(address),
        "data": dict(data),
        "model": model,
        "privacy": {"metrics": True},
    }
    path = folder / f"{name}.yml"
    path.write_text(_PARTY + _as_yaml(config), encoding="utf-8")
    return path


def _write_aggregator(
    folder: Path, address: Mapping[str, Any], sections: Mapping[str, Any]
) -> Path:
    # Parties on other machines may connect to any address of this machine.
    listens = address if address["ip"] in _THIS_MACHINE else {**address, "ip": "0.0.0.0"}  # noqa: S104 - requested with --host
    path = folder / "aggregator.yml"
    config = {**sections, "connection": {"info": dict(listens)}}
    path.write_text(_AGGREGATOR + _as_yaml(config), encoding="utf-8")
    return path


_AGGREGATOR = """\
# The aggregator of a federation: it receives models and counts, never records.
# On one machine:         elasticdl federated simulate {file}
# On separate machines:   elasticdl federated aggregator {file}
""".replace("{file}", "aggregator.yml")
_PARTY = """\
# A party of a federation: the records named here stay on its machine.
# Its metrics (loss, accuracy) are sent to the aggregator; privacy.metrics: false keeps them here.
"""


def _labels_of(source: RecordSource, label: str | None, *, needed: bool) -> Any:
    """Return one label per record, by which a split distributes the records.

    Args:
        source: The records.
        label: Name of the label's field. None: the first field with a usual name, such as `y`.
        needed: Whether the split depends on labels.

    Returns:
        An array of labels; zeros if there is no label field and none is needed.

    Raises:
        DataError: The records have no such field, although it is needed or was named.
    """
    fields = list(source.read_records(0, 1, None)[0])
    wanted = _LABELS if label is None else (label,)
    name = next((each for each in wanted if each in fields), None)
    if name is None:
        if needed or label is not None:
            raise DataError(
                f"The records have no field {' or '.join(wanted)} to split them by; they have "
                f"{', '.join(fields)}. Specify the label field: --label=NAME"
            )
        return np.zeros(source.num_records)
    found = [
        record[name].reshape(-1)[0]
        for start in range(0, source.num_records, _READ_AT_ONCE)
        for record in source.read_records(
            start, min(start + _READ_AT_ONCE, source.num_records), None
        )
    ]
    return np.array(found)


def _write(path: Path, source: RecordSource, numbers: Any) -> None:
    chosen = SelectedRecords(source, numbers, path.parent.name)
    with recordio.Writer(str(path)) as writer:
        for start in range(0, chosen.num_records, _READ_AT_ONCE):
            stop = min(start + _READ_AT_ONCE, chosen.num_records)
            for record in chosen.read_bytes(start, stop):
                writer.write(record)


def _as_yaml(values: Mapping[str, Any]) -> str:
    try:
        import yaml  # noqa: PLC0415 - an optional extra
    except ModuleNotFoundError as error:
        raise MissingExtraError("yaml", "federated", "Writing configs") from error
    text: str = yaml.safe_dump(dict(values), sort_keys=False)
    return text


def check_split(split: str) -> None:
    """Check the name of a split, which the user has given.

    Raises:
        UsageError: There is no such split.
    """
    if split not in SPLITS:
        raise UsageError(f"--split={split}: expected one of {', '.join(SPLITS)}.")
