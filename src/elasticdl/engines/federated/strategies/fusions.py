"""Registry of fusions (aggregation strategies): name, params, requirements and function.

A fusion is a function of (global weights, updates, state, params) that returns the next global
weights. The updates have been validated before (`replies.py`). This module does not decide which
parties receive requests or how many must reply.

    updates -> Fusion.fuse -> averages.py           means
                              server_optimizers.py  an optimizer's step from the mean
                              robust.py             medians and trimmed means          -> Fused
                              selection.py          means of some of the parties

Callers: `reading.py` checks params, `aggregator.py` fuses.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from elasticdl.data.wording import shown
from elasticdl.engines.federated.strategies import averages, robust, selection, server_optimizers
from elasticdl.engines.federated.strategies.selection import Score
from elasticdl.engines.federated.strategies.updates import Fused, FusionState, PartyUpdate, Weights
from elasticdl.errors import AggregationError

__all__ = [
    "FUSIONS",
    "Fused",
    "Fusion",
    "FusionParam",
    "FusionState",
    "PartyUpdate",
    "Score",
    "Weights",
]

# About the largest number that float32, the dtype of most weights, can hold.
_MOST = 1e38
_KINDS = {"whole": "a whole number", "real": "a number"}


@dataclass(frozen=True)
class FusionParam:
    """Description of a fusion's parameter: its default and its allowed values.

    Attributes:
        default: Default value.
        kind: Type of its values: "whole" numbers, "real" numbers, or "choice" of strings.
        low: Lower bound of a number.
        high: Upper bound of a number, exclusive.
        above_low: Whether the lower bound is exclusive.
        choices: The allowed strings of the kind "choice".
        about: Its meaning, in a few words.
    """

    default: float | int | str
    kind: Literal["whole", "real", "choice"]
    low: float = 0.0
    high: float = math.inf
    above_low: bool = False
    choices: tuple[str, ...] = ()
    about: str = ""

    @property
    def expected(self) -> str:
        """Allowed values as text for messages, such as `a whole number, at least 0`."""
        if self.kind == "choice":
            return f"one of {', '.join(self.choices)}"
        least = f"above {self.low:g}" if self.above_low else f"at least {self.low:g}"
        if math.isinf(self.high):
            return f"{_KINDS[self.kind]}, {least}"
        return f"{_KINDS[self.kind]}, {least} and below {self.high:g}"

    def allows(self, value: object) -> bool:
        """Return whether a value has the right type and is an allowed one."""
        if self.kind == "choice":
            return value in self.choices
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if self.kind == "whole" and not isinstance(value, int):
            return False
        # NaN fails both comparisons; infinity fails the second.
        low = value > self.low if self.above_low else value >= self.low
        return low and value < min(self.high, _MOST)


@dataclass(frozen=True, eq=False)
class Fusion:
    """A strategy that combines the parties' models into one.

    Attributes:
        name: Its name in `fusion: {name: ...}` of a config.
        title: Its name as shown in the documentation, such as "FedAvg".
        paper: URL of the paper that defines it.
        rule: Function (global weights, updates, state, params as keyword arguments) -> `Fused`.
        params: Name -> description of the param.
        least: Function that takes all params, including defaults, and returns the minimum number of
            parties.
        proximal: Name of its param that is the strength of a proximal term, such as `mu`. Parties
            add this term to their loss. None if there is no such term.
        keeps_own_weights: Whether parties continue from their own weights, not the global ones.
        sends_gradients: Whether parties send the gradient over all their examples and do not train.
        needs_score: Whether it compares the parties by the losses of their weights on the
            aggregator's own data.
        averages: Whether it needs only the mean of the parties' weights, not the weights of each
            party. Central differential privacy requires this.
    """

    name: str
    title: str
    paper: str
    rule: Callable[..., Fused]
    params: Mapping[str, FusionParam] = field(default_factory=dict)
    least: Callable[[Mapping[str, Any]], int] = lambda _: 1
    proximal: str | None = None
    keeps_own_weights: bool = False
    sends_gradients: bool = False
    needs_score: bool = False
    averages: bool = False

    def problem_of(self, param: str, value: object) -> str | None:
        """Describe what is wrong with a param; None if it is valid.

        Example:
            >>> FUSIONS["krum"].problem_of("byzantine_threshold", -1)
            '-1; expected a whole number, at least 0'
            >>> FUSIONS["krum"].problem_of("byzantine_treshold", 1)
            'not a param of krum; did you mean byzantine_threshold?'
        """
        if param in self.params:
            known = self.params[param]
            if known.allows(value):
                return None
            is_high = math.isinf(known.high) and isinstance(value, int | float) and value >= _MOST
            most = f" and below {_MOST:g}" if is_high else ""
            return f"{shown(value)}; expected {known.expected}{most}"
        near = difflib.get_close_matches(param, self.params, n=1)
        if near:
            return f"not a param of {self.name}; did you mean {near[0]}?"
        there = ", ".join(self.params) or "none"
        return f"not a param of {self.name}; its params: {there}"

    def with_defaults(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Complete params with the defaults of those that are missing.

        Raises:
            AggregationError: A param is unknown or has a value that is not allowed.
        """
        for name, value in params.items():
            problem = self.problem_of(name, value)
            if problem is not None:
                raise AggregationError(f"Param {name} of the fusion {self.name}: {problem}.")
        return {name: params.get(name, known.default) for name, known in self.params.items()}

    def needs(self, params: Mapping[str, Any]) -> int:
        """Return the minimum number of parties for these params.

        Raises:
            AggregationError: A param is unknown or has a value that is not allowed.

        Example:
            >>> FUSIONS["krum"].needs({"byzantine_threshold": 2})
            7
        """
        return self.least(self.with_defaults(params))

    def proximal_mu(self, params: Mapping[str, Any]) -> float:
        """Return the strength of the proximal term at the parties; 0 means there is none.

        Raises:
            AggregationError: A param is unknown or has a value that is not allowed.
        """
        if self.proximal is None:
            return 0.0
        return float(self.with_defaults(params)[self.proximal])

    def fuse(
        self,
        global_weights: Weights,
        updates: Sequence[PartyUpdate],
        state: FusionState,
        *,
        score: Score | None = None,
        **params: Any,
    ) -> Fused:
        """Combine the updates of a round into the next global weights.

        Args:
            global_weights: The weights that the parties started from.
            updates: One per party, in any order: the result does not depend on it.
            state: The state that the last round returned; empty in the first round.
            score: Function (weights) -> loss on the aggregator's own data; required if
                `needs_score`.
            params: Params by name; missing ones have their defaults.

        Raises:
            AggregationError: A param is invalid, there are too few updates for this fusion, they
                cannot be fused, or the fusion needs a score and there is none.
        """
        given = self.with_defaults(params)
        least = self.least(given)
        if len(updates) < least:
            raise AggregationError(
                f"{self.title} needs updates of at least {least} parties for its guarantees; this "
                f"round has {len(updates)}. Raise perc_quorum, or use another fusion."
            )
        if self.needs_score:
            if score is None:
                raise AggregationError(
                    f"{self.title} evaluates parties on the aggregator's own data, but it has "
                    "none. Add a section `data:` to the aggregator's config."
                )
            given["score"] = score
        return self.rule(global_weights, updates, state, **given)


