"""The groups of a check that look at the data of each split."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from elasticdl.definition import Mode
from elasticdl.engines.own_batches import OwnBatches, Reading
from elasticdl.engines.randomness import seeded
from elasticdl.sessions.checks import batches, identity, reading
from elasticdl.sessions.checks.finding import Finding, Severity, error
from elasticdl.sessions.checks.limits import within
from elasticdl.sessions.checks.look import Look, made

if TYPE_CHECKING:
    from elasticdl.data.batch import Batch
    from elasticdl.sessions.checks.batches import Places


_NUM_PARTS = 3


def look_at_training(look: Look) -> Iterator[Finding]:
    """Yield what is wrong with the training data; leaves its first batches."""
    job, places = look.job, look.places("training")
    with within():
        own = OwnBatches(made(look.components).definition(), job)
    first = Reading(own.epochs, job.training.seed)
    read = yield from reading.read_epoch(first)
    if not read.first:
        return
    wrong = list(_arrays(read.first, places))
    yield from wrong
    yield from batches.counts(
        places,
        num_examples=own.epochs.num_examples,
        num_batches=own.epochs.num_batches,
        size=read.first[0].num_examples,
        batch_size=job.training.minibatch_size,
    )
    with within():
        again = Reading(own.epochs, job.training.seed).batches(0, 0, len(read.first))
        same = reading.digest(one.batch for one in again) == reading.digest(read.first)
    if not same:
        yield identity.not_again(
            "training",
            places.loader,
            look.modules(),
            otherwise="A session that ends in the middle of an epoch (kill -9, a lost machine) "
            "could not go on.",
            severe=False,
        )
    if not any(finding.severity is Severity.ERROR for finding in wrong):
        # A model would only say in other words what is wrong with them.
        look.batches = read.first
    mode = "exact" if own.epochs.indexed else "replayed"
    cost = "" if own.epochs.indexed else f", at worst {_duration(read.epoch_s)} of reading"
    look.said = (
        f"{own.num_records:,} examples in {own.epochs.num_batches:,} batches: "
        f"{batches.range_of(read.first)}; {read.rate:,.0f} batches/s; "
        f"going on in mid-epoch: {mode}{cost}"
    )


def look_at_validation(look: Look) -> Iterator[Finding]:
    """Yield what is wrong with the validation data and its ids."""
    job, places, data = look.job, look.places("validation"), made(look.session).data
    with within(), seeded(job.training.seed):
        epochs = made(look.components).open_epochs(data, Mode.EVALUATION)
    if epochs.num_batches < 1:
        yield error("validation: an epoch has no batch.", places.loader, "Return how many.")
        return
    read = yield from reading.read_epoch(Reading(epochs, job.training.seed))
    if not read.first:
        return
    yield from _arrays(read.first, places)
    yield from batches.counts(
        places,
        num_examples=epochs.num_examples,
        num_batches=epochs.num_batches,
        size=read.first[0].num_examples,
        batch_size=job.training.minibatch_size,
    )
    if look.batches is not None:
        yield from batches.alike(look.batches[0], read.first[0], places)
    with within():
        index = made(look.components).validation_ids(data)
        split = made(look.components).split(data, "validation")
    where = look.place("data_loader_class", "get_validation_index", "create_validation_generator")
    yield from identity.index(index, split.num_examples, where)
    with within():
        one, two = (reading.order(split, seed) for seed in (1, 2))
    # As far as both came in the time they had.
    if any(a != b for a, b in zip(one, two, strict=False)):
        yield identity.not_again(
            "validation",
            places.loader,
            look.modules(),
            otherwise="Its order depends on chance, so ids would be those of other examples.",
            severe=index is not None,
        )
    look.said = (
        f"{epochs.num_examples:,} examples in {epochs.num_batches:,} batches: "
        f"{batches.range_of(read.first)}; {0 if index is None else len(index):,} ids"
    )


def look_at_test(look: Look) -> Iterator[Finding]:
    """Yield what is wrong with the test data and its ids; leaves its first examples."""
    places = look.places("test")
    with within():
        split = made(look.components).split(made(look.session).data, "test")
    if split.num_examples < 1:
        yield error(
            f"test: the generator is said to have {split.num_examples} examples.",
            places.loader,
            "Return how many it yields.",
        )
        return
    raw = yield from reading.third_parts(split, places)
    if raw is None:
        return
    yield from identity.ids(raw, "test", places.loader)
    with within(), seeded(look.job.training.seed):
        examples = reading.first_examples(split)
    wrong = next(
        (e for e in examples if not isinstance(e, (tuple, list)) or len(e) != _NUM_PARTS), None
    )
    if wrong is not None or not examples:
        yield error(
            "test: after image and label preprocessing there is "
            f"{'nothing' if wrong is None else f'a {type(wrong).__name__}'}; expected tuples "
            "(x, y, id).",
            places.images,
            "Let add_image_preprocess and add_label_preprocess pass the third part on.",
        )
        return
    one = reading.as_batch(examples, places)
    yield from _arrays([one], places)
    if look.batches is not None:
        yield from batches.alike(look.batches[0], one, places)
    look.test = examples
    looked = len(raw)
    known = f"{split.num_examples:,} examples" + (
        "" if looked >= split.num_examples else f", {looked:,} of them looked at"
    )
    shown = ", ".join(repr(identity.text_of(value)) for value in raw[:2])
    look.said = f"{known}: {batches.range_of([one])}; ids {shown}, ..."


def _arrays(some: Sequence[Batch], places: Places) -> Iterator[Finding]:
    """Yield what is wrong with the arrays of a split, whatever the model."""
    yield from batches.inputs(some, places)
    yield from batches.labels(some, places)
    yield from batches.weights(some, places)


def _duration(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 90 else f"{seconds / 60:.0f} min"  # noqa: PLR2004
