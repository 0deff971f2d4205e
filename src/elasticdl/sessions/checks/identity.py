"""Whether examples can be told apart, and whether the same ones come again."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.dialects.source_lines import shown_path
from elasticdl.sessions.checks.finding import Finding, error, info, warning

if TYPE_CHECKING:
    from elasticdl.sessions.checks.names import Module

# What draws random numbers that nobody can seed, or leaves an order to chance.
_CAUSES = {
    r"default_rng\(\s*\)": "a generator of its own, without a seed",
    r"(PCG64|MT19937|Philox|SFC64|RandomState)\(\s*\)": "a generator of its own, without a seed",
    r"random\.Random\(\s*\)": "a generator of its own, without a seed",
    r"from_non_deterministic_state": "a generator of its own, without a seed",
    r"os\.urandom|SystemRandom|secrets\.|uuid4": "the system's random numbers",
    r"time\.time|time_ns|perf_counter|datetime\.now": "the clock",
    r"deterministic\s*=\s*False": "an order left to chance",
    r"ThreadPool|imap_unordered|as_completed": "threads, in whichever order they finish",
    r"albumentations|A\.Compose": "albumentations, which has random numbers of its own",
    r"(?<!sorted\()(os\.listdir|\.iterdir\(|glob\()": "an order of files that is the folder's",
    r"\bset\(": "the order of a set",
}
_MANY = 3


def text_of(value: Any) -> str | None:
    """Return an id as it will be written; None if it can be none."""
    array = np.asarray(value)
    if array.size != 1:
        return None
    one = array.reshape(()).item()
    if isinstance(one, bytes):
        try:
            return one.decode()
        except UnicodeDecodeError:
            return None
    return str(one) if isinstance(one, (str, int)) and not isinstance(one, bool) else None


def ids(found: Sequence[Any], split: str, where: str) -> Iterator[Finding]:
    """Yield what is wrong with ids.

    Args:
        found: As they were yielded.
        split: Whose they are.
        where: The method that yields them.
    """
    texts = [text_of(value) for value in found]
    for value, text in zip(found, texts, strict=True):
        if text is None:
            yield error(
                f"{split}: the id {_short(value)} ({type(value).__name__}) is no text and no "
                "whole number.",
                where,
                "Yield the file's name or a number as the third part.",
            )
            return
    twice = [text for text, number in collections.Counter(texts).items() if number > 1]
    if twice:
        shown = ", ".join(repr(text) for text in twice[:_MANY])
        yield error(
            f"{split}: {len(twice)} of {len({*texts}):,} ids come more than once: {shown}.",
            where,
            "Let ids be unique (the path instead of the file's name?): reports have a row an id.",
        )


def index(found: Sequence[Any] | None, num_examples: int, where: str) -> Iterator[Finding]:
    """Yield what is wrong with `get_validation_index()`."""
    if found is None:
        yield info(
            "validation: get_validation_index() returns nothing; rows of reports are numbered.",
            where,
        )
        return
    if len(found) != num_examples:
        yield error(
            f"validation: get_validation_index() has {len(found):,} ids, and the generator is "
            f"said to have {num_examples:,} examples.",
            where,
            "Return one id an example, in the order of the validation generator.",
        )
    yield from ids(found, "validation", where)


def not_again(
    split: str, where: str, modules: Iterable[Module], *, otherwise: str, severe: bool
) -> Finding:
    """Return the finding that a generator does not yield the same examples again.

    Args:
        split: Whose it is.
        where: The method that makes it.
        modules: Searched for what the cause may be.
        otherwise: What follows.
        severe: Whether it is an error.
    """
    causes = list(_likely(modules))[:_MANY]
    because = f"It may be {'; '.join(causes)}. " if causes else ""
    return (error if severe else warning)(
        f"{split}: made a second time, the generator yields other examples. {otherwise}",
        where,
        f"{because}Draw from random, numpy.random or tf.random, which are seeded for you, and "
        "sort the files of a folder.",
    )


def _likely(modules: Iterable[Module]) -> Iterator[str]:
    for pattern, said in _CAUSES.items():
        for module in modules:
            lines = module.text.decode(errors="replace").splitlines()
            for number, line in enumerate(lines, 1):
                if re.search(pattern, line.partition("#")[0]):
                    yield f"{said} ({shown_path(Path(module.file))}:{number})"
                    break


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else f"{text[:57]}..."  # noqa: PLR2004 - a line
