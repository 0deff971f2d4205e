"""Random numbers that models draw from `numpy.random` and `random`: a function of the step.

A process has one generator of NumPy's and one of Python's behind these modules' functions. Code
that makes batches draws from them in one thread and has them reseeded for each batch, while a
model may draw from them in another. So a trainer has generators of its own, seeded for each step.
The functions of both modules draw from these wherever the trainer runs the user's code, and from
those of the process everywhere else:

    a thread within `Generators.used()`     the generators of that trainer
    any other thread                        the generators of the process

NumPy's functions are methods of one `RandomState`. In each call, in the thread that draws, it
enters the lock of its bit generator; the lock here exchanges the state meanwhile. Python's
functions are methods of one `random.Random`, which gets a class that looks the thread up.
A thread that no trainer has marked draws as ever, at the cost of that lookup (0.2 us a call).

A new generator without a seed, `np.random.default_rng()`, would draw others in each run: where the
user's code runs, in a step or for a batch, it gets its seed from these generators.

Callers: `zoo/imports.py`, before the user's files take functions from `random`; the trainers; and
`engines/randomness.py`, for batches.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any

import numpy as np

from elasticdl.errors import DefinitionError

# struct mt19937_state { uint32_t key[624]; int pos; }
_STATE_BYTES = 624 * 4 + ctypes.sizeof(ctypes.c_int)
# Those that a file may have imported by name and that no method of the class below is behind.
_REPLACED = ("random", "getrandbits", "seed", "getstate", "setstate")


class _Thread(threading.local):
    generators: Generators | None = None
    makes_batch = False


_thread = _Thread()


class Generators:
    """What one trainer's user code draws from instead of the generators of the process.

    Args:
        refusal: Makes the error that a draw raises; None lets user code draw.
    """

    def __init__(self, refusal: Callable[[], Exception] | None = None) -> None:
        self._refusal = refusal
        self._python = random.Random(0)  # noqa: S311 - not for secrets
        self._numpy = _KeptState()
        self.seed(0)

    def seed(self, seed: int) -> None:
        """Let the next draw be the first one of a seed; takes no time where nothing draws."""
        self._seed = seed
        self._python_is_seeded = self._numpy_is_seeded = False

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Let this thread draw from these generators meanwhile."""
        before = _thread.generators
        _thread.generators = self
        try:
            yield
        finally:
            _thread.generators = before

    def check(self) -> None:
        """Raise the refusal, where there is one."""
        if self._refusal is not None:
            raise self._refusal()

    def python(self) -> random.Random:
        """Return Python's generator, seeded."""
        self.check()
        if not self._python_is_seeded:
            self._python_is_seeded = True
            self._python.seed(self._seed)
        return self._python

    def take(self, address: int) -> None:
        """Keep what the process' NumPy generator holds; only within its lock."""
        self._numpy.take(address)

    def put(self, address: int) -> None:
        """Give the process' NumPy generator what was kept; only within its lock."""
        if self._numpy_is_seeded:
            self._numpy.put(address)
        else:
            self._numpy_is_seeded = True
            np.random.seed(self._seed % 2**32)  # noqa: NPY002 - users call np.random.*


class _KeptState:
    """A state of a `RandomState` over MT19937: the bits, and the second of two normal numbers."""

    def __init__(self) -> None:
        self._bits = ctypes.create_string_buffer(_STATE_BYTES)
        self._normal: dict[str, Any] = {}

    def take(self, address: int) -> None:
        """Copy what the generator of the process holds; only within its lock."""
        ctypes.memmove(self._bits, address, _STATE_BYTES)
        self._normal = np.random.get_state(legacy=False)  # noqa: NPY002 - as `put`

    def put(self, address: int) -> None:
        """Give the generator of the process this state; only within its lock."""
        ctypes.memmove(address, self._bits, _STATE_BYTES)
        np.random.set_state({**_NO_BITS, **self._normal})  # noqa: NPY002 - the number, not the bits


# Instead of 624 numbers that are copied one by one.
_NO_BITS: dict[str, Any] = {"bit_generator": "MT19937", "state": {}}


class _Lock:
    """The lock of a bit generator: whoever holds it finds the state of his thread's generators.

    Args:
        address: Where the state is.
    """

    def __init__(self, address: int) -> None:
        self._address = address
        self._lock = threading.RLock()
        self._holders: list[Generators | None] = [None]
        self._shared = _KeptState()
        self.is_exchanging = False

    def __enter__(self) -> None:
        wanted = _thread.generators
        if wanted is not None:
            wanted.check()
        self._lock.acquire()
        holders = self._holders
        if wanted is not holders[-1]:
            self._exchange(holders[-1], wanted)
        holders.append(wanted)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        holders = self._holders
        last = holders.pop()
        if last is not holders[-1]:
            self._exchange(last, holders[-1])
        self._lock.release()

    def _exchange(self, old: Generators | None, new: Generators | None) -> None:
        if self.is_exchanging:
            # Here the lock is entered again, to read and to set the state.
            return
        self.is_exchanging = True
        try:
            (old or self._shared).take(self._address)
            (new or self._shared).put(self._address)
        finally:
            self.is_exchanging = False


