"""Dataclasses for the status of an aggregator or a party, and for the results of user commands.

If no process runs or answers, the status is read from the saved files.

Callers: `aggregator_commands.py` and `party_commands.py` create them, `elasticdl.federated` shows
them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from elasticdl.artifacts.checkpoint_store import CheckpointStore
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.engines.federated.client.client_state import DiskClientState
from elasticdl.errors import OutputError

if TYPE_CHECKING:
    from elasticdl.engines.federated.client.client_state import PartyModel
    from elasticdl.engines.federated.protocol.wire import Facts

NOT_RUNNING, NOT_LISTENING, NOT_ANSWERING = "not running", "not listening", "not answering"
PARTY_LOCK = ".party"
"""Lock file in a party's folder: the process that holds it is the party."""
GLOBAL_FOLDER = "global"
"""Subfolder of a party's folder: the global model that it adopted last."""


@dataclass(frozen=True)
class PartySeen:
    """A party's status, as seen by its aggregator.

    Attributes:
        connected: Whether it is reachable now, as far as the aggregator knows.
        joined: Whether it has replied to the join request and was accepted into this federation.
        num_examples: Number of its training examples.
        last: What it did in the last round, or why it was left out; empty before the first request.
    """

    connected: bool
    joined: bool
    num_examples: int = 0
    last: str = ""


@dataclass(frozen=True)
class AggregatorStatus:
    """Status of an aggregator.

    Attributes:
        state: `not running`, `not listening` (just started, or a simulation), `not answering`
            (suspended or stuck; the other fields are the saved ones), `starting`,
            `waiting for parties`, `idle`, `training`, `finishing` (after the last round),
            `stopping`.
        round: The round of the current model; 0 before the first round.
        num_rounds: The last round, after which training is complete.
        num_parties: Number of parties in the federation.
        parties: The known parties, by name.
        metrics: The latest metrics of the global model.
        output: Folder of the TrainedModel and the checkpoints.
        published_round: Round of the published TrainedModel; 0 if there is none.
        address: The address that parties connect to; empty if no process runs.
        pid: Process ID; 0 if no process runs, or it does not answer.
        problem: Why it does not answer, and what to do; empty if it answers.
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
        """Create a status from JSON values; the inverse of `facts_of`."""
        parties = {name: PartySeen(**seen) for name, seen in facts["parties"].items()}
        return cls(**{**facts, "parties": parties})


@dataclass(frozen=True)
class PartyStatus:
    """Status of a party.

    Attributes:
        name: The party's name.
        state: `not running`, `not listening` (just started), `not answering` (suspended or stuck;
            the other fields are the saved ones), `starting`, `connecting`, `connected`, `stopping`.
        aggregator: The address that it connects to.
        num_examples: Number of its training examples; 0 if no process runs.
        num_answered: Number of requests answered since it was started.
        last_asked: The last request from the aggregator, such as `train, round 3`; empty if there
            was none.
        last_asked_unix_s: Time of that request, in seconds since 1970; 0 if there was none.
        model: `own` (trained by the party), `global` (synced), or empty if it has no model.
        model_round: Round of that model.
        pid: Process ID; 0 if no process runs, or it does not answer.
        problem: Why it does not answer, and what to do; empty if it answers.
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
class RoundEvaluation:
    """Result of the command `eval`: metrics of a model.

    Attributes:
        model: `global`, or `own` (trained by the party).
        round: The round of the model.
        parties: Party -> its metrics.
        silent: Party -> why it reports no metrics.
        merged: Metrics over the validation records of all parties in `parties` together.
        own_data: Metrics over the aggregator's own records; empty if it has none.
    """

    model: str
    round: int
    parties: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    silent: Mapping[str, str] = field(default_factory=dict)
    merged: Mapping[str, Any] = field(default_factory=dict)
    own_data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Synced:
    """Result of the command `sync`: the parties that adopted the global model.

    Attributes:
        round: The round of the model.
        parties: Names of the parties that adopted the model.
        left_out: Party -> why it did not adopt the model.
    """

    round: int
    parties: Sequence[str] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Saved:
    """Result of the command `save`: where a model was written.

    Attributes:
        output: Folder of the TrainedModel.
        model: `global`, or `own` (trained by the party).
        round: The round of the model.
    """

    output: str
    model: str
    round: int


@dataclass(frozen=True)
class TrainedRounds:
    """Result of the command `train`: the training run that the command started.

    Attributes:
        round: The round of the current global model.
        num_rounds: The last round of this training run. Rounds are counted over all training runs.
        stopped: Whether a command stopped it before the last round.
        output: Folder of the TrainedModel.
        metrics: The latest metrics of the global model.
    """

    round: int
    num_rounds: int
    stopped: bool = False
    output: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)


def facts_of(value: Any) -> dict[str, Any]:
    """Convert a status or the result of a command to a dict of JSON values, to send or print."""
    return {name: _plain(item) for name, item in dataclasses.asdict(value).items()}


def kept_aggregator(output: str, num_rounds: int, num_parties: int) -> AggregatorStatus:
    """Read the status of an aggregator from its output, without asking the process.

    Args:
        output: The aggregator's output folder.
        num_rounds: Number of rounds in its config, used if no checkpoint contains the number.
        num_parties: Number of parties in its config.

    Raises:
        CorruptCheckpointError: All checkpoints there are damaged.
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
    """Return the round of the TrainedModel in a folder; 0 if there is none."""
    try:
        return load_trained_model(output).description.step
    except OutputError:
        return 0


def kept_party(name: str, state: Path, aggregator: str) -> PartyStatus:
    """Read the status of a party from its checkpoints, without asking the process.

    Args:
        name: The party's name.
        state: The party's state folder.
        aggregator: The aggregator's address in its config.

    Raises:
        CorruptCheckpointError: All checkpoints there are damaged.
    """
    own, synced = OutputFolder(state), OutputFolder(state / GLOBAL_FOLDER)
    with CheckpointStore(own) as first, CheckpointStore(synced) as second:
        which = DiskClientState(first, second).which()
    status = PartyStatus(name, NOT_RUNNING, aggregator)
    return dataclasses.replace(status, **model_of(which))


def model_of(which: PartyModel | None) -> dict[str, Any]:
    """Return the fields `model` and `model_round` of a `PartyStatus`, to set with `replace`."""
    if which is None:
        return {"model": "", "model_round": 0}
    return {"model": which.kind, "model_round": which.round}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value
