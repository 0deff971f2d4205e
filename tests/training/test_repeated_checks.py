"""When a check is repeated, and what is said of its failure."""

from __future__ import annotations

import json

from elasticdl.definition import Origin
from elasticdl.errors import DefinitionError
from elasticdl.training.repeated_checks import RepeatedChecks

ORIGIN = Origin("keras_class", "model.py", 7, "model", "zoo")


def test_checks_are_due_before_powers_of_two() -> None:
    checks = RepeatedChecks(ORIGIN)

    due = [step for step in range(300) if checks.is_due(step, 0, has_callbacks=False)]

    assert due == [16, 32, 64, 128, 256]


def test_with_callbacks_checks_are_due_at_the_start_of_eight_epochs() -> None:
    checks = RepeatedChecks(ORIGIN)

    due = [s for s in range(130, 180) if checks.is_due(s, s // 5, has_callbacks=True)]

    assert due == [130, 135, 140, 145, 150, 155, 160, 165]


def test_a_step_of_several_minibatches_is_checked_once() -> None:
    checks = RepeatedChecks(ORIGIN)

    assert [checks.is_due(16, 0, has_callbacks=False) for _ in range(3)] == [True, False, False]


def test_checks_of_another_worker_are_not_repeated() -> None:
    other, checks = RepeatedChecks(ORIGIN), RepeatedChecks(ORIGIN)
    assert other.is_due(5, 2, has_callbacks=True)

    checks.load_state(json.loads(json.dumps(other.state())))

    assert not checks.is_due(6, 2, has_callbacks=True)
    assert checks.is_due(7, 3, has_callbacks=True)


def test_the_first_failure_is_a_warning_and_the_last_check(caplog) -> None:
    checks = RepeatedChecks(ORIGIN)

    with checks.reported(16):
        raise DefinitionError("the outputs differ.")

    (record,) = caplog.records
    assert "since step 16 at the latest" in record.getMessage()
    assert "the outputs differ." in record.getMessage()
    assert not checks.is_due(64, 1, has_callbacks=True)
