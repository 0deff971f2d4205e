"""Minibatches, in the form that every framework's trainer takes: numpy arrays only."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from elasticdl.errors import DefinitionError

Arrays: TypeAlias = Any
"""A NumPy array of shape [num_examples, ...], or a dict, list, tuple or namedtuple of them."""

# Of more named arrays than the first number, as many as the second are described in a message.
_MAX_ARRAYS, _MAX_SHOWN = 10, 5
_MAX_PARTS = len(("features", "labels", "weights"))

_ONE_BATCH = (
    "expected the arrays of one batch of --minibatch_size records. An object that forms its own "
    "batches (a DataLoader, a tf.data.Dataset, a PyDataset, a generator) cannot be divided among "
    "workers."
)

Record: TypeAlias = Mapping[str, np.ndarray[Any, Any]]
"""One decoded record: field name -> array."""


@dataclass(frozen=True, eq=False)
class RecordNames:
    """Names of the records that a batch was made of, for error messages; called like a function.

    Attributes:
        name_some: Function (record numbers) -> text that names their files and positions.
        record_numbers: Numbers of the records, counted over all files, in the order of the batch's
            examples.
    """

    name_some: Callable[[np.ndarray[Any, Any]], str]
    record_numbers: np.ndarray[Any, Any]

    def __call__(self) -> str:
        """Return the names of all the batch's records as one text: `a, records 2 and 7`."""
        return self.name_some(self.record_numbers)

    def of_examples(self, rows: Sequence[int]) -> str:
        """Return the names of some examples' records, as one text for an error.

        Args:
            rows: Positions of the examples in the batch.
        """
        return self.name_some(self.record_numbers[list(rows)])


@dataclass(frozen=True, eq=False)
class Remake:
    """A way to call the user's input function again for some of a batch's records.

    An input function may pad each batch to its longest record. A batch of fewer records is then
    padded less, and comparing the model's results for both shows whether padding changes them.

    Attributes:
        records: The records of the batch.
        make: Function (records, random seed) -> batch that the user's input function makes of these
            records, with random numbers from this seed; called with some or all of `records`.
    """

    records: Sequence[Record]
    make: Callable[[Sequence[Record], int], Batch]


@dataclass(frozen=True, eq=False)
class Batch:
    """Examples that are trained on, evaluated or predicted together.

    Attributes:
        features: Input of the model, as the user's input function returned it.
        labels: Input of the loss; None in prediction.
        num_examples: Length of the first axis of every array.
        weights: Weight of each example in loss, metrics and gradients: float32 of shape
            [num_examples], or [num_examples, ...] for a weight per time step or pixel. None: all
            examples have equal weights.
        where: Function () -> names of the batch's records, for an error; None if unknown. It is a
            `RecordNames` only if each example i was made from record i alone.
        remake: Makes smaller batches from some of the records, to test whether padding changes
            results. None if that is impossible, or unnecessary because the arrays of all batches
            have the same lengths.
    """

    features: Arrays
    labels: Arrays
    num_examples: int
    weights: np.ndarray[Any, Any] | None = None
    where: Callable[[], str] | None = None
    remake: Remake | None = None

    def names_of(self, rows: Sequence[int]) -> str:
        """Return the names of the records that some examples were made of, for an error.

        If the record of each example is not known, return the names of all records of the batch;
        if those are unknown too, return an empty string.
        """
        if self.where is None:
            return ""
        if isinstance(self.where, RecordNames) and self.names_each:
            return self.where.of_examples(rows)
        return self.where()

    @property
    def names_each(self) -> bool:
        """Whether `names_of` can name the record of each example, not only all records."""
        return (
            isinstance(self.where, RecordNames)
            and len(self.where.record_numbers) == self.num_examples
        )


def _numbers_in_a_list(parts: Sequence[Arrays]) -> str:
    """Return a phrase for an error message about features or labels that are a list of numbers.

    Each number would be taken for an array. An example is "labels that are a list of 64 single
    values; make them one array or tensor, such as np.array(labels) or torch.tensor(labels)".

    Args:
        parts: Features, labels and sample weights.

    Returns:
        The phrase; empty if none of the parts is such a list.
    """
    for name, part in zip(("features", "labels", "weights"), parts, strict=False):
        if isinstance(part, (list, tuple)) and part and not any(a.ndim for a in leaves(part)):
            kind = type(part).__name__
            return (
                f"{name} that are a {kind} of {len(part)} single values; make them one array or "
                f"tensor, such as np.array({name}) or torch.tensor({name})."
            )
    return ""


