"""State of a session check: results of the groups so far, which the following groups need."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from elasticdl.dialects.model_code import location_of
from elasticdl.sessions.checks.batches import Places

if TYPE_CHECKING:
    from elasticdl.config_file import ConfigStruct
    from elasticdl.data.batch import Batch
    from elasticdl.dialects.abstractions import Components
    from elasticdl.job import Job
    from elasticdl.sessions.project import SessionProject
    from elasticdl.training.trainer import Trainer


T = TypeVar("T")


def made(value: T | None) -> T:
    """Return a result of an earlier group of checks unchanged, with a type that excludes None.

    It only tells the type checker that the result exists: a group that needs a missing result is
    skipped.
    """
    assert value is not None  # noqa: S101 - as above
    return value


@dataclass(eq=False)
class CheckContext:
    """Results of the groups of checks so far; a result is None if it could not be created.

    Attributes:
        run_name: Name of the session.
        project: The repository's folder.
        config: Content of the config.
        data_dir: Data folder on the command line. None: `data_dir` of the config.
        started: Start time, on the monotonic clock.
        said: One-line summary of what the current group has checked, shown beside its title; each
            group sets it.
        session: The session.
        asked: Key paths of the config, such as `export.mode`, that the user's components have read.
        components: The session's components: objects of the classes that the config names.
        batches: The first batches of the training split.
        others: Name of a split (`validation` or `test`) -> its first batch.
        trainer: A trainer with the session's model.
        metrics: Metrics of the first training batch: name in the evaluation -> value.
        reported: Messages of all findings so far, so that none is reported twice.
        undefined_names: Names that the findings so far report as undefined.
    """

    run_name: str
    project: Path
    config: ConfigStruct
    data_dir: str | None
    started: float = field(default_factory=time.monotonic)
    said: str = ""
    session: SessionProject | None = None
    asked: set[str] = field(default_factory=set)
    components: Components | None = None
    batches: Sequence[Batch] | None = None
    others: dict[str, Batch] = field(default_factory=dict)
    trainer: Trainer | None = None
    metrics: dict[str, Any] | None = None
    reported: set[str] = field(default_factory=set)
    undefined_names: set[str] = field(default_factory=set)

    @property
    def job(self) -> Job:
        """The session's training job."""
        return made(self.session).job()

    @property
    def seconds(self) -> float:
        """Duration of the check so far, in seconds."""
        return time.monotonic() - self.started

    def place(self, key: str, *methods: str) -> str:
        """Return `file:line` of a component's method: the first one that the user's code defines.

        If it defines none of them, return the location of the component's class.

        Args:
            key: Key of the component's class in the config.
            methods: Names of methods, preferred ones first.
        """
        model_code = made(self.components).reading.model_code
        symbol = (
            model_code.symbol if key == "model_builder_class" else model_code.overrides.get(key)
        )
        for method in methods:
            found = location_of(getattr(getattr(symbol, "value", None), method, None))
            if found is not None and self._is_users(found[0]):
                return f"{found[0]}:{found[1]}"
        return str(symbol) if symbol is not None else self.config.where(key)

    def places(self, split: str) -> Places:
        """Return the locations of the user's methods that produce a split, for messages."""
        own = ("add_preprocess",)
        key = "preprocessor_class"
        return Places(
            split,
            self.place("data_loader_class", f"create_{split}_generator"),
            self.place(key, "image_preprocess", "add_image_preprocess", *own),
            self.place(key, "label_preprocess", "add_label_preprocess", *own),
            self.place(key, "batchify", *own),
        )

    def _is_users(self, file: str) -> bool:
        return Path(file).resolve().is_relative_to(self.project)
