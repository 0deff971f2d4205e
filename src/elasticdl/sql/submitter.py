"""Submitters: the Python programs generated for TRAIN, PREDICT and similar statements.

A submitter is a short program that users can read (`--explain`). It runs as its own process.
So the shell, notebook or server that starts it need not load a training framework, and continues if
the submitter is killed. A submitter reads the database's address from ELASTICDL_DATABASE, so
that its source contains no password, and writes its result, a table, to the file named by
ELASTICDL_RESULT.

    elasticdl sql --run_submitter=FILE      runs one

Used by `execute.py`.
"""

from __future__ import annotations

import dataclasses
import importlib
import os
import pprint
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyarrow import feather

if TYPE_CHECKING:
    from pathlib import Path

    from elasticdl.sql.database_interface import Database
    from elasticdl.sql.evaluation import EvaluateRequest
    from elasticdl.sql.explanation import ExplainRequest
    from elasticdl.sql.models import Models
    from elasticdl.sql.prediction import PredictRequest
    from elasticdl.sql.training import TrainRequest

    Request = TrainRequest | PredictRequest | EvaluateRequest | ExplainRequest

RESULT = "ELASTICDL_RESULT"
_FUNCTIONS = {
    "TrainRequest": "train",
    "PredictRequest": "predict",
    "EvaluateRequest": "evaluate",
    "ExplainRequest": "explain",
}

_TEMPLATE = '''\
"""Submitter of this statement:

{statement}
"""

from elasticdl.sql.database_interface import open_database
from elasticdl.sql.models import Models
from elasticdl.sql.submitter import hand_over
from elasticdl.sql.{module} import {request_class}, {function}

request = {request_class}(
{fields}
)

with open_database() as database:  # its address is in $ELASTICDL_DATABASE
    hand_over({function}(request, database, Models({models!r})))
'''


def program_of(request: Request, statement: str, models: str) -> str:
    """Generate the Python source of the submitter that runs a request.

    Args:
        request: The request.
        statement: The statement's text, shown at the top of the program.
        models: URI of the models' folder.
    """
    module = type(request).__module__.rpartition(".")[2]
    shown = "\n".join(f"    {line}" for line in statement.splitlines())
    return _TEMPLATE.format(
        # The statement is part of a docstring.
        statement=shown.replace("\\", "\\\\").replace('"""', '\\"\\"\\"'),
        module=module,
        request_class=type(request).__name__,
        function=_FUNCTIONS[type(request).__name__],
        fields="\n".join(
            f"    {field.name}={_literal(getattr(request, field.name))},"
            for field in dataclasses.fields(request)
            if getattr(request, field.name) not in (None, {}, (), [])
        ),
        models=models,
    )


def _literal(value: Any) -> str:
    return pprint.pformat(value, width=80, sort_dicts=False).replace("\n", "\n    ")


def hand_over(result: pa.Table) -> None:
    """Deliver a statement's result; this is the last step of a submitter.

    The result is written to the file named by ELASTICDL_RESULT, for the process that started the
    submitter. If the variable is not set, because a user started the submitter, it is printed.
    """
    path = os.environ.get(RESULT)
    if path is None:
        print(result.to_string(preview_cols=0))  # noqa: T201 - started by hand
        return
    feather.write_feather(result, path, compression="uncompressed")


def take_over(path: Path) -> pa.Table:
    """Read the result that a submitter wrote with `hand_over`."""
    return feather.read_table(path, memory_map=False)


def run_here(request: Request, database: Database, models: Models) -> pa.Table:
    """Run a request in this process, without a submitter; return the result.

    This is for databases in memory, which no other process can open.
    """
    module = importlib.import_module(type(request).__module__)
    function = getattr(module, _FUNCTIONS[type(request).__name__])
    table: pa.Table = function(request, database, models)
    return table
