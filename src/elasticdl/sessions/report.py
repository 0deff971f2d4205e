"""Evaluation reports: results of a session's model for each validation and test example.

    reports/validation.parquet  .html   validation_report.csv  validation_report_summary.csv
    reports/test.parquet        .html   eval_report.csv        eval_report_summary.csv

The data are read once, by the user's code, which generates, preprocesses and batches them. This
module splits these batches into examples, assigns their ids, and groups examples of equal shapes
into new batches for the model. `evaluation/` computes the values in each example's row of a report.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.artifacts.folder import OutputFolder
from elasticdl.data.batch import leaves, map_arrays, stack
from elasticdl.dialects.params import described
from elasticdl.engines.randomness import Stream
from elasticdl.errors import DataError, DefinitionError
from elasticdl.evaluation.functions import EvalFunctions
from elasticdl.evaluation.report_page import write_page
from elasticdl.evaluation.report_tables import Report
from elasticdl.evaluation.report_views import write_views
from elasticdl.evaluation.report_writer import ReportResult, ReportWriter

if TYPE_CHECKING:
    from elasticdl.data.batch import Arrays
    from elasticdl.dialects.abstractions import Components, Split
    from elasticdl.engines.engine import Reporter
    from elasticdl.sessions.project import SessionProject
    from elasticdl.sessions.trained import TrainedSession

REPORTS = "reports"
_MANIFEST = "reports.json"
# Split -> name of its table in the documents of sessions.
_TABLES = {"validation": "validation_report", "test": "eval_report"}
_BATCH = 256
_SEED = 4
_PARTS = 3
_NUM_PICTURES = 24
_PICTURES_S = 30.0


@dataclass(frozen=True, eq=False)
class Examples:
    """Some examples of a split, stacked as one batch for the model.

    Attributes:
        ids: Ids of the examples.
        features: Input of the model.
        labels: Labels for the evaluation functions.
        weights: Sample weights, one per example; None if there are none.
    """

    ids: Sequence[Any]
    features: Arrays
    labels: Arrays
    weights: Any


def reported(session: SessionProject) -> dict[str, Any] | None:
    """Return the summary of a session's reports; None if there are none."""
    file = session.folder / REPORTS / _MANIFEST
    if not file.is_file():
        return None
    found: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return found


def report(trained: TrainedSession, reporter: Reporter) -> dict[str, Any]:
    """Evaluate each example of the validation and test data.

    Args:
        trained: The model, with the components it was trained with.
        reporter: Reports progress to the user.

    Returns:
        The summary of the reports: the mean of each function on each split.

    Raises:
        DataError: A split has fewer examples than declared, or its ids do not match its examples.
        UserCodeError: A component or a function raised.
        OutputError: A report cannot be written.
    """
    folder = OutputFolder(trained.session.folder / REPORTS)
    splits = {}
    for name in _TABLES:
        result = _report_split(trained, name, folder, reporter)
        splits[name] = {
            "num_examples": result.num_rows,
            "means": dict(result.means),
            "reading": result.reading,
            "notes": list(result.notes),
        }
        for note in result.notes:
            reporter.note(f"{name}: {note}")
    manifest = {"params_sha256": trained.model.description.params_sha256, "splits": splits}
    folder.write_bytes(_MANIFEST, json.dumps(manifest, indent=2).encode())
    return manifest


def _report_split(
    trained: TrainedSession, name: str, folder: OutputFolder, reporter: Reporter
) -> ReportResult:
    components, session = trained.components, trained.session
    functions = EvalFunctions(components.eval_functions())
    split, ids = open_split(components, session.data, name)
    reporter.started(f"Evaluating {name} data", split.num_examples, "examples")
    done = 0
    try:
        with ReportWriter(folder, name=name, split=name, functions=functions) as writer:
            for some in batches(split, name, ids, reporter):
                writer.add(
                    ids=some.ids,
                    labels=some.labels,
                    outputs=trained.trainer.predict(some.features),
                    weights=some.weights,
                )
                done += len(some.ids)
                reporter.advanced(done, {})
    finally:
        reporter.ended()
    for note in split.notes:
        reporter.note(f"{name}: {note}")
    table = Report(writer.result.path)
    names = table.fitting_names(trained.model.description.classes)
    views = write_views(table, folder, name=_TABLES[name], class_names=names)
    for note in views.notes:
        reporter.note(note)
    write_page(
        table,
        folder,
        name=name,
        title=f"{session.name}: {name} data",
        picture_of=_pictures(table, split),
        class_names=names,
        num_worst=_NUM_PICTURES,
    )
    return writer.result


def open_split(components: Components, data: str, name: str) -> tuple[Split, Sequence[Any] | None]:
    """Return a split, and the ids of its examples if the data loader lists them separately.

    A data loader may list the ids of validation data; test examples contain their ids themselves.

    Args:
        components: The session's components.
        data: Data folder.
        name: `validation` or `test`.

    Raises:
        DataError: There are more or fewer ids than examples.
        UserCodeError: A component raised.
    """
    split = components.split(data, name)
    ids = components.validation_ids(data) if name == "validation" else None
    if ids is not None and len(ids) != split.num_examples:
        raise DataError(
            f"get_validation_index() has {len(ids)} ids, but {split.name} declares "
            f"{split.num_examples} examples. Both must have the same number and order."
        )
    return split, ids


