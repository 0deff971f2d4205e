"""Trainer for notebooks: trains with components that exist as objects, without a project.

    trainer = TFKerasTrainer(config, run_dir)
    trainer.train(model_builder, None, train_gen, n_iter_train, val_gen, n_iter_val)
    trainer.export()

Training works as in `elasticdl session run`, with its checkpoints in `run_dir`. However, it cannot
rebuild generators: a `tf.data.Dataset` or a `PyDataset` starts over for each epoch, a Python
generator just continues. After an interruption, training resumes from the last checkpoint, with
whatever the new generator yields.
"""

from __future__ import annotations

import inspect
import itertools
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl import scratch
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.definition import BatchesInput, Epochs, Mode, ModelDefinition, Origin
from elasticdl.dialects import pipelines
from elasticdl.dialects.abstractions import NAME, class_weight_of, own_callbacks
from elasticdl.dialects.component_batches import batch_of
from elasticdl.engines import in_process, progress_bar
from elasticdl.errors import UsageError
from elasticdl.job import Job, ModelReference, TrainingOptions

if TYPE_CHECKING:
    import os

    from elasticdl.config_file import ConfigStruct
    from elasticdl.data.batch import Batch
    from elasticdl.engines.engine import Outcome, Reporter


class Trainer:
    """Trainer for notebooks: trains a compiled Keras model on generators of batches.

    Args:
        config: Has `epochs`, and `export.metric` and `export.mode`, which select the best model;
            may have `batch_size` and `seed`.
        run_dir: Folder for checkpoints, logs and the exported model.
    """

    def __init__(self, config: ConfigStruct, run_dir: str | os.PathLike[str]) -> None:
        self.config = config
        self.run_dir = Path(run_dir)
        self._example: Batch | None = None

    @property
    def output(self) -> Path:
        """The output folder of the training job."""
        return self.run_dir / "training"

    def train(  # noqa: PLR0917 - the documented signature
        self,
        model_builder: Any,
        active_run: Any = None,
        train_data_gen: Any = None,
        n_iter_train: int = 0,
        val_data_gen: Any = None,
        n_iter_val: int = 0,
        reporter: Reporter | None = None,
    ) -> Outcome:
        """Train, or resume the training of an earlier call with the same `run_dir`.

        Args:
            model_builder: Its method `get_compiled_model()` returns a compiled Keras model.
            active_run: Ignored; only `elasticdl session run` tracks, with `--tracking_uri`.
            train_data_gen: Yields batches `(x, y, sample weight)`.
            n_iter_train: Number of batches per epoch.
            val_data_gen: Yields such batches for the evaluation after each epoch. None: do not
                evaluate.
            n_iter_val: Number of batches per evaluation.
            reporter: Reports progress to the user. None: one that suits the terminal.

        Returns:
            How training ended, with its metrics.

        Raises:
            UsageError: There is nothing to train on.
            ElasticDLError: Training failed; `elasticdl.errors` lists the kinds of errors.
        """
        del active_run
        if train_data_gen is None or n_iter_train < 1:
            raise UsageError(
                f"train_data_gen is {train_data_gen!r} and n_iter_train {n_iter_train}; expected a "
                "generator of batches, and the number of batches in an epoch."
            )
        weights = class_weight_of(model_builder)
        training = _LiveBatches(train_data_gen, n_iter_train, "train_data_gen", weights)
        # As in Keras, a validation loss counts every class equally.
        validation = _LiveBatches(val_data_gen, n_iter_val, "val_data_gen", None)
        models: list[Any] = []

        def create_model() -> Any:
            models.append(model_builder.get_compiled_model())
            return models[-1]

        definition = ModelDefinition(
            origin=_origin_of(model_builder),
            framework="keras",
            create_model=create_model,
            input=BatchesInput(
                lambda _, mode: (training if mode is Mode.TRAINING else validation).epochs()
            ),
            loss=None,
            create_optimizer=lambda: models[-1].optimizer,
            compiled=True,
            create_callbacks=lambda: own_callbacks(model_builder),
            required_exports=("saved_model",),
        )
        with tempfile.TemporaryDirectory(dir=scratch.folder()) as nowhere:
            job = self._job(definition, nowhere, validates=val_data_gen is not None)
            shown = progress_bar.for_stream() if reporter is None else reporter
            return in_process.train(job, shown, definition)

    def export(self) -> Path:
        """Return the folder of the SavedModel that `train` has exported from the best checkpoint.

        Raises:
            OutputError: Nothing has been trained yet, or it could not be exported.
        """
        return load_trained_model(str(self.output)).exported("saved_model")

    def _job(self, definition: ModelDefinition, nowhere: str, *, validates: bool) -> Job:
        config = self.config
        # The code is in the notebook; if it is in a file, the file's folder is stored.
        source = definition.origin.file
        zoo = str(Path(source).parent) if Path(source).is_file() else nowhere
        return Job(
            command="train",
            data="generators",
            output=str(self.output.resolve()),
            model=ModelReference(zoo=zoo, model_def=definition.origin.symbol, dialect=NAME),
            validation_data="generators" if validates else None,
            training=TrainingOptions(
                num_epochs=config.epochs,
                minibatch_size=config.get("batch_size") or TrainingOptions.minibatch_size,
                seed=config.get("seed") or 0,
                best_metric=config.export.metric,
                best_mode=config.export.mode,
                restore_best_weights=True,
            ),
        )


