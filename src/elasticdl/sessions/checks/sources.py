"""Groups of the session check for the config, the code and the repository."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from elasticdl import zoo
from elasticdl.definition import Mode
from elasticdl.dialects.abstractions import Components
from elasticdl.dialects.component_classes import COMPONENTS, config_of
from elasticdl.engines.engine import context_of
from elasticdl.errors import UsageError
from elasticdl.sessions import project as project_files
from elasticdl.sessions.checks import keys, names, signatures
from elasticdl.sessions.checks.finding import CheckFinding, info, of_error
from elasticdl.zoo import git
from elasticdl.zoo.folder import Zoo, find

if TYPE_CHECKING:
    from elasticdl.sessions.checks.check_context import CheckContext


def check_config(context: CheckContext) -> Iterator[CheckFinding]:
    """Yield mistakes in the config; stores the session in the context."""
    found = [
        of_error(problem)
        for problem in project_files.problems(context.config, context.project, context.data_dir)
    ]
    yield from found
    context.said = f"{len(context.config.flat())} keys"
    if not found:
        context.session = project_files.session_of(
            context.run_name, context.project, context.config, context.data_dir
        )


def check_code(context: CheckContext) -> Iterator[CheckFinding]:
    """Yield findings for missing files, classes, names and imports, without running the code."""
    source = context.project / str(context.config.get("src_code_path") or "")
    if not source.is_dir() or not context.config.get("src_code_path"):
        context.said = "there is no folder of code"
        return
    zoo_ = Zoo(str(source), source.resolve())
    wanted = []
    for key in ("model_builder_class", *COMPONENTS):
        value = context.config.get(key)
        if not isinstance(value, str) or "." not in value:
            continue
        try:
            place = find(zoo_, value, f"{context.config.where(key)}: {key}")
        except UsageError as problem:
            if not names.can_be_imported(value, source):
                yield of_error(problem)
            continue
        wanted.append(place.file)
        if place.symbol is not None:
            yield from names.lacks(place.file, place.symbol, f"{context.config.where(key)}: {key}")
    yield from names.check(source.resolve(), wanted)
    context.said = f"{len(names.modules_of(source))} Python files, {len(wanted)} classes"


def check_components(context: CheckContext) -> Iterator[CheckFinding]:
    """Yield mistakes in the component classes; store the created components in the context."""
    job = context.job
    assert job.model is not None  # noqa: S101 - a training job
    model_code = zoo.load(job.model, context_of(job, Mode.TRAINING))
    symbols = {"model_builder_class": model_code.symbol, **model_code.overrides}
    wrong = [
        finding
        for key, symbol in symbols.items()
        for finding in signatures.check(key, symbol, context.config.where(key))
    ]
    yield from wrong
    if wrong:
        return
    config = keys.NotingConfig(config_of(model_code), context.asked)
    context.components = Components(model_code, config)
    context.said = ", ".join(symbol.short_name for symbol in symbols.values())


def check_keys(context: CheckContext) -> Iterator[CheckFinding]:
    """Yield a finding for each key of the config that no component has read."""
    yield from keys.unread_keys(context.config, context.asked)
    context.said = f"{len({*context.config.flat()} & context.asked)} read by components"


def check_project(context: CheckContext) -> Iterator[CheckFinding]:
    """Yield a finding if no git commit identifies the code: no commit, or uncommitted changes."""
    commit = git.commit_of(context.project)
    if commit is None:
        context.said = "not in a git repository"
        yield info(
            "the project is not in a git repository, or has no commit: the code of a model will "
            "not be recorded.",
            str(context.project),
        )
        return
    bare, _, changed = commit.partition("-")
    context.said = f"commit {bare[:12]}"
    if changed:
        yield info(
            f"the project differs from its commit {bare[:12]}.",
            str(context.project),
            "Commit the code before training.",
        )
