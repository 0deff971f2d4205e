"""Groups of a check for the config, the code and the repository."""

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
    from elasticdl.sessions.checks.look import Look


def look_at_config(look: Look) -> Iterator[CheckFinding]:
    """Yield mistakes in the config; creates the session."""
    found = [
        of_error(problem)
        for problem in project_files.problems(look.config, look.project, look.data_dir)
    ]
    yield from found
    look.said = f"{len(look.config.flat())} keys"
    if not found:
        look.session = project_files.session_of(
            look.run_name, look.project, look.config, look.data_dir
        )


def look_at_code(look: Look) -> Iterator[CheckFinding]:
    """Yield what is missing in the code, without running it."""
    source = look.project / str(look.config.get("src_code_path") or "")
    if not source.is_dir() or not look.config.get("src_code_path"):
        look.said = "there is no folder of code"
        return
    zoo_ = Zoo(str(source), source.resolve())
    wanted = []
    for key in ("model_builder_class", *COMPONENTS):
        value = look.config.get(key)
        if not isinstance(value, str) or "." not in value:
            continue
        try:
            place = find(zoo_, value, f"{look.config.where(key)}: {key}")
        except UsageError as problem:
            if not names.can_be_imported(value, source):
                yield of_error(problem)
            continue
        wanted.append(place.file)
        if place.symbol is not None:
            yield from names.lacks(place.file, place.symbol, f"{look.config.where(key)}: {key}")
    yield from names.look(source.resolve(), wanted)
    look.said = f"{len(names.modules_of(source))} Python files, {len(wanted)} classes"


def look_at_components(look: Look) -> Iterator[CheckFinding]:
    """Yield mistakes in the classes; creates the components."""
    job = look.job
    assert job.model is not None  # noqa: S101 - a training job
    reference = zoo.load(job.model, context_of(job, Mode.TRAINING))
    symbols = {"model_builder_class": reference.symbol, **reference.overrides}
    wrong = [
        finding
        for key, symbol in symbols.items()
        for finding in signatures.look(key, symbol, look.config.where(key))
    ]
    yield from wrong
    if wrong:
        return
    config = keys.NotingConfig(config_of(reference), look.asked)
    look.components = Components(reference, config)
    look.said = ", ".join(symbol.short_name for symbol in symbols.values())


def look_at_keys(look: Look) -> Iterator[CheckFinding]:
    """Yield the keys of the config that no component has read."""
    yield from keys.unread_keys(look.config, look.asked)
    look.said = f"{len({*look.config.flat()} & look.asked)} read by components"


def look_at_project(look: Look) -> Iterator[CheckFinding]:
    """Yield what will not be recorded about the code."""
    commit = git.commit_of(look.project)
    if commit is None:
        look.said = "not in a git repository"
        yield info(
            "the project is not in a git repository, or has no commit: the code of a model will "
            "not be recorded.",
            str(look.project),
        )
        return
    bare, _, changed = commit.partition("-")
    look.said = f"commit {bare[:12]}"
    if changed:
        yield info(
            f"the project differs from its commit {bare[:12]}.",
            str(look.project),
            "Commit the code before training.",
        )
