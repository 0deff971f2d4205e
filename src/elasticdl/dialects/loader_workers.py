"""Emulates the worker processes of a PyTorch `DataLoader` over a map-style dataset.

These processes are not started: each batch is made in the process that trains. User code in the
dataset sees the worker that would make its batch in a plain loop:

    worker_init_fn       called once in each process, as by worker 0, before the first batch
    get_worker_info()    in the items of batch i of an epoch: worker i % num_workers

Callers: `torch_loaders.py`.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Any

from elasticdl.dialects.sampler_orders import GlobalGenerators
from elasticdl.errors import UserCodeError, users_traceback

# PyTorch keeps the information in a variable of the process. Other threads may read other loaders.
_lock = threading.RLock()


class LoaderWorkers:
    """Emulates the worker processes of a `DataLoader` over a map-style dataset; it starts none.

    The user's `worker_init_fn` and `get_worker_info()` see the worker that would have made each
    batch.

    Args:
        loader: The DataLoader. If it has `num_workers=0`, user code sees no worker, as in a plain
            loop.
        name: The user's name for the loader, for errors.
    """

    def __init__(self, loader: Any, name: str) -> None:
        self._loader, self._name = loader, name

    def initialize(self) -> None:
        """Call the loader's `worker_init_fn`.

        Random generators, the number of threads and signal handlers are restored afterwards,
        because the function sets them for a process of its own.

        Raises:
            UserCodeError: `worker_init_fn` raised.
        """
        if not self._loader.num_workers or self._loader.worker_init_fn is None:
            return
        generators = GlobalGenerators()
        try:
            with self.making(0), _settings_restored():
                self._loader.worker_init_fn(0)
        except Exception as error:
            raise UserCodeError(
                f"{self._name}: worker_init_fn(0) raised:\n{users_traceback(error)}"
            ) from error
        finally:
            generators.restore()

    def making(self, number: int) -> contextlib.AbstractContextManager[None]:
        """Return a context manager in which `get_worker_info()` shows the worker of a batch.

        Args:
            number: Number of the batch in its epoch, from 0.
        """
        count = self._loader.num_workers
        if not count:
            return _shown(None)
        worker = number % count
        seed = sys.modules["torch"].initial_seed() + worker
        return _shown(
            _of_torch().WorkerInfo(
                id=worker, num_workers=count, seed=seed, dataset=self._loader.dataset
            )
        )


def iterated(loader: Any) -> Iterator[Any]:
    """Yield the batches of a loader over an IterableDataset.

    Without processes of its own, it must not see the worker of a batch in another thread.
    """
    if loader.num_workers:
        yield from loader
        return
    end = object()
    with _shown(None):
        batches = iter(loader)
    while True:
        with _shown(None):
            made = next(batches, end)
        if made is end:
            return
        yield made


@contextlib.contextmanager
def _settings_restored() -> Iterator[None]:
    torch = sys.modules["torch"]
    num_threads = torch.get_num_threads()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)
        # Only the main thread can set them.
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                if handler is not None:
                    signal.signal(number, handler)


@contextlib.contextmanager
def _shown(info: Any) -> Iterator[None]:
    module = _of_torch()
    with _lock:
        before, module._worker_info = module._worker_info, info  # noqa: SLF001 - no public name
        try:
            yield
        finally:
            module._worker_info = before  # noqa: SLF001 - as above


def _of_torch() -> Any:
    """Return the module of PyTorch that holds the information about the current worker."""
    return sys.modules["torch.utils.data._utils.worker"]
