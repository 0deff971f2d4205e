"""What the groups of a check have made so far, for those that follow."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from elasticdl.dialects.reference import place_of
from elasticdl.sessions.checks import names
from elasticdl.sessions.checks.batches import Places

if TYPE_CHECKING:
    from elasticdl.config import ConfigStruct
    from elasticdl.data.batch import Batch
    from elasticdl.dialects.abstractions import Components
    from elasticdl.job import Job
    from elasticdl.sessions.project import Session
    from elasticdl.training.keras.facts import ModelFacts
    from elasticdl.training.trainer import Trainer


T = TypeVar("T")


def made(value: T | None) -> T:
    """Return what an earlier group has made; a group says what it needs, so it is there."""
    assert value is not None  # noqa: S101 - as above
    return value


@dataclass(eq=False)
class Look:
    """What the groups have made so far; None where it could not be.

    Attributes:
        run_name: Name of the session.
        project: The repository's folder.
        config: What the config says.
        data_dir: As it was asked for.
        started: When, on the monotonic clock.
        said: What the group that runs has looked at, in a line.
        session: The session.
        asked: Keys of the config that were asked for.
        components: Made from the user's classes.
        batches: The first ones of the training split.
        test: Single preprocessed examples of the test split.
        trainer: With the model.
        facts: Of the model.
        metrics: Of a batch.
        reported: Texts of all findings so far.
    """

    run_name: str
    project: Path
    config: ConfigStruct
    data_dir: str | None
    started: float = field(default_factory=time.monotonic)
    said: str = ""
    session: Session | None = None
    asked: set[str] = field(default_factory=set)
    components: Components | None = None
    batches: Sequence[Batch] | None = None
    test: Sequence[Any] | None = None
    trainer: Trainer | None = None
    facts: ModelFacts | None = None
    metrics: dict[str, Any] | None = None
    reported: set[str] = field(default_factory=set)

    @property
    def job(self) -> Job:
        """The training that the session asks for."""
        return made(self.session).job()

    @property
    def seconds(self) -> float:
        """How long the check has taken."""
        return time.monotonic() - self.started

    def place(self, key: str, *methods: str) -> str:
        """Return where the first of some methods is that the user's class has of its own."""
        reference = made(self.components).reading.reference
        symbol = reference.symbol if key == "model_builder_class" else reference.overrides.get(key)
        for method in methods:
            found = place_of(getattr(getattr(symbol, "value", None), method, None))
            if found is not None and self._is_users(found[0]):
                return f"{found[0]}:{found[1]}"
        return str(symbol) if symbol is not None else self.config.where(key)

    def places(self, split: str) -> Places:
        """Return where a person finds what makes a split."""
        own = ("add_preprocess",)
        key = "preprocessor_class"
        return Places(
            split,
            self.place("data_loader_class", f"create_{split}_generator"),
            self.place(key, "image_preprocess", "add_image_preprocess", *own),
            self.place(key, "label_preprocess", "add_label_preprocess", *own),
            self.place(key, "batchify", *own),
        )

    def modules(self) -> list[names.Module]:
        """Return the project's Python files."""
        return names.modules_of(made(self.session).source)

    def _is_users(self, file: str) -> bool:
        return Path(file).resolve().is_relative_to(self.project)
