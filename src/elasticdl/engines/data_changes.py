"""Data changes: compares data with the data that a checkpoint or a trained model was trained on.

Training resumes only on the same records, because a checkpoint's ledger refers to them by number,
and on the same validation data, because the best checkpoint is compared with earlier ones. A
checkpoint's metadata has the number of records and a content mark (a short fingerprint) of each
file; see `data/content_marks.py`. A trained model has a fingerprint made of these, because it may
be used without its checkpoints.

Callers: `training_context.py`, `run.py`, `inference.py`.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, Literal

from elasticdl.artifacts.claim import within_output
from elasticdl.data.content_marks import changed_marks, content_marks
from elasticdl.data.record_source import HasColumns
from elasticdl.data.split_source import whole
from elasticdl.data.stored_file import local_path
from elasticdl.data.wording import counted, listed
from elasticdl.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elasticdl.artifacts.checkpoint_store import Checkpoint
    from elasticdl.data.record_source import RecordSource
    from elasticdl.engines.engine import Reporter

_NUM_NAMED = 3


def data_metadata(files: Sequence[tuple[str, int]], source: RecordSource | None) -> dict[str, Any]:
    """Return the entries of a checkpoint's metadata by which changed data is recognized.

    These are the `files`, as passed, their `content_marks`, and the `columns` of the first file of
    a table, for messages.

    Args:
        files: URI and number of records of each file.
        source: The records in the files; None if there are none.
    """
    marks = content_marks([uri for uri, _ in files])
    columns: list[str] = []
    table: object = None if source is None else whole(source)
    if files and isinstance(table, HasColumns):
        columns += table.columns(0)
    return {"files": [list(file) for file in files], "content_marks": marks, "columns": columns}


def fingerprint(files: Sequence[Sequence[Any]], marks: Sequence[str]) -> dict[str, Any]:
    """Return a fingerprint of data: a copy of the same files in another folder has the same one.

    Args:
        files: URI and number of records of each file.
        marks: The `content_marks` of the files.
    """
    names = [[str(uri).rstrip("/").rpartition("/")[2], count] for uri, count in files]
    # The marks of remote files are versions, which a copy does not have.
    is_local = all(local_path(uri) is not None for uri, _ in files)
    return {
        "names_sha256": hashlib.sha256(json.dumps(names).encode()).hexdigest(),
        "content_marks": list(marks) if is_local else [],
    }


def compared(
    files: Sequence[Sequence[Any]], before: Mapping[str, Any]
) -> Literal["same", "renamed", "other"]:
    """Compare files with the data that a model was trained on.

    Args:
        files: URI and number of records of each file.
        before: `fingerprint` of the data that the model was trained on.

    Returns:
        "same" if file names and record counts are equal, and no content is known to differ: remote
        files have no marks to compare. "renamed" if only the names differ, and all contents are
        known to be equal. Otherwise "other".
    """
    uris = [uri for uri, _ in files]
    # Reading remote files would cost a request for each file.
    is_local = all(local_path(uri) is not None for uri in uris)
    now = fingerprint(files, content_marks(uris) if is_local else [])
    marks, marks_before = now["content_marks"], before["content_marks"]
    if now["names_sha256"] == before["names_sha256"]:
        return "other" if changed_marks(marks, marks_before) else "same"
    return "renamed" if marks and marks == marks_before and all(marks) else "other"


def check_unchanged(now: Mapping[str, Any], checkpoint: Checkpoint) -> None:
    """Raise an error if the data differs from the data that a checkpoint was trained on.

    Args:
        now: Result of `data_metadata` for the current data, with the additional key `counted`: the
            unit of the files' sizes, "records" or "batches".
        checkpoint: The checkpoint to resume from.

    Raises:
        DataError: Files were added or removed, or their contents changed.
    """
    if what := _difference(now, checkpoint.metadata, now["counted"]):
        raise DataError(
            f"The data differs from the data of the first {checkpoint.step:,} steps: {what}. To "
            "train on the changed data, use another --output."
        )


def check_validation_unchanged(now: Mapping[str, Any], checkpoint: Checkpoint) -> None:
    """Raise an error if the validation data differs from that of the run that is resumed.

    Args:
        now: Result of `data_metadata` for the current validation data.
        checkpoint: The checkpoint to resume from.

    Raises:
        DataError: Files were added or removed, or their contents changed.
    """
    if what := _difference(now, checkpoint.metadata["validation"], "records"):
        raise DataError(
            "The validation data differs from the validation data of the first "
            f"{checkpoint.step:,} steps: {what}. To validate on the changed data, use another "
            "--output."
        )


def _difference(now: Mapping[str, Any], before: Mapping[str, Any], unit: str) -> str:
    """Describe how the current data differs from that of a checkpoint; empty if it is the same.

    For example, `a.csv has 90 records instead of 100`, for an error message.

    Args:
        now: Result of `data_metadata` for the current data.
        before: Result of `data_metadata` for the checkpoint's data, from its metadata.
        unit: Unit of the files' sizes: "records" or "batches".
    """
    # Data in memory is stored in the output, which may have been moved.
    files, files_before = (
        [[within_output(uri), count] for uri, count in each["files"]] for each in (now, before)
    )
    if files == files_before:
        phrase = _changed_files_phrase(now["content_marks"], before)
        return f"{phrase} other contents{_changed_columns(now, before)}" if phrase else ""
    if unit == "batches" and len(files) == len(files_before) == 1:
        (_, num_now), (_, num_before) = files[0], files_before[0]
        return (
            "the model's own code determines the number of batches in an epoch, which is "
            f"{num_now:,} instead of {num_before:,} (another batch size, or other items)"
        )
    changed = changed_files(files, files_before)
    counts, counts_before = dict(files), dict(files_before)
    if len(changed) == 1 and (uri := changed[0]) in counts and uri in counts_before:
        num_now, num_before = counts[uri], counts_before[uri]
        return f"{uri} has {num_now:,} {unit} instead of {num_before:,}"
    verbs = ("was", "has another") if len(changed) == 1 else ("were", "have another")
    return (
        f"{counted(len(changed), 'file')} {verbs[0]} added or removed, or {verbs[1]} number of "
        f"{unit} ({', '.join(changed[:_NUM_NAMED])})"
    )


def _changed_columns(now: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Describe which columns a table gained or lost, such as " (columns added: 'p')"; or ""."""
    columns, columns_before = now["columns"], before.get("columns")
    if not columns or not columns_before:
        return ""
    added = [name for name in columns if name not in columns_before]
    removed = [name for name in columns_before if name not in columns]
    phrases = [
        f"{verb}: {listed(names[:_NUM_NAMED])}{', ...' * (len(names) > _NUM_NAMED)}"
        for verb, names in (("added", added), ("removed", removed))
        if names
    ]
    return f" (columns {'; '.join(phrases)})" if phrases else ""


