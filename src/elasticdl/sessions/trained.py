"""The trained model of a session, with the components it was trained with.

Everything comes from the trained model's own folder: the code as it was when training started, and
the weights of the best checkpoint.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from elasticdl import zoo
from elasticdl.artifacts.trained_model import TrainedModel, load_trained_model
from elasticdl.definition import Mode
from elasticdl.dialects.abstractions import Components
from elasticdl.engines.engine import context_of
from elasticdl.engines.inference import restored_trainer
from elasticdl.engines.iterable_data import IterableData
from elasticdl.job import Job
from elasticdl.training.create import quiet_frameworks

if TYPE_CHECKING:
    from elasticdl.data.batch import Batch
    from elasticdl.sessions.project import SessionProject
    from elasticdl.training.trainer import Trainer


@dataclass(frozen=True, eq=False)
class TrainedSession:
    """A session's trained model, ready for predictions.

    Attributes:
        session: The session.
        model: The stored model.
        components: The session's components, created from the code stored with the model.
        trainer: A trainer with the weights of the stored model.
        example: A batch with the structure and types of the training batches, from which the
            trainer was created and with which the export is verified.
    """

    session: SessionProject
    model: TrainedModel
    components: Components
    trainer: Trainer
    example: Batch


def open_trained(session: SessionProject) -> TrainedSession:
    """Return the trained model of a session.

    Raises:
        ElasticDLError: There is no trained model, or it cannot be loaded.
    """
    model = load_trained_model(str(session.output))
    job = replace(Job.from_json(model.description.job_json), data=session.data, workers=None)
    assert job.model is not None  # noqa: S101 - a training job
    quiet_frameworks()
    model_code = zoo.load(replace(job.model, zoo=str(model.zoo)), context_of(job, Mode.EVALUATION))
    components = Components(model_code)
    definition = components.definition()
    data = IterableData(definition, job)
    example = data.example(data.plan_shards(job))
    trainer = restored_trainer(model, definition, example, job)
    return TrainedSession(session, model, components, trainer, example)
