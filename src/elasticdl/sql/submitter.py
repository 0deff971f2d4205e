"""Submitters: the Python programs that TRAIN, PREDICT and their like become.

A submitter is short, can be read (`--explain`) and runs as a process of its own: a training
needs frameworks that a shell or a server must not carry around, and it may be killed without
them. It finds the database in ELASTICDL_DATABASE, so that no password is in its text.

    elasticdl sql --run_submitter=FILE      runs one

Used by `execute.py`.
"""

from __future__ import annotations

import dataclasses
import pprint
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasticdl.sql.prediction import PredictRequest
    from elasticdl.sql.training import TrainRequest

    Request = TrainRequest | PredictRequest

_TEMPLATE = '''\
"""Submitter of this statement:

{statement}
"""

from elasticdl.sql.database import open_database
from elasticdl.sql.models import Models
from elasticdl.sql.{module} import {request_class}, {function}

request = {request_class}(
{fields}
)

with open_database() as database:  # its address is in $ELASTICDL_DATABASE
    {function}(request, database, Models({models!r}))
'''


def program_of(request: Request, statement: str, models: str) -> str:
    """Return the submitter of a request.

    Args:
        request: What is asked for.
        statement: The statement, for its reader.
        models: URI of the models' folder.
    """
    module = type(request).__module__.rpartition(".")[2]
    shown = "\n".join(f"    {line}" for line in statement.splitlines())
    return _TEMPLATE.format(
        # Within a docstring.
        statement=shown.replace("\\", "\\\\").replace('"""', '\\"\\"\\"'),
        module=module,
        request_class=type(request).__name__,
        function=FUNCTIONS[type(request).__name__],
        fields="\n".join(
            f"    {field.name}={_literal(getattr(request, field.name))},"
            for field in dataclasses.fields(request)
            if getattr(request, field.name) not in (None, {}, (), [])
        ),
        models=models,
    )


FUNCTIONS = {"TrainRequest": "train", "PredictRequest": "predict"}


def _literal(value: Any) -> str:
    return pprint.pformat(value, width=80, sort_dicts=False).replace("\n", "\n    ")
