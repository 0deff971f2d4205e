"""Batches of a PyTorch `DataLoader`, epoch after epoch, as a function of (seed, epoch, number).

    dataset with items and a length       any batch is reached at once: its sampler's order is
                                          drawn when an epoch begins
    IterableDataset with a length         read from the start of the epoch, in one process only

A loader's `num_workers` processes are not started: what they draw would depend on which of them
makes a batch. Each batch is seeded by its number instead, and made in the process that trains.

A batch of `(x, y)` is features and labels. What else a `collate_fn` makes is for the module that
takes it (`as_module`): a LightningModule is given it as it is. A model file's functions are for
`forward` and a loss, so there it has to be a pair, or a dict with `labels`.

Callers: `lightning_module.py`, `elasticdl_module.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.batch import Batch, batch_of
from elasticdl.definition import Epochs, Mode
from elasticdl.dialects.params import described, signature_of
from elasticdl.dialects.reading import call
from elasticdl.errors import DefinitionError, ElasticDLError, UserCodeError, users_traceback

if TYPE_CHECKING:
    from elasticdl.dialects.reading import Reading
    from elasticdl.dialects.reference import Symbol

_PAIR = len(("x", "y"))


class LoaderFunctions:
    """A model file's `train_dataloader(data)` and `val_dataloader(data)`.

    Args:
        train: The first.
        validation: The second, if the file has it.
        reading: For params and errors.

    Raises:
        DefinitionError: One takes nothing.
        UsageError: It needs a param that is not given.
    """

    def __init__(self, train: Symbol, validation: Symbol | None, reading: Reading) -> None:
        self._reading = reading
        self._functions = {Mode.TRAINING: train, Mode.EVALUATION: validation}
        self._given = {
            mode: reading.params.declare(symbol, {self._takes(symbol)})
            for mode, symbol in self._functions.items()
            if symbol is not None
        }

    def open_epochs(self, data: str, mode: Mode) -> Epochs:
        """Return the epochs of a loader; see `definition.BatchesInput`.

        Raises:
            DefinitionError: There is no such function, or it returns no DataLoader.
            UserCodeError: It raised.
        """
        symbol = self._functions[mode]
        if symbol is None:
            raise self._reading.error(
                self._reading.reference.symbol,
                "there is no val_dataloader(data) to validate on.",
                "Add it, or leave out --validation_data.",
            )
        loader = call(symbol, data, **self._given[mode])
        return epochs_of(loader, symbol, self._reading, _as_forward)

    def _takes(self, symbol: Symbol) -> str:
        takes = next(iter(signature_of(symbol).parameters), None)
        if takes is None:
            raise self._reading.error(
                symbol,
                f"{symbol.name}() takes nothing.",
                f"Take the place of the data, which is --data: def {symbol.short_name}(data): ...",
            )
        return takes


def epochs_of(
    loader: Any,
    symbol: Symbol,
    reading: Reading,
    parts_of: Callable[[Any, str], Sequence[Any]],
) -> Epochs:
    """Return the epochs of a loader.

    Args:
        loader: What a `train_dataloader()` of the user's returned.
        symbol: That function, for errors.
        reading: For errors.
        parts_of: Returns features, and labels if any, of what the loader yields; it is told the
            loader's name for errors.

    Raises:
        DefinitionError: It is no DataLoader, or does not know how many batches it has.
    """
    kinds = [f"{kind.__module__}.{kind.__name__}" for kind in type(loader).__mro__]
    if "torch.utils.data.dataloader.DataLoader" not in kinds:
        raise reading.error(
            symbol,
            f"{symbol.name}() returned a {type(loader).__module__}.{type(loader).__name__}.",
            "Expected one torch.utils.data.DataLoader.",
        )
    name = f"{symbol}: the DataLoader of {symbol.name}()"
    indexed = hasattr(loader.dataset, "__getitem__") and not _is_iterable(loader.dataset)
    try:
        num_batches = len(loader)
    except TypeError as error:
        raise reading.error(
            symbol,
            f"the DataLoader of {symbol.name}() has no length: {error}.",
            "Give the dataset a __len__(): an epoch is divided by it among workers and "
            "checkpoints.",
        ) from error
    num_examples = len(loader.sampler) if indexed else len(loader.dataset)
    if getattr(loader, "drop_last", False):
        num_examples = num_batches * loader.batch_size

    def begin(epoch: int, first: int) -> Iterator[Batch]:
        _prepare(loader, epoch)
        if not indexed:
            return _guarded(lambda: iter(loader), name, parts_of)
        # Now: what it draws is of the epoch, what a batch draws is of the batch.
        order = list(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
        return _guarded(lambda: _made(loader, order[first:]), name, parts_of)

    return Epochs(
        num_examples=num_examples,
        num_batches=num_batches,
        begin=begin,
        indexed=indexed,
        elsewhere=indexed,
        name=name,
    )


def _prepare(loader: Any, epoch: int) -> None:
    """Let what a loader draws depend on the epoch, not on how often it was asked before."""
    for owner in (loader, loader.sampler, loader.batch_sampler):
        generator: Any = getattr(owner, "generator", None)
        if hasattr(generator, "manual_seed"):
            # From the generator of the process, which is seeded by (seed, epoch).
            generator.manual_seed(int(np.random.randint(2**31)))  # noqa: NPY002 - a seeded one
        if callable(set_epoch := getattr(owner, "set_epoch", None)):
            set_epoch(epoch)


def _made(loader: Any, order: Sequence[Any]) -> Iterator[Any]:
    for indexes in order:
        if loader.batch_sampler is None:
            # batch_size=None: an item is a batch.
            yield loader.collate_fn(loader.dataset[indexes])
        elif hasattr(loader.dataset, "__getitems__"):
            yield loader.collate_fn(loader.dataset.__getitems__(indexes))
        else:
            yield loader.collate_fn([loader.dataset[index] for index in indexes])


def _guarded(
    begin: Callable[[], Iterator[Any]],
    name: str,
    parts_of: Callable[[Any, str], Sequence[Any]],
) -> Iterator[Batch]:
    try:
        for made in begin():
            yield batch_of(parts_of(made, name), f"{name} yields")
    except ElasticDLError:
        raise
    except Exception as error:
        raise UserCodeError(f"{name} raised:\n{users_traceback(error)}") from error


def as_module(made: Any, name: str) -> Sequence[Any]:
    """Return what a LightningModule is given, in parts: a pair, or all of it as features."""
    del name
    return tuple(made) if _is_pair(made) else (made,)


def _as_forward(made: Any, name: str) -> Sequence[Any]:
    """Return features and labels for `forward` and a loss.

    Raises:
        DefinitionError: It is not clear which are which.
    """
    if _is_pair(made):
        return tuple(made)
    if isinstance(made, Mapping) and "labels" in made:
        features = {name: value for name, value in made.items() if name != "labels"}
        return features, made["labels"]
    raise DefinitionError(
        f"{name} yields {described(made)}; expected (features, labels), or a dict with labels. "
        "Let collate_fn make one of them."
    )


def _is_pair(made: Any) -> bool:
    is_plain = isinstance(made, (list, tuple)) and not hasattr(made, "_fields")
    return is_plain and len(made) == _PAIR


def _is_iterable(dataset: Any) -> bool:
    return any(kind.__name__ == "IterableDataset" for kind in type(dataset).__mro__)
