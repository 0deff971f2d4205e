"""EXPLAIN: permutation importance of each column of a query for a trained model.

The importance is how much the loss grows when the values of one column are shuffled among the rows,
which removes their information (Breiman, 2001, https://doi.org/10.1023/A:1010933404324,
section 10). Rows without a label are skipped.

Used by the programs that `submitter.py` generates.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from elasticdl import job_options
from elasticdl.definition import Mode
from elasticdl.engines import inference, progress_bar
from elasticdl.engines.record_data import open_records
from elasticdl.evaluation.phase import running_states
from elasticdl.scratch import TemporaryFolder
from elasticdl.sql.evaluation import check_into, read_rows, store_result
from elasticdl.sql.settings import for_rows

if TYPE_CHECKING:
    from elasticdl.engines.engine import Reporter
    from elasticdl.sql.database_interface import Database
    from elasticdl.sql.models import Models
    from elasticdl.sql.names import Name

MAX_EXPLAINED_ROWS = 10_000
REPEATS = 5
_SEED = 0
# Result columns.
IMPORTANCES = ("column", "importance", "deviation")


@dataclass(frozen=True)
class ExplainRequest:
    """An EXPLAIN statement that has passed all checks; the arguments of `explain`.

    Attributes:
        select: The query; at most `num_rows` of its rows are used.
        model: Name of the trained model.
        into: The table for the importances. None: only display them.
        num_rows: Maximum number of rows, taken from the start of the result.
        repeats: How many times each column is shuffled.
        statement: The statement's text, for errors.
        begins_at: Line and column of the statement in its program.
    """

    select: str
    model: str
    into: Name | None = None
    num_rows: int = MAX_EXPLAINED_ROWS
    repeats: int = REPEATS
    statement: str = ""
    begins_at: tuple[int, int] = (1, 1)


def explain(
    request: ExplainRequest,
    database: Database,
    models: Models,
    reporter: Reporter | None = None,
) -> pa.Table:
    """Compute the permutation importance of each column for a model's loss.

    The result is also appended to the table of the INTO clause, if there is one.

    Args:
        request: The request.
        database: Database of the rows and of the INTO table.
        models: The trained models.
        reporter: Receives the progress. None: write it to standard error.

    Returns:
        A table with the columns `column`, `importance` and `deviation`. The importance is the mean
        increase of the loss over all repeats, the deviation its standard deviation. The most
        important column comes first.

    Raises:
        ElasticDLError: The explanation failed, for any reason.
    """
    reporter = progress_bar.for_stream() if reporter is None else reporter
    version = models.current(request.model)
    label = version.record.label
    kept = check_into(request.into, IMPORTANCES, database)
    with TemporaryFolder() as folder:
        stored = read_rows(
            request,
            database,
            folder,
            version.record,
            None,
            request.num_rows,
            note=reporter.note,
        )
        data = stored.training
        table = pq.read_table(data)
        options = for_rows({}, stored.num_training)
        losses = _Losses(
            job_options.evaluation_job(trained_model=version.uri, data=data, **options)
        )
        columns = [name for name in table.column_names if name != label]
        columns = losses.used(columns)
        plain = losses.of(data)
        random = np.random.default_rng(_SEED)
        found: list[tuple[str, float, float]] = []
        reporter.started("Explaining", len(columns), "columns")
        try:
            for done, name in enumerate(columns, 1):
                changes = []
                for _ in range(request.repeats):
                    shuffled = table.column(name).take(random.permutation(table.num_rows))
                    at = table.column_names.index(name)
                    path = str(folder / "shuffled.parquet")
                    pq.write_table(table.set_column(at, table.schema.field(at), shuffled), path)
                    changes.append(losses.of(path) - plain)
                found.append((name, float(np.mean(changes)), float(np.std(changes))))
                reporter.advanced(done, {})
        finally:
            reporter.ended()
    found.sort(key=lambda each: -each[1])
    names, importances, deviations = zip(*found, strict=True)
    result = pa.table(
        {
            "column": pa.array(names, pa.string()),
            "importance": pa.array(importances, pa.float64()),
            "deviation": pa.array(deviations, pa.float64()),
        }
    )
    store_result(result, request.into, kept, version, database)
    return result


class _Losses:
    """The loss of a trained model on different rows; the model is loaded only once.

    Args:
        job: An evaluation job, whose model and options are used for all sets of rows.
    """

    def __init__(self, job: Any) -> None:
        self._opened = inference.open_trained(job, Mode.EVALUATION)
        with self._opened.feed() as feed:
            first = feed.peek()
            if first is None:
                raise self._opened.no_example()
            self._trainer = self._opened.restored_trainer(first[1])

    def used(self, names: list[str]) -> list[str]:
        """Return those columns of `names` that the model reads; shuffling others has no effect."""
        schema = getattr(self._opened.definition.input, "schema", None)
        return names if schema is None else [name for name in names if name in schema.names]

    def of(self, data: str) -> float:
        """Return the mean loss of the model on the records of `data`, a path as in `--data`."""
        source = open_records(self._opened.definition, data)
        opened = dataclasses.replace(self._opened, source=source)
        states: Any = {}
        with opened.feed() as feed:
            for _, states in running_states(self._trainer, inference.drain(feed)):  # noqa: B007
                pass
        loss: Any = self._trainer.evaluation_metrics.results(states)["loss"]
        return float(loss)
