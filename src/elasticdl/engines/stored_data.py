"""Files for in-memory data, which a job reads while it runs; see `data/in_memory.py`.

A training job stores the data in `in_memory_data/` of its output, where its workers and a resumed
run can read it, and removes it when the job is finished; its number of rows and its columns stay in
the output, for the error if other data is passed (`artifacts/in_memory_facts.py`). Evaluation and
prediction use a temporary folder.

Callers: `api.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl import scratch, zoo
from elasticdl.artifacts.claim import IN_MEMORY_FOLDER, JOB_FILE
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.in_memory_facts import FACTS_FILE, InMemoryFacts, add_facts, remove_facts
from elasticdl.artifacts.local_storage import output_errors
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.data.stored_file import filesystem, local_path
from elasticdl.data.wording import listed, shown
from elasticdl.engines.table_params import check_before_storing
from elasticdl.errors import (
    DataError,
    ElasticDLError,
    OutputBusyError,
    OutputTakenError,
    UsageError,
    UserCodeError,
)
from elasticdl.job import Job

if TYPE_CHECKING:
    from elasticdl.engines.engine import Reporter

# Prefix of the names of temporary folders for in-memory data.
ASIDE = "data-"
# Characters of paths and patterns, which texts rarely contain.
_OF_NAMES = frozenset("/\\*[]")
_FEWEST_WORDS = 3


def file_names(data: Any) -> str | None:
    """Return the names of data files, joined by commas; None if the data is in memory.

    Args:
        data: The data that the user passed: names of files, or an object such as a DataFrame.

    Raises:
        UsageError: A list contains sentences instead of file names.
    """
    names = _names_in(data)
    if names and not isinstance(data, (str, Path)):
        text = next(filter(_is_sentence, names), None)
        if text is not None:
            raise UsageError(
                "A list of strings is read as names of data files, but there is no file "
                f"{shown(text)}. To pass texts, give them a name in a dict: "
                'data={"text": texts}, or data={"text": texts, "label": labels}.'
            )
    return ",".join(names) if names else None


def _names_in(data: Any) -> list[str]:
    """Return the names of files in a name or a list of names; empty if anything else is in it."""
    if isinstance(data, (str, Path)):
        return [str(data)]
    found = [_names_in(each) for each in data] if isinstance(data, (list, tuple)) else []
    return [name for names in found for name in names] if all(found) else []


def _is_sentence(value: str) -> bool:
    """Return whether a text has several words and is probably not the name of a file."""
    if len(value.split()) < _FEWEST_WORDS or set(value) & _OF_NAMES:
        return False
    # "my data.csv" has a suffix, "Bad. Really bad." has none.
    _, dot, suffix = value.strip().rpartition(".")
    return not (dot and suffix.isalnum()) and not os.path.exists(value)  # noqa: PTH110 - long names


def is_stored(location: str) -> bool:
    """Return whether a location is a file that `stored` wrote for data in memory."""
    folder = Path(location).parent
    aside = folder.name.startswith(ASIDE) and folder.parent == scratch.folder()
    return aside or folder.name == IN_MEMORY_FOLDER


def shown_data(location: str) -> str:
    """Return the location of data as the user knows it; data in memory has none."""
    return "data in memory" if is_stored(location) else location


def not_for_own_code() -> UsageError:
    """Return the error for data in memory if the model reads its data with its own code."""
    return UsageError(
        "data is in memory, but this model reads its data with its own code, such as a "
        "DataLoader, and would not see it. Pass the names of files that this code reads "
        '(data="built-in", or any other name, if it needs no file), or train a model with an '
        "input_fn(records)."
    )


def _check_model(job: Job) -> None:
    """Check, before data is stored, that the model exists and takes data from ElasticDL.

    A model whose own code reads files, such as with a DataLoader, would ignore the stored data.

    Only what is known without importing the model's code is checked.

    Raises:
        UsageError: There is no such model, or its file has a `train_dataloader`.
        OutputError: There is no trained model.
    """
    model = job.model
    if job.trained_model is not None:
        trained = load_trained_model(job.trained_model)
        by = Job.from_json(trained.description.job_json).model
        if by is None or trained.folder.local_path() is None:
            return
        model = dataclasses.replace(by, zoo=str(trained.zoo))
    if model is not None and zoo.reads_own_data(model):
        raise not_for_own_code()


def _check_validation(job: Job, data: Mapping[str, Any]) -> None:
    """Check, before data is stored, that the validation metrics would be meaningful.

    Raises:
        UsageError: There is a `validation_split`, but the data repeats examples, so some would be
            in both training and validation. Or a class has different numbers in the training and
            the validation data.
    """
    from elasticdl.data.memory_elements import (  # noqa: PLC0415 - as in `stored`
        num_repetitions,
        repeated_by,
    )
    from elasticdl.data.memory_tables import class_names  # noqa: PLC0415

    times = num_repetitions(data.get("data"))
    if job.validation_split is not None and times > 1:
        raise UsageError(
            f"validation_split={job.validation_split:g}: data has each example {times} times, by "
            "repeat(), so the same examples would be in training and in validation. Remove "
            f"repeat(); to train on each example {times} times, set num_epochs={times}."
        )
    if job.validation_split is not None and (repeated := repeated_by(data.get("data"))):
        raise UsageError(
            f"validation_split={job.validation_split:g}: data has the same examples twice, by "
            f"{repeated}, so they would be in training and in validation. Keep each example only "
            "once, or give validation_data."
        )
    known, others = class_names(data.get("data")), class_names(data.get("validation_data"))
    for column in known.keys() & others.keys():
        for number, (name, other) in enumerate(zip(known[column], others[column], strict=False)):
            if name != other:
                raise UsageError(
                    f"validation_data: class {number} of the column {column!r} is {other!r}, but "
                    f"{name!r} in data, so its metrics would be wrong. Give both the same numbers: "
                    f"names = data.features[{column!r}].names; validation_data = validation_data."
                    "align_labels_with_mapping({name: i for i, name in enumerate(names)}, "
                    f"{column!r})"
                )


def _check_output(job: Job) -> None:
    """Check, before data is stored, that a training's local output is a folder or does not exist.

    Raises:
        OutputError: It, or a folder above it, is a file.
    """
    path = OutputFolder(str(job.output)).local_path() if job.command == "train" else None
    if path is not None:
        with output_errors(path), contextlib.suppress(FileNotFoundError, PermissionError):
            # Raises NotADirectoryError; a permission may be lacking to read, and not to write.
            os.scandir(path).close()


@contextlib.contextmanager
def stored(job: Job, data: Mapping[str, Any], reporter: Reporter) -> Iterator[Job]:
    """Context manager that writes in-memory data to files, for a job that runs in its block.

    The block receives a copy of the job, whose fields name these files; the job itself if `data` is
    empty.

    Args:
        job: The job; its fields that `data` lists are replaced.
        data: Field of the job (`data`, `validation_data`) -> data in memory.
        reporter: Reports progress.

    Raises:
        UsageError: The data has an unsupported type, or workers could not read the files.
        DataError: The data cannot be stored.
        OutputError: The output cannot be written.
    """
    if not data:
        yield job
        return
    from elasticdl.data.in_memory import (  # noqa: PLC0415 - imports pyarrow
        arrow_rows,
        check_kinds,
        column_types,
        named_in_errors,
        store,
    )

    check_kinds(data)
    trains = job.command == "train"
    if not trains and job.workers is not None and job.workers.ray_address is not None:
        raise UsageError(
            "data is in memory, but workers on other machines (ray_address) cannot read the "
            "temporary file for it. Write it to files that they can read, or leave out ray_address."
        )
    _check_model(job)
    _check_validation(job, data)
    _check_output(job)
    with tempfile.TemporaryDirectory(dir=scratch.folder(), prefix=ASIDE) as aside:
        folder = f"{job.output}/{IN_MEMORY_FOLDER}" if trains else aside
        names: dict[str, Any] = {}
        new: set[str] = set()
        facts: dict[str, InMemoryFacts] = {}
        for option, value in data.items():
            try:
                rows = arrow_rows(value)
                is_pair = isinstance(value, tuple) and not isinstance(value[-1], Mapping)
                check_before_storing(job, option, rows.schema.names, last_is_label=is_pair)
                reporter.started(f"Storing {option}", rows.num_rows or 0, "rows")
                names[option], is_new, num_rows = store(
                    rows, folder, Path(aside), lambda count: reporter.advanced(count, {})
                )
                facts[names[option]] = InMemoryFacts(num_rows, column_types(rows.schema))
                new |= {names[option]} if is_new else set()
                if trains and option == "data":
                    _note_batch_size(rows.batch_size, job, reporter)
            except (DataError, UsageError, UserCodeError) as error:
                _remove(new, trains=trains)
                if option == "data":
                    raise
                raise _about(option, error) from error
            finally:
                reporter.ended()
        added = _add_facts(job, facts)
        try:
            with (
                named_in_errors({uri: option for option, uri in names.items()}),
                _hidden_in_errors(data),
            ):
                yield dataclasses.replace(job, **names)
        except (OutputTakenError, OutputBusyError):
            # Older files belong to the job that owns this output.
            _remove_facts(job, added)
            _remove(new, trains=trains)
            raise
        except ElasticDLError:
            if trains and not OutputFolder(str(job.output)).exists(JOB_FILE):
                # The job has released its output, because it has no checkpoint to resume from.
                OutputFolder(str(job.output)).delete(FACTS_FILE)
                _remove(names.values(), trains=trains)
            raise
    _remove(names.values(), trains=trains)


def _about(option: str, error: ElasticDLError) -> ElasticDLError:
    """Return an error with the name of the option that it is about, in place of "data"."""
    kinds = (UsageError, UserCodeError, DataError)
    kind = next(each for each in kinds if isinstance(error, each))
    text = str(error)
    # "data is a Series" becomes "validation_data is a Series".
    return kind(f"{option} {text[5:]}" if text.startswith("data ") else f"{option}: {text}")


@contextlib.contextmanager
def _hidden_in_errors(data: Mapping[str, Any]) -> Iterator[None]:
    """Context manager that explains errors about columns that the format of a data set hides.

    Args:
        data: Field of the job -> data in memory.
    """
    from elasticdl.data.memory_tables import hidden_columns  # noqa: PLC0415 - as in `stored`

    try:
        yield
    except ElasticDLError as error:
        for option, value in data.items():
            named = [name for name in hidden_columns(value) if repr(name) in str(error)]
            if named:
                message, *rest = error.args
                columns = "column" if len(named) == 1 else "columns"
                hint = (
                    f"The format of {option} (with_format, set_format) hides its {columns} "
                    f"{listed(named)}. Pass {option}=DATASET.reset_format()."
                )
                error.args = (f"{message}\n  {hint}", *rest)
        raise


def _note_batch_size(given: int | None, job: Job, reporter: Reporter) -> None:
    """Notify the user if a data set's own batch size differs from `minibatch_size`.

    Args:
        given: Batch size of the data set; None if it has none.
        job: The training job.
        reporter: Shows the note to the user.
    """
    assert job.training is not None  # noqa: S101 - a training job
    used = job.training.minibatch_size
    if given is not None and given != used:
        reporter.note(
            f"The data's own batch size ({given}) is ignored: its examples are re-batched into "
            f"batches of {used}. For batches of {given}, set minibatch_size={given}."
        )


def _add_facts(job: Job, facts: Mapping[str, InMemoryFacts]) -> set[str]:
    """Record the number of rows and the columns of in-memory data in a training job's output.

    An error message uses them if the job is later resumed with other data.

    Returns:
        The URIs of the data files for which an entry was added, so that the caller can remove these
        entries if the job is refused; empty for another job than training.
    """
    return add_facts(OutputFolder(str(job.output)), facts) if job.command == "train" else set()


def _remove_facts(job: Job, uris: Collection[str]) -> None:
    if uris:
        remove_facts(OutputFolder(str(job.output)), uris)


def _remove(uris: Collection[str], *, trains: bool) -> None:
    if not trains:
        return
    for uri in set(uris):
        files, path = filesystem(uri)
        files.rm_file(path)
        if local_path(uri) is not None:
            # Another run's data may be in it.
            with contextlib.suppress(OSError):
                Path(path).parent.rmdir()
                # Empty if the job was refused.
                Path(path).parents[1].rmdir()
