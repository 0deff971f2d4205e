"""Makes the random numbers that models draw from `numpy.random` and `random` reproducible.

NumPy and Python each have one generator per process behind these modules' functions. One thread
prepares batches: it reseeds these generators for each batch, and user code draws from them. At the
same time, a model may draw in another thread. If both drew from the same generators, the numbers
would depend on the timing of the threads. A trainer therefore has its own generators, which are
seeded for each step. The functions of both modules draw from these wherever the trainer runs user
code, and from those of the process everywhere else:

    a thread within `Generators.used()`     the generators of that trainer
    any other thread                        the generators of the process

NumPy's functions are methods of one `RandomState`. Each call holds the lock of its bit generator;
the lock here swaps in the state of the calling thread. Python's functions are methods of one
`random.Random`, which gets a class that looks up the thread. A thread outside `Generators.used()`
draws as before, at the cost of that lookup (0.2 us per call).

A new generator without a seed, `np.random.default_rng()`, would draw different numbers in each
run. Where user code runs, in a step or for a batch, it is seeded from these generators.

Callers: `zoo/imports.py`, before the user's files take functions from `random`; the trainers; and
`engines/randomness.py`, for batches. The checks of user code call `is_of_process`.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from elasticdl.errors import DefinitionError

# struct mt19937_state { uint32_t key[624]; int pos; }
_STATE_BYTES = 624 * 4 + ctypes.sizeof(ctypes.c_int)
# Functions that a file may have imported by name and that do not call a method of the class below.
_REPLACED = ("random", "getrandbits", "seed", "getstate", "setstate")


class _Thread(threading.local):
    generators: Generators | None = None
    makes_batch = False


_thread = _Thread()


class Generators:
    """The NumPy and Python random generators of one trainer, from which its user code draws.

    Args:
        refusal: Function () -> error to raise if user code draws random numbers. None: permit it.
    """

    def __init__(self, refusal: Callable[[], Exception] | None = None) -> None:
        self._refusal = refusal
        self._python = random.Random(0)  # noqa: S311 - not for secrets
        self._numpy = _KeptState()
        self.seed(0)

    def seed(self, seed: int) -> None:
        """Set the seed of both generators; to save time, each is reseeded only when next used."""
        self._seed = seed
        self._python_is_seeded = self._numpy_is_seeded = False

    @contextlib.contextmanager
    def used(self) -> Iterator[None]:
        """Context manager in whose block `random` and `numpy.random` draw from these generators.

        Other threads are not affected.
        """
        before = _thread.generators
        _thread.generators = self
        try:
            yield
        finally:
            _thread.generators = before

    def check(self) -> None:
        """Raise the `refusal` error, if there is one; called whenever user code draws a number."""
        if self._refusal is not None:
            raise self._refusal()

    def python(self) -> random.Random:
        """Return this trainer's `random.Random`.

        The seed last set with `seed()` is applied at the first call after it.

        Raises:
            Exception: The `refusal` error, if draws are forbidden.
        """
        self.check()
        if not self._python_is_seeded:
            self._python_is_seeded = True
            self._python.seed(self._seed)
        return self._python

    def take(self, address: int) -> None:
        """Save the state of the process's NumPy generator into this object.

        `_Lock` calls it after user code of this trainer has drawn, so that the next draw of the
        trainer continues from there. The caller must hold the generator's lock.

        Args:
            address: Address of the generator's state in memory.
        """
        self._numpy.take(address)

    def put(self, address: int) -> None:
        """Set the process's NumPy generator to the state that `take` saved in this object.

        `_Lock` calls it before user code of this trainer draws. The first call after `seed` seeds
        the process's generator with that seed instead. The caller must hold the generator's lock.

        Args:
            address: Address of the generator's state in memory.
        """
        if self._numpy_is_seeded:
            self._numpy.put(address)
        else:
            self._numpy_is_seeded = True
            np.random.seed(self._seed % 2**32)  # noqa: NPY002 - users call np.random.*


class _KeptState:
    """Saved state of NumPy's global random number generator.

    It consists of the 624 numbers of MT19937 and the second of two normal draws, which NumPy makes
    in pairs.
    """

    def __init__(self) -> None:
        self._bits = ctypes.create_string_buffer(_STATE_BYTES)
        self._normal: dict[str, Any] = {}

    def take(self, address: int) -> None:
        """Save the state of the process's NumPy generator; the caller must hold its lock.

        Args:
            address: Address of the generator's state in memory.
        """
        ctypes.memmove(self._bits, address, _STATE_BYTES)
        self._normal = np.random.get_state(legacy=False)  # noqa: NPY002 - as `put`

    def put(self, address: int) -> None:
        """Set the process's NumPy generator to the saved state; the caller must hold its lock.

        Args:
            address: Address of the generator's state in memory.
        """
        ctypes.memmove(address, self._bits, _STATE_BYTES)
        np.random.set_state({**_NO_BITS, **self._normal})  # noqa: NPY002 - the number, not the bits


# Avoids copying 624 numbers one by one.
_NO_BITS: dict[str, Any] = {"bit_generator": "MT19937", "state": {}}


class _Lock:
    """Lock of NumPy's global random generator; with it, each trainer draws its own numbers.

    NumPy acquires the lock for each draw. In a block of `Generators.used()`, this sets the global
    generator to the state of the thread's trainer. Releasing the lock saves that state and restores
    the earlier one.

    Args:
        address: Address of the global generator's state in memory.
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

    def __exit__(self, *details: object) -> None:
        holders = self._holders
        last = holders.pop()
        if last is not holders[-1]:
            self._exchange(last, holders[-1])
        self._lock.release()

    def _exchange(self, old: Generators | None, new: Generators | None) -> None:
        if self.is_exchanging:
            # Reading and setting the state enters the lock again.
            return
        self.is_exchanging = True
        try:
            (old or self._shared).take(self._address)
            (new or self._shared).put(self._address)
        finally:
            self.is_exchanging = False


