"""Batches of a DataLoader do not depend on the batches before; state that they use is refused."""

import functools
import itertools
import logging
import random

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from elasticdl.dialects import torch_loaders
from elasticdl.errors import DefinitionError

ROWS = TensorDataset(torch.arange(60.0)[:, None], torch.zeros(60, 1))
SYMBOL = type("Symbol", (), {"name": "train_dataloader", "__str__": lambda self: "rows.py:1"})()


def batches_of(loader):
    epochs = torch_loaders.epochs_of(loader, SYMBOL, None, torch_loaders.as_module)
    return [batch.features.ravel().tolist() for batch in epochs.begin(0, 0)]


def plain(loader):
    return [features.ravel().tolist() for features, _ in loader]


def scaled(batch, by):
    x, y = default_collate(batch)
    return x * by, y


class Collate:
    """Scales a batch by what `draw` makes of the state in `self`."""

    def __init__(self, draw, **state):
        self.draw = draw
        vars(self).update(state)

    def __call__(self, batch):
        return scaled(batch, self.draw(self))


class Slotted:
    __slots__ = ("calls",)

    def __init__(self):
        self.calls = 0

    def __call__(self, batch):
        self.calls += 1
        return scaled(batch, self.calls)


def counted(self):
    self.calls += 1
    return 2.0 if self.calls % self.every == 0 else 1.0


def closure():
    calls = 0

    def collate(batch):
        nonlocal calls
        calls += 1
        return scaled(batch, calls)

    return collate


def with_previous(batch):
    x, y = default_collate(batch)
    before = getattr(with_previous, "before", x)
    with_previous.before = x
    return 0.5 * x + 0.5 * before[: len(x)], y


class Mix:
    def __init__(self):
        self.generator = np.random.default_rng(0)

    def draw(self):
        return self.generator.random()


def factors():
    generator = np.random.default_rng(0)
    while True:
        yield generator.random()


MIX = Mix()
FACTORS = factors()
CYCLE = itertools.cycle([1.0, 2.0])
COUNT = 0


def by_default(rng=np.random.default_rng(0)):  # noqa: B008 - it is what is refused
    return rng.random()


def by_attribute():
    by_attribute.calls += 1
    return by_attribute.calls


by_attribute.calls = 0


def by_variable(batch):
    global COUNT  # noqa: PLW0603 - as above
    COUNT += 1
    return scaled(batch, COUNT)


class Cropped(Dataset):
    """Scales its first items."""

    def __init__(self, until):
        self.calls, self.until = 0, until

    def __len__(self):
        return 60

    def __getitem__(self, index):
        self.calls += 1
        return torch.full((1,), 2.0 if self.calls <= self.until else 1.0), 0.0


class Stream(IterableDataset):
    def __init__(self):
        self.rng = np.random.default_rng(0)

    def __len__(self):
        return 60

    def __iter__(self):
        return iter([(torch.full((1,), self.rng.random()), 0.0) for _ in range(60)])


def of(collate):
    return lambda: DataLoader(ROWS, 8, collate_fn=collate())


