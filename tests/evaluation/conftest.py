"""A report to look at."""

from __future__ import annotations

import numpy as np
import pytest

from elasticdl.evaluation.functions import EvalFunctions
from elasticdl.evaluation.report_writer import ReportWriter


@pytest.fixture
def write(tmp_path):
    """Write a report of labels and outputs; returns its result."""

    def run(labels, outputs, functions=None, *, ids=None, batch=1000, name="report", **more):
        labels, outputs = np.asarray(labels), np.asarray(outputs)
        ids = [f"id{i}" for i in range(len(outputs))] if ids is None else ids
        with ReportWriter(
            tmp_path, name=name, split="validation", functions=EvalFunctions(functions)
        ) as writer:
            for start in range(0, len(ids), batch):
                rows = slice(start, start + batch)
                writer.add(
                    ids=ids[rows],
                    labels=labels[rows],
                    outputs=outputs[rows],
                    **{key: value[rows] for key, value in more.items()},
                )
        return writer.result

    return run