class MT19937(np.random.MT19937):
    """NumPy's MT19937 generator, but with a `_Lock` in place of NumPy's lock.

    It has the name of NumPy's class, because `np.random.get_state()` contains the name.
    """

    def __init__(self) -> None:
        super().__init__()
        self._exchanging = _Lock(self.ctypes.state_address)

    @property
    def lock(self) -> Any:  # type: ignore[override]
        """The lock that a `RandomState` holds during each of its calls, a `_Lock` here."""
        return self._exchanging

    @property
    def state(self) -> Any:
        """The state dict of NumPy's MT19937.

        While `_Lock` swaps states, the dict lacks the 624 numbers: `_Lock` copies them directly in
        memory, which is faster.
        """
        with self._exchanging:
            return {**_NO_BITS} if self._exchanging.is_exchanging else super().state

    @state.setter
    def state(self, value: Any) -> None:
        with self._exchanging:
            if not self._exchanging.is_exchanging:
                np.random.MT19937.state.__set__(self, value)  # type: ignore[attr-defined]

    def __reduce__(self) -> Any:
        """Pickle as NumPy's own MT19937."""
        plain = np.random.MT19937()
        plain.state = self.state
        return plain.__reduce__()


class _Python(random.Random):
    """The class of `random`'s shared generator: draws from the generator of the thread's trainer.

    A thread outside `Generators.used()` draws from the shared generator itself.
    """

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
        """The cached second value of `random.gauss`, kept per thread."""
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
    """Context manager for preparing a batch: new NumPy generators without a seed get one.

    In the block, `np.random.default_rng()` in this thread draws its seed from the process'
    generators. The caller has seeded these for the batch, and no other thread uses them meanwhile.
    """
    before = _thread.makes_batch
    _thread.makes_batch = True
    try:
        yield
    finally:
        _thread.makes_batch = before


def _new_generator(seed: Any = None) -> np.random.Generator:
    """Create a NumPy generator; replaces `np.random.default_rng`.

    Where user code runs, a generator without a seed gets one that is drawn from the seeded
    generators, so that its numbers can be reproduced.
    """
    if seed is None and (_thread.makes_batch or _thread.generators is not None):
        seed = np.random.randint(2**32, size=4, dtype=np.uint32)  # noqa: NPY002 - a seeded one
    return _default_rng(seed)


_default_rng = np.random.default_rng
# Pickle looks the function up by this name.
_new_generator.__name__ = _new_generator.__qualname__ = "default_rng"
_new_generator.__module__ = "numpy.random"


def install() -> None:
    """Make `numpy.random` and `random` draw from the current thread's generators; idempotent.

    Raises:
        DefinitionError: NumPy's functions have another kind of bit generator.
    """
    numpys: Any = np.random
    bit_generator = numpys.get_bit_generator()
    if not isinstance(bit_generator, MT19937):
        if type(bit_generator) is not np.random.MT19937:
            raise DefinitionError(
                f"numpy.random.set_bit_generator was given a {type(bit_generator).__name__}; "
                "expected NumPy's MT19937. Random numbers from another bit generator cannot be "
                "reproduced after a resume. Do not replace the functions of numpy.random."
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


def is_of_process(value: Any) -> bool:
    """Return whether a value is a global random number generator of PyTorch, NumPy or Python.

    ElasticDL seeds these itself, so they need no checks.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Generator):
        # An operation receives a new object for the same generator each time.
        return bool(value._cdata == torch.default_generator._cdata)  # noqa: SLF001 - no public name
    return value is np.random.mtrand._rand or value is getattr(random, "_inst", None)  # noqa: SLF001 - as above
