"""Writes `docs/compatibility.md` from the table of features; see `features.py`.

Callers: `python -m tests.parity` writes the page, `test_page.py` holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.parity.features import FRAMEWORKS, PLACES, Feature, Promise

PAGE = Path(__file__).parents[2] / "docs" / "compatibility.md"

_TITLES = {"keras": "Keras", "torch": "PyTorch"}

_INTRODUCTION = """\
# Compatibility with Keras and PyTorch

Each feature below trains a small model twice: with ElasticDL, and with the script that a user of
Keras or PyTorch would write (`model.fit`, or a loop with `optimizer.step()`). Losses, validation,
metrics and final weights are compared. A feature either gives the numbers of that script, or
ElasticDL refuses it with an error that names it; nothing trains with other numbers without a word.

Tests train the whole table, and this page is generated from it: each cell is a test.

**Places.** *One process* is `elasticdl train`. *Resumed*: the training is killed at some step, and
the same command is given again. *One worker* and *two workers*: the [elastic engine](elastic.md)
with `--global_batch_size` set to the batch of the script, which two workers share by halves. They
would pair other records: slot 0 trains the front half of an epoch's minibatches and slot 1 the rear
half, and an update is of minibatch i of each. So here the first halves of all of the script's
batches lie before the second ones, and each update is of one batch of the script.

| Word | Meaning |
|---|---|
"""

_MEANINGS = {
    "equal": (
        "The numbers of the plain script, to 1e-5 of the largest number of a tensor. Resumed: the "
        "same bits as the training that was not killed."
    ),
    "within": "The same with another tolerance; the last column says why.",
    "differs": (
        "Other numbers than the plain script's, for the reason given. The same job still gives "
        "the same bits each time, resumed or not, and all workers hold the same weights."
    ),
    "refused": "The job ends with an error that names the feature, for the reason given.",
}

_DIFFERENCES = """
**Differences that stay.** Random draws inside a model (dropout, noise, augmentation) are functions
of the seed, the step and the worker, so that a resumed training draws the same again; a plain
script draws from the state of a generator. BatchNorm on workers uses the statistics of each
worker's minibatch, as in most data-parallel training: choose a minibatch that is large enough, or
another normalization. The scripts here see the records in their order (`shuffle=False`), since each
framework shuffles in a way of its own. A weight without effect (the bias of attention's keys) has a
gradient of nothing but rounding; Adam makes steps of it, which differ with the order of a sum.
Losses and all other weights stay equal.
"""


def page(features: Sequence[Feature]) -> str:
    """Return the page, as Markdown."""
    meanings = "".join(f"| {word} | {meaning} |\n" for word, meaning in _MEANINGS.items())
    parts = [_INTRODUCTION + meanings + _DIFFERENCES]
    for framework in FRAMEWORKS:
        own = [feature for feature in features if feature.framework == framework]
        parts.append(f"## {_TITLES[framework]}\n\n{len(own)} features.\n")
        for group in sorted({feature.group for feature in own}):
            rows = sorted((f for f in own if f.group == group), key=lambda f: f.title.lower())
            parts.append(f"### {_TITLES[framework]}: {group}\n\n{_table(rows)}")
    return "\n".join(parts)


def _table(features: Sequence[Feature]) -> str:
    head = ["Feature", *(place.capitalize() for place in PLACES), "Why"]
    rows = [head, ["---"] * len(head)]
    for feature in features:
        promises = [feature.promises[place] for place in PLACES]
        reasons = dict.fromkeys(promise.why for promise in promises if promise.why)
        words = [_word(place, feature) for place in PLACES]
        rows.append([feature.title, *words, "; ".join(reasons)])
    return "".join(
        f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |\n" for row in rows
    )


def _word(place: str, feature: Feature) -> str:
    promise: Promise = feature.promises[place]
    if place == "resumed" and promise.kind in {"equal within", "differs"}:
        # A kill changes no bit, whatever the feature is.
        return "equal"
    if promise.kind == "equal within":
        return f"within {promise.tolerance:g}"
    return promise.kind
