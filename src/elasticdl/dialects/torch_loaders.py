"""Batches of a PyTorch `DataLoader`, each determined by seed, epoch and batch number.

    map-style dataset with a length       can start at any batch: its sampler's order is drawn when
                                          an epoch begins
    IterableDataset with a length         read from the start of the epoch, in one process only

The `num_workers` processes of a loader over a map-style dataset are not started: random numbers
would depend on which process prepares a batch. Instead, each batch is seeded by its number and
prepared in the training process, where `loader_workers.py` emulates them. The processes of a loader
over an IterableDataset are started.

Before the first batch, `batch_state.py` checks that batches do not depend on earlier ones.

A batch of `(x, y)` is features and labels. Any other result of a `collate_fn` is passed unchanged
to a LightningModule (`as_module`). A model file's batches are passed to `forward` and a loss, so
there a batch must be a pair, or a dict with `labels`.

Callers: `lightning_module.py`, `elasticdl_module.py`.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from elasticdl.data.batch import Batch, batch_of
from elasticdl.definition import BatchesInput, Epochs, Mode
from elasticdl.dialects.batch_state import BatchState
from elasticdl.dialects.dialect_reader import call
from elasticdl.dialects.loader_workers import LoaderWorkers, iterated
from elasticdl.dialects.params import described, signature_of
from elasticdl.dialects.sampler_changes import SamplerChanges
from elasticdl.dialects.sampler_orders import SamplerOrders, set_epoch
from elasticdl.errors import DefinitionError, ElasticDLError, UserCodeError, users_traceback

if TYPE_CHECKING:
    from elasticdl.dialects.dialect_reader import DialectReader
    from elasticdl.dialects.model_code import Symbol

_PAIR = len(("x", "y"))


class LoaderFunctions:
    """Input from a model file's functions `train_dataloader(data)`, `val_dataloader(data)`, ...

    Args:
        train: `train_dataloader`.
        validation: `val_dataloader`, if the file has it.
        prediction: `predict_dataloader`, if the file has it; otherwise, predictions use
            `validation`.
        reading: Reader of the user's code, which provides the params and builds error messages.

    Raises:
        DefinitionError: A function takes no argument.
        UsageError: A function needs a param that has no value.
    """

    def __init__(
        self,
        train: Symbol,
        validation: Symbol | None,
        prediction: Symbol | None,
        reading: DialectReader,
    ) -> None:
        self._reading, self._own_generators = reading, SharedGeneratorCheck()
        self._functions = {
            Mode.TRAINING: train,
            Mode.EVALUATION: validation,
            Mode.PREDICTION: prediction or validation,
        }
        self._given = {
            mode: reading.params.declare(symbol, {self._takes(symbol)})
            for mode, symbol in self._functions.items()
            if symbol is not None
        }

    @property
    def input(self) -> BatchesInput:
        """The functions as the `input` of a `ModelDefinition`."""
        return BatchesInput(
            self.open_epochs,
            validates=self._functions[Mode.EVALUATION] is not None,
            predicts=self._functions[Mode.PREDICTION] is not None,
        )

    def open_epochs(self, data: str, mode: Mode) -> Epochs:
        """Return a loader's batches, epoch by epoch; see `definition.BatchesInput`.

        Raises:
            DefinitionError: There is no such function, or it returns no DataLoader.
            UserCodeError: The function raised.
        """
        symbol = self._functions[mode]
        if symbol is None:
            raise self._reading.error(
                self._reading.model_code.symbol,
                "there is no val_dataloader(data) for the validation data.",
                "Add it, or leave out --validation_data.",
            )
        loader = call(symbol, data, **self._given[mode])
        if mode is Mode.PREDICTION:
            check_in_order(loader, symbol, self._reading)
        parts_of = _features if mode is Mode.PREDICTION else _as_forward
        epochs = epochs_of(loader, symbol, self._reading, parts_of)
        self._own_generators.check(loader, mode, symbol, self._reading)
        return epochs

    def _takes(self, symbol: Symbol) -> str:
        takes = next(iter(signature_of(symbol).parameters), None)
        if takes is None:
            raise self._reading.error(
                symbol,
                f"{symbol.name}() takes nothing.",
                f"It must accept the path of the data, --data: def {symbol.short_name}(data): ...",
            )
        return takes


def epochs_of(
    loader: Any,
    symbol: Symbol,
    reading: DialectReader,
    parts_of: Callable[[Any, str], Sequence[Any]],
    *,
    ends_at_length: bool = False,
) -> Epochs:
    """Return the batches of a `DataLoader`, epoch by epoch, in an order that can be repeated.

    Args:
        loader: The result of a user's `train_dataloader()`.
        symbol: That function, for errors.
        reading: Reader of the user's code, which builds error messages.
        parts_of: Function (batch of the loader, name of the loader for errors) -> `(features,
            labels)`, or `(features,)` for a batch without labels.
        ends_at_length: Whether an epoch of an IterableDataset ends after `len(loader)` batches, as
            with Lightning's Trainer. Otherwise a further batch is an error, because a plain loop
            would train on it.

    Raises:
        DefinitionError: The object is not a DataLoader, its number of batches is unknown, or its
            sampler's order cannot be repeated. When an epoch begins: its batches depend on state.
            At its end: an IterableDataset yields more than its length.
        UserCodeError: The loader's `worker_init_fn` raised.
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
            "Give the dataset a __len__(): it is needed to divide an epoch among workers and "
            "checkpoints.",
        ) from error
    num_examples = len(loader.sampler) if indexed else len(loader.dataset)
    if getattr(loader, "drop_last", False):
        num_examples = num_batches * loader.batch_size

    orders, workers = SamplerOrders(loader), LoaderWorkers(loader, name)
    if indexed:
        _check_repeatable(orders, symbol, reading)
        workers.initialize()
    states = [(each, each.get_state()) for each in orders.generators if hasattr(each, "get_state")]

    state, changes = BatchState(loader, name), SamplerChanges(loader, orders)

    def restarted(epoch: int) -> Any:
        for generator, first_state in states:
            generator.set_state(first_state)
        set_epoch(epoch, loader.sampler, loader.batch_sampler, loader)
        return loader

    def begin(epoch: int, first: int) -> Iterator[Batch]:
        if not indexed:
            # Processes of the loader have copies, which do not advance.
            if not loader.num_workers:
                state.check(lambda count: list(itertools.islice(restarted(0), count)))
            most = None if ends_at_length else num_batches
            return _guarded(lambda: _whole(restarted(epoch), most, name), name, parts_of)
        # Drawn here: the order depends on the epoch, a batch's random numbers on the batch.
        order = orders.of(epoch)
        _check_length(order, num_batches, epoch, name)
        state.check(lambda count: list(_made(loader, workers, order[:count])))
        made = functools.partial(_made, loader, workers, order, first)
        return _guarded(lambda: _checked(made(), state), name, parts_of)

    return Epochs(
        num_examples=num_examples,
        num_batches=num_batches,
        begin=begin,
        indexed=indexed,
        reproducible=indexed,
        name=name,
        preserved=state.preserved,
        check=functools.partial(_check_unchanged, changes, name) if indexed else None,
    )