def _server(learning_rate: float) -> FusionParam:
    return FusionParam(learning_rate, "real", above_low=True, about="the server's learning rate")


def _kept(default: float) -> FusionParam:
    return FusionParam(default, "real", high=1, about="decay rate from one round to the next")


_LIARS = FusionParam(1, "whole", about="number of malicious parties to tolerate")
_MIXED = FusionParam(
    0,
    "whole",
    about="number of malicious parties to tolerate, by mixing updates first; 0 does not mix",
)
_ADAPTIVE = {
    "learning_rate": _server(0.1),
    "beta_1": _kept(0.9),
    "beta_2": _kept(0.99),
    "epsilon": FusionParam(
        1e-3, "real", above_low=True, about="added to the denominator of the step"
    ),
}
_MCMAHAN = "https://arxiv.org/abs/1602.05629"
_REDDI = "https://arxiv.org/abs/2003.00295"
_BLANCHARD = "https://arxiv.org/abs/1703.02757"
_YIN = "https://arxiv.org/abs/1803.01498"


def _krum_least(params: Mapping[str, Any]) -> int:
    num_byzantine = int(params["byzantine_threshold"])
    return max(2 * num_byzantine + 3, num_byzantine + int(params.get("num_chosen", 0)))


def _middle_least(params: Mapping[str, Any]) -> int:
    return max(3, 2 * int(params["byzantine_threshold"]) + 1)