def batches(
    split: Split, name: str, ids: Sequence[Any] | None, reporter: Reporter
) -> Iterator[Examples]:
    """Yield a split's examples, batched.

    Args:
        split: The split.
        name: `validation` or `test`.
        ids: Ids of validation examples. None: number them from 0. Ignored for test data, whose
            examples contain their ids.
        reporter: Receives a note if there are more examples than declared.

    Raises:
        DataError: There are fewer examples than declared.
        DefinitionError: An example or its id is not as required.
    """
    examples = Stream(_SEED).drawn(lambda: _examples(split, name))
    number = 0
    for some in _of_one_shape(itertools.islice(examples, split.num_examples)):
        first, number = number, number + len(some)
        thirds = [third for _, _, third in some]
        if name == "test":
            called: Sequence[Any] = [_id_of(third, split) for third in thirds]
        else:
            called = range(first, number) if ids is None else ids[first:number]
        yield Examples(
            ids=called,
            features=_stacked([x for x, _, _ in some], split),
            labels=_stacked([y for _, y, _ in some], split),
            weights=None if name == "test" else _weights(thirds),
        )
    if number < split.num_examples:
        raise DataError(
            f"{split.name} ended after {number} examples, but was declared to have "
            f"{split.num_examples}. Correct the number it returns."
        )
    # Validation data may be endless, because training reads them again and again.
    if name == "test" and next(examples, None) is not None:
        reporter.note(
            f"{split.name} yields more than the {split.num_examples} examples it declares; only "
            "those were evaluated."
        )


def _examples(split: Split, name: str) -> Iterator[tuple[Any, Any, Any]]:
    """Yield a split's examples one by one, as tuples of three.

    Args:
        split: The split.
        name: `test` for tuples `(x, y, id)`; `validation` for `(x, y, sample weight)`, with None as
            the weight if the user's code yields none.

    Raises:
        DefinitionError: An example is not such a tuple.
    """
    for example in split.preprocessed():
        # As in training, each example without a weight counts once.
        has_none = name == "validation" and len(example) == _PARTS - 1
        parts = (*example, None) if has_none else example
        if len(parts) != _PARTS:
            raise DefinitionError(
                f"{split.name} yields {described(example)} after preprocessing; expected tuples of "
                "three: x, y, and the id."
            )
        yield parts


def _of_one_shape(examples: Iterator[Any]) -> Iterator[list[Any]]:
    """Group successive examples of equal shapes into lists, each of which can become a batch.

    Shapes can differ between examples, because user code may pad each batch to another length.
    """
    shapes = None
    some: list[Any] = []
    for example in examples:
        found = [np.shape(array) for array in leaves(example[:2])]
        if some and (len(some) == _BATCH or found != shapes):
            yield some
            some = []
        shapes = found
        some.append(example)
    if some:
        yield some


def _stacked(examples: Sequence[Any], split: Split) -> Any:
    try:
        arrays = [map_arrays(np.asarray, example) for example in examples]
        # For a single example, this is a view with a new first axis, which is equivalent.
        return stack(arrays)
    except ValueError as error:
        raise DataError(
            f"{split.name}: examples cannot be combined into one batch after preprocessing "
            f"({error}). Give all of them the same shape, or override add_preprocess() to make "
            "your own batches."
        ) from error


def _id_of(third: Any, split: Split) -> Any:
    found = (
        third.item() if isinstance(third, (np.ndarray, np.generic)) and third.ndim == 0 else third
    )
    if isinstance(found, (str, bytes, int, float)):
        return found
    raise DefinitionError(
        f"{split.name}: the third part of an example is {described(found)}; expected its id, a "
        "string or a number."
    )


def _weights(thirds: Sequence[Any]) -> Any:
    if any(third is None for third in thirds):
        return None
    weights = np.asarray(thirds, dtype=np.float64)
    return weights if weights.ndim == 1 else None


def _pictures(table: Report, split: Split) -> Callable[[int, str], Any]:
    """Return a function that looks up the unprocessed x of an example, to show it as a picture.

    A report shows pictures of the worst examples of each metric. The function's first call reads
    the split once more, up to the last of these examples or to a time limit, and keeps their x.

    Args:
        table: The report, whose metrics determine the worst examples.
        split: The split that was evaluated.

    Returns:
        A function (row, id of the example) -> unprocessed x of this row; None if x is not an array,
        or the row was not read.
    """
    found: dict[int, Any] = {}
    asked = False

    def collect() -> Mapping[int, Any]:
        wanted = {row for metric in table.metrics for row in table.worst(metric, _NUM_PICTURES)}
        end = time.monotonic() + _PICTURES_S
        examples = Stream(_SEED).drawn(split.raw)
        for row, element in zip(range(max(wanted, default=-1) + 1), examples, strict=False):
            if row in wanted:
                found[row] = element[0]
            if time.monotonic() > end:
                break
        return found

    def picture_of(row: int, data_id: str) -> Any:
        nonlocal asked
        del data_id
        if not asked:
            asked = True
            collect()
        raw = found.get(row)
        return raw if isinstance(raw, np.ndarray) else None

    return picture_of