def _check_repeatable(orders: SamplerOrders, symbol: Symbol, reading: DialectReader) -> None:
    """Check that a loader's order can be drawn again.

    Raises:
        DefinitionError: A second draw of the order differs from the first.
    """
    if not orders.find_state():
        raise reading.error(
            symbol,
            f"the sampler of {symbol.name}() yields a different order each time, even with the "
            "same seeds.",
            "Draw from the global generators of PyTorch, NumPy or Python, which are seeded for "
            "each epoch, or from a generator with a fixed seed.",
        )


def _check_length(order: Sequence[Any], num_batches: int, epoch: int, name: str) -> None:
    """Check that an epoch has the number of batches that the loader had when it was created.

    Raises:
        DefinitionError: The number differs.
    """
    if len(order) != num_batches:
        raise DefinitionError(
            f"{name}: the number of batches in epoch {epoch + 1} is {len(order):,}; expected "
            f"{num_batches:,}, len(loader) at the start. It must be the same in all epochs, "
            "because an epoch is divided among workers and checkpoints. Correct __len__() of the "
            "sampler, or let each epoch choose the same number of examples."
        )


def _whole(loader: Any, num_batches: int | None, name: str) -> Iterator[Any]:
    """Yield the batches of a loader over an IterableDataset.

    Args:
        loader: The loader.
        num_batches: Maximum number of batches; None for any number.
        name: Name of the loader, for the error.

    Raises:
        DefinitionError: There are more than `num_batches`. Raised in place of yielding the last one
            within that number.
    """
    batches = iterated(loader)
    for number, made in enumerate(batches, 1):
        if number == num_batches and next(batches, None) is not None:
            raise DefinitionError(
                f"{name} yields more batches than the {num_batches:,} that its length promises, "
                f"len(loader), with {len(loader.dataset):,} examples in len(dataset). A plain loop "
                "would train on all of them. Correct __len__() of the dataset, or let __iter__() "
                "end after that many examples."
                + (
                    f" Each of the loader's {loader.num_workers} processes iterates over the "
                    "dataset: let it yield its part only (torch.utils.data.get_worker_info()), and "
                    "if the parts end in short batches, use num_workers=0."
                    if loader.num_workers
                    else ""
                )
            )
        yield made


