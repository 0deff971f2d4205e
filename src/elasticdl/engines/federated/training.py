"""A federated training, from the claim on its output to its TrainedModel; as `engines/run.py`.

    claim the output -> copy the code -> define the model -> PARTIES -> the rounds -> publish

An aggregator that serves does the last two whenever it is told (`verbs.py`). The global model is a
TrainedModel like any other. Where the parties are is given in, and by whom it is told something.

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
from elasticdl.engines.federated.aggregator import Aggregator
from elasticdl.engines.federated.control import NoOrders
from elasticdl.engines.federated.status import published_round
from elasticdl.engines.federated.verbs import AggregatorVerbs, Followed
from elasticdl.engines.own_batches import open_validation
from elasticdl.engines.publish import copy_code, publish, versions
from elasticdl.engines.record_data import batches_in_order, open_records
from elasticdl.errors import OutputError
from elasticdl.evaluation.metrics import add_states
from elasticdl.events import JobFinished, JobStarted
from elasticdl.tracking.create import attempt_of, follow_finished_job, follow_job
from elasticdl.training.create import create_trainer, quiet_frameworks

if TYPE_CHECKING:
    from elasticdl.data.batch import Arrays
    from elasticdl.engines.federated.control import AtOnce, Orders
    from elasticdl.engines.federated.parties import Parties
    from elasticdl.job import Job
    from elasticdl.training.trainer import MetricStates, Trainer

_NUM_ZEROS = 2


def _nobody_tells(at_once: AtOnce) -> AbstractContextManager[Orders]:
    del at_once
    return contextlib.nullcontext(NoOrders())


def train(
    job: Job,
    reporter: Reporter,
    open_parties: Callable[[ModelDefinition], AbstractContextManager[Parties]],
    make_trainer: Callable[[Job, ModelDefinition, Mapping[str, Any]], Trainer] | None = None,
    *,
    open_control: Callable[[AtOnce], AbstractContextManager[Orders]] = _nobody_tells,
    serves: bool = False,
    address: str = "",
) -> Outcome:
    """Train a model with parties, going on after the last round of an earlier run of the job.

    Args:
        job: What is asked for.
        reporter: Who tells people.
        open_parties: Gives those that can be asked, for as long as the training takes.
        make_trainer: Makes the aggregator's own model; None is `trainer_for`.
        open_control: Gives what it is told meanwhile, and takes what answers at once.
        serves: Train when it is told, and stay until it is told to stop.
        address: Where parties connect to, for a person.

    Raises:
        ElasticDLError: See `elasticdl.errors`; the reason is in the events as well.
    """
    if job.model is None or job.federation is None:
        raise ValueError(f"Not a federated training job: {job}")
    make = trainer_for if make_trainer is None else make_trainer
    followed = Followed(reporter)
    with attempt(job, followed) as begun:
        folder, checkpoint = begun.folder, begun.checkpoint
        step = checkpoint.step if checkpoint is not None else 0
        if checkpoint is not None and not serves and _is_done(begun):
            reporter.note(f"{folder.uri} is trained already: {step:,} rounds.")
            follow_finished_job(begun.events, job, folder, begun.generation, step)
            return Outcome(folder.uri, step, checkpoint.metadata["metrics"], already_done=True)
        verbs = AggregatorVerbs(begun, followed, serves, address)
        with open_control(verbs.at_once) as verbs.orders:
            code_sha256 = copy_code(job, begun.scratch, checkpoint, begun.reporter)
            quiet_frameworks()
            opened = zoo.open_zoo(job.model.zoo)
            definition = zoo.define(job.model, context_of(job, Mode.TRAINING), opened)
            told = _Told(begun, job, definition)
            if not serves:
                told.begin(step, job.federation.num_rounds)
            for note in definition.notes():
                begun.reporter.note(note)
            with open_parties(definition) as parties:
                one = Aggregator(
                    begun,
                    parties,
                    lambda example: make(job, definition, example),
                    {"code_sha256": code_sha256},
                    _measure(job, definition),
                    verbs.between_rounds,
                )
                verbs.definition, verbs.aggregator = definition, one
                interrupt: BaseException | None = None
                if serves:
                    interrupt = verbs.serve(told.begin, told.publish)
                else:
                    verbs.train_once(told.publish)
        outcome = verbs.outcome()
        if interrupt is not None:
            # The model of the last round may be on its way.
            with contextlib.suppress(OutputError):
                begun.store.wait()
            note_what_is_kept(interrupt, job, begun.store)
    if interrupt is not None:
        # Not before: nothing has failed that would have to be written down.
        raise interrupt
    return outcome


@dataclass(frozen=True, eq=False)
class _Told:
    """What is told of the beginning and the end of each training."""

    begun: Attempt
    job: Job
    definition: ModelDefinition

    def begin(self, step: int, num_rounds: int) -> None:
        """Tell that a training begins, after `step` rounds, and that there will be so many."""
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
        """Leave a TrainedModel of the global model, and tell that the training is done."""
        model, trainer = one.trained()
        begun = self.begun
        begun.reporter.ended()
        publish(
            self.job,
            self.definition,
            trainer,
            model.metrics,
            folder=begun.folder,
            code=begun.scratch,
        )
        begun.events.write(JobFinished(step=model.round, metrics=model.metrics))


def _measure(job: Job, definition: ModelDefinition) -> Callable[[Trainer], MetricStates] | None:
    """Return what evaluates on the aggregator's own data; None where it has none."""
    if job.validation_data is None:
        return None
    if isinstance(definition.input, BatchesInput):
        own, _ = open_validation(definition.input, job.validation_data, job.training.seed)
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
    """Return a trainer of a job's model, for examples of which only the shapes are known.

    Args:
        job: How it is trained.
        definition: What it is.
        example: `features` and `labels`, as a party tells them when it joins.
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
    """Whether the rounds are over, and the model of the last one is there."""
    assert begun.checkpoint is not None  # noqa: S101 - asked only then
    assert begun.job.federation is not None  # noqa: S101 - a federated job
    step = begun.checkpoint.step
    ended = begun.checkpoint.metadata["good_enough"]
    if step < begun.job.federation.num_rounds and not ended:
        return False
    return published_round(begun.folder.uri) == step