REFUSED = {
    "NumPy": (
        of(lambda: Collate(lambda c: c.rng.random(), rng=np.random.default_rng(1))),
        r"generator of its own, `collate_fn\.rng`",
    ),
    "NumPy, of old": (
        of(lambda: Collate(lambda c: c.rng.rand(), rng=np.random.RandomState(1))),
        r"generator of its own, `collate_fn\.rng`",
    ),
    "PyTorch": (
        of(lambda: Collate(lambda c: torch.rand((), generator=c.g), g=torch.Generator())),
        r"generator of its own, `collate_fn\.g`",
    ),
    "Python": (
        of(lambda: Collate(lambda c: c.rng.random(), rng=random.Random(1))),
        r"generator of its own, `collate_fn\.rng`",
    ),
    "a bound method": (
        of(lambda: Collate(lambda c: c.draw_(), draw_=np.random.default_rng(1).random)),
        r"generator of its own, `collate_fn\.draw_\.__self__`",
    ),
    **{
        f"each {every}": (of(lambda every=every: Collate(counted, calls=0, every=every)), "calls")
        for every in (2, 3, 5, 16)
    },
    "a slot": (of(Slotted), r"depend on state .*, `collate_fn\.calls`"),
    "a closure": (of(closure), "depend on state .*, `calls`"),
    "a partial": (
        lambda: DataLoader(
            ROWS, 8,
            collate_fn=functools.partial(lambda c, b: c(b), Collate(counted, calls=0, every=2)),
        ),
        r"`collate_fn\.args\[0\]\.calls`",
    ),
    "the batch before": (of(lambda: with_previous), r"`collate_fn\.before"),
    "an object of the file": (
        of(lambda: lambda batch: scaled(batch, MIX.draw())),
        r"generator of its own, `MIX\.generator`",
    ),
    "a generator function": (
        of(lambda: lambda batch: scaled(batch, next(FACTORS))), "`FACTORS`",
    ),
    "a cycle": (of(lambda: lambda batch: scaled(batch, next(CYCLE))), "`CYCLE`"),
    "a default argument": (
        of(lambda: lambda batch: scaled(batch, by_default())),
        "`the default arguments of by_default",
    ),
    "an attribute of a function": (
        of(lambda: lambda batch: scaled(batch, by_attribute())), r"`by_attribute\.calls`",
    ),
    "a variable": (of(lambda: by_variable), "`COUNT`"),
    "items of a dataset": (lambda: DataLoader(Cropped(48), 8), r"`dataset\.calls`"),
    "a stream": (lambda: DataLoader(Stream(), 8), r"generator of its own, `dataset\.rng`"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_batches_that_depend_on_state_are_refused_with_its_name(kind):
    make, expected = REFUSED[kind]

    with pytest.raises(DefinitionError, match=expected):
        batches_of(make())


class Cached(Dataset):
    """Keeps what it has decoded, up to a number of items, and opens itself when it is read."""

    def __init__(self, most):
        self.decoded, self.items, self.opened = {}, [None] * 60, None
        self.most = most

    def __len__(self):
        return 60

    def __getitem__(self, index):
        self.opened = self.opened or object()
        if index not in self.decoded:
            if len(self.decoded) == self.most:
                del self.decoded[next(iter(self.decoded))]
            self.decoded[index] = torch.full((1,), float(index))
            self.items[index] = self.decoded[index]
        return self.decoded[index], 0.0


class Reseeded(Dataset):
    """Seeds its own generator for each item."""

    def __init__(self):
        self.generator = torch.Generator()

    def __len__(self):
        return 60

    def __getitem__(self, index):
        self.generator.manual_seed(index)
        return torch.rand(1, generator=self.generator), 0.0


@functools.lru_cache
def decoded(index):
    return torch.full((1,), float(index))


ALLOWED = {
    "a cache": lambda: DataLoader(Cached(60), 8),
    "a small cache": lambda: DataLoader(Cached(5), 8),
    "lru_cache": lambda: DataLoader(ROWS, 8, collate_fn=lambda b: default_collate(
        [(decoded(int(x)), y) for x, y in b])),
    "seeded for each item": lambda: DataLoader(Reseeded(), 8),
}  # fmt: skip


@pytest.mark.parametrize("kind", ALLOWED)
def test_a_cache_is_not_refused(kind, caplog):
    assert batches_of(ALLOWED[kind]()) == plain(ALLOWED[kind]())
    assert caplog.records == []


def test_drawing_from_global_generators_is_allowed(caplog):
    from_random = random.random  # Of the global generator.

    def collate(batch):
        by = torch.rand(()) + np.random.rand() + from_random() + random.gauss(0, 1)  # noqa: NPY002
        return scaled(batch, by)

    assert len(batches_of(DataLoader(ROWS, 8, collate_fn=collate))) == 8
    assert caplog.records == []


def test_an_unused_counter_is_reported_and_not_advanced(caplog):
    caplog.set_level(logging.WARNING, logger="elasticdl")
    dataset = Cropped(10**6)

    assert batches_of(DataLoader(dataset, 8)) == [[2.0] * 8] * 7 + [[2.0] * 4]

    assert dataset.calls == 60
    (record,) = caplog.records
    assert "`dataset.calls` changes each time the same batch is read" in record.getMessage()


def test_an_example_batch_advances_nothing():
    dataset = Cropped(10**6)
    epochs = torch_loaders.epochs_of(DataLoader(dataset, 8), SYMBOL, None, torch_loaders.as_module)

    with epochs.preserved():
        next(epochs.begin(0, 0))

    assert dataset.calls == 0