_ALL = (
    Fusion(
        "iter_avg",
        "Iterative averaging",
        "https://papers.nips.cc/paper/4006-parallelized-stochastic-gradient-descent",
        averages.iter_avg,
        averages=True,
    ),
    Fusion("fedavg", "FedAvg", _MCMAHAN, averages.fedavg, averages=True),
    Fusion(
        "gradient_avg",
        "Gradient averaging (FedSGD)",
        _MCMAHAN,
        averages.gradient_avg,
        params={
            "learning_rate": FusionParam(
                0.1, "real", above_low=True, about="learning rate of the global step"
            )
        },
        sends_gradients=True,
    ),
    Fusion(
        "fedprox",
        "FedProx",
        "https://arxiv.org/abs/1812.06127",
        averages.fedprox,
        params={
            "mu": FusionParam(0.1, "real", about="strength of the pull towards the global model")
        },
        proximal="mu",
        averages=True,
    ),
    Fusion(
        "fedavgm",
        "FedAvgM",
        "https://arxiv.org/abs/1909.06335",
        server_optimizers.fedavgm,
        params={"learning_rate": _server(1.0), "momentum": _kept(0.9)},
        averages=True,
    ),
    Fusion(
        "fedadagrad",
        "FedAdagrad",
        _REDDI,
        server_optimizers.fedadagrad,
        # The paper's FedAdagrad has no momentum.
        params={
            name: param if name != "beta_1" else _kept(0.0)
            for name, param in _ADAPTIVE.items()
            if name != "beta_2"
        },
        averages=True,
    ),
    Fusion(
        "fedadam", "FedAdam", _REDDI, server_optimizers.fedadam, params=_ADAPTIVE, averages=True
    ),
    Fusion(
        "fedyogi", "FedYogi", _REDDI, server_optimizers.fedyogi, params=_ADAPTIVE, averages=True
    ),
    Fusion(
        "coordinate_median",
        "Coordinate-wise median",
        _YIN,
        robust.coordinate_median,
        params={"byzantine_threshold": _MIXED},
        # At least 3, because the median of two is their mean.
        least=_middle_least,
    ),
    Fusion(
        "trimmed_mean",
        "Trimmed mean",
        _YIN,
        robust.trimmed_mean,
        params={
            "beta": FusionParam(0.2, "real", high=0.5, about="fraction trimmed at each end"),
            "byzantine_threshold": _MIXED,
        },
        least=lambda params: _middle_least(params) if any(params.values()) else 1,
    ),
    Fusion(
        "geometric_median",
        "Geometric median (RFA)",
        "https://arxiv.org/abs/1912.13445",
        robust.geometric_median,
        params={
            "smoothing": FusionParam(
                1e-6, "real", above_low=True, about="smallest distance used as a divisor"
            ),
            "byzantine_threshold": _MIXED,
        },
        # At least 3, because every point between two is a geometric median of them.
        least=_middle_least,
    ),
    Fusion(
        "krum",
        "Krum",
        _BLANCHARD,
        selection.krum,
        params={"byzantine_threshold": _LIARS},
        least=_krum_least,
    ),
    Fusion(
        "multi_krum",
        "Multi-Krum",
        _BLANCHARD,
        selection.multi_krum,
        params={
            "byzantine_threshold": _LIARS,
            "num_chosen": FusionParam(
                0, "whole", about="number of updates averaged; 0 means n - f - 2"
            ),
        },
        least=_krum_least,
    ),
    Fusion(
        "zeno",
        "Zeno",
        "https://arxiv.org/abs/1805.10032",
        selection.zeno,
        params={
            "byzantine_threshold": _LIARS,
            "rho": FusionParam(0.0005, "real", about="penalty on the size of an update"),
        },
        least=lambda params: int(params["byzantine_threshold"]) + 1,
        needs_score=True,
    ),
    Fusion(
        "fed_plus",
        "Fed+",
        "https://arxiv.org/abs/2009.06303",
        robust.fed_plus,
        params={
            "centre": FusionParam("mean", "choice", choices=("mean", "median", "geometric_median")),
            "rho": FusionParam(0.1, "real", about="strength of the pull towards the centre"),
        },
        least=lambda params: 1 if params["centre"] == "mean" else 3,
        proximal="rho",
        keeps_own_weights=True,
    ),
)

FUSIONS: Mapping[str, Fusion] = MappingProxyType({fusion.name: fusion for fusion in _ALL})
"""Name in a config -> the fusion."""
