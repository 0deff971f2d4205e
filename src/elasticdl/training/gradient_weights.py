"""Checks that mean gradients can be averaged over batches, weighted by the number of examples.

They cannot if the loss was divided by something other than the number of examples, such as the
number of time steps that are not masked.

Callers: the trainers' `by_name`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from elasticdl.errors import DefinitionError

if TYPE_CHECKING:
    from elasticdl.definition import Origin


def check_divides_by_examples(divisor: float, num_examples: int, origin: Origin) -> None:
    """Check that a mean loss was divided by its number of examples, or by a multiple of it.

    Args:
        divisor: Number by which the sum of losses was divided to get a batch's mean loss, summed
            over batches.
        num_examples: Number of examples in these batches.
        origin: Origin of the model, for the error message.

    Raises:
        DefinitionError: The loss was divided by another number: of time steps that are not masked,
            of targets that are not ignored, or the sum of class weights.
    """
    # A mean over all output values has the same number of values for each example.
    times = max(1, round(divisor / num_examples)) if num_examples else 1
    if not math.isclose(divisor, times * num_examples, rel_tol=1e-5):
        raise DefinitionError(
            f"{origin}: the loss of {num_examples} examples was divided by {divisor:g} (masked "
            "steps, ignored targets or class weights). Parties that send gradients are weighted "
            "by their numbers of examples, which would give a different mean. Use another fusion, "
            "such as fedavg."
        )