def batch_of(parts: Sequence[Arrays], where: str, *, weighable: bool = True) -> Batch:
    """Convert the result of an input function or a pipeline to a `Batch`, and validate it.

    The returned batch has no record names (`where` is None).

    Args:
        parts: Features; features and labels; or features, labels and sample weights, as
            `keras.Model.fit` takes them. Labels and weights may be None.
        where: The origin of the parts, as the start of an error's sentence: "input_fn() returned".
        weighable: Whether an error about the number of parts mentions that a third part may
            contain sample weights. It does not affect whether they are accepted.

    Raises:
        DefinitionError: The number of parts is wrong, something is not an array, or the arrays do
            not all have one entry per example along their first axis.
    """

    def as_array(value: Any) -> np.ndarray[Any, Any]:
        if problem := not_in_numpy(value):
            raise DefinitionError(f"{where} {problem}")
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise DefinitionError(
                f"{where} a {type(value).__name__}, which cannot be converted to an array "
                f"({error}); {_ONE_BATCH}"
            ) from error
        if array.dtype == object and (dense := dense_form(value)):
            raise DefinitionError(
                f"{where} a sparse matrix ({type(value).__name__}), which is not supported. "
                f"Return a dense array: {dense}."
            )
        if array.dtype == object and array.ndim == 0 and not isinstance(value, (str, bytes)):
            # NumPy took it for a single object: a DataLoader, a tf.data.Dataset, a generator.
            raise DefinitionError(f"{where} a {type(value).__name__}; {_ONE_BATCH}")
        return _plain(array, where)

    parts = [map_arrays(as_array, part) for part in parts]
    arrays = leaves(parts)
    sizes = {array.shape[0] if array.ndim else 0 for array in arrays}
    if not 1 <= len(parts) <= _MAX_PARTS or len(sizes) != 1 or 0 in sizes:
        if advice := _numbers_in_a_list(parts):
            raise DefinitionError(f"{where} {advice}")
        shapes = [list(array.shape) for array in arrays]
        weighted = " or (features, labels, sample weights)" if weighable else ""
        raise DefinitionError(
            f"{where} arrays of the shapes {shapes}; expected (features, labels){weighted}, every "
            "array with one entry per example along its first axis."
        )
    features, labels, weights = (*parts, None, None)[:_MAX_PARTS]
    if weights is not None and not isinstance(weights, np.ndarray):
        raise DefinitionError(
            f"{where} sample weights that are a {type(weights).__name__}; expected one array with "
            "a weight for each example."
        )
    return Batch(
        features, labels, sizes.pop(), None if weights is None else weights.astype(np.float32)
    )


def _plain(array: np.ndarray[Any, Any], where: str) -> np.ndarray[Any, Any]:
    """Check that an array can be converted to a tensor, and return it unchanged.

    Args:
        array: Numbers or strings are accepted, other Python objects are not.
        where: The origin of the array, as the start of an error's sentence.

    Raises:
        DefinitionError: The array has Python objects that are not strings.
    """
    if array.dtype != object:
        return array
    odd = [type(each).__name__ for each in array.flat if not isinstance(each, (str, bytes))]
    if odd:
        raise DefinitionError(
            f"{where} an array of Python objects (dtype object) of the shape {list(array.shape)}, "
            f"the first of them: {odd[0]}; expected numbers or strings. Pad lists of different "
            "lengths to make one array of them."
        )
    return array


def repeated(batch: Batch, num_examples: int) -> Batch:
    """Return a batch of the given size that repeats each example of another batch.

    A worker compiles its step with such a batch, which has the size of a full minibatch. With this
    batch, the trainer also looks for models whose output for an example depends on the other
    examples, for example on their mean: outputs for a part of the batch then differ from those for
    the whole. Copies of an example are adjacent, so that a part has another mean than the whole.
    """
    rows = np.sort(np.arange(num_examples) % batch.num_examples)

    def take(array: Any) -> Any:
        return array[rows]

    return Batch(
        map_arrays(take, batch.features),
        map_arrays(take, batch.labels),
        num_examples,
        map_arrays(take, batch.weights),
    )


