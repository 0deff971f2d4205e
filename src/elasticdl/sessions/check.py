"""What would go wrong with a session, found out within seconds; nothing is written.

    config --> code --> components --> data of each split --> model --> a step, and back
               (text)   (imported)     (a few batches)                  from a checkpoint

Each group yields findings and leaves what it made for those that follow; one whose needs were
not made is skipped and says so. An error that user code raises ends its group, not the check. All
that draws random numbers or moves on is made anew, as it will be for the training.

The rules are in `checks/`; here is the order of things, and how long they may take.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence

from elasticdl.errors import DefinitionError, ElasticDLError, users_traceback
from elasticdl.sessions import project
from elasticdl.sessions.checks import limits, sources, splits, steps
from elasticdl.sessions.checks.finding import Finding, Group, Report, error, of_error, warning
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
    tell: Callable[[Group], None] | None = None,
) -> Report:
    """Look at a session before it is trained.

    Args:
        run_name: Name of the folder in `runs/`.
        project_root: The repository.
        data_dir: Where the data is; None takes `data_dir` of the config.
        settings: `key=value` texts that replace values of the config.
        groups: Titles of those to look at; None is all.
        tell: Told of each group when it is done.

    Raises:
        UsageError: There is no such session.
    """
    quiet_frameworks()
    found: list[Group] = []
    with leaving_no_trace(), warnings.catch_warnings():
        # What Keras has to say of a model is said in the training as well.
        warnings.filterwarnings("ignore", module="keras")
        started = time.monotonic()
        try:
            root, config = project.read_session(
                run_name, project_root=project_root, settings=settings
            )
        except DefinitionError as problem:
            # The text is no config at all.
            spent = time.monotonic() - started
            found.append(Group("config", "", [of_error(problem)], spent))
            if tell is not None:
                tell(found[0])
            return Report(run_name, found)
        look = Look(run_name, root, config, data_dir)
        for title, needs, function in _GROUPS:
            if groups is None or title in groups:
                found.append(_group(look, title, needs, function))
                if tell is not None:
                    tell(found[-1])
    return Report(run_name, found)


def _group(
    look: Look,
    title: str,
    needs: Sequence[str],
    function: Callable[[Look], Iterator[Finding]],
) -> Group:
    missing = [name for name in needs if getattr(look, name) is None]
    if missing:
        return Group(title, "not looked at: the errors above come first", [], 0.0, skipped=True)
    look.said = ""
    found: list[Finding] = []
    started = time.monotonic()
    try:
        for finding in function(look):
            _add(look, found, finding)
    except ElasticDLError as problem:
        _add(look, found, of_error(problem))
    except Exception as problem:
        said = users_traceback(problem)
        if str(look.project) not in said:
            # Ours.
            raise
        _add(look, found, error(f"{title}: the project's code raised:\n{said}"))
    except TooLongError:
        _add(
            look,
            found,
            warning(
                f"{title}: nothing has come for {limits.PATIENCE_S:g} s; it was given up.",
                "",
                "If it is that slow, training will be; if it waits for ever, look for a `while "
                "True` around a generator that has ended.",
            ),
        )
    return Group(title, look.said, found, time.monotonic() - started)


def _add(look: Look, found: list[Finding], finding: Finding) -> None:
    """Add a finding, unless it says what another one has said."""
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
        if used and "never bound" in rest:
            yield rest.partition("'")[0]


_GROUPS: Sequence[tuple[str, Sequence[str], Callable[[Look], Iterator[Finding]]]] = (
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
    ("evaluation functions", ("components", "trainer"), steps.look_at_evaluation),
    ("keys of the config", ("trainer",), sources.look_at_keys),
    ("project", (), sources.look_at_project),
)
GROUPS = tuple(title for title, _, _ in _GROUPS)
"""Titles of what is looked at, in order."""
