"""Records a model's random draws, to find out whether two runs drew the same numbers.

It also records whether the model computes in half precision, because the dtypes of parameters and
outputs do not always show that.

With the same seed, two runs on batches of the same shapes draw the same numbers at the same places,
unless the number of draws depends on values, as for dropout of the tokens that reach an expert.
In some of PyTorch's own operations it does: RReLU draws for negative numbers only, and a gamma
distribution draws until a number is accepted. While draws are recorded, these operations do not
draw, and return the mean of their distribution.

Used by `part_checks.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_aten = torch.ops.aten
# Operations whose number of draws depends on values, and their means.
_MEANS: Mapping[Any, Callable[..., torch.Tensor]] = {
    _aten.rrelu_with_noise.default: lambda x, noise, *bounds, **_: _aten.rrelu_with_noise(
        x, noise, *bounds[:2]
    ),
    _aten.rrelu_with_noise_.default: lambda x, noise, *bounds, **_: _aten.rrelu_with_noise_(
        x, noise, *bounds[:2]
    ),
    _aten.poisson.default: lambda rate, *_, **__: rate.clone(),
    _aten.binomial.default: lambda count, probability, *_, **__: count * probability,
    _aten._standard_gamma.default: lambda shape, *_, **__: shape.clone(),  # noqa: SLF001 - no public name
    _aten._sample_dirichlet.default: lambda shape, *_, **__: shape / shape.sum(-1, keepdim=True),  # noqa: SLF001
}


_HALVES = {torch.bfloat16, torch.float16}


class DrawLog(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Context manager that records the PyTorch operations that draw random numbers.

    Attributes:
        is_half: Whether an operation returned float16 or bfloat16.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._draws: list[Hashable] = []
        self.is_half = False

    def __torch_dispatch__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call an operation, and record it if it draws; PyTorch calls this for each operation.

        Operations whose number of draws depends on values return their mean, and are not recorded.
        """
        del types
        if func in _MEANS:
            return _MEANS[func](*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        tensors = [each for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        self.is_half = self.is_half or any(tensor.dtype in _HALVES for tensor in tensors)
        if torch.Tag.nondeterministic_seeded in func.tags:
            self._draws.append((str(func), *(tuple(tensor.shape) for tensor in tensors)))
        return result

    def draws(self) -> Hashable:
        """Return a value that is equal for two runs if they had the same seed and the same draws.

        It contains the recorded operations and the present states of the random generators. Call it
        at the end of the run, before the caller restores the generators.
        """
        generators = [torch.default_generator]
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            generators.append(torch.cuda.default_generators[torch.cuda.current_device()])
        states = [bytes(generator.get_state().numpy()) for generator in generators]
        numpys: Any = np.random.get_state()  # noqa: NPY002 - users call np.random.*
        return (*self._draws, *states, numpys[1].tobytes(), *numpys[2:], random.getstate())
