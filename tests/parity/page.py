"""Writes `docs/trust/compatibility.md` from the table of features; see `features.py`.

Callers: `python -m tests.parity` writes the page, `test_page.py` holds it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.parity.features import FRAMEWORKS, PLACES, Feature, Promise

PAGE = Path(__file__).parents[2] / "docs" / "trust" / "compatibility.md"

_TITLES = {"keras": "Keras", "torch": "PyTorch"}

_INTRODUCTION = """\
# Compatibility with Keras and PyTorch

Each feature below trains a small model twice: with ElasticDL, and with a plain script of Keras or
PyTorch (`model.fit`, or a loop with `optimizer.step()`). The losses, validation, metrics and final
weights are compared. Either a feature gives the numbers of that script, or ElasticDL refuses it
with an error that names it. Where the numbers differ, the table says so and why.

This page is generated from the tests: each cell is a test.

| Column | Training |
|---|---|
| One process | `elasticdl train` |
| Resumed | the training is killed at some step, and the same command is run again |
| One worker | the [elastic engine](../guides/elastic.md) with one worker |
| Two workers | the elastic engine with two workers; each has half of each batch of the script |

On workers, `--global_batch_size` is the batch size of the script. The records are arranged for
two workers: usually, rank 0 trains the front half of an epoch's minibatches and rank 1 the rear
half, and an update combines minibatch i of each. In these tests, the first halves of all batches
of the script therefore lie before the second halves, so that each update has the examples of one
batch of the script.

| Result | Meaning |
|---|---|
"""

_MEANINGS = {
    "equal": (
        "The numbers of the plain script, to 1e-5 of the largest number of a tensor. Resumed: "
        "bit-identical to the training that was not killed."
    ),
    "within": "Equal, with another tolerance; the last column gives the reason.",
    "differs": (
        "Other numbers than the plain script, for the given reason. The same job still gives "
        "bit-identical results each time, resumed or not, and all workers hold the same weights."
    ),
    "refused": "The job ends with an error that names the feature, for the given reason.",
}

_DIFFERENCES = """
**Remaining differences:**

- Random draws inside a model (dropout, noise, augmentation) are functions of the seed, the step
  and the worker, so that a resumed training draws the same numbers again. A plain script draws from
  the state of a generator.
- BatchNorm on workers uses the statistics of each worker's minibatch, as in most data-parallel
  training. Choose a minibatch that is large enough, or another normalization.
- The scripts here read the records in their stored order (`shuffle=False`), because each framework
  shuffles in its own way.
- A weight without effect (the bias of the keys in attention, the bias of a layer before BatchNorm)
  has a gradient of rounding errors only. Adam turns it into steps, which depend on the order of a
  sum. Training losses and all other weights are equal. Before BatchNorm, the running mean follows
  the bias and lags behind it, so validation losses, too, may differ on workers (1.3197 instead of
  1.3208 in a case with Adam's learning rate 0.01). `Linear(..., bias=False)` before BatchNorm
  avoids it.
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
    head = ["Feature", *(place.capitalize() for place in PLACES), "Reason"]
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
