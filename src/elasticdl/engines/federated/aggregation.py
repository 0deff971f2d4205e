"""The fusions there are, by name: what each takes, what it asks of parties, and how it is called.

A fusion is a function of (global weights, updates, what it remembers, its params) and gives the
next global weights. Weights that parties send are judged before (`replies.py`); who is asked and
how many must answer is not known here.

    updates -> Fusion.fuse -> averages.py      means
                           server_steps.py  means that an optimizer follows
                           robust.py        middles                         -> Fused
                           selection.py     some of the parties

Callers: `config.py`, which checks params, and `aggregator.py`, which fuses.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal

from elasticdl.data.wording import shown
from elasticdl.engines.federated import averages, robust, selection, server_steps
from elasticdl.engines.federated.selection import Score
from elasticdl.engines.federated.updates import Fused, FusionState, PartyUpdate, Weights
from elasticdl.errors import AggregationError

__all__ = [
    "FUSIONS",
    "Fused",
    "Fusion",
    "FusionState",
    "Param",
    "PartyUpdate",
    "Score",
    "Weights",
]

# About what the float32 of most weights can hold.
_MOST = 1e38
_KINDS = {"whole": "a whole number", "real": "a number"}


@dataclass(frozen=True)
class Param:
    """One param of a fusion.

    Attributes:
        default: Its value where none is given.
        kind: What values are: whole numbers, real ones, or words out of `choices`.
        low: The least value.
        high: The value that all are below.
        above_low: `low` itself is not allowed.
        choices: The words there are.
        about: What it says, in a few words.
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
        """What values are allowed, in words."""
        if self.kind == "choice":
            return f"one of {', '.join(self.choices)}"
        least = f"above {self.low:g}" if self.above_low else f"at least {self.low:g}"
        if math.isinf(self.high):
            return f"{_KINDS[self.kind]}, {least}"
        return f"{_KINDS[self.kind]}, {least} and below {self.high:g}"

    def allows(self, value: object) -> bool:
        """Whether a value is one of them."""
        if self.kind == "choice":
            return value in self.choices
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        if self.kind == "whole" and not isinstance(value, int):
            return False
        # Of NaN neither is true; infinity is not below it.
        low = value > self.low if self.above_low else value >= self.low
        return low and value < min(self.high, _MOST)


