"""Client of the control socket: sends commands to the process that was started with a config.

    CONFIG -> its role and folder -> `control_server.py` -> the result, as a value

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
from elasticdl.engines.federated.config.reading import read_aggregator, read_party, role_of
from elasticdl.engines.federated.control.control_server import send_command
from elasticdl.engines.federated.control.status import (
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
    from elasticdl.engines.federated.config.reading import Role
    from elasticdl.engines.federated.protocol.wire import Facts

_END_S = 60.0
_POLL_S = 0.05


@dataclass(frozen=True)
class ProcessAddress:
    """Role and folder of an aggregator or party process, which may or may not be running.

    Attributes:
        config: Path of the process's config, as the user gave it.
        role: Aggregator or party.
        folder: The process's own folder: an aggregator's output, or a party's client state.
        kept: Function () -> status read from the saved files, for when no process runs or answers.
    """

    config: str
    role: Role
    folder: Path
    kept: Callable[[], AggregatorStatus | PartyStatus]

    @property
    def is_held(self) -> bool:
        """Whether a process uses the folder (holds its lock), even if it accepts no commands."""
        name = LOCK_FILE if self.role == "aggregator" else PARTY_LOCK
        return is_held(OutputFolder(self.folder), name)


def address_of(config: str) -> ProcessAddress:
    """Find the role and folder of the aggregator or party process that a config belongs to.

    Args:
        config: Config of an aggregator or a party; or the output of an aggregator that was started
            with `--output`.

    Raises:
        UsageError: There is no such file, or it names no output.
        DefinitionError: The file is not a valid config; the message lists all problems.
    """
    path = Path(config).expanduser()
    if path.is_dir():
        return _address_of_output(config, path)
    if role_of(path) == "aggregator":
        read = read_aggregator(path)
        if read.output is None:
            raise UsageError(
                f"{config} has no `output:`. Pass the folder that was given as --output instead of "
                "the config."
            )
        output = str(read.output.resolve())
        rounds = read.rounds
        return ProcessAddress(
            config,
            "aggregator",
            Path(output),
            lambda: kept_aggregator(output, rounds.num_rounds, rounds.num_parties),
        )
    party = read_party(path)
    state = party.state
    at = "" if party.aggregator is None else f"{party.aggregator.host}:{party.aggregator.port}"
    return ProcessAddress(config, "party", state, lambda: kept_party(party.name, state, at))


def _address_of_output(config: str, path: Path) -> ProcessAddress:
    folder = OutputFolder(path.resolve())
    job = None
    if folder.exists(JOB_FILE):
        job = Job.from_json(folder.read_bytes(JOB_FILE).decode())
    if job is None or job.federation is None:
        raise UsageError(
            f"{config}: not the output of a federated training job. Pass the config of an "
            "aggregator or of a party, such as hospitals/aggregator.yml."
        )
    wanted = job.federation
    return ProcessAddress(
        config,
        "aggregator",
        path.resolve(),
        lambda: kept_aggregator(folder.uri, wanted.num_rounds, wanted.num_parties),
    )


def status_of(address: ProcessAddress) -> AggregatorStatus | PartyStatus:
    """Return the status of a process, or the saved status if it does not run or answer.

    Raises:
        ElasticDLError: The status cannot be read; see `elasticdl.errors`.
    """
    try:
        facts = send_command(address.folder, "status", {}, _say_nothing)
    except UnavailableError as error:
        return replace(address.kept(), state=NOT_ANSWERING, problem=str(error))
    if facts is None:
        kept = address.kept()
        return replace(kept, state=NOT_LISTENING) if address.is_held else kept
    if address.role == "aggregator":
        return AggregatorStatus.from_facts(facts)
    return PartyStatus(**facts)


def send(
    address: ProcessAddress,
    verb: str,
    options: Mapping[str, Any] | None = None,
    note: Callable[[str], None] | None = None,
) -> Facts:
    """Send a command to an aggregator or party process, and return the result.

    Args:
        address: The process.
        verb: The command, such as `train`.
        options: Options of the command; JSON values.
        note: Function (line of progress), called for each line. None: discard the lines.

    Raises:
        UsageError: No process is running, or it is a party and the command is the aggregator's.
        OutputBusyError: A process uses the folder but accepts no commands, such as a simulation.
        UnavailableError: The process runs but does not answer: it is suspended or stuck.
        ElasticDLError: The error of the command; see `elasticdl.errors`.
    """
    if address.role == "party" and verb in {"train", "sync"}:
        raise UsageError(
            f"{address.config} is the config of a party, but `{verb}` is a command of the "
            f"aggregator. Run it on the aggregator's machine: elasticdl federated {verb} "
            "aggregator.yml"
        )
    # For error messages: the process may not know the config's path as given here.
    named = {"config": address.config, **(options or {})}
    facts = send_command(address.folder, verb, named, note or _say_nothing)
    if facts is not None:
        return facts
    if address.is_held:
        raise OutputBusyError(
            f"{address.folder}: a process is using it but does not accept commands. It was just "
            "started, or is a simulation: run the command again in a few seconds."
        )
    serve = " --serve" if address.role == "aggregator" and verb == "train" else ""
    raise UsageError(
        f"No {address.role} of {address.config} is running; start one with: elasticdl federated "
        f"{address.role} {address.config}{serve}"
    )


def wait_until_ended(address: ProcessAddress) -> None:
    """Wait until the process has ended and released the lock of its folder.

    Raises:
        OutputBusyError: A process still uses it after a minute.
    """
    deadline = time.monotonic() + _END_S
    while address.is_held:
        if time.monotonic() > deadline:
            raise OutputBusyError(
                f"{address.folder}: the process was requested to stop but has not ended within "
                f"{_END_S:.0f} s. It may be busy with a long operation; it ends after that."
            )
        time.sleep(_POLL_S)


def _say_nothing(text: str) -> None:
    del text
