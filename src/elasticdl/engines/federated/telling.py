"""Which process a config is about, and telling it something.

    CONFIG -> whose it is, and its folder -> `control.py` -> what came of it, as a value

Callers: `elasticdl.federated`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.artifacts.claim import JOB_FILE, LOCK_FILE
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.lock import is_held
from elasticdl.engines.federated.config import read_aggregator, read_party, role_of
from elasticdl.engines.federated.control import tell
from elasticdl.engines.federated.status import (
    NOT_ANSWERING,
    NOT_LISTENING,
    PARTY_LOCK,
    AggregatorStatus,
    PartyStatus,
    kept_aggregator,
    kept_party,
)
from elasticdl.errors import OutputBusyError, UnavailableError, UsageError
from elasticdl.job import Job

if TYPE_CHECKING:
    from elasticdl.engines.federated.config import Role
    from elasticdl.engines.federated.wire import Facts

_END_S = 60.0
_POLL_S = 0.05


@dataclass(frozen=True)
class Place:
    """Where a process of a federation works, whether it runs or not.

    Attributes:
        config: What the caller named.
        role: Whose it is.
        folder: The process' own: an aggregator's output, what a party remembers.
        kept: How it stands when no process runs.
    """

    config: str
    role: Role
    folder: Path
    kept: Callable[[], AggregatorStatus | PartyStatus]

    @property
    def is_held(self) -> bool:
        """Whether a process works there, whether it listens or not."""
        name = LOCK_FILE if self.role == "aggregator" else PARTY_LOCK
        return is_held(OutputFolder(self.folder), name)


def place_of(config: str) -> Place:
    """Return where the process of a config works.

    Args:
        config: An aggregator's or a party's; or the output of an aggregator that was started with
            `--output`.

    Raises:
        UsageError: There is no such file, or it names no output.
        DefinitionError: It is no config; all problems are in it.
    """
    path = Path(config).expanduser()
    if path.is_dir():
        return _place_of_output(config, path)
    if role_of(path) == "aggregator":
        read = read_aggregator(path)
        if read.output is None:
            raise UsageError(
                f"{config} names no output. Name the folder that was given with --output in place "
                "of the config."
            )
        output = str(read.output.resolve())
        rounds = read.rounds
        return Place(
            config,
            "aggregator",
            Path(output),
            lambda: kept_aggregator(output, rounds.num_rounds, rounds.num_parties),
        )
    party = read_party(path)
    state = party.state
    at = "" if party.aggregator is None else f"{party.aggregator.host}:{party.aggregator.port}"
    return Place(config, "party", state, lambda: kept_party(party.name, state, at))


def _place_of_output(config: str, path: Path) -> Place:
    folder = OutputFolder(path.resolve())
    job = None
    if folder.exists(JOB_FILE):
        job = Job.from_json(folder.read_bytes(JOB_FILE).decode())
    if job is None or job.federation is None:
        raise UsageError(
            f"{config}: is no output of a federated training. Name the config of an aggregator or "
            "of a party, such as hospitals/aggregator.yml."
        )
    wanted = job.federation
    return Place(
        config,
        "aggregator",
        path.resolve(),
        lambda: kept_aggregator(folder.uri, wanted.num_rounds, wanted.num_parties),
    )


def status_of(place: Place) -> AggregatorStatus | PartyStatus:
    """Return how a process stands, or what is kept where none runs or it does not answer.

    Raises:
        ElasticDLError: See `elasticdl.errors`.
    """
    try:
        facts = tell(place.folder, "status", {}, _say_nothing)
    except UnavailableError as error:
        return replace(place.kept(), state=NOT_ANSWERING, problem=str(error))
    if facts is None:
        kept = place.kept()
        return replace(kept, state=NOT_LISTENING) if place.is_held else kept
    if place.role == "aggregator":
        return AggregatorStatus.from_facts(facts)
    return PartyStatus(**facts)


def told(
    place: Place,
    verb: str,
    options: Mapping[str, Any] | None = None,
    note: Callable[[str], None] | None = None,
) -> Facts:
    """Tell the process of a place something, and return what came of it.

    Raises:
        UsageError: No process is running, or it is the wrong one for that.
        OutputBusyError: A process works there that does not listen.
        UnavailableError: It is stopped, or stuck.
        ElasticDLError: What it raised; see `elasticdl.errors`.
    """
    if place.role == "party" and verb in {"train", "sync"}:
        raise UsageError(
            f"{place.config} is the config of a party, and `{verb}` is told to the aggregator. "
            f"Give it on the aggregator's machine: elasticdl federated {verb} aggregator.yml"
        )
    # For what it says: it may not know what the config is called here.
    named = {"config": place.config, **(options or {})}
    facts = tell(place.folder, verb, named, note or _say_nothing)
    if facts is not None:
        return facts
    if place.is_held:
        raise OutputBusyError(
            f"{place.folder}: a process works there and does not listen. It has just been started, "
            "or is a simulation: give the command again in some seconds."
        )
    serve = " --serve" if place.role == "aggregator" and verb == "train" else ""
    raise UsageError(
        f"No {place.role} of {place.config} is running; start it with: elasticdl federated "
        f"{place.role} {place.config}{serve}"
    )


def wait_until_ended(place: Place) -> None:
    """Return when nobody works at a place any more.

    Raises:
        OutputBusyError: Somebody still does after a minute.
    """
    deadline = time.monotonic() + _END_S
    while place.is_held:
        if time.monotonic() > deadline:
            raise OutputBusyError(
                f"{place.folder}: the process was told to stop and has not ended within "
                f"{_END_S:.0f} s. It may be in the middle of something long; it ends after that."
            )
        time.sleep(_POLL_S)


def _say_nothing(text: str) -> None:
    del text
