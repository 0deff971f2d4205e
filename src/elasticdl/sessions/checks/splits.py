"""Checks of the data of each split, which yield findings; `sessions/check.py` calls them."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from elasticdl.data.batch import Batch
from elasticdl.definition import Mode
from elasticdl.engines.iterable_data import IterableData, PipelineReader
from elasticdl.engines.randomness import seeded
from elasticdl.evaluation.report_writer import as_texts
from elasticdl.sessions import report
from elasticdl.sessions.checks import batches, reading
from elasticdl.sessions.checks.check_context import CheckContext, made
from elasticdl.sessions.checks.finding import CheckFinding, Severity, error, info, warning
from elasticdl.sessions.checks.limits import within

_SHOWN_IDS = 3


def check_training(context: CheckContext) -> Iterator[CheckFinding]:
    """Yield problems with the training data; stores its first batches in the context."""
    job, places = context.job, context.places("training")
    with within():
        own = IterableData(made(context.components).definition(), job)
    first = PipelineReader(own.epochs, job.training.seed)
    read = yield from reading.read_epoch(first)
    if not read.first:
        return
    wrong = list(batches.arrays(read.first, places))
    yield from wrong
    yield from batches.counts(
        places,
        num_examples=own.epochs.num_examples,
        num_batches=own.epochs.num_batches,
        size=read.first[0].num_examples,
        batch_size=job.training.minibatch_size,
    )
    with within():
        again = PipelineReader(own.epochs, job.training.seed).batches(0, 0, len(read.first))
        same = reading.digest(one.batch for one in again) == reading.digest(read.first)
    if not same:
        yield warning(
            "training: when created a second time, the generator yields different examples. A "
            "session that ends in the middle of an epoch (kill -9, a lost machine) could not be "
            "resumed.",
            places.loader,
            "Draw from random, numpy.random or tf.random, which are seeded for you, and sort the "
            "files of a folder.",
        )
    if not any(finding.severity is Severity.ERROR for finding in wrong):
        # The model would only report the same problems in other words.
        context.batches = read.first
    mode = "exact" if own.epochs.indexed else "replayed"
    cost = "" if own.epochs.indexed else f", at worst {_duration(read.epoch_s)} of reading"
    context.said = (
        f"{own.num_records:,} examples in {own.epochs.num_batches:,} batches: "
        f"{batches.range_of(read.first)}; {read.rate:,.0f} batches/s; resuming within an epoch: "
        f"{mode}{cost}"
    )


def check_validation(context: CheckContext) -> Iterator[CheckFinding]:
    """Yield problems with the validation data and ids; stores its first batch in the context."""
    job, places, data = context.job, context.places("validation"), made(context.session).data
    components = made(context.components)
    with within(), seeded(job.training.seed):
        epochs = components.open_epochs(data, Mode.EVALUATION)
    if epochs.num_batches < 1:
        yield error("validation: an epoch has no batches.", places.loader, "Return their number.")
        return
    read = yield from reading.read_epoch(PipelineReader(epochs, job.training.seed))
    if not read.first:
        return
    wrong = list(batches.arrays(read.first, places))
    yield from wrong
    yield from batches.counts(
        places,
        num_examples=epochs.num_examples,
        num_batches=epochs.num_batches,
        size=read.first[0].num_examples,
        batch_size=job.training.minibatch_size,
    )
    if not any(finding.severity is Severity.ERROR for finding in wrong):
        context.others["validation"] = read.first[0]
    context.said = (
        f"{epochs.num_examples:,} examples in {epochs.num_batches:,} batches: "
        f"{batches.range_of(read.first)}"
    )
    where = context.place(
        "data_loader_class", "get_validation_index", "create_validation_generator"
    )
    with within():
        split, ids = report.open_split(components, data, "validation")
    if ids is None:
        yield info(
            "validation: get_validation_index() returns nothing; rows of reports are numbered.",
            where,
        )
        return
    yield from _repeated(ids, "validation", where)
    with within():
        one, two = (reading.order(split, seed) for seed in (1, 2))
    # Compared only as far as both passes got within their time limit.
    if any(a != b for a, b in zip(one, two, strict=False)):
        yield error(
            "validation: the order of the generator's examples is random, so the reports would "
            "give them the ids of other examples.",
            places.loader,
            "Yield the examples in the order of get_validation_index().",
        )
    context.said += f"; {len(ids):,} ids"


def check_test(context: CheckContext) -> Iterator[CheckFinding]:
    """Yield problems with the test data and its ids; stores its first examples in the context."""
    places = context.places("test")
    with within():
        split, _ = report.open_split(made(context.components), made(context.session).data, "test")
    if split.num_examples < 1:
        yield error(
            f"test: the generator is declared to have {split.num_examples} examples.",
            places.loader,
            "Return the number of examples that it yields.",
        )
        return
    raw = yield from reading.third_parts(split, places)
    if raw is None:
        return
    yield from _repeated(raw, "test", places.loader)
    first = reading.first_examples(split, "test", None)
    batch = Batch(
        first.features, (first.labels, np.ones(len(first.ids), np.float32)), len(first.ids)
    )
    wrong = list(batches.arrays([batch], places))
    yield from wrong
    if not any(finding.severity is Severity.ERROR for finding in wrong):
        context.others["test"] = batch
    looked = len(raw)
    known = f"{split.num_examples:,} examples" + (
        "" if looked >= split.num_examples else f", {looked:,} of them checked"
    )
    shown = ", ".join(repr(text) for text in as_texts(raw[:2]))
    context.said = f"{known}: {batches.range_of([batch])}; ids {shown}, ..."


def _repeated(ids: Sequence[Any], split: str, where: str) -> Iterator[CheckFinding]:
    """Yield a finding if several examples of a split have the same id.

    Args:
        ids: Ids of the examples.
        split: Name of the split.
        where: Location of the code that returns the ids.
    """
    texts = as_texts(ids)
    twice = [text for text, number in collections.Counter(texts).items() if number > 1]
    if twice:
        shown = ", ".join(repr(text) for text in twice[:_SHOWN_IDS])
        yield warning(
            f"{split}: {len(twice):,} of {len({*texts}):,} ids occur more than once: {shown}.",
            where,
            "The reports have one row per example, so several rows will have the same id.",
        )


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 90 else f"{seconds / 60:.0f} min"  # noqa: PLR2004
