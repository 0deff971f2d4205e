"""Reader for the sections `fusion` and `hyperparams` of an aggregator's config.

A fusion is a strategy that combines the parties' updates, such as `fedavg`. The two sections are
read together: the params of a fusion are in `hyperparams.global`, beside the number of rounds and
the quorum. The valid keys there therefore depend on the fusion, and the number of parties decides
whether the fusion can work.

Callers: `reading.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from elasticdl.data.wording import shown
from elasticdl.engines.federated.config import ibmfl_names
from elasticdl.engines.federated.config.settings import Local, Rounds
from elasticdl.engines.federated.config.shared_sections import look_up
from elasticdl.engines.federated.strategies.fusions import FUSIONS, Fusion

if TYPE_CHECKING:
    from elasticdl.engines.federated.config.section import Section

# The largest signed 64-bit integer.
_MAX_SEED = 2**63 - 1


def read_fusion(section: Section) -> tuple[Fusion | None, Mapping[str, Any]]:
    """Read the section `fusion`, recording problems in it.

    Returns:
        The fusion, None if its name is missing or unknown; and the params that are fixed by the
        name itself, because IBM FL has several names for variants of one fusion. For example,
        `FedAvgPlusFusionHandler` is Fed+ with the param `centre` "mean".
    """
    found = look_up(section, ibmfl_names.FUSION_NAMES)
    if "name" not in section:
        section.missing("name", f"expected one of {', '.join(FUSIONS)}")
    info = section.section("info")
    info.close(
        {"crypto": "homomorphic encryption is not supported. Use TLS, and leave it out"}
        | {
            key: f"set the params of a fusion in hyperparams.global.{key}"
            for key in info.others()
            if key != "crypto"
        }
    )
    section.close()
    return (None, {}) if found is None else (FUSIONS[found.ours], found.params)


def read_rounds(
    section: Section,
    fusion: Fusion | None,
    preset: Mapping[str, Any],
    *,
    has_data: bool,
    waits: bool = True,
) -> tuple[Rounds | None, dict[str, Any]]:
    """Read `hyperparams.global`, recording problems and warnings in it.

    Args:
        section: `hyperparams.global`.
        fusion: None if it is unknown; then its params cannot be checked.
        preset: Params that are fixed by the fusion's name, as `read_fusion` returns them.
        has_data: Whether the aggregator has its own data, on which it can evaluate.
        waits: Whether a party can be late; then a missing timeout causes a warning.

    Returns:
        The settings of rounds, None if the number of rounds or of parties is missing or invalid;
        and the fusion's params, with defaults.
    """
    num_rounds = section.whole("rounds")
    if "rounds" not in section:
        section.missing("rounds", "set the number of rounds to train")
    num_parties = _num_parties(section)
    quorum = section.number(
        "perc_quorum", "a fraction of the parties, above 0 and at most 1", high=1
    )
    timeout = section.number("max_timeout", "seconds, above 0")
    accuracy = section.number("termination_accuracy", "a fraction, above 0 and at most 1", high=1)
    seed = section.whole("seed", low=0, high=_MAX_SEED)
    if accuracy is not None and not has_data:
        section.problem(
            "termination_accuracy",
            "cannot be measured: the aggregator has no data of its own, and the parties' data is "
            "not a test set. Add a section `data:`, or leave it out",
        )
    if waits and section and "max_timeout" not in section:
        section.warning(
            "max_timeout",
            "is missing: the aggregator waits forever for a party that hangs. Set it, in seconds",
        )
    params = _params(section, fusion, preset)
    if num_rounds is None or num_parties is None:
        return None, params
    rounds = Rounds(
        num_rounds,
        num_parties,
        perc_quorum=1.0 if quorum is None else quorum,
        max_timeout_s=timeout,
        termination_accuracy=accuracy,
        seed=seed or 0,
    )
    if fusion is not None:
        _check_enough(section, fusion, params, rounds, has_data=has_data)
    return rounds, params


def _num_parties(section: Section) -> int | None:
    number = section.whole("num_parties")
    if "parties" in section:
        old = section.whole("parties")
        section.warning("parties", "is deprecated. Use num_parties")
        if "num_parties" in section and old != number:
            section.problem("parties", f"is {old}, and num_parties is {number}. Leave parties out")
        return old if number is None else number
    if "num_parties" not in section:
        section.missing("num_parties", "set the number of parties")
    return number


def _params(section: Section, fusion: Fusion | None, preset: Mapping[str, Any]) -> dict[str, Any]:
    """Read the fusion's params: all keys of `hyperparams.global` that have not been read yet.

    Unknown params and invalid values are recorded as problems.

    Args:
        section: `hyperparams.global`.
        fusion: The fusion; None if it is unknown.
        preset: Params that are fixed by the fusion's name; the config must not contradict them.

    Returns:
        The valid params, with `preset` and the fusion's defaults; empty without a fusion.
    """
    given = section.others()
    if fusion is None:
        # Without a fusion, its params cannot be checked.
        return {}
    params: dict[str, Any] = {}
    for name, value in given.items():
        if name in fusion.params:
            problem = fusion.problem_of(name, value)
            if problem:
                section.problem(name, f"is {problem}")
            elif value != preset.get(name, value):
                section.problem(
                    name, f"is {shown(value)}; the name of the fusion implies {preset[name]!r}"
                )
            else:
                params[name] = value
        else:
            section.unknown(name, fusion.params)
    return fusion.with_defaults({**preset, **params})


def _check_enough(
    section: Section,
    fusion: Fusion,
    params: Mapping[str, Any],
    rounds: Rounds,
    *,
    has_data: bool,
) -> None:
    """Record a problem or a warning if the fusion cannot work with these settings.

    It may need more parties, a higher quorum, or data of the aggregator on which it evaluates.
    """
    needed = fusion.needs(params)
    if rounds.num_parties < needed:
        key = "byzantine_threshold"
        with_param = f" with {key} {params[key]}" if params.get(key) else ""
        section.problem(
            key if key in section else "num_parties",
            f"is invalid: {fusion.name}{with_param} needs at least {needed} parties; num_parties "
            f"is {rounds.num_parties}. "
            + (f"Lower {key}, or add parties" if with_param else "Use another fusion"),
        )
    elif rounds.quorum < needed:
        enough = math.ceil(100 * needed / rounds.num_parties) / 100
        section.warning(
            "perc_quorum",
            f"accepts a round with {rounds.quorum} replies, but {fusion.name} needs {needed}: "
            f"rounds with fewer will fail. Raise it to {enough:g}",
        )
    if fusion.needs_score and not has_data:
        section.problem(
            "",
            f"{fusion.name} evaluates parties on the aggregator's own data, but it has none. Add a "
            "section `data:`",
        )


def read_local(section: Section, fusion: Fusion | None) -> Local:
    """Read `hyperparams.local`: how parties train between two rounds.

    Problems are recorded. One of them is several local epochs with a fusion such as FedSGD, whose
    parties send a gradient and do not train.

    Args:
        section: `hyperparams.local`.
        fusion: None if it is unknown.

    Returns:
        The settings; missing or invalid ones have their defaults.
    """
    training, optimizer = section.section("training"), section.section("optimizer")
    num_epochs = training.whole("epochs")
    minibatch_size = training.whole("batch_size")
    rates = {
        name: inner.number("lr", "a learning rate, above 0")
        for name, inner in (("training", training), ("optimizer", optimizer))
    }
    if None not in rates.values() and rates["training"] != rates["optimizer"]:
        optimizer.problem(
            "lr", f"is {rates['optimizer']}, and training.lr is {rates['training']}. Keep one"
        )
    if fusion is not None and fusion.sends_gradients and (num_epochs or 1) > 1:
        training.problem(
            "epochs",
            f"is {num_epochs}, but with {fusion.name} parties send one gradient and do not train. "
            "Leave it out, or use fedavg",
        )
    elsewhere = "it is for scikit-learn models, which are not supported. Leave it out"
    training.close({"max_iter": elsewhere, "n_clusters": elsewhere})
    optimizer.close()
    section.close()
    rate = rates["training"] if rates["training"] is not None else rates["optimizer"]
    return Local(num_epochs or 1, minibatch_size, rate)
