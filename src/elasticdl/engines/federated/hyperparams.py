"""The sections `fusion` and `hyperparams` of an aggregator's config, which belong together.

The params of a fusion stand in `hyperparams.global`, between the number of rounds and the quorum;
so which keys are right there depends on the fusion, and whether it can work on the number of
parties.

Callers: `config.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from elasticdl.data.wording import shown
from elasticdl.engines.federated import names
from elasticdl.engines.federated.aggregation import FUSIONS, Fusion
from elasticdl.engines.federated.config_parts import look_up
from elasticdl.engines.federated.settings import Local, Rounds

if TYPE_CHECKING:
    from elasticdl.engines.federated.sections import Section

# What fits into 64 bits with a sign.
_MOST_SEED = 2**63 - 1


def read_fusion(section: Section) -> tuple[Fusion | None, Mapping[str, Any]]:
    """Return the fusion, and the params that its name decides."""
    found = look_up(section, names.FUSION_NAMES)
    if "name" not in section:
        section.missing("name", f"expected one of {', '.join(FUSIONS)}")
    info = section.section("info")
    info.close(
        {"crypto": "homomorphic encryption is not part of ElasticDL. Take TLS, and leave it out"}
        | {
            key: f"params of a fusion belong into hyperparams.global.{key}"
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
    """Return `hyperparams.global`: the rounds, and the params of the fusion.

    Args:
        section: It.
        fusion: None where it is unknown; then params cannot be judged.
        preset: Params that the name of the fusion decides.
        has_data: The aggregator has data of its own.
        waits: A party can be late.
    """
    num_rounds = section.whole("rounds")
    if "rounds" not in section:
        section.missing("rounds", "say how many rounds to train")
    num_parties = _num_parties(section)
    quorum = section.number("perc_quorum", "a part of all parties, above 0 and at most 1", high=1)
    timeout = section.number("max_timeout", "seconds, above 0")
    accuracy = section.number(
        "termination_accuracy", "a part of all, above 0 and at most 1", high=1
    )
    seed = section.whole("seed", low=0, high=_MOST_SEED)
    if accuracy is not None and not has_data:
        section.problem(
            "termination_accuracy",
            "has nothing to be measured on: the aggregator has no data of its own, and the "
            "parties' is not a test set. Add a section `data:`, or leave it out",
        )
    if waits and section and "max_timeout" not in section:
        section.warning(
            "max_timeout",
            "is not there: a party that hangs is waited for without end. Give it seconds",
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
        section.warning("parties", "is an old name of num_parties. Write num_parties")
        if "num_parties" in section and old != number:
            section.problem("parties", f"is {old}, and num_parties is {number}. Leave parties out")
        return old if number is None else number
    if "num_parties" not in section:
        section.missing("num_parties", "say how many parties there are")
    return number


def _params(section: Section, fusion: Fusion | None, preset: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params of the fusion, which are what is left of `hyperparams.global`."""
    given = section.others()
    if fusion is None:
        # Which of them are right cannot be said.
        return {}
    params: dict[str, Any] = {}
    for name, value in given.items():
        if name in fusion.params:
            problem = fusion.problem_of(name, value)
            if problem:
                section.problem(name, f"is {problem}")
            elif value != preset.get(name, value):
                section.problem(
                    name, f"is {shown(value)}; the name of the fusion says {preset[name]!r}"
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
    """Note what cannot come out well, whoever answers."""
    needed = fusion.needs(params)
    if rounds.num_parties < needed:
        key = "byzantine_threshold"
        said = f" with {key} {params[key]}" if params.get(key) else ""
        section.problem(
            key if key in section else "num_parties",
            f"cannot be: {fusion.name}{said} needs at least {needed} parties; num_parties is "
            f"{rounds.num_parties}. "
            + (f"Lower {key}, or find more parties" if said else "Take another fusion"),
        )
    elif rounds.quorum < needed:
        enough = math.ceil(100 * needed / rounds.num_parties) / 100
        section.warning(
            "perc_quorum",
            f"lets a round count with {rounds.quorum} replies, but {fusion.name} needs {needed}: "
            f"rounds with fewer will fail. Raise it to {enough:g}",
        )
    if fusion.needs_score and not has_data:
        section.problem(
            "",
            f"{fusion.name} compares parties on data of the aggregator's own, and there is none. "
            "Add a section `data:`",
        )


def read_local(section: Section, fusion: Fusion | None) -> Local:
    """Return `hyperparams.local`: how parties train between two rounds."""
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
            "Leave it out, or take fedavg",
        )
    elsewhere = "it is of models of scikit-learn, which are not supported. Leave it out"
    training.close({"max_iter": elsewhere, "n_clusters": elsewhere})
    optimizer.close()
    section.close()
    rate = rates["training"] if rates["training"] is not None else rates["optimizer"]
    return Local(num_epochs or 1, minibatch_size, rate)