@dataclass(frozen=True, eq=False)
class Fusion:
    """A way to make one model of the parties'.

    Attributes:
        name: Ours, as in `fusion: {name: ...}` of a config.
        title: What a page calls it.
        paper: Where it comes from.
        rule: The function; it takes global weights, updates, state, and the params by name.
        params: Name -> what may be given.
        least: Params, all of them -> the least number of parties it is of use with.
        proximal: The param that is the strength of a proximal term at the parties.
        keeps_own_weights: Parties go on from weights of their own, not from the global ones.
        sends_gradients: Parties do not train, but send the gradient of all their examples.
        needs_score: It needs the loss of weights on data of the aggregator's own.
        averages: Of the parties' weights it needs the mean, and nothing else.
    """

    name: str
    title: str
    paper: str
    rule: Callable[..., Fused]
    params: Mapping[str, Param] = field(default_factory=dict)
    least: Callable[[Mapping[str, Any]], int] = lambda _: 1
    proximal: str | None = None
    keeps_own_weights: bool = False
    sends_gradients: bool = False
    needs_score: bool = False
    averages: bool = False

    def problem_of(self, param: str, value: object) -> str | None:
        """Say what is wrong with a param; None if nothing is.

        Example:
            >>> FUSIONS["krum"].problem_of("byzantine_threshold", -1)
            '-1; expected a whole number, at least 0'
            >>> FUSIONS["krum"].problem_of("byzantine_treshold", 1)
            'no param of krum; did you mean byzantine_threshold?'
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
            return f"no param of {self.name}; did you mean {near[0]}?"
        there = ", ".join(self.params) or "none"
        return f"no param of {self.name}; its params: {there}"

    def with_defaults(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Return all params: those given, and the defaults of the others.

        Raises:
            AggregationError: A param is unknown or has a value that is not allowed.
        """
        for name, value in params.items():
            problem = self.problem_of(name, value)
            if problem is not None:
                raise AggregationError(f"Param {name} of the fusion {self.name}: {problem}.")
        return {name: params.get(name, known.default) for name, known in self.params.items()}

    def needs(self, params: Mapping[str, Any]) -> int:
        """Return the least number of parties it is of use with.

        Raises:
            AggregationError: As `with_defaults`.

        Example:
            >>> FUSIONS["krum"].needs({"byzantine_threshold": 2})
            7
        """
        return self.least(self.with_defaults(params))

    def proximal_mu(self, params: Mapping[str, Any]) -> float:
        """Return how hard parties are to be held near the global weights; 0 for not at all.

        Raises:
            AggregationError: As `with_defaults`.
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
        """Return the next global weights.

        Args:
            global_weights: What the parties started from.
            updates: One a party, in any order: the result does not depend on it.
            state: What the last round returned; empty in the first.
            score: As `Score`; for a fusion that `needs_score`.
            params: By name; those that are not there have their defaults.

        Raises:
            AggregationError: A param is wrong, there are too few updates for this fusion, they
                cannot be fused, or there is no score though it needs one.
        """
        given = self.with_defaults(params)
        least = self.least(given)
        if len(updates) < least:
            raise AggregationError(
                f"{self.title} needs the updates of at least {least} parties to be what it "
                f"promises; this round has {len(updates)}. Raise perc_quorum, or take another "
                "fusion."
            )
        if self.needs_score:
            if score is None:
                raise AggregationError(
                    f"{self.title} compares parties on data of the aggregator's own, and it has "
                    "none. Give the aggregator's config a section `data:`."
                )
            given["score"] = score
        return self.rule(global_weights, updates, state, **given)


def _server(learning_rate: float) -> Param:
    return Param(learning_rate, "real", above_low=True, about="the server's learning rate")


def _kept(default: float) -> Param:
    return Param(default, "real", high=1, about="what stays from one round to the next")


_LIARS = Param(1, "whole", about="how many parties may lie")
_MIXED = Param(0, "whole", about="how many parties may lie where parties differ; 0 mixes nothing")
_ADAPTIVE = {
    "learning_rate": _server(0.1),
    "beta_1": _kept(0.9),
    "beta_2": _kept(0.99),
    "epsilon": Param(1e-3, "real", above_low=True, about="how far from fixed steps it is"),
}
_MCMAHAN = "https://arxiv.org/abs/1602.05629"
_REDDI = "https://arxiv.org/abs/2003.00295"
_BLANCHARD = "https://arxiv.org/abs/1703.02757"
_YIN = "https://arxiv.org/abs/1803.01498"


def _krum_least(params: Mapping[str, Any]) -> int:
    num_liars = int(params["byzantine_threshold"])
    return max(2 * num_liars + 3, num_liars + int(params.get("num_chosen", 0)))


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
        params={"learning_rate": Param(0.1, "real", above_low=True, about="of the global step")},
        sends_gradients=True,
    ),
    Fusion(
        "fedprox",
        "FedProx",
        "https://arxiv.org/abs/1812.06127",
        averages.fedprox,
        params={"mu": Param(0.1, "real", about="how hard parties are held near the global model")},
        proximal="mu",
        averages=True,
    ),
    Fusion(
        "fedavgm",
        "FedAvgM",
        "https://arxiv.org/abs/1909.06335",
        server_steps.fedavgm,
        params={"learning_rate": _server(1.0), "momentum": _kept(0.9)},
        averages=True,
    ),
    Fusion(
        "fedadagrad",
        "FedAdagrad",
        _REDDI,
        server_steps.fedadagrad,
        # Without momentum in the paper.
        params={
            name: param if name != "beta_1" else _kept(0.0)
            for name, param in _ADAPTIVE.items()
            if name != "beta_2"
        },
        averages=True,
    ),
    Fusion("fedadam", "FedAdam", _REDDI, server_steps.fedadam, params=_ADAPTIVE, averages=True),
    Fusion("fedyogi", "FedYogi", _REDDI, server_steps.fedyogi, params=_ADAPTIVE, averages=True),
    Fusion(
        "coordinate_median",
        "Coordinate-wise median",
        _YIN,
        robust.coordinate_median,
        params={"byzantine_threshold": _MIXED},
        # The median of two is their mean.
        least=_middle_least,
    ),
    Fusion(
        "trimmed_mean",
        "Trimmed mean",
        _YIN,
        robust.trimmed_mean,
        params={
            "beta": Param(0.2, "real", high=0.5, about="the part left out at each end"),
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
            "smoothing": Param(
                1e-6, "real", above_low=True, about="the least distance that is divided by"
            ),
            "byzantine_threshold": _MIXED,
        },
        # Between two, every point is a geometric median.
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
            "num_chosen": Param(0, "whole", about="how many are averaged; 0 is n - f - 2"),
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
            "rho": Param(0.0005, "real", about="what a long way costs"),
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
            "centre": Param("mean", "choice", choices=("mean", "median", "geometric_median")),
            "rho": Param(0.1, "real", about="how hard parties are pulled to the centre"),
        },
        least=lambda params: 1 if params["centre"] == "mean" else 3,
        proximal="rho",
        keeps_own_weights=True,
    ),
)

FUSIONS: Mapping[str, Fusion] = MappingProxyType({fusion.name: fusion for fusion in _ALL})
"""Our name -> the fusion."""