def _check_unchanged(changes: SamplerChanges, name: str, epoch: int) -> None:
    """Check that user code has not changed the loader's samplers, which would have no effect.

    Args:
        changes: Detector of changes of the samplers.
        name: The user's name for the loader, for the error.
        epoch: The epoch that begins.

    Raises:
        DefinitionError: User code has changed one, other than by `set_epoch(epoch)`.
    """
    changed = changes.find(epoch)
    if changed is not None:
        raise DefinitionError(
            f"{name}: {changed} has changed since the loader was created, such as by a callback. "
            "That has no effect here: each epoch's order is drawn from a copy of the samplers, so "
            "that a resumed training and workers have the same order. Compute the order from the "
            "epoch, in a sampler of your own: its set_epoch(epoch) is called with the number of "
            "the epoch, from 0. For weights that depend on the model, weight the examples in the "
            "loss."
        )


def check_in_order(loader: Any, symbol: Symbol, reading: DialectReader) -> None:
    """Check that predictions on a loader's batches can be matched to the examples of its dataset.

    Args:
        loader: A DataLoader for predictions.
        symbol: The user's function that returned it, for errors.
        reading: Reader of the user's code, which builds error messages.

    Raises:
        DefinitionError: The order is random, or examples are left out.
    """
    sampler = getattr(loader, "sampler", None)
    draws = type(sampler).__name__.endswith("RandomSampler")
    if not draws and hasattr(loader.dataset, "__getitem__"):
        draws = list(sampler or ()) != list(sampler or ())
    if draws:
        raise reading.error(
            symbol,
            f"the DataLoader of {symbol.name}() shuffles, so predictions could not be matched with "
            "examples.",
            "Return one without shuffle=True for predictions.",
        )
    if getattr(loader, "drop_last", False) and len(loader.sampler) % loader.batch_size:
        raise reading.error(
            symbol,
            f"the DataLoader of {symbol.name}() has drop_last=True, so the last "
            f"{len(loader.sampler) % loader.batch_size} examples would have no prediction.",
            "Return one without drop_last for predictions.",
        )


class SharedGeneratorCheck:
    """Checks that no two loaders share a random number generator.

    In a plain loop, each loader advances a shared generator, so an epoch's order would depend on
    the evaluations before it.
    """

    def __init__(self) -> None:
        self._known: dict[Mode, list[Any]] = {}

    def check(self, loader: Any, mode: Mode, symbol: Symbol, reading: DialectReader) -> None:
        """Check a loader against those of the other modes, and record its generators.

        Raises:
            DefinitionError: It shares a generator with the loader for another mode.
        """
        mine = SamplerOrders(loader).generators
        for other, theirs in self._known.items():
            if other is not mode and any(g is t for g in mine for t in theirs):
                raise reading.error(
                    symbol,
                    f"the DataLoader of {symbol.name}() shares its generator with the one for "
                    f"{other}: the order of one would depend on the use of the other.",
                    "Give each loader its own generator.",
                )
        self._known[mode] = mine


