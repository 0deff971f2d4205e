"""Reshapes labels of one number per example as a PyTorch loss or metric needs them.

If ElasticDL chose the shape, because the model file has no input function, the labels are reshaped
for a function that needs it. Labels of the user's own keep their shape, as in a plain script, with
a warning.

Float labels [n, 1] that ElasticDL chose broadcast with outputs [n, 3] as well: each label is
compared with all three outputs. A quantile loss does so on purpose, so there is only a warning.

Callers: `losses.py`, `metrics.py`, `inner_loss.py`, `trainer.py`.
"""

from __future__ import annotations

import copy
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from elasticdl.data.batch import leaves
from elasticdl.training.label_shapes import needs_other_shape, warn_of_several_outputs
from elasticdl.training.torch.hidden_mode import HiddenMode
from elasticdl.training.torch.outputs import as_plain_containers, map_tensors

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np


_PAIR = 2
_PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73)

# Functions that give a tensor the shape of another.
_EXPANDS = (torch.Tensor.expand_as, torch.Tensor.view_as, torch.Tensor.reshape_as)


class TorchLabelShape:
    """The shape in which one loss or metric gets labels.

    Args:
        where: `file:line` of the function, for the warning.
        what: What the function is, such as "the loss".
        may_reshape: Whether labels may be reshaped; otherwise there is only a warning.

    Attributes:
        reshapes: Whether labels are reshaped; False before `find`.
    """

    def __init__(self, where: str, what: str, *, may_reshape: bool) -> None:
        self._where, self._what, self._may_reshape = where, what, may_reshape
        self.reshapes = False

    def find(self, function: Callable[[Any, Any], Any], inputs: Any, labels: Any) -> None:
        """Determine from an example batch whether to reshape labels: [n] to [n, 1] or the reverse.

        Args:
            function: Function (inputs, labels) -> loss or metric.
            inputs: Nested tensors for the example batch: the model's outputs, or the features if
                the function runs the model.
            labels: Its labels.
        """
        if not _may_differ(inputs, labels):
            return
        # Its state must not change. Not every object can be copied.
        with suppress(Exception):
            function = copy.deepcopy(function)
        if self._may_reshape:
            self._warn_if_spread(function, inputs, labels)
        num_examples = len(labels)
        tensors = [t for t in leaves(as_plain_containers(inputs)) if isinstance(t, torch.Tensor)]
        lengths = {length for tensor in tensors for length in tensor.shape[1:]}
        # No other axis has this length. Inside the function one may, so there are two.
        counts = [prime for prime in _PRIMES if prime not in lengths][:_PAIR]

        def makes_pairs(count: int, given: torch.Tensor) -> bool | None:
            rows = torch.arange(count, device=labels.device) % num_examples

            def of_rows(tensor: torch.Tensor) -> torch.Tensor:
                has_rows = tensor.ndim and len(tensor) == num_examples
                return tensor[rows.to(tensor.device)] if has_rows else tensor

            return _makes_pairs(function, map_tensors(of_rows, inputs), given[rows], count)

        def is_per_example(reshaped: bool) -> bool | None:
            given = _of_other_rank(labels) if reshaped else labels
            made = [makes_pairs(counts[0], given)]
            if made[0]:
                made.append(makes_pairs(counts[1], given))
            return None if None in made else not all(made)

        has_several_values = isinstance(inputs, torch.Tensor) and inputs.shape[1:].numel() > 1
        if labels.ndim == 1 and has_several_values and makes_pairs(counts[0], labels) is None:
            # It raises in a plain script too. As [n, 1], a label would be compared with all values
            # of its example.
            return
        self.reshapes = needs_other_shape(
            is_per_example,
            labels.ndim,
            where=self._where,
            what=self._what,
            may_reshape=self._may_reshape,
        )

    def __call__(self, inputs: Any, labels: Any) -> Any:
        """Return labels in the shape that the loss or metric needs.

        Args:
            inputs: First argument of the loss or metric: the model's outputs, or the features if it
                runs the model.
            labels: Labels of a batch.
        """
        if self.reshapes and _may_differ(inputs, labels):
            return _of_other_rank(labels)
        return labels

    def _warn_if_spread(
        self, function: Callable[[Any, Any], Any], outputs: Any, labels: torch.Tensor
    ) -> None:
        """Warn if a loss or metric compares each float label of shape [n, 1] with several outputs.

        Args:
            function: Function (outputs, labels) -> loss or metric.
            outputs: The model's outputs for the example batch.
            labels: Its labels.
        """
        is_table = isinstance(outputs, torch.Tensor) and outputs.ndim == labels.ndim == _PAIR
        if not is_table or outputs.shape[1] == 1 or not labels.is_floating_point():
            return
        watch = _Spread(labels, outputs.shape)
        try:
            with torch.no_grad(), warnings.catch_warnings(action="ignore"), watch:
                function(outputs, labels)
        except Exception:  # noqa: BLE001 - the first step raises it again, on a batch of the data
            return
        if watch.is_found:
            warn_of_several_outputs(self._where, self._what, outputs.shape[1])


