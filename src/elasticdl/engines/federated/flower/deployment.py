"""A federation on machines of its own: an aggregator's process, and one of each party.

    aggregator   claim -> Flower's superlink and the one open port -> the rounds -> TrainedModel
    party        lock -> its data and model -> Flower's supernode -> answers, until it is ended

Both can be told something by who started them (`control.py`), and by nobody else.

Callers: `elasticdl.federated`.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl import zoo
from elasticdl.artifacts.checkpoint import CheckpointStore
from elasticdl.artifacts.claim import FLOWER_FOLDER
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.local_storage import output_errors
from elasticdl.artifacts.lock import hold
from elasticdl.definition import Mode
from elasticdl.engines.engine import context_of
from elasticdl.engines.federated import training
from elasticdl.engines.federated.control import Control
from elasticdl.engines.federated.flower.keys import AggregatorKeys, PartyKeys
from elasticdl.engines.federated.flower.parties import FlowerParties, connected
from elasticdl.engines.federated.flower.resident import Resident, answering
from elasticdl.engines.federated.flower.superlink import Superlink
from elasticdl.engines.federated.flower.supernode import Supernode
from elasticdl.engines.federated.memory import DiskMemory
from elasticdl.engines.federated.party import Party
from elasticdl.engines.federated.party_verbs import PartyVerbs
from elasticdl.engines.federated.recorder import MetricsFile
from elasticdl.engines.federated.status import GLOBAL_FOLDER, PARTY_LOCK, PartyStatus
from elasticdl.engines.publish import copy_code
from elasticdl.errors import TrainingError
from elasticdl.scratch import TemporaryFolder
from elasticdl.training.create import quiet_frameworks

if TYPE_CHECKING:
    from types import FrameType

    from elasticdl.definition import ModelDefinition
    from elasticdl.engines.engine import Outcome, Reporter
    from elasticdl.engines.federated.settings import PartyConfig, Tls
    from elasticdl.job import Job

_CONNECT_S = 10.0
_PROBE_BYTES = 65536


def aggregate(
    job: Job,
    reporter: Reporter,
    *,
    host: str,
    port: int,
    tls: Tls | None,
    serves: bool = False,
) -> Outcome:
    """Train with parties that connect to this process, and leave a TrainedModel.

    Args:
        job: What is asked for; its output is on this machine.
        reporter: Who tells people.
        host: Where parties reach it.
        port: Its port.
        tls: Certificates and public keys; None: plain, and on this machine only.
        serves: Train when it is told, and stay until it is told to stop.

    Raises:
        UsageError: A file of its `tls_config` is missing, or is no certificate.
        ElasticDLError: See `elasticdl.errors`; the reason is in the events as well.
    """
    assert job.output is not None  # noqa: S101 - a training job
    folder = job.output
    keys = None if tls is None else AggregatorKeys.of(tls)
    superlink = Superlink(Path(folder) / FLOWER_FOLDER, keys, host, port)

    @contextlib.contextmanager
    def open_parties(definition: ModelDefinition) -> Iterator[FlowerParties]:
        del definition
        with connected(superlink) as parties:
            reporter.note(f"Parties can connect to {superlink.address}.")
            try:
                yield parties
            except TrainingError:
                _check_room(Path(folder))
                raise

    return training.train(
        job,
        reporter,
        open_parties,
        open_control=lambda at_once: Control(Path(folder), at_once),
        serves=serves,
        address=superlink.address,
    )


def _check_room(folder: Path) -> None:
    """Raise where the disk is full: Flower's superlink can keep no message then, and says nothing.

    Raises:
        OutputError: It is, or cannot be written for another reason.
    """
    probe = folder / FLOWER_FOLDER / "probe"
    with output_errors(folder):
        try:
            probe.write_bytes(bytes(_PROBE_BYTES))
        finally:
            probe.unlink(missing_ok=True)


def serve(config: PartyConfig, job: Job, reporter: Reporter, *, state: Path, **opens: Any) -> None:
    """Be a party until this process is told to end (Ctrl-C, SIGTERM).

    Args:
        config: The party's.
        job: Its model and data.
        reporter: Who tells people.
        state: Folder for what it remembers.
        **opens: `open_source`, where its own code reads its data.

    Raises:
        OutputBusyError: Another process is this party.
        UsageError: A file of its `tls_config` is missing, or is no certificate.
        TrainingError: The aggregator does not let it in.
        ElasticDLError: Its model or its data cannot be used; see `elasticdl.errors`.
    """
    assert job.model is not None  # noqa: S101 - of a party
    assert config.aggregator is not None  # noqa: S101 - it was asked for
    # Without one of its files a party would speak plain HTTP, to whoever answers.
    keys = None if config.tls is None else PartyKeys.of(config.tls)
    folder = OutputFolder(str(state))
    address = f"{config.aggregator.host}:{config.aggregator.port}"
    lock = hold(folder, PARTY_LOCK, f"party {config.name}")
    try:
        # What a killed process was writing.
        folder.remove_stale()
        verbs = PartyVerbs(
            config=config.file,
            folder=state,
            stands=PartyStatus(config.name, "starting", address),
        )
        with contextlib.ExitStack() as stack:
            verbs.orders = stack.enter_context(Control(state, verbs.at_once))
            code = stack.enter_context(folder.scratch())
            short = stack.enter_context(TemporaryFolder())
            memory = DiskMemory(
                stack.enter_context(CheckpointStore(folder)),
                stack.enter_context(CheckpointStore(OutputFolder(state / GLOBAL_FOLDER))),
            )
            quiet_frameworks()
            copy_code(job, code, None, reporter)
            opened = zoo.open_zoo(job.model.zoo)
            definition = zoo.define(job.model, context_of(job, Mode.TRAINING), opened)
            party = Party(
                name=config.name,
                job=job,
                definition=replace(definition, **opens),
                memory=memory,
                shares_metrics=config.metrics_may_leave,
                recorder=None if config.recorder is None else MetricsFile(config.recorder),
            )
            # Before anybody asks: what is wrong here is to be told here, and takes its time.
            num_examples = party.open()
            verbs.opened(party, num_examples, code)
            path = Path(short, "party")
            supernode = Supernode(state / FLOWER_FOLDER, address, keys, path)
            answer = answering(config.name, verbs.answer)
            with Resident(path, config.name, answer, verbs.between) as resident:
                verbs.stop, verbs.is_connected = resident.stop, lambda: supernode.is_connected
                with ended_by_signals(resident) as noted:
                    supernode.start()
                    try:
                        reporter.note(
                            f"Party {config.name!r} has {num_examples:,} examples and is "
                            f"connecting to {address}. End it with Ctrl-C."
                        )
                        threading.Thread(
                            target=_watch, args=(supernode, resident, reporter), daemon=True
                        ).start()
                        resident.run()
                    finally:
                        supernode.close()
                if supernode.error is not None:
                    supernode.wait(0)
        # Once all is put away: as the signal would have ended this process without a party.
        for number in noted:
            try:
                signal.raise_signal(number)
            except BaseException as error:
                error.add_note(_what_is_kept(memory, supernode, address))
                raise
    finally:
        lock.release()


def _what_is_kept(memory: DiskMemory, supernode: Supernode, address: str) -> str:
    """Return what an interrupted party has saved, and what the same command does, as sentences."""
    kept = memory.which()
    if kept is not None:
        return (
            f"Its model of round {kept.round:,} is saved; run the same command to take part again."
        )
    if not supernode.was_connected:
        return (
            f"The aggregator at {address} has not let this party in, and nothing was trained; run "
            "the same command to try again."
        )
    return "It has trained in no round yet; run the same command to take part."


def _watch(supernode: Supernode, resident: Resident, reporter: Reporter) -> None:
    """Say when the aggregator has let the party in; end it when it never will."""
    with contextlib.suppress(TrainingError):
        while not supernode.wait(_CONNECT_S):
            pass
        reporter.note("Connected.")
    supernode.wait_until_given_up()
    resident.stop()


class _SignalledError(BaseException):
    """Ends what a party is answering; nobody's `except Exception` stops it."""


@contextlib.contextmanager
def ended_by_signals(resident: Resident) -> Iterator[Sequence[int]]:
    """Let a signal end what a party does, and what it is answering: it keeps nothing half done.

    Args:
        resident: Runs in the block, in this thread.

    Yields:
        What will hold the signal's number, if one comes. The handlers that were there before are
        in place again from then on, and after the block.
    """
    noted: list[int] = []
    before: dict[int, Any] = {}

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        noted.append(number)
        restore()
        resident.stop()
        if resident.is_answering:
            raise _SignalledError

    def restore() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in (signal.SIGINT, signal.SIGTERM):
        # A parent in the background leaves Ctrl-C ignored, and so it stays.
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, end)
    try:
        yield noted
    except _SignalledError:
        pass
    finally:
        restore()