def map_arrays(function: Callable[[Any], Any], tree: Arrays) -> Arrays:
    """Apply a function to every array in a nesting of dicts, lists and tuples; return the results.

    The result has the same nesting. None stays None.
    """
    if tree is None:
        return None
    if isinstance(tree, Mapping):
        return {name: map_arrays(function, value) for name, value in tree.items()}
    if isinstance(tree, (list, tuple)):
        return rebuilt(tree, [map_arrays(function, value) for value in tree])
    return function(tree)


def rebuilt(like: Any, values: Sequence[Any]) -> Any:
    """Return `values` as a list, tuple or namedtuple: whichever of these types `like` has."""
    if isinstance(like, tuple) and hasattr(like, "_fields"):
        return type(like)(*values)
    return type(like)(values)


def leaves(tree: Arrays) -> list[Any]:
    """Return the arrays in nested dicts, lists and tuples, depth first, in insertion order."""
    if tree is None:
        return []
    if isinstance(tree, Mapping):
        return [leaf for value in tree.values() for leaf in leaves(value)]
    if isinstance(tree, (list, tuple)):
        return [leaf for value in tree for leaf in leaves(value)]
    return [tree]


def batch_bytes(batch: Batch) -> int:
    """Return the memory that the arrays of a batch take, in bytes."""
    return arrays_bytes((batch.features, batch.labels, batch.weights))


def arrays_bytes(arrays: Arrays) -> int:
    """Return the memory of all arrays in nested dicts, lists and tuples, in bytes."""
    return sum(array.nbytes for array in leaves(arrays))


def dense_form(value: Any) -> str:
    """Return the code that converts a sparse matrix of SciPy or TensorFlow to an array.

    It is shown in an error, for example `matrix.toarray()`. Empty for other values.
    """
    if hasattr(value, "toarray") and hasattr(value, "nnz"):
        return "matrix.toarray()"
    is_of_tensorflow = type(value).__name__ in {"SparseTensor", "SparseTensorValue"}
    return "tf.sparse.to_dense(matrix)" if is_of_tensorflow else ""


def not_in_numpy(value: Any) -> str:
    """Return a phrase that completes an error message about tensors that NumPy cannot represent.

    An example is "a tensor of the dtype torch.bfloat16, which NumPy does not have. Keep the data in
    float32, ...". The result is empty for tensors, or lists of them, that NumPy can represent.
    """
    while isinstance(value, (list, tuple)) and value:
        value = value[0]
    if type(value).__name__ == "RaggedTensor":
        return (
            "a RaggedTensor, whose rows may differ in length, which NumPy does not have. Pad it to "
            "rows of one length: ragged.to_tensor()."
        )
    name = str(getattr(value, "dtype", ""))
    if not name.startswith(("torch.bfloat16", "torch.float8", "torch.float4")):
        return ""
    return (
        f"a tensor of the dtype {name}, which NumPy does not have. Keep the data in float32, and "
        f"convert features in the model's forward(): x = x.to({name})."
    )


def describe(features: Arrays) -> str:
    """Describe the arrays of a batch for a message: `image float32[64, 28, 28], size int64[64]`.

    If there are more than ten named arrays, only the first few are described; their names are
    sorted with numbers in numeric order (x9 before x10).
    """
    if isinstance(features, Mapping):
        names = sorted(features, key=_natural) if len(features) > _MAX_ARRAYS else [*features]
        shown = names[:_MAX_SHOWN] if len(names) > _MAX_ARRAYS else names
        more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
        return ", ".join(f"{name} {describe(features[name])}" for name in shown) + more
    if isinstance(features, (list, tuple)):
        return ", ".join(describe(value) for value in features)
    dtype = "text" if features.dtype.kind == "U" else features.dtype
    return f"{dtype}{list(features.shape)}"


def _natural(name: Any) -> list[tuple[int, int, str]]:
    """Return a sort key that puts the numbers within names in numeric order: x2 before x10."""
    parts = re.split(r"(\d+)", str(name))
    return [(1, int(part), "") if i % 2 else (0, 0, part) for i, part in enumerate(parts)]


def stack(trees: Sequence[Arrays]) -> Arrays:
    """Stack nested arrays of equal structure along a new first axis, as examples of a batch."""
    first = trees[0]
    if first is None:
        return None
    if isinstance(first, Mapping):
        return {name: stack([tree[name] for tree in trees]) for name in first}
    if isinstance(first, (list, tuple)):
        return rebuilt(first, [stack([tree[i] for tree in trees]) for i in range(len(first))])
    # A group of one is a view: otherwise most single steps would copy the batch for nothing.
    return first[np.newaxis] if len(trees) == 1 else np.stack(trees)
