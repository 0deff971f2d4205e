"""A training run, from the claim on its output to its TrainedModel; how it trains is an engine's.

    claim the output -> copy the code -> define the model -> open the records -> ENGINE -> publish

Each engine is a function from a `Run` to a `Trained`; whatever else a run needs is here once.

Callers: `in_process.py` and `elastic/`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import json
import os
import platform
import shutil
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl import zoo
from elasticdl.artifacts.checkpoint import Checkpoint, CheckpointStore
from elasticdl.artifacts.event_log import open_event_log
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.trained_model import (
    Description,
    load_trained_model,
    save_trained_model,
)
from elasticdl.definition import ModelDefinition, RecordInput
from elasticdl.engines.engine import Outcome, Reporter
from elasticdl.engines.material import Material, open_material
from elasticdl.engines.place import Place
from elasticdl.errors import OutputError
from elasticdl.events import JobFailed, JobFinished, JobStarted
from elasticdl.tracking.create import attempt_of, follow_finished_job, follow_job
from elasticdl.tracking.follow import FollowedLog
from elasticdl.training.create import quiet_frameworks
from elasticdl.training.trainer import Exporter, Trainer

if TYPE_CHECKING:
    from elasticdl.engines.seams import EventSink
    from elasticdl.job import Job

_MAX_SHARD_BYTES = 256 * 2**20
# A shard of validation data is evaluated between two looks at what else there is to do.
_MINIBATCHES_PER_VALIDATION_SHARD = 8
_VERSIONS_OF = ("elasticdl", "keras", "tensorflow", "tensorflow-cpu", "torch", "numpy")


@dataclass(frozen=True, eq=False)
class Run:
    """A run that is about to train.

    Attributes:
        material: What to train, and on what.
        folder: The output.
        generation: How often the job was started there.
        store: Its checkpoints.
        events: Its log.
        reporter: Who tells people.
        code: A copy of the user's code, which may be edited meanwhile.
        checkpoint: What to go on from; None at the start.
        metadata: What every checkpoint says of plan and data.
    """

    material: Material
    folder: OutputFolder
    generation: int
    store: CheckpointStore
    events: EventSink
    reporter: Reporter
    code: Path
    checkpoint: Checkpoint | None
    metadata: Mapping[str, Any]

    def started(self, resumed_from_step: int) -> None:
        """Tell everybody that the training begins."""
        self.tell_start(resumed_from_step)
        if self.checkpoint is not None:
            self.reporter.note(f"Going on from step {resumed_from_step:,} in {self.folder.uri}.")
        total = self.material.num_records * self.material.job.training.num_epochs
        done = self.records_done(self.checkpoint)
        self.reporter.started("Training", total, "records", done=done)

    def records_done(self, checkpoint: Checkpoint | None) -> int:
        """Return how many records were trained on up to a checkpoint, over all epochs."""
        if checkpoint is None:
            return 0
        place = Place.from_json(checkpoint.metadata["place"])
        seen = place.epoch_states["loss"][1] if "loss" in place.epoch_states else 0
        return place.ledger.epoch * self.material.num_records + int(seen)

    def tell_start(self, resumed_from_step: int) -> None:
        """Write that what was told beyond a step never happened, and that it goes on there."""
        job, material = self.material.job, self.material
        assert job.model is not None  # noqa: S101 - a training job
        num_records = material.num_records
        self.events.write(
            JobStarted(
                job_id=job.id,
                attempt=self.generation,
                resumed_from_step=resumed_from_step,
                num_records=num_records,
                num_epochs=job.training.num_epochs,
                minibatch_size=material.minibatch_size,
                model_def=job.model.model_def,
                framework=material.definition.framework,
                host=socket.gethostname(),
                pid=os.getpid(),
                resume=material.data.resume,
            )
        )


@dataclass(frozen=True, eq=False)
class Trained:
    """What a training came to.

    Attributes:
        trainer: The model after the last step.
        metrics: The last ones known.
    """

    trainer: Trainer
    metrics: dict[str, Any]


def train(
    job: Job,
    reporter: Reporter,
    engine: Callable[[Run], Trained],
    definition: ModelDefinition | None = None,
) -> Outcome:
    """Train a model with an engine, going on where an earlier run of the job ended.

    Args:
        job: What is asked for.
        reporter: Who tells people.
        engine: Trains.
        definition: What to train, if it is at hand; None makes it from the job's words.

    Raises:
        ElasticDLError: See `elasticdl.errors`; the reason is in the events as well.
    """
    if job.model is None or job.output is None:
        raise ValueError(f"Not a training job: {job}")
    folder = OutputFolder(job.output)
    with folder.claim(job) as claim:
        store = CheckpointStore(folder, job.training.keep_checkpoint_max)
        with (
            store,
            open_event_log(folder) as log,
            FollowedLog(log, reporter.note) as events,
            folder.scratch() as code,
        ):
            try:
                restored = store.latest()
                for damaged in restored.damaged if restored else ():
                    reporter.note(f"Passed over: {damaged}")
                checkpoint = restored.checkpoint if restored else None
                if checkpoint is not None and _is_done(job, checkpoint, store, folder):
                    reporter.note(f"{folder.uri} is trained already: {checkpoint.step:,} steps.")
                    follow_finished_job(events, job, folder, claim.generation, checkpoint.step)
                    return Outcome(
                        folder.uri,
                        checkpoint.step,
                        checkpoint.metadata["metrics"],
                        already_done=True,
                    )
                code_sha256 = _copy_code(job, code, checkpoint, reporter)
                quiet_frameworks()
                material, metadata = open_material(job, checkpoint, definition=definition)
                step = checkpoint.step if checkpoint is not None else 0
                about = attempt_of(job, claim.generation, material.definition, _versions())
                about = replace(about, tags={**about.tags, "resume": material.data.resume})
                follow_job(events, job, folder, about, step)
                run = Run(
                    material=material,
                    folder=folder,
                    generation=claim.generation,
                    store=store,
                    events=events,
                    reporter=reporter,
                    code=code,
                    checkpoint=checkpoint,
                    metadata={**metadata, "code_sha256": code_sha256},
                )
                trained = engine(run)
                reporter.ended()
                step = trained.trainer.step
                if job.training.restore_best_weights:
                    trained = _best_of(run, trained)
                _save_model(run, trained)
                events.write(JobFinished(step=step, metrics=trained.metrics))
                return Outcome(folder.uri, step, trained.metrics)
            except BaseException as error:
                interrupted = not isinstance(error, Exception)
                events.write(
                    JobFailed(
                        kind="Interrupted" if interrupted else type(error).__name__,
                        message=str(error),
                        step=max(store.steps(), default=0),
                    )
                )
                if not store.steps():
                    claim.abandon()
                raise
            finally:
                reporter.ended()


def _best_of(run: Run, trained: Trained) -> Trained:
    """Return the model as it was at its best checkpoint."""
    best = run.store.best()
    if best is None:
        run.reporter.note(
            f"No checkpoint is the best by {run.material.job.training.best_metric}: it was never a "
            "number. The last one is taken."
        )
        return trained
    # A checkpoint may hold the state of an accumulator as well.
    own = trained.trainer.state().keys()
    trained.trainer.load_state({path: best.state[path] for path in own})
    return Trained(trained.trainer, dict(best.metadata["metrics"]))


def _is_done(
    job: Job, checkpoint: Checkpoint, store: CheckpointStore, folder: OutputFolder
) -> bool:
    """Whether the training is at its end, and its model is there."""
    place = Place.from_json(checkpoint.metadata["place"])
    limit = job.training.max_steps
    finished = (
        place.stopped
        or place.ledger.epoch >= job.training.num_epochs
        or bool(limit and checkpoint.step >= limit)
    )
    if not finished:
        return False
    # A job that is trained further has a model before, of an earlier end.
    best = store.best_step() if job.training.restore_best_weights else None
    try:
        step = load_trained_model(folder.uri).description.step
    except OutputError:
        return False
    return step == (checkpoint.step if best is None else best)


def _save_model(run: Run, trained: Trained) -> None:
    job, definition = run.material.job, run.material.definition
    trainer, metrics = trained.trainer, trained.metrics
    assert job.model is not None  # noqa: S101 - a training job
    schema = definition.input.schema if isinstance(definition.input, RecordInput) else None
    description = Description(
        model_def=job.model.model_def,
        model_def_params=json.dumps(dict(job.model.params)),
        input_function=job.model.overrides.get("input_fn", ""),
        loss=job.model.overrides.get("loss", ""),
        optimizer=job.model.overrides.get("optimizer", ""),
        dialect=definition.origin.dialect,
        model_zoo=job.model.zoo or "",
        zoo_commit=definition.origin.zoo_commit or "",
        framework=definition.framework,
        versions=_versions(),
        data_schema_json=schema.to_json() if schema is not None else "",
        job_id=job.id,
        job_json=job.to_json(),
        created_unix_s=time.time(),
        overrides=job.model.overrides,
        metrics=metrics,
        step=trainer.step,
    )

    def copy_zoo(destination: Path) -> None:
        shutil.copytree(run.code, destination, dirs_exist_ok=True)

    def export(destination: Path) -> None:
        if isinstance(trainer, Exporter):
            trainer.export(destination)

    save_trained_model(
        run.folder,
        description,
        {
            path.removeprefix("model/"): array
            for path, array in trainer.state().items()
            if path.startswith("model/")
        },
        copy_zoo=copy_zoo,
        export=export,
    )


def _copy_code(
    job: Job, destination: Path, checkpoint: Checkpoint | None, reporter: Reporter
) -> str:
    """Copy the user's code, which may be edited while the training runs; return its SHA-256."""
    assert job.model is not None  # noqa: S101 - a training job
    opened = zoo.open_zoo(job.model.zoo)
    left_out = zoo.copy_zoo(opened.folder, destination)
    if left_out:
        reporter.note(
            f"Too large for the trained model's copy of the code: {', '.join(left_out[:5])}"
            + (f" and {len(left_out) - 5} more" if len(left_out) > 5 else "")  # noqa: PLR2004
            + ". A model that reads these files cannot predict without them."
        )
    digest = hashlib.sha256()
    for path in sorted(destination.rglob("*")):
        if path.is_file():
            digest.update(f"{path.relative_to(destination)}\0".encode() + path.read_bytes())
    if checkpoint is not None and checkpoint.metadata["code_sha256"] != digest.hexdigest():
        reporter.note(
            f"The code in {opened.name} was changed since step {checkpoint.step:,}: from here on "
            "the new code trains. Take another --output to start over with it."
        )
    return digest.hexdigest()


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in _VERSIONS_OF:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return versions
