"""A warning of a worker is read where the command was given.

That of two workers is printed once: `test_keras_on_workers.py`.
"""

import logging

from elasticdl.engines.elastic import worker_warnings
from elasticdl.engines.elastic.worker_warnings import WarningLog

_log = logging.getLogger("elasticdl")


def test_each_warning_is_passed_on_once_up_to_a_hundred(caplog):
    with WarningLog().attached() as log:
        _log.warning("%s is odd", "x")
        worker_warnings.repeat(["x is odd", *(f"{number}" for number in range(200))])

    assert log.texts == ("x is odd", *(f"{number}" for number in range(99)))
    assert [record.getMessage() for record in caplog.records] == list(log.texts)


def test_a_program_without_logging_still_sees_warnings(capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    monkeypatch.setattr(logging, "lastResort", logging.StreamHandler())
    with WarningLog().attached():
        _log.warning("seen")

    assert capsys.readouterr().err == "seen\n"
