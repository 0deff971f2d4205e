"""`tf.data` pipelines of the user's, and TensorFlow's share of the randomness of input functions.

The only file of this folder that imports TensorFlow, and only when a pipeline is used.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.autograph.pyct import loader
from tensorflow.python.eager import context

from elasticdl import scratch
from elasticdl.data import pipeline_steps
from elasticdl.data.batch import Batch, batch_of, map_arrays
from elasticdl.errors import DefinitionError


class _Tempfile:
    """The module `tempfile`, as far as autograph uses it, with a folder that the next run finds.

    Autograph writes the code that it makes of a function into the temporary directory, and removes
    it at exit. What a killed process leaves does not say whose it was.
    """

    @staticmethod
    def NamedTemporaryFile(**options: Any) -> Any:  # noqa: N802 - that of `tempfile`
        return tempfile.NamedTemporaryFile(**{"dir": scratch.folder(), **options})


# Not public, and there is no option; without it the files are where they were.
if hasattr(loader, "tempfile"):
    loader.tempfile = _Tempfile


def reseed(seed: int) -> None:
    """Make the next unseeded random op of TensorFlow a function of `seed`.

    The same as `tf.random.set_seed`, but without throwing away all compiled kernels, which
    costs some 70 ms each time and would stall the step that is running meanwhile. It is held
    by a test that what is drawn is the same as after `set_seed`.
    """
    # Not public; there is no public way to seed without clearing the kernel cache.
    eager = context.context()
    eager._seed = seed % 2**31  # noqa: SLF001
    eager._rng = random.Random(seed % 2**31)  # noqa: SLF001, S311 - not for secrets


def forget_kernels() -> None:
    """Let eager random ops start anew that were seeded as ones before; takes some 70 ms.

    A compiled kernel goes on where it was, and `reseed` leaves kernels alone: an op that gets the
    seed of an earlier one would draw what comes next. Ops within a `tf.data` pipeline need no
    such care, they are made with it.
    """
    context.context().clear_kernel_cache()


def random_state() -> Any:
    """Return what the next unseeded random op of TensorFlow depends on, for `set_random_state`."""
    eager = context.context()
    return eager._seed, eager._rng.getstate()  # noqa: SLF001 - as `reseed`


def set_random_state(state: Any) -> None:
    """Let random ops go on as if nothing had been drawn since `random_state`."""
    eager = context.context()
    eager._seed, generator = state  # noqa: SLF001 - as `reseed`
    eager._rng.setstate(generator)  # noqa: SLF001 - as `reseed`


def numpy_elements(dataset: Any) -> Iterator[Any]:
    """Yield the elements of a user's dataset as nested numpy arrays, in one order each time."""
    options = tf.data.Options()
    options.deterministic = True
    for element in dataset.with_options(options):
        yield map_arrays(lambda tensor: tensor.numpy(), element)


def example_batches(
    records: Sequence[bytes],
    create_dataset: Callable[[Any], Any],
    minibatch_size: int,
    where: str,
) -> Iterator[Batch]:
    """Yield the minibatches of a user's pipeline over serialized records.

    Args:
        records: What the pipeline reads.
        create_dataset: Takes a dataset of scalar strings, returns one of single examples:
            features, (features, labels) or (features, labels, sample weights).
        minibatch_size: Examples in a batch; the last may be shorter.
        where: The user's function, for errors.

    Raises:
        DefinitionError: The function returned no dataset, one that would be another of all records
            than of these and others, or examples that cannot be batched.
    """
    given = tf.data.Dataset.from_tensor_slices(np.array(records, dtype=object))
    dataset = create_dataset(given)
    if not isinstance(dataset, tf.data.Dataset):
        raise DefinitionError(
            f"{where} returned {type(dataset).__name__}; expected a tf.data.Dataset."
        )
    found = pipeline_steps.problem(dataset, given, create_dataset)
    if found is not None:
        raise DefinitionError(f"{where}: the pipeline {found.what}. {found.why} {found.instead}")
    options = tf.data.Options()
    options.deterministic = True
    dataset = dataset.with_options(options)
    if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
        # An endless repeat(): epochs are counted by the job, so a shard is read once.
        dataset = dataset.take(len(records))
    for element in dataset.batch(minibatch_size):
        parts = element if isinstance(element, tuple) else (element,)
        try:
            arrays = [map_arrays(lambda tensor: tensor.numpy(), part) for part in parts]
        except AttributeError as error:
            raise DefinitionError(
                f"{where} yields {dataset.element_spec}; sparse and ragged tensors are not "
                "supported: make them dense in the pipeline."
            ) from error
        yield batch_of(arrays, f"{where} yields")
