"""Runs a federation on separate machines: `aggregate` is the aggregator, `serve` is one party.

Each runs in a process of its own, and does these steps in order:

    aggregate   lock the output folder; start Flower's superlink, which listens on the only port
                of the federation; train the rounds; publish the TrainedModel
    serve       lock the party's state folder; open its data and its model; start Flower's
                supernode, which connects to that port; answer requests until the process is ended

Both also accept commands of the user who started them, such as `status` and `stop`
(`control_server.py`).

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
from elasticdl.artifacts.checkpoint_store import CheckpointStore
from elasticdl.artifacts.claim import FLOWER_FOLDER
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.local_storage import output_errors
from elasticdl.artifacts.lock import hold
from elasticdl.definition import Mode
from elasticdl.engines.engine import context_of
from elasticdl.engines.federated import training
from elasticdl.engines.federated.client.client_state import DiskClientState
from elasticdl.engines.federated.client.party import Party
from elasticdl.engines.federated.client.recorder import MetricsFile
from elasticdl.engines.federated.control.control_server import Control
from elasticdl.engines.federated.control.party_commands import PartyCommands
from elasticdl.engines.federated.control.status import GLOBAL_FOLDER, PARTY_LOCK, PartyStatus
from elasticdl.engines.federated.flower.client_daemon import ClientDaemon, answering
from elasticdl.engines.federated.flower.keys import AggregatorKeys, PartyKeys
from elasticdl.engines.federated.flower.parties import FlowerParties, connected
from elasticdl.engines.federated.flower.superlink import Superlink
from elasticdl.engines.federated.flower.supernode import Supernode
from elasticdl.engines.publish import copy_code
from elasticdl.errors import TrainingError
from elasticdl.scratch import TemporaryFolder
from elasticdl.training.import_seed import seeded_import

if TYPE_CHECKING:
    from types import FrameType

    from elasticdl.definition import ModelDefinition
    from elasticdl.engines.engine import Outcome, Reporter
    from elasticdl.engines.federated.config.settings import PartyConfig, Tls
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
    """Train with parties that connect to this process, and publish a TrainedModel.

    Args:
        job: The federated training job; its output is on this machine.
        reporter: Shows progress and notes to the user.
        host: The address that parties connect to.
        port: The port that parties connect to.
        tls: Paths of certificates and keys. None: connections are not encrypted, and only parties
            on this machine can connect.
        serves: Whether the aggregator keeps running between training runs: each user command
            `train` starts one, and `stop` ends the aggregator.

    Raises:
        UsageError: A file of its `tls_config` is missing, or is not a certificate.
        ElasticDLError: The job failed; the reason is in the events as well. See `elasticdl.errors`.
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
    """Check that the disk is not full, by writing a small file.

    A full disk explains why a round failed: Flower's superlink then loses messages silently.

    Raises:
        OutputError: The disk is full, or the folder cannot be written for another reason.
    """
    probe = folder / FLOWER_FOLDER / "probe"
    with output_errors(folder):
        try:
            probe.write_bytes(bytes(_PROBE_BYTES))
        finally:
            probe.unlink(missing_ok=True)


