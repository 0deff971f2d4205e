"""Session check: finds problems of a session within seconds, before training; writes nothing.

    config --> code --> components --> data of each split --> model --> a step, a checkpoint,
               (text)   (imported)     (a few batches)                  the export, the reports

The check consists of groups (`GROUPS`), one for each subject such as the config or the training
data. Each group yields findings and stores its results for the following groups. A group that lacks
the results it needs is skipped, and reported as skipped. An error in user code ends its group, not
the check. As for training, generators and other objects that draw random numbers or are partly read
are created again for each use.

The rules are in `checks/`; this module has their order and time limits.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence

from elasticdl.errors import DefinitionError, ElasticDLError, users_traceback
from elasticdl.sessions import project
from elasticdl.sessions.checks import limits, sources, splits, steps
from elasticdl.sessions.checks.check_context import CheckContext
from elasticdl.sessions.checks.finding import (
    CheckFinding,
    CheckGroup,
    CheckReport,
    error,
    of_error,
    warning,
)
from elasticdl.sessions.checks.limits import TooLongError, without_side_effects
from elasticdl.training.create import quiet_frameworks


def check(
    run_name: str,
    *,
    project_root: str = ".",
    data_dir: str | None = None,
    settings: Sequence[str] = (),
    groups: Sequence[str] | None = None,
    on_group: Callable[[CheckGroup], None] | None = None,
) -> CheckReport:
    """Check a session before it is trained.

    Args:
        run_name: Name of the folder in `runs/`.
        project_root: The repository.
        data_dir: Data folder. None: `data_dir` of the config.
        settings: `key=value` strings that replace values of the config.
        groups: Titles of the groups to run, from `GROUPS`. None: all.
        on_group: Called with each group when it is done.

    Raises:
        UsageError: There is no such session.
    """
    quiet_frameworks()
    found: list[CheckGroup] = []
    with without_side_effects(), warnings.catch_warnings():
        # Training reports Keras' warnings about a model as well.
        warnings.filterwarnings("ignore", module="keras")
        started = time.monotonic()
        try:
            root, config = project.read_session(
                run_name, project_root=project_root, settings=settings
            )
        except DefinitionError as problem:
            # Not a valid config.
            spent = time.monotonic() - started
            found.append(CheckGroup("config", "", [of_error(problem)], spent))
            if on_group is not None:
                on_group(found[0])
            return CheckReport(run_name, found)
        context = CheckContext(run_name, root, config, data_dir)
        for title, needs, function in _GROUPS:
            if groups is None or title in groups:
                found.append(_group(context, title, needs, function))
                if on_group is not None:
                    on_group(found[-1])
    return CheckReport(run_name, found)


def _group(
    context: CheckContext,
    title: str,
    needs: Sequence[str],
    function: Callable[[CheckContext], Iterator[CheckFinding]],
) -> CheckGroup:
    missing = [name for name in needs if getattr(context, name) is None]
    if missing:
        return CheckGroup(title, "skipped: fix the errors above first", [], 0.0, skipped=True)
    context.said = ""
    found: list[CheckFinding] = []
    started = time.monotonic()
    try:
        for finding in function(context):
            _add(context, found, finding)
    except ElasticDLError as problem:
        _add(context, found, of_error(problem))
    except Exception as problem:
        said = users_traceback(problem)
        if str(context.project) not in said:
            # Raised by our own code.
            raise
        _add(context, found, error(f"{title}: the project's code raised:\n{said}"))
    except TooLongError:
        _add(
            context,
            found,
            warning(
                f"{title}: no output for {limits.PATIENCE_S:g} s; the check was abandoned.",
                "",
                "If it is that slow, training will be slow too; if it hangs, look for a `while "
                "True` around a generator that has ended.",
            ),
        )
    return CheckGroup(title, context.said, found, time.monotonic() - started)


def _add(context: CheckContext, found: list[CheckFinding], finding: CheckFinding) -> None:
    """Add a finding to `found`, unless it tells the user nothing new.

    A finding is left out if its message was reported before. A `NameError` of code that was run is
    left out if a check that only reads the code has already reported this name as undefined.

    Args:
        context: Contains the messages and the undefined names that were reported so far.
        found: Findings of the current group.
        finding: The finding to add.
    """
    text = str(finding)
    already = text in context.reported or any(
        f"NameError: name '{name}' is not defined" in text for name in context.undefined_names
    )
    if not already:
        context.reported.add(text)
        context.undefined_names |= {finding.undefined_name} - {""}
        found.append(finding)


_GROUPS: Sequence[tuple[str, Sequence[str], Callable[[CheckContext], Iterator[CheckFinding]]]] = (
    ("config", (), sources.check_config),
    ("code", (), sources.check_code),
    ("components", ("session",), sources.check_components),
    ("training data", ("components",), splits.check_training),
    ("validation data", ("components",), splits.check_validation),
    ("test data", ("components",), splits.check_test),
    ("model", ("components", "batches"), steps.check_model),
    ("callbacks", ("components", "metrics"), steps.check_callbacks),
    ("checkpoint", ("trainer",), steps.check_round_trip),
    ("export", ("trainer",), steps.check_export),
    ("reports", ("components", "trainer"), steps.check_reports),
    ("keys of the config", ("trainer",), sources.check_keys),
    ("project", (), sources.check_project),
)
GROUPS = tuple(title for title, _, _ in _GROUPS)
"""Titles of the groups, in order."""