class MT19937(np.random.MT19937):
    """NumPy's own, with another lock; states that are read and set name the class."""

    def __init__(self) -> None:
        super().__init__()
        self._exchanging = _Lock(self.ctypes.state_address)

    @property
    def lock(self) -> Any:  # type: ignore[override]
        """What a `RandomState` holds in each call."""
        return self._exchanging

    @property
    def state(self) -> Any:
        """As NumPy has it; without the bits while they are copied at once."""
        with self._exchanging:
            return {**_NO_BITS} if self._exchanging.is_exchanging else super().state

    @state.setter
    def state(self, value: Any) -> None:
        with self._exchanging:
            if not self._exchanging.is_exchanging:
                np.random.MT19937.state.__set__(self, value)  # type: ignore[attr-defined]

    def __reduce__(self) -> Any:
        """Return what makes a bit generator of NumPy's own."""
        plain = np.random.MT19937()
        plain.state = self.state
        return plain.__reduce__()


class _Python(random.Random):
    """Draws from the generators of the thread; see `random.Random`."""

    def random(self) -> float:
        generators = _thread.generators
        return super().random() if generators is None else generators.python().random()

    def getrandbits(self, k: int, /) -> int:
        generators = _thread.generators
        return super().getrandbits(k) if generators is None else generators.python().getrandbits(k)

    def seed(self, a: Any = None, version: int = 2) -> None:
        generators = _thread.generators
        if generators is None:
            super().seed(a, version)
        else:
            generators.python().seed(a, version)

    def getstate(self) -> Any:
        generators = _thread.generators
        return super().getstate() if generators is None else generators.python().getstate()

    def setstate(self, state: Any) -> None:
        generators = _thread.generators
        if generators is None:
            super().setstate(state)
        else:
            generators.python().setstate(state)

    @property
    def gauss_next(self) -> float | None:
        """The second of two normal numbers, which `gauss` keeps."""
        return self._kept_by_thread().get("gauss_next")

    @gauss_next.setter
    def gauss_next(self, value: float | None) -> None:
        self._kept_by_thread()["gauss_next"] = value

    def _kept_by_thread(self) -> dict[str, Any]:
        generators = _thread.generators
        return vars(self) if generators is None else vars(generators.python())

    def __reduce__(self) -> Any:
        return random.Random, (), self.getstate()


@contextlib.contextmanager
def making_batch() -> Iterator[None]:
    """Say that this thread has the process' generators for itself meanwhile, seeded."""
    before = _thread.makes_batch
    _thread.makes_batch = True
    try:
        yield
    finally:
        _thread.makes_batch = before


def _new_generator(seed: Any = None) -> np.random.Generator:
    """Construct a new Generator; see `numpy.random.default_rng`."""
    if seed is None and (_thread.makes_batch or _thread.generators is not None):
        seed = np.random.randint(2**32, size=4, dtype=np.uint32)  # noqa: NPY002 - a seeded one
    return _default_rng(seed)


_default_rng = np.random.default_rng
# As pickle finds it.
_new_generator.__name__ = _new_generator.__qualname__ = "default_rng"
_new_generator.__module__ = "numpy.random"


def install() -> None:
    """Let `numpy.random` and `random` look up what a thread draws from; may be called again.

    Raises:
        DefinitionError: NumPy's functions were given another kind of bit generator.
    """
    numpys: Any = np.random
    bit_generator = numpys.get_bit_generator()
    if not isinstance(bit_generator, MT19937):
        if type(bit_generator) is not np.random.MT19937:
            raise DefinitionError(
                f"numpy.random.set_bit_generator was given a {type(bit_generator).__name__}; "
                "expected NumPy's MT19937. What a model draws from another one cannot be "
                "repeated after a resume. Leave the functions of numpy.random as they are."
            )
        state = np.random.get_state()  # noqa: NPY002 - users call np.random.*
        numpys.set_bit_generator(MT19937())
        np.random.set_state(state)  # noqa: NPY002 - as above
    numpys.default_rng = _new_generator
    shared: Any = random._inst  # noqa: SLF001 - no public name
    if type(shared) is random.Random:
        shared.__class__ = _Python
        for name in _REPLACED:
            setattr(random, name, getattr(shared, name))
