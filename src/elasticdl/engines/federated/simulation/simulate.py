"""Simulation of a federation: all parties on this machine, for tests and for experiments.

The parties take turns on one trainer, or on one trainer in each of several processes
(`party_processes.py`). Their replies are the same as they would be on other machines. Their client
state is saved in the aggregator's checkpoints, so that a killed simulation resumes bit for bit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from elasticdl import zoo
from elasticdl.artifacts.checkpoint_store import Checkpoint
from elasticdl.data.selected_records import SelectedRecords
from elasticdl.data.units import decoded_bytes
from elasticdl.definition import Mode, RecordInput
from elasticdl.engines.engine import context_of
from elasticdl.engines.federated import training
from elasticdl.engines.federated.client.client_state import latest, numbered
from elasticdl.engines.federated.client.party import Party, shapes_of
from elasticdl.engines.federated.client.recorder import MetricsFile
from elasticdl.engines.federated.simulation.party_processes import PartyProcesses, num_processes_for
from elasticdl.engines.record_data import open_records
from elasticdl.training.import_seed import seeded_import

if TYPE_CHECKING:
    from elasticdl.data.record_source import RecordSource
    from elasticdl.definition import ModelDefinition
    from elasticdl.engines.engine import Outcome, Reporter
    from elasticdl.engines.federated.client.client_state import CurrentModel, PartyModel
    from elasticdl.engines.federated.config.settings import Recorder
    from elasticdl.engines.federated.protocol.messages import Refusal, Reply, RoundRequest
    from elasticdl.engines.training_context import TrainingContext
    from elasticdl.job import Job, ModelReference
    from elasticdl.training.trainer import State, Trainer, Weights

_MAX_KEPT_BYTES = 16 * 2**20


@dataclass(frozen=True)
class SimulatedMember:
    """A party to simulate.

    Attributes:
        name: Name of the party.
        data: Location of the party's records.
        validation_data: Records to evaluate on; None means none.
        shares_metrics: Whether its metrics are sent to the aggregator.
        open_source: Function (value of `data` or `validation_data`) -> these records. None: open
            them as in any other job.
        recorder: Settings of the party's own metrics file. None: write no such file.
        model: The party's model if it differs from the aggregator's; None if it is the same.
    """

    name: str
    data: str
    validation_data: str | None = None
    shares_metrics: bool = True
    open_source: Callable[[str], RecordSource] | None = None
    recorder: Recorder | None = None
    model: ModelReference | None = None


def _as_it_is(request: RoundRequest, answer: Reply | Refusal) -> Reply | Refusal | None:
    del request
    return answer


def train(
    job: Job,
    reporter: Reporter,
    members: Sequence[SimulatedMember],
    *,
    num_processes: int | None = 1,
    change: Callable[[RoundRequest, Reply | Refusal], Reply | Refusal | None] = _as_it_is,
) -> Outcome:
    """Train a model with simulated parties.

    Args:
        job: The federated training job.
        reporter: Shows progress and notes to the user.
        members: The parties.
        num_processes: Number of processes that run the parties, with one thread each. 1 means this
            process, with all of its threads. None: choose by cores and model, and fork; see
            `party_processes.num_processes_for`.
        change: Function (request, answer) -> the answer that the aggregator receives instead, to
            simulate faults and attacks. If it returns None, the answer is lost.

    Raises:
        ElasticDLError: The job failed; the reason is in the events as well. See `elasticdl.errors`.
    """
    trainers = _Trainers()
    definitions = _Definitions(job)

    @contextlib.contextmanager
    def open_parties(definition: ModelDefinition) -> Iterator[SimulatedParties]:
        parties = {
            member.name: _party(
                member, job, definitions.of(member, definition), trainers, InMemoryClientState()
            )
            for member in members
        }
        num = num_processes_for(definition, len(parties), num_processes)
        with PartyProcesses(parties, num) as crew:
            yield SimulatedParties(parties, crew, change)

    return training.train(job, reporter, open_parties, trainers.for_shapes)


class _Definitions:
    """Cache of model definitions, so that parties with the same model share one definition."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._made: dict[str, ModelDefinition] = {}

    def of(self, member: SimulatedMember, common: ModelDefinition) -> ModelDefinition:
        """Return a party's own definition, or `common`, the aggregator's, if the party has none.

        Raises:
            ElasticDLError: The definition cannot be created.
        """
        if member.model is None:
            return common
        words = repr(replace(member.model, config_file=None))
        if words not in self._made:
            context = context_of(self._job, Mode.TRAINING)
            with seeded_import(self._job.training.seed):
                self._made[words] = zoo.define(member.model, context)
        return self._made[words]


class _Trainers:
    """Cache of trainers, one per model and shape of the examples, because building one is slow."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[Trainer, State]] = {}

    def of(self, member: SimulatedMember) -> Callable[[TrainingContext], Trainer]:
        """Return a function that takes a party's data and returns a trainer in its initial state.

        Parties with the same model and shapes get the same trainer, so they must take turns.
        """
        own = "" if member.model is None else repr(replace(member.model, config_file=None))
        return lambda context: self._at_start(
            own + repr(shapes_of(context.example())), context.create_trainer
        )

    def for_shapes(
        self, job: Job, definition: ModelDefinition, example: Mapping[str, Any]
    ) -> Trainer:
        """Return the aggregator's trainer for examples of these shapes, in its initial state."""
        return self._at_start(repr(example), lambda: training.trainer_for(job, definition, example))

    def _at_start(self, look: str, make: Callable[[], Trainer]) -> Trainer:
        if look not in self._made:
            trainer = make()
            self._made[look] = trainer, trainer.state()
        trainer, start = self._made[look]
        trainer.load_state(start)
        return trainer


