"""How a federation stands and what it scores, as values; and what is kept where no process runs.

Callers: `verbs.py` and `party_verbs.py` make them, `elasticdl.federated` shows them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from elasticdl.artifacts.checkpoint import CheckpointStore
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.engines.federated.memory import DiskMemory
from elasticdl.errors import OutputError

if TYPE_CHECKING:
    from elasticdl.engines.federated.memory import Which
    from elasticdl.engines.federated.wire import Facts

NOT_RUNNING, NOT_LISTENING, NOT_ANSWERING = "not running", "not listening", "not answering"
PARTY_LOCK = ".party"
"""Of a party's folder: who holds it is the party."""
GLOBAL_FOLDER = "global"
"""Of a party's folder: the global model that it took over last."""


@dataclass(frozen=True)
class PartySeen:
    """A party, as its aggregator sees it.

    Attributes:
        connected: It can be asked now, as far as is known.
        joined: It said what its model is, and was found to be one of this federation.
        num_examples: It trains on so many.
        last: What it answered last, or why it was left out; empty where it was not asked yet.
    """

    connected: bool
    joined: bool
    num_examples: int = 0
    last: str = ""


@dataclass(frozen=True)
class AggregatorStatus:
    """How an aggregator stands.

    Attributes:
        state: `not running`, `not listening` (just started, or a simulation), `not answering`
            (stopped or stuck; the rest is what is kept), `starting`, `waiting for parties`,
            `idle`, `training`, `finishing` (after the last round), `stopping`.
        round: How many rounds made the model that is kept.
        num_rounds: How many there will be when the training is over.
        num_parties: How many parties the federation has.
        parties: Those that were heard of, by name.
        metrics: The last ones of the global model.
        output: Folder of the TrainedModel and the checkpoints.
        published_round: Of which round the TrainedModel is; 0 where there is none.
        address: Where parties connect to; empty where no process runs.
        pid: Number of the process; 0 if none runs, or it does not answer.
        problem: Why it does not answer, and what to do; empty where it does.
    """

    state: str
    round: int = 0
    num_rounds: int = 0
    num_parties: int = 0
    parties: Mapping[str, PartySeen] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    output: str = ""
    published_round: int = 0
    address: str = ""
    pid: int = 0
    problem: str = ""

    @classmethod
    def from_facts(cls, facts: Facts) -> Self:
        """Return the status that `dataclasses.asdict` made into these."""
        parties = {name: PartySeen(**seen) for name, seen in facts["parties"].items()}
        return cls(**{**facts, "parties": parties})


@dataclass(frozen=True)
class PartyStatus:
    """How a party stands.

    Attributes:
        name: Of the party.
        state: `not running`, `not listening` (just started), `not answering` (stopped or stuck; the
            rest is what is kept), `starting`, `connecting`, `connected`, `stopping`.
        aggregator: Where it connects to.
        num_examples: It trains on so many; 0 where no process runs.
        num_answered: Questions it has answered since it was started.
        last_asked: What it was asked last, such as `train, round 3`; empty if nothing.
        last_asked_unix_s: And when; 0 if never.
        model: `own`, which it has trained; `global`, which was synced; empty where it has none.
        model_round: Of which round that is.
        pid: Number of the process; 0 if none runs, or it does not answer.
        problem: Why it does not answer, and what to do; empty where it does.
    """

    name: str
    state: str
    aggregator: str = ""
    num_examples: int = 0
    num_answered: int = 0
    last_asked: str = ""
    last_asked_unix_s: float = 0.0
    model: str = ""
    model_round: int = 0
    pid: int = 0
    problem: str = ""


@dataclass(frozen=True)
class Evaluation:
    """What a model scores.

    Attributes:
        model: `global`, or `own`: which a party has trained.
        round: How many rounds made it.
        parties: Party -> its metrics.
        silent: Party -> why it tells none.
        merged: Metrics over the records of all parties together.
        own_data: Metrics over the aggregator's own records; empty where it has none.
    """

    model: str
    round: int
    parties: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    merged: Mapping[str, Any] = field(default_factory=dict)
    own_data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Synced:
    """Who has taken the global model over.

    Attributes:
        round: How many rounds made it.
        parties: Their names.
        left_out: Party -> why it has not.
    """

    round: int
    parties: Sequence[str] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Saved:
    """Where a model was written.

    Attributes:
        output: Folder of the TrainedModel.
        model: `global`, or `own`.
        round: How many rounds made it.
    """

    output: str
    model: str
    round: int


@dataclass(frozen=True)
class Trained:
    """What a training came to.

    Attributes:
        round: How many rounds made the model.
        num_rounds: How many were asked for.
        stopped: It was told to stop before the last one.
        output: Folder of the TrainedModel.
        metrics: The last ones.
    """

    round: int
    num_rounds: int
    stopped: bool = False
    output: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)


def facts_of(value: Any) -> dict[str, Any]:
    """Return one of these values as it travels and is printed: JSON values by name."""
    return {name: _plain(item) for name, item in dataclasses.asdict(value).items()}


def kept_aggregator(output: str, num_rounds: int, num_parties: int) -> AggregatorStatus:
    """Return what is kept of an aggregator that does not run.

    Args:
        output: Its folder.
        num_rounds: What its config says.
        num_parties: What its config says.

    Raises:
        CorruptCheckpointError: Everything there is damaged.
    """
    folder = OutputFolder(output)
    with CheckpointStore(folder) as store:
        found = store.latest()
    kept = AggregatorStatus(
        NOT_RUNNING,
        num_rounds=num_rounds,
        num_parties=num_parties,
        output=output,
        published_round=published_round(output),
    )
    if found is None:
        return kept
    metadata = found.checkpoint.metadata
    return dataclasses.replace(
        kept,
        round=found.checkpoint.step,
        num_rounds=metadata.get("num_rounds", num_rounds),
        metrics=metadata["metrics"],
    )


def published_round(output: str) -> int:
    """Return of which round the TrainedModel in a folder is; 0 where there is none."""
    try:
        return load_trained_model(output).description.step
    except OutputError:
        return 0


def kept_party(name: str, state: Path, aggregator: str) -> PartyStatus:
    """Return what is kept of a party that does not run.

    Args:
        name: The party's.
        state: Its folder.
        aggregator: Where its config says that it connects to.

    Raises:
        CorruptCheckpointError: Everything there is damaged.
    """
    own, synced = OutputFolder(state), OutputFolder(state / GLOBAL_FOLDER)
    with CheckpointStore(own) as first, CheckpointStore(synced) as second:
        which = DiskMemory(first, second).which()
    status = PartyStatus(name, NOT_RUNNING, aggregator)
    return dataclasses.replace(status, **model_of(which))


def model_of(which: Which | None) -> dict[str, Any]:
    """Return the two fields of a `PartyStatus` that say which model a party has."""
    if which is None:
        return {"model": "", "model_round": 0}
    return {"model": which.kind, "model_round": which.round}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value