TFKerasTrainer = Trainer


class _LiveBatches:
    """Training or validation data from a caller's generator, which cannot be created again."""

    def __init__(self, generator: Any, num_batches: int, name: str, weights: Any) -> None:
        self._generator, self._num_batches, self._name = generator, num_batches, name
        self._weights = weights
        self._going: Iterator[Batch] | None = None
        self._first: Batch | None = None
        self._is_first_taken = False

    def epochs(self) -> Epochs:
        """Return the generator's batches in the form that training takes.

        Reads the first batch, to find out its number of examples; training still gets this batch.

        Raises:
            UsageError: The generator yields nothing.
        """
        if self._first is None:
            self._going = self._restarted()
            self._first = next(self._going, None)
        if self._first is None:
            raise UsageError(f"{self._name} yields nothing; expected batches (x, y, weight).")
        return Epochs(
            num_examples=self._first.num_examples * self._num_batches,
            num_batches=self._num_batches,
            begin=self._begin,
            # Not compared with earlier batches: they are not guaranteed to be the same.
            indexed=True,
            reproducible=False,
            name=self._name,
        )

    def _restarted(self) -> Iterator[Batch]:
        parts = pipelines.elements(self._generator, self._name)
        return (batch_of(part, self._name, self._weights) for part in parts)

    def _begin(self, epoch: int, first: int) -> Iterator[Batch]:
        if pipelines.kind_of(self._generator, self._name) != "iterable":
            return itertools.islice(self._restarted(), first, self._num_batches)
        assert self._going is not None  # noqa: S101 - made with the first batch
        again = self._first_again() if epoch == 0 and not self._is_first_taken else ()
        return itertools.islice(itertools.chain(again, self._going), first, self._num_batches)

    def _first_again(self) -> Iterator[Batch]:
        assert self._first is not None  # noqa: S101 - as above
        yield self._first
        # Peeking at the first batch does not consume it.
        self._is_first_taken = True


def _origin_of(model_builder: Any) -> Origin:
    kind = type(model_builder)
    try:
        file = inspect.getfile(kind)
        line = inspect.getsourcelines(kind)[1]
    except (OSError, TypeError):
        # A class typed into a notebook.
        file, line = f"<{kind.__module__}>", 1
    return Origin(NAME, file, line, kind.__name__, zoo="")