def _checked(batches: Iterator[Any], state: BatchState) -> Iterator[Any]:
    """Yield the batches of a loader; check the loader's generators after each.

    Raises:
        DefinitionError: The loader draws from a generator of its own.
    """
    for made in batches:
        state.check_generators()
        yield made


def _made(
    loader: Any, workers: LoaderWorkers, order: Sequence[Any], first: int = 0
) -> Iterator[Any]:
    """Yield the batches of an epoch of a loader over a map-style dataset.

    Args:
        loader: The loader.
        workers: Its workers, as user code sees them.
        order: The dataset indexes of each batch.
        first: Number of the first batch to yield.
    """
    for number, indexes in enumerate(order[first:], first):
        with workers.making(number):
            if loader.batch_sampler is None:
                # With batch_size=None, an item is a batch.
                items = loader.dataset[indexes]
            elif hasattr(loader.dataset, "__getitems__"):
                items = loader.dataset.__getitems__(indexes)
            else:
                items = [loader.dataset[index] for index in indexes]
        # If it saw a worker, PyTorch would put the batch into shared memory, for another process.
        yield loader.collate_fn(items)


def _guarded(
    begin: Callable[[], Iterator[Any]],
    name: str,
    parts_of: Callable[[Any, str], Sequence[Any]],
) -> Iterator[Batch]:
    try:
        for made in begin():
            yield batch_of(parts_of(made, name), f"{name} yields", weighable=False)
    except ElasticDLError:
        raise
    except Exception as error:
        raise UserCodeError(f"{name} raised:\n{users_traceback(error)}") from error


def as_module(made: Any, name: str) -> Sequence[Any]:
    """Split a batch for a LightningModule.

    A pair becomes `(features, labels)`. Anything else becomes `(features,)` with the whole batch as
    features.
    """
    del name
    return tuple(made) if _is_pair(made) else (made,)


def _as_forward(made: Any, name: str) -> Sequence[Any]:
    """Split a batch into features and labels, for `forward` and a loss.

    Raises:
        DefinitionError: The batch is neither a pair nor a dict with `labels`.
    """
    if _is_pair(made):
        return tuple(made)
    if isinstance(made, Mapping) and "labels" in made:
        features = {name: value for name, value in made.items() if name != "labels"}
        return features, made["labels"]
    raise DefinitionError(
        f"{name} yields {_with_shapes(made)}; expected (features, labels), or a dict with labels. "
        "Make collate_fn return one of them."
    )


def _with_shapes(made: Any) -> str:
    """Describe a batch for messages: `a list of 2: float32[16, 4], int64[16]`."""
    if isinstance(made, Mapping):
        return f"{described(made)} with {', '.join(map(repr, made))}"
    if not isinstance(made, (list, tuple)):
        return described(made)
    parts = [
        f"{str(each.dtype).removeprefix('torch.')}{list(each.shape)}"
        if hasattr(each, "dtype") and hasattr(each, "shape")
        else described(each)
        for each in made
    ]
    return f"{described(made)} of {len(made)}: {', '.join(parts)}"


def _features(made: Any, name: str) -> Sequence[Any]:
    """Return `(features,)` for a batch to predict; labels in the batch are left out."""
    if _is_pair(made) or (isinstance(made, Mapping) and "labels" in made):
        return _as_forward(made, name)[:1]
    is_alone = isinstance(made, (list, tuple)) and len(made) == 1
    return (made[0] if is_alone else made,)


def as_whole(made: Any, name: str) -> Sequence[Any]:
    """Return `(features,)` with the whole batch, as a LightningModule's `predict_step` takes it."""
    del name
    return (made,)


def _is_pair(made: Any) -> bool:
    is_plain = isinstance(made, (list, tuple)) and not hasattr(made, "_fields")
    return is_plain and len(made) == _PAIR


def _is_iterable(dataset: Any) -> bool:
    return any(kind.__name__ == "IterableDataset" for kind in type(dataset).__mro__)
