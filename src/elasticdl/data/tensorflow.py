"""Runs users' `tf.data` pipelines, and seeds TensorFlow's random operations in input functions.

This is the only file of this folder that imports TensorFlow, and only when a pipeline is used.
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
    """Replacement for the module `tempfile` in TensorFlow's autograph.

    Autograph writes the code that it generates for a function into a temporary file, which a
    killed process leaves behind. Here the file is in the scratch folder of the process, which the
    next run deletes.
    """

    @staticmethod
    def NamedTemporaryFile(**options: Any) -> Any:  # noqa: N802 - that of `tempfile`
        return tempfile.NamedTemporaryFile(**{"dir": scratch.folder(), **options})


# Not public, and there is no option; if it is missing, the files stay in the temporary directory.
if hasattr(loader, "tempfile"):
    loader.tempfile = _Tempfile


def reseed(seed: int) -> None:
    """Set the global seed of TensorFlow, which determines random ops that have no seed.

    Like `tf.random.set_seed`, but without discarding all compiled kernels, which costs about 70 ms
    each time and would stall a training step that is running meanwhile. The numbers drawn are the
    same as after `set_seed`.
    """
    # Not public; there is no public way to seed without clearing the kernel cache.
    eager = context.context()
    eager._seed = seed % 2**31  # noqa: SLF001
    eager._rng = random.Random(seed % 2**31)  # noqa: SLF001, S311 - not for secrets


def forget_kernels() -> None:
    """Discard compiled kernels, so that eager random ops restart at their seed; takes about 70 ms.

    `reseed` keeps compiled kernels, and a kernel continues its sequence of random numbers: without
    this call, an op with the seed of an earlier op would continue that op's sequence. Ops in a
    `tf.data` pipeline do not need this, because they are created with the pipeline.
    """
    context.context().clear_kernel_cache()


def random_state() -> Any:
    """Return the state of TensorFlow's random ops that have no seed of their own.

    It consists of the global seed and of the generator of further seeds. Code that runs user code
    with other seeds passes it to `set_random_state` afterwards.
    """
    eager = context.context()
    # There is no generator before the first seed.
    generator = getattr(eager, "_rng", None)
    return eager._seed, generator and generator.getstate()  # noqa: SLF001 - as `reseed`


def set_random_state(state: Any) -> None:
    """Restore the state that `random_state` returned; `(None, None)` removes the global seed."""
    eager = context.context()
    eager._seed, generator = state  # noqa: SLF001 - as `reseed`
    if generator is not None:
        eager._rng.setstate(generator)  # noqa: SLF001 - as `reseed`


def numpy_elements(dataset: Any) -> Iterator[Any]:
    """Yield the elements of a user's dataset as nested numpy arrays, in a deterministic order."""
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
        records: The records that the pipeline reads.
        create_dataset: Function (dataset of scalar strings) -> dataset of single examples:
            features, (features, labels) or (features, labels, sample weights).
        minibatch_size: Examples in a batch; the last may be shorter.
        where: Name and place of the user's function, for errors.

    Raises:
        DefinitionError: The function did not return a dataset. Or its dataset would yield other
            examples for parts of the data than for all of it (see `pipeline_steps.py`). Or the
            examples cannot be stacked to batches.
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
        # An endless repeat(): the job counts epochs, so a shard is read once.
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