def note_changed_data(checkpoint: Checkpoint, reporter: Reporter) -> None:
    """Notify the user of an already completed job if its files have changed since the training.

    Only local files are compared.

    Args:
        checkpoint: The job's last checkpoint, with the description of its data.
        reporter: Shows the note.
    """
    if phrase := _changed_local_files_phrase(checkpoint.metadata):
        reporter.note(
            f"{phrase} changed since then: the model was trained on the old contents. To train "
            "on the new ones, use another --output."
        )
    validation = checkpoint.metadata["validation"]
    if validation is not None and (phrase := _changed_local_files_phrase(validation)):
        reporter.note(
            f"{phrase} changed since then: the model was validated on the old contents. To "
            "validate on the new ones, use another --output."
        )


def changed_files(now: Sequence[Sequence[Any]], before: Sequence[Sequence[Any]]) -> list[str]:
    """Return the names of files that differ: added or changed ones first, then removed ones.

    Args:
        now: URI and number of records of each file.
        before: URI and number of records of each file in a checkpoint's metadata.
    """
    known, there = {(uri, n) for uri, n in before}, {uri for uri, _ in now}
    return [uri for uri, n in now if (uri, n) not in known] + [
        uri for uri, _ in before if uri not in there
    ]


def _changed_local_files_phrase(before: Mapping[str, Any]) -> str:
    """Return a phrase that names the files with changed contents, such as `a.csv and b.csv have`.

    It is empty if nothing has changed, or if files are remote: comparing them would cost a request
    for each file.

    Args:
        before: `data_metadata` of the files at an earlier time.
    """
    uris = [uri for uri, _ in before["files"]]
    if any(local_path(uri) is None for uri in uris):
        return ""
    return _changed_files_phrase(content_marks(uris), before)


def _changed_files_phrase(marks: Sequence[str], before: Mapping[str, Any]) -> str:
    """Return a phrase that begins a message on changed files, such as `a.csv and b.csv have`.

    The result is empty if no content has changed.

    Args:
        marks: The current content marks of the data's files.
        before: Earlier `data_metadata`, with the marks and the files' names.
    """
    changed = changed_marks(marks, before["content_marks"])
    if not changed:
        return ""
    if len(marks) < len(before["files"]):
        return f"some of {counted(len(before['files']), 'file')} have"
    names = [before["files"][i][0] for i in changed]
    if len(names) > _NUM_NAMED:
        return f"{', '.join(names[:_NUM_NAMED])} and {len(names) - _NUM_NAMED} more have"
    return f"{' and '.join(names)} {'has' if len(names) == 1 else 'have'}"