class InMemoryClientState:
    """Client state of a simulated party in memory, with its last two rounds; see `ClientState`."""

    def __init__(self) -> None:
        self.kept: dict[int, Checkpoint] = {}
        self._synced: Checkpoint | None = None
        self._count = 0

    def after(self, history: str, round_number: int) -> Checkpoint | None:
        """Return the party's state after a round of a training run; None if it is not stored."""
        found = self.kept.get(round_number)
        return found if found is not None and found.metadata["history"] == history else None

    def keep(self, checkpoint: Checkpoint) -> None:
        """Store the party's own state after it trained in a round."""
        self.kept = {n: c for n, c in self.kept.items() if n == checkpoint.step - 1}
        self.kept[checkpoint.step] = self._numbered(checkpoint)

    def take_over(self, checkpoint: Checkpoint) -> None:
        """Store the global model of a round as the party's current model."""
        self._synced = self._numbered(checkpoint)

    def current(self) -> CurrentModel | None:
        """Return the party's current model; None if it has none yet."""
        return latest(self.kept[max(self.kept)] if self.kept else None, self._synced)

    def which(self) -> PartyModel | None:
        """Return the current model's kind and round; None if the party has no model."""
        current = self.current()
        return None if current is None else current.which

    def _numbered(self, checkpoint: Checkpoint) -> Checkpoint:
        self._count += 1
        return numbered(checkpoint, self._count)


class SimulatedParties:
    """Passes the aggregator's requests to parties simulated on this machine; see `Parties`."""

    def __init__(
        self,
        parties: Mapping[str, Party],
        crew: PartyProcesses,
        change: Callable[[RoundRequest, Reply | Refusal], Reply | Refusal | None],
    ) -> None:
        self._parties = parties
        self._crew = crew
        self._change = change

    def here(self) -> Collection[str]:
        """Return the names of all parties: simulated parties are always connected."""
        return self._parties.keys()

    def ask(
        self,
        requests: Mapping[str, RoundRequest],
        timeout_s: float | None,
        check: Callable[[], None],
    ) -> Iterator[Reply | Refusal]:
        """Send requests to some of the parties, and yield their answers.

        `timeout_s` has no effect: an answer that is lost (`change`) is not waited for.
        """
        del timeout_s
        for request, given in self._crew.answers(requests, check):
            answer = self._change(request, given)
            if answer is not None:
                yield answer

    def state(self) -> tuple[Weights, dict[str, Any]]:
        """Return the client states of all parties, to save with the global model."""
        arrays: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for name, memory in self._memories():
            if not memory.kept:
                continue
            newest = memory.kept[max(memory.kept)]
            arrays |= {f"{name}/{path}": array for path, array in newest.state.items()}
            values[name] = {"round": newest.step, **newest.metadata}
        return arrays, values

    def load_state(self, arrays: Weights, values: Mapping[str, Any]) -> None:
        """Restore the client states that `state` returned before the simulation was resumed."""
        for name, memory in self._memories():
            if name not in values:
                continue
            prefix, kept = f"{name}/", values[name]
            state = {
                path.removeprefix(prefix): array
                for path, array in arrays.items()
                if path.startswith(prefix)
            }
            metadata = {key: value for key, value in kept.items() if key != "round"}
            memory.keep(Checkpoint(kept["round"], state, metadata))

    def _memories(self) -> Iterator[tuple[str, InMemoryClientState]]:
        for name, party in self._parties.items():
            assert isinstance(party.memory, InMemoryClientState)  # noqa: S101 - created here
            yield name, party.memory


def _party(
    member: SimulatedMember,
    job: Job,
    definition: ModelDefinition,
    trainers: _Trainers,
    memory: InMemoryClientState,
) -> Party:
    own = replace(job, data=member.data, validation_data=member.validation_data, federation=None)
    opens = definition.open_source if member.open_source is None else member.open_source
    opened_by = replace(definition, open_source=opens)
    kept = replace(
        definition, open_source=lambda data: _open_party_records(data, opened_by, member.name)
    )
    return Party(
        name=member.name,
        job=own,
        definition=kept,
        memory=memory,
        create_trainer=trainers.of(member),
        shares_metrics=member.shares_metrics,
        recorder=None if member.recorder is None else MetricsFile(member.recorder),
        redacts=False,
    )


def _open_party_records(
    data: str, definition: ModelDefinition, name: str
) -> RecordSource | SelectedRecords:
    """Open a party's records; a small data set is read into memory, because each round uses it.

    Args:
        data: Location of the records.
        definition: The party's model, which may have its own reader.
        name: Name of the records in memory, for errors.
    """
    source = open_records(definition, data)
    schema = definition.input.schema if isinstance(definition.input, RecordInput) else None
    record_bytes = max(len(source.read_bytes(0, 1)[0]), decoded_bytes(source, schema))
    if source.num_records * record_bytes > _MAX_KEPT_BYTES:
        return source
    return SelectedRecords(source, range(source.num_records), name)
