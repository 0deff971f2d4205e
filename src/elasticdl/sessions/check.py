"""Session check: finds what would go wrong with a session, within seconds; writes nothing.

    config --> code --> components --> data of each split --> model --> a step, a checkpoint,
               (text)   (imported)     (a few batches)                  the export, the reports

Each group yields findings and leaves its results for the following groups; a group without the
results it needs is skipped, and reported as skipped. An error in user code ends its group, not the
check. Everything that draws random numbers or has a position is created again, as it will be for
the training.

The rules are in `checks/`; this module has their order and time limits.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence

from elasticdl.errors import DefinitionError, ElasticDLError, users_traceback
from elasticdl.sessions import project
from elasticdl.sessions.checks import limits, sources, splits, steps
from elasticdl.sessions.checks.finding import (
    CheckFinding,
    CheckGroup,
    CheckReport,
    error,
    of_error,
    warning,
)
from elasticdl.sessions.checks.limits import TooLongError, leaving_no_trace
from elasticdl.sessions.checks.look import Look
from elasticdl.training.create import quiet_frameworks


def check(
    run_name: str,
    *,
    project_root: str = ".",
    data_dir: str | None = None,
    settings: Sequence[str] = (),
    groups: Sequence[str] | None = None,
    tell: Callable[[CheckGroup], None] | None = None,
) -> CheckReport:
    """Check a session before it is trained.

    Args:
        run_name: Name of the folder in `runs/`.
        project_root: The repository.
        data_dir: Data folder; None takes `data_dir` of the config.
        settings: `key=value` texts that replace values of the config.
        groups: Titles of the groups to run; None runs all.
        tell: Called with each group when it is done.

    Raises:
        UsageError: There is no such session.
    """
    quiet_frameworks()
    found: list[CheckGroup] = []
    with leaving_no_trace(), warnings.catch_warnings():
        # The training reports Keras' warnings about a model as well.
        warnings.filterwarnings("ignore", module="keras")
        started = time.monotonic()
        try:
            root, config = project.read_session(
                run_name, project_root=project_root, settings=settings
            )
        except DefinitionError as problem:
            # The text is not a valid config.
            spent = time.monotonic() - started
            found.append(CheckGroup("config", "", [of_error(problem)], spent))
            if tell is not None:
                tell(found[0])
            return CheckReport(run_name, found)
        look = Look(run_name, root, config, data_dir)
        for title, needs, function in _GROUPS:
            if groups is None or title in groups:
                found.append(_group(look, title, needs, function))
                if tell is not None:
                    tell(found[-1])
    return CheckReport(run_name, found)


def _group(
    look: Look,
    title: str,
    needs: Sequence[str],
    function: Callable[[Look], Iterator[CheckFinding]],
) -> CheckGroup:
    missing = [name for name in needs if getattr(look, name) is None]
    if missing:
        return CheckGroup(title, "skipped: fix the errors above first", [], 0.0, skipped=True)
    look.said = ""
    found: list[CheckFinding] = []
    started = time.monotonic()
    try:
        for finding in function(look):
            _add(look, found, finding)
    except ElasticDLError as problem:
        _add(look, found, of_error(problem))
    except Exception as problem:
        said = users_traceback(problem)
        if str(look.project) not in said:
            # Raised by our own code.
            raise
        _add(look, found, error(f"{title}: the project's code raised:\n{said}"))
    except TooLongError:
        _add(
            look,
            found,
            warning(
                f"{title}: no output for {limits.PATIENCE_S:g} s; the check was abandoned.",
                "",
                "If it is that slow, training will be slow too; if it hangs, look for a `while "
                "True` around a generator that has ended.",
            ),
        )
    return CheckGroup(title, look.said, found, time.monotonic() - started)


def _add(look: Look, found: list[CheckFinding], finding: CheckFinding) -> None:
    """Add a finding, unless another one has the same text."""
    text = str(finding)
    already = text in look.reported or any(
        f"NameError: name '{name}' is not defined" in text for name in _unbound(look.reported)
    )
    if not already:
        look.reported.add(text)
        found.append(finding)


def _unbound(reported: set[str]) -> Iterator[str]:
    for text in reported:
        _, used, rest = text.partition(": the name '")
        if used and "not defined" in rest:
            yield rest.partition("'")[0]


_GROUPS: Sequence[tuple[str, Sequence[str], Callable[[Look], Iterator[CheckFinding]]]] = (
    ("config", (), sources.look_at_config),
    ("code", (), sources.look_at_code),
    ("components", ("session",), sources.look_at_components),
    ("training data", ("components",), splits.look_at_training),
    ("validation data", ("components",), splits.look_at_validation),
    ("test data", ("components",), splits.look_at_test),
    ("model", ("components", "batches"), steps.look_at_model),
    ("callbacks", ("components", "metrics"), steps.look_at_callbacks),
    ("checkpoint", ("trainer",), steps.look_at_round_trip),
    ("export", ("trainer",), steps.look_at_export),
    ("reports", ("components", "trainer"), steps.look_at_reports),
    ("keys of the config", ("trainer",), sources.look_at_keys),
    ("project", (), sources.look_at_project),
)
GROUPS = tuple(title for title, _, _ in _GROUPS)
"""Titles of the groups, in order."""