def is_number_per_example(values: torch.Tensor | np.ndarray[Any, Any]) -> bool:
    """Return whether the shape is [n] or [n, 1]."""
    return bool(values.ndim) and tuple(values.shape[1:]) in {(), (1,)}


def _may_differ(inputs: Any, labels: Any) -> bool:
    """Return whether labels [n] may have to be reshaped to [n, 1], or labels [n, 1] to [n].

    False if labels are not one number per example. Also False if outputs and labels both have the
    shape [n], or both [n, 1].
    """
    if not (isinstance(labels, torch.Tensor) and is_number_per_example(labels)):
        return False
    is_like_labels = isinstance(inputs, torch.Tensor) and is_number_per_example(inputs)
    return not is_like_labels or inputs.ndim != labels.ndim


def _of_other_rank(labels: torch.Tensor) -> torch.Tensor:
    """Return labels [n] as [n, 1], and labels [n, 1] as [n]."""
    return labels[:, None] if labels.ndim == 1 else labels[:, 0]


def _makes_pairs(
    function: Callable[[Any, Any], Any], inputs: Any, labels: torch.Tensor, num_rows: int
) -> bool | None:
    """Return whether a function broadcasts outputs and labels to all pairs of examples.

    False if it also compares labels with each other, so that pairs are intended. None if it raises.
    """
    watch = _Shapes(num_rows, labels)
    try:
        with torch.no_grad(), warnings.catch_warnings(), watch:
            # Losses of PyTorch warn about shapes that they broadcast.
            warnings.simplefilter("ignore")
            function(inputs, labels)
    except Exception:  # noqa: BLE001 - the first step raises it again, on a batch of the data
        return None
    return watch.has_pairs and not watch.compares_labels


class _Shapes(TorchDispatchMode):
    """Context manager that records whether an operation in its block makes a tensor [n, n].

    Such a tensor has a value for each pair of examples, as when labels [n] are broadcast with
    outputs [n, 1].

    Args:
        num_rows: Number of examples, n.
        labels: The labels.

    Attributes:
        has_pairs: Whether an operation made such a tensor.
        compares_labels: Whether an operation made such a tensor from labels only, as a loss does
            that compares the labels of two examples on purpose.
    """

    def __init__(self, num_rows: int, labels: torch.Tensor) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._num_rows = num_rows
        # Tensors made of labels only. They are kept, so that no other gets the id of one.
        self._of_labels = {id(labels): labels}
        self.has_pairs = self.compares_labels = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        made = func(*args, **(kwargs or {}))
        given = [each for each in leaves(list(args)) if isinstance(each, torch.Tensor)]
        is_of_labels = bool(given) and all(id(each) in self._of_labels for each in given)
        for each in made if isinstance(made, (tuple, list)) else (made,):
            if not isinstance(each, torch.Tensor):
                continue
            if is_of_labels:
                self._of_labels[id(each)] = each
            if list(each.shape).count(self._num_rows) >= _PAIR:
                self.has_pairs = True
                # An operation on a single tensor expands it, for a broadcast.
                self.compares_labels |= is_of_labels and len(given) >= _PAIR
        return made


class _Spread(HiddenMode):
    """Context manager that records whether labels [n, 1] are broadcast to the outputs' columns.

    Not recorded is what the user has intended: an explicit `labels.expand_as(outputs)`, or a mask
    such as `labels > 0`.

    Args:
        labels: The labels.
        shape: Shape of the outputs.

    Attributes:
        is_found: Whether labels were broadcast.
    """

    def __init__(self, labels: torch.Tensor, shape: torch.Size) -> None:
        super().__init__()
        self._shape = shape
        # Tensors made of labels only. They are kept, so that no other gets the id of one.
        self._of_labels = {id(labels): labels}
        self.is_found = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        made = func(*args, **(kwargs or {}))
        if not isinstance(made, torch.Tensor) or not made.is_floating_point():
            return made
        given = [t for t in leaves([*args, *(kwargs or {}).values()]) if torch.is_tensor(t)]
        of_labels = [t for t in given if id(t) in self._of_labels]
        if given and len(of_labels) == len(given):
            self._of_labels[id(made)] = made
        elif func not in _EXPANDS and made.shape in {self._shape, torch.Size()}:
            is_column = any(t.shape == (self._shape[0], 1) for t in of_labels)
            self.is_found |= is_column and any(t.shape == self._shape for t in given)
        return made
