"""Federated training job, from locking its output folder to publishing its TrainedModel.

    lock the output -> copy the code -> define the model -> PARTIES -> the rounds -> publish

This is the federated counterpart of `engines/run.py`. An aggregator with `--serve` repeats the
last two steps at each command `train` (`aggregator_commands.py`). The callers pass functions that
connect to the parties (`PARTIES`) and that receive commands.

Callers: `simulate.py` and `flower/`.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl import zoo
from elasticdl.data.batch import Batch
from elasticdl.definition import BatchesInput, Mode, ModelDefinition
from elasticdl.engines.attempt import Attempt, attempt, note_what_is_kept
from elasticdl.engines.engine import Outcome, Reporter, context_of
from elasticdl.engines.federated.control.aggregator_commands import AggregatorCommands, Followed
from elasticdl.engines.federated.control.control_server import NoCommands
from elasticdl.engines.federated.control.status import published_round
from elasticdl.engines.federated.server.aggregator import Aggregator
from elasticdl.engines.iterable_data import open_once
from elasticdl.engines.publish import copy_code, note_new_code, publish, versions
from elasticdl.engines.record_data import batches_in_order, open_records
from elasticdl.errors import OutputError
from elasticdl.evaluation.metrics import add_states
from elasticdl.events import JobFinished, JobStarted
from elasticdl.tracking.create import attempt_of, follow_finished_job, follow_job
from elasticdl.training.create import create_trainer
from elasticdl.training.import_seed import seeded_import

if TYPE_CHECKING:
    from elasticdl.data.batch import Arrays
    from elasticdl.engines.federated.control.control_server import AtOnce, CommandQueue
    from elasticdl.engines.federated.protocol.parties import Parties
    from elasticdl.job import Job
    from elasticdl.training.trainer import MetricStates, Trainer

_NUM_ZEROS = 2


def _no_commands(at_once: AtOnce) -> AbstractContextManager[CommandQueue]:
    del at_once
    return contextlib.nullcontext(NoCommands())


def train(
    job: Job,
    reporter: Reporter,
    open_parties: Callable[[ModelDefinition], AbstractContextManager[Parties]],
    make_trainer: Callable[[Job, ModelDefinition, Mapping[str, Any]], Trainer] | None = None,
    *,
    open_control: Callable[[AtOnce], AbstractContextManager[CommandQueue]] = _no_commands,
    serves: bool = False,
    address: str = "",
) -> Outcome:
    """Train a model with parties, resuming after the last round of an earlier run of the job.

    Args:
        job: The federated training job.
        reporter: Shows progress and notes to the user.
        open_parties: Function (model definition) -> context manager that connects to the parties.
        make_trainer: Function (job, model definition, shapes of a party's examples) -> trainer for
            the aggregator's copy of the model; None means `trainer_for`.
        open_control: Function that opens the channel for the user's commands. It takes a function
            (verb, options) that answers commands such as `status` at once, and returns a context
            manager that yields the queue of all other commands. The default: no commands.
        serves: Whether the aggregator keeps running between training runs: each user command
            `train` starts one, and `stop` ends the aggregator.
        address: The address that parties connect to, for display.

    Raises:
        ElasticDLError: The job failed; the reason is in the events as well. See `elasticdl.errors`.
    """
    if job.model is None or job.federation is None:
        raise ValueError(f"Not a federated training job: {job}")
    make = trainer_for if make_trainer is None else make_trainer
    followed = Followed(reporter)
    with attempt(job, followed) as begun:
        folder, checkpoint = begun.folder, begun.checkpoint
        step = checkpoint.step if checkpoint is not None else 0
        if checkpoint is not None and not serves and _is_done(begun):
            reporter.note(f"The training in {folder.uri} is already complete: {step:,} rounds.")
            follow_finished_job(begun.events, job, folder, begun.generation, step)
            return Outcome(folder.uri, step, checkpoint.metadata["metrics"], already_done=True)
        verbs = AggregatorCommands(begun, followed, serves, address)
        with open_control(verbs.at_once) as verbs.queue:
            code_files = copy_code(job, begun.scratch, begun.reporter)
            opened = zoo.open_zoo(job.model.zoo)
            if checkpoint is not None:
                note_new_code(opened.name, checkpoint, code_files, begun.reporter)
            with seeded_import(job.training.seed):
                definition = zoo.define(job.model, context_of(job, Mode.TRAINING), opened)
            recorder = _Recorder(begun, job, definition)
            if not serves:
                recorder.begin(step, job.federation.num_rounds)
            for note in definition.notes():
                begun.reporter.note(note)
            with open_parties(definition) as parties:
                one = Aggregator(
                    begun,
                    parties,
                    lambda example: make(job, definition, example),
                    {"code_files": code_files},
                    _measure(job, definition),
                    verbs.between_rounds,
                )
                verbs.definition, verbs.aggregator = definition, one
                interrupt: BaseException | None = None
                if serves:
                    interrupt = verbs.serve(recorder.begin, recorder.publish)
                else:
                    verbs.train_once(recorder.publish)
        outcome = verbs.outcome()
        if interrupt is not None:
            # The checkpoint of the last round may still be being written.
            with contextlib.suppress(OutputError):
                begun.store.wait()
            note_what_is_kept(interrupt, job, begun.store)
    if interrupt is not None:
        # Only after `attempt` has closed: an interrupt must not be recorded as a failure.
        raise interrupt
    return outcome


@dataclass(frozen=True, eq=False)
class _Recorder:
    """Records in the event log when each training run starts and ends; publishes the model."""

    begun: Attempt
    job: Job
    definition: ModelDefinition

    def begin(self, step: int, num_rounds: int) -> None:
        """Record the start of a training run.

        Args:
            step: The round after which it starts; 0 for a new model.
            num_rounds: Its last round.
        """
        begun, job = self.begun, self.job
        assert job.model is not None  # noqa: S101 - a training job
        about = attempt_of(job, begun.generation, self.definition, versions())
        follow_job(begun.events, job, begun.folder, about, step)
        begun.events.write(
            JobStarted(
                job_id=job.id,
                attempt=begun.generation,
                resumed_from_step=step,
                num_epochs=num_rounds,
                minibatch_size=job.training.minibatch_size,
                model_def=job.model.model_def,
                framework=self.definition.framework,
                host=socket.gethostname(),
                pid=os.getpid(),
                trust_used=self.definition.trust_used,
                versions=versions(),
            )
        )

    def publish(self, one: Aggregator) -> None:
        """Publish the global model as a TrainedModel, and record that the training run is done.

        Args:
            one: The aggregator whose global model is published.
        """
        model, trainer = one.trained()
        begun = self.begun
        begun.reporter.ended()
        publish(
            self.job,
            self.definition,
            trainer,
            model.metrics,
            classes=self.definition.classes,
            folder=begun.folder,
            code=begun.scratch,
        )
        begun.events.write(JobFinished(step=model.round, metrics=model.metrics))


def _measure(job: Job, definition: ModelDefinition) -> Callable[[Trainer], MetricStates] | None:
    """Return a function that evaluates a model on the aggregator's own data.

    Returns None if the aggregator has no data.
    """
    if job.validation_data is None:
        return None
    if isinstance(definition.input, BatchesInput):
        own, _ = open_once(
            definition.input, job.validation_data, job.training.seed, Mode.EVALUATION
        )
        shards = range(own.num_shards)
        return lambda trainer: add_states(
            trainer.evaluate(batch) for shard in shards for batch in own.batches(shard)
        )
    source = open_records(definition, job.validation_data)
    size = job.training.minibatch_size

    def measure(trainer: Trainer) -> MetricStates:
        batches = batches_in_order(definition, source, size, Mode.EVALUATION)
        return add_states(trainer.evaluate(batch) for _, batch in batches)

    return measure


def trainer_for(job: Job, definition: ModelDefinition, example: Mapping[str, Any]) -> Trainer:
    """Create the aggregator's trainer from only the shapes of the parties' examples.

    Args:
        job: How the model is trained.
        definition: The model.
        example: Shapes and dtypes of `features` and `labels`, as a joining party reports them.
    """
    batch = Batch(_zeros(example["features"]), _zeros(example["labels"]), _NUM_ZEROS)
    trainer = create_trainer(
        definition,
        batch,
        minibatch_size=job.training.minibatch_size,
        seed=job.training.seed,
        deterministic=job.training.deterministic,
    )
    trainer.require_sums("an aggregator, over parties")
    return trainer


def _zeros(shapes: Any) -> Arrays:
    if shapes is None:
        return None
    if "dict" in shapes:
        return {name: _zeros(value) for name, value in shapes["dict"].items()}
    for name, kind in (("list", list), ("tuple", tuple)):
        if name in shapes:
            return kind(_zeros(value) for value in shapes[name])
    return np.zeros((_NUM_ZEROS, *shapes["shape"]), np.dtype(shapes["dtype"]))


def _is_done(begun: Attempt) -> bool:
    """Return whether a job has nothing left to do.

    All rounds are trained, or training ended early at `termination_accuracy`, and the model of the
    last round is published.
    """
    assert begun.checkpoint is not None  # noqa: S101 - called only then
    assert begun.job.federation is not None  # noqa: S101 - a federated job
    step = begun.checkpoint.step
    ended = begun.checkpoint.metadata["good_enough"]
    if step < begun.job.federation.num_rounds and not ended:
        return False
    return published_round(begun.folder.uri) == step
