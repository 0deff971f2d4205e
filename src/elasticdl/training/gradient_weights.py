"""Checks that mean gradients can be averaged over parties, weighted by their numbers of examples.

A party of a federation may send gradients instead of weights. Their weighted average is wrong if
the loss was divided by something other than the number of examples, such as the number of time
steps that are not masked.

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

    A multiple is permitted because a mean over all values has the same number for each example.

    Args:
        divisor: The sum of the divisors of some batches. The divisor of a batch is the number by
            which its sum of losses was divided to get its mean loss.
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