def serve(config: PartyConfig, job: Job, reporter: Reporter, *, state: Path, **opens: Any) -> None:
    """Run a party until this process is ended (`stop`, Ctrl-C, SIGTERM).

    Args:
        config: The party's config.
        job: The party's model and data.
        reporter: Shows progress and notes to the user.
        state: Folder for the party's client state.
        **opens: `open_source=FUNCTION` if a data handler of the user reads the party's data: a
            function (name of the data) -> records. It replaces the field of the same name in the
            model's definition.

    Raises:
        OutputBusyError: Another process is already running this party.
        UsageError: A file of its `tls_config` is missing, or is not a certificate.
        TrainingError: The aggregator refuses the party.
        ElasticDLError: The model or the data cannot be used; see `elasticdl.errors`.
    """
    assert job.model is not None  # noqa: S101 - of a party
    assert config.aggregator is not None  # noqa: S101 - checked by the caller
    # Checked first: without these files a party would speak plain HTTP to any server that answers.
    keys = None if config.tls is None else PartyKeys.of(config.tls)
    folder = OutputFolder(str(state))
    address = f"{config.aggregator.host}:{config.aggregator.port}"
    lock = hold(folder, PARTY_LOCK, f"party {config.name}")
    try:
        # Removes unfinished files of a killed process.
        folder.remove_stale()
        verbs = PartyCommands(
            config=config.file,
            folder=state,
            current_status=PartyStatus(config.name, "starting", address),
        )
        with contextlib.ExitStack() as stack:
            verbs.queue = stack.enter_context(Control(state, verbs.at_once))
            code = stack.enter_context(folder.scratch())
            short = stack.enter_context(TemporaryFolder())
            memory = DiskClientState(
                stack.enter_context(CheckpointStore(folder)),
                stack.enter_context(CheckpointStore(OutputFolder(state / GLOBAL_FOLDER))),
            )
            copy_code(job, code, reporter)
            opened = zoo.open_zoo(job.model.zoo)
            with seeded_import(job.training.seed):
                definition = zoo.define(job.model, context_of(job, Mode.TRAINING), opened)
            party = Party(
                name=config.name,
                job=job,
                definition=replace(definition, **opens),
                memory=memory,
                shares_metrics=config.metrics_may_leave,
                recorder=None if config.recorder is None else MetricsFile(config.recorder),
            )
            # Before the first request, because opening takes time and errors must be reported here.
            num_examples = party.open()
            verbs.opened(party, num_examples, code)
            path = Path(short, "party")
            supernode = Supernode(state / FLOWER_FOLDER, address, keys, path)
            answer = answering(config.name, verbs.answer)
            with ClientDaemon(path, config.name, answer, verbs.run_pending) as daemon:
                verbs.stop, verbs.is_connected = daemon.stop, lambda: supernode.is_connected
                with ended_by_signals(daemon) as noted:
                    supernode.start()
                    try:
                        reporter.note(
                            f"Party {config.name!r} has {num_examples:,} examples and is "
                            f"connecting to {address}. Press Ctrl-C to stop it."
                        )
                        threading.Thread(
                            target=_watch, args=(supernode, daemon, reporter), daemon=True
                        ).start()
                        daemon.run()
                    finally:
                        supernode.close()
                if supernode.error is not None:
                    supernode.wait(0)
        # After the cleanup, end this process by the same signal, as its default action would.
        for number in noted:
            try:
                signal.raise_signal(number)
            except BaseException as error:
                error.add_note(_what_is_kept(memory, supernode, address))
                raise
    finally:
        lock.release()


def _what_is_kept(memory: DiskClientState, supernode: Supernode, address: str) -> str:
    """Return a sentence for the user that says what an interrupted party has saved.

    It also says how to resume.
    """
    kept = memory.which()
    if kept is not None:
        return (
            f"Its model of round {kept.round:,} is saved; run the same command to take part again."
        )
    if not supernode.was_connected:
        return (
            f"The aggregator at {address} has not accepted this party, and nothing was trained; "
            "run the same command to try again."
        )
    return "It has not trained in any round yet; run the same command to take part."


def _watch(supernode: Supernode, daemon: ClientDaemon, reporter: Reporter) -> None:
    """Tell the user when the party is connected; stop the daemon if the supernode gives up.

    Runs in a separate thread.
    """
    with contextlib.suppress(TrainingError):
        while not supernode.wait(_CONNECT_S):
            pass
        reporter.note("Connected.")
    supernode.wait_until_given_up()
    daemon.stop()


class _SignalledError(BaseException):
    """Raised by a signal handler to abort the answer in progress.

    It is a `BaseException`, so that no `except Exception` on the way catches it.
    """


@contextlib.contextmanager
def ended_by_signals(daemon: ClientDaemon) -> Iterator[Sequence[int]]:
    """Context manager inside which SIGINT and SIGTERM stop a party at once.

    A request in progress is aborted, and gets no answer.

    Args:
        daemon: The client daemon, which runs inside the `with` block, in this thread.

    Yields:
        A list, empty at first, to which the number of an arriving signal is appended. The previous
        signal handlers are restored when a signal arrives, and at the end of the block.
    """
    noted: list[int] = []
    before: dict[int, Any] = {}

    def end(number: int, frame: FrameType | None) -> None:
        del frame
        noted.append(number)
        restore()
        daemon.stop()
        if daemon.is_answering:
            raise _SignalledError

    def restore() -> None:
        for each, handler in before.items():
            signal.signal(each, handler)

    for number in (signal.SIGINT, signal.SIGTERM):
        # A shell ignores Ctrl-C for background processes, and that must stay so.
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, end)
    try:
        yield noted
    except _SignalledError:
        pass
    finally:
        restore()
