"""A federation to start from: records dealt out to parties, and their configs.

    DIR/
      aggregator.yml
      party0.yml   party0/train.recordio   party0/test.recordio
      party1.yml   ...
      model/           a saved model, if it is one

Every record goes to one party, by a seeded split; a party's folder holds its own records and
nothing of the others, so that it can be taken to another machine (with `model/`).

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
from elasticdl.data.chosen import ChosenRecords
from elasticdl.data.sources import open_source
from elasticdl.engines.federated import splits
from elasticdl.errors import DataError, MissingExtraError, OutputTakenError, UsageError

if TYPE_CHECKING:
    from elasticdl.data.record_source import RecordSource
    from elasticdl.engines.federated.splits import Summary

SPLITS: Mapping[str, Callable[..., list[Any]]] = {
    "iid": splits.iid,
    "dirichlet": splits.dirichlet,
    "shards": splits.shards,
    "size": splits.by_size,
}
_LABELS = ("label", "labels", "y", "y_train", "target", "class")
_READ_AT_ONCE = 4096
MODEL_FOLDER = "model"
_THIS_MACHINE = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class Federation:
    """What was written.

    Attributes:
        aggregator: The aggregator's config.
        parties: The parties' configs.
        summary: Who has how many records of which label; None where parties have data already.
        data_dirs: The parties' folders, where they have data already.
    """

    aggregator: Path
    parties: Sequence[Path]
    summary: Summary | None = None
    data_dirs: Sequence[Path] = ()

    def remove(self) -> None:
        """Delete what was written, and nothing that was there before."""
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
) -> Federation:
    """Deal records out to parties, and write the configs of all.

    Args:
        folder: Made if it is not there.
        data: Records to deal out.
        validation_data: Records for the parties to evaluate on, dealt out evenly; None for none.
        num_parties: How many.
        split: A name of `SPLITS`.
        settings: What that split takes by name.
        label: The field that split goes by; None looks for it.
        seed: Decides who gets what.
        address: The `ip` and `port` by which parties reach the aggregator.
        aggregator: Sections of the aggregator's config beside `model`.
        model: Gives the section `model` of all configs in a folder; it may write to `model/`.

    Raises:
        UsageError: The split cannot be made so.
        DataError: There are no records, or they have no such label.
        OutputTakenError: There is a federation already.
    """
    _check_free(folder)
    source = open_source(data)
    labels = _labels_of(source, label, needed=split not in {"iid", "size"})
    parts = SPLITS[split](labels, num_parties, seed, **settings)
    tests: list[Any] = [None] * num_parties
    test_source = None
    if validation_data is not None:
        test_source = open_source(validation_data)
        tests = splits.iid(np.zeros(test_source.num_records), num_parties, seed)
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
    return Federation(path, parties, splits.summary(labels, parts))


def write_component_federation(
    folder: Path,
    *,
    data_dirs: Sequence[Path],
    address: Mapping[str, Any],
    aggregator: Mapping[str, Any],
    model: Mapping[str, Any],
) -> Federation:
    """Write the configs of parties that have data already, read by a session's components.

    Args:
        folder: Made if it is not there.
        data_dirs: The parties' folders; they stay where they are.
        address: The `ip` and `port` by which parties reach the aggregator.
        aggregator: Sections of the aggregator's config beside `model`.
        model: The section `model` of all configs.

    Raises:
        OutputTakenError: There is a federation already.
    """
    _check_free(folder)
    folder.mkdir(parents=True, exist_ok=True)
    parties = []
    for number, data_dir in enumerate(data_dirs):
        data = {"data_dir": os.path.relpath(data_dir, folder)}
        parties.append(_write_party(folder, f"party{number}", address, data, model))
    path = _write_aggregator(folder, address, {**aggregator, "model": model})
    return Federation(path, parties, data_dirs=data_dirs)


def _check_free(folder: Path) -> None:
    if (folder / "aggregator.yml").exists():
        raise OutputTakenError(
            f"There is a federation in {folder} already. Name another folder, or remove it."
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
    # Parties of other machines come in by any of this one's addresses.
    listens = address if address["ip"] in _THIS_MACHINE else {**address, "ip": "0.0.0.0"}  # noqa: S104 - asked for by --host
    path = folder / "aggregator.yml"
    config = {**sections, "connection": {"info": dict(listens)}}
    path.write_text(_AGGREGATOR + _as_yaml(config), encoding="utf-8")
    return path


_AGGREGATOR = """\
# The aggregator of a federation: it sees models and counts, never a record.
# All of it here:  elasticdl federated simulate {file}
# On machines of their own:  elasticdl federated aggregator {file}
""".replace("{file}", "aggregator.yml")
_PARTY = """\
# A party of a federation: the records named here stay here.
# Its metrics (loss, accuracy) may be told; privacy.metrics: false keeps them home as well.
"""


def _labels_of(source: RecordSource, label: str | None, *, needed: bool) -> Any:
    """Return one label a record; zeros where none is needed and none is found."""
    fields = list(source.read_records(0, 1, None)[0])
    wanted = _LABELS if label is None else (label,)
    name = next((each for each in wanted if each in fields), None)
    if name is None:
        if needed or label is not None:
            raise DataError(
                f"The records have no field {' or '.join(wanted)} to deal them out by; they have "
                f"{', '.join(fields)}. Name it: --label=NAME"
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
    chosen = ChosenRecords(source, numbers, path.parent.name)
    with recordio.Writer(str(path)) as writer:
        for start in range(0, chosen.num_records, _READ_AT_ONCE):
            stop = min(start + _READ_AT_ONCE, chosen.num_records)
            for record in chosen.read_bytes(start, stop):
                writer.write(record)


def _as_yaml(values: Mapping[str, Any]) -> str:
    try:
        import yaml  # noqa: PLC0415 - only here
    except ModuleNotFoundError as error:
        raise MissingExtraError("yaml", "federated", "Writing configs") from error
    text: str = yaml.safe_dump(dict(values), sort_keys=False)
    return text


def check_split(split: str) -> None:
    """Raise where there is no such split.

    Raises:
        UsageError: There is none.
    """
    if split not in SPLITS:
        raise UsageError(f"--split={split}: expected one of {', '.join(SPLITS)}.")
