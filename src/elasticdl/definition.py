"""Model definition: what to train, in one internal form for models of every dialect.

A dialect is a style of describing a model: a file of functions, a class, a saved model.

A `ModelDefinition` is a frozen record of functions. It holds no model, no optimizer and no
data: an engine calls the factories in the process that trains, so that any worker can build the
same definition from the same `Job`. The order and names of arguments are the same for all
dialects; only error messages depend on the dialect (`Origin`).

Callers: `dialects/` create it; `training/` and `engines/` use it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from elasticdl.data.batch import Batch
    from elasticdl.data.column_summary import ColumnSummary
    from elasticdl.data.record_source import RecordSource
    from elasticdl.data.schema import Schema


Precision: TypeAlias = Literal["", "bf16", "fp16"]
LossWithin: TypeAlias = Literal["", "forward", "training_step"]


class Mode(StrEnum):
    """What a model or data pipeline is used for: training, evaluation or prediction.

    Each mode equals its string, such as "training". Comparing it with any other string is an
    error, because the result would always be False: an input function that augments records only
    if `mode == "train"` would never augment them.
    """

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"

    def __eq__(self, other: object) -> bool:
        """Return whether `other` is this mode or its string.

        Raises:
            ValueError: It is a string that is not the name of a mode.
        """
        if type(other) is str and other not in _MODES:
            raise ValueError(
                f"the mode is compared with {other!r}; the modes are "
                f"{', '.join(map(repr, sorted(_MODES)))}."
            )
        return str.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        """Return the opposite of `==`; raises the same error."""
        return not self == other

    __hash__ = str.__hash__


_MODES = frozenset(map(str, Mode))


@dataclass(frozen=True)
class Origin:
    """Where a definition comes from, for errors that name the user's own file and symbol.

    Attributes:
        dialect: Name of the dialect that made the definition.
        file: The user's file, as a path or `package:resource`.
        line: Line of `file` on which the definition begins; 1 if it is the whole file.
        symbol: The dotted name in `model_def`: file, then class or function.
        zoo: The folder or URL in which the file was found.
        zoo_commit: Commit of the zoo, where it is a git repository.
    """

    dialect: str
    file: str
    line: int
    symbol: str
    zoo: str
    zoo_commit: str | None = None

    def __str__(self) -> str:
        """Return `file:line`, in the form that editors accept."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class RecordInput:
    """Input defined by a function that turns decoded records into a batch; can resume at any batch.

    Attributes:
        input_fn: Function (decoded records of one batch) -> `(features, labels)`; in prediction the
            labels are ignored and may be left out.
        schema: How records are decoded. None: decode each record by the types stored in it.
        takes_mode: Whether `input_fn` is called as `input_fn(records, mode)`.
        is_default: Whether the model file has no input function: labels of one number per example
            then get the shape that the loss needs.
    """

    input_fn: Callable[..., Any]
    schema: Schema | None = None
    takes_mode: bool = False
    is_default: bool = False


@dataclass(frozen=True)
class DatasetInput:
    """Input defined by a user's `tf.data` pipeline; to resume, it is replayed from its start.

    Attributes:
        create_dataset: Function (`tf.data.Dataset` of serialized records, mode) -> dataset of
            single examples, `features` or `(features, labels)`.
    """

    create_dataset: Callable[[Any, Mode], Any]


@dataclass(frozen=True, eq=False)
class Epochs:
    """The batches of each epoch, produced by a user's own data pipeline.

    Attributes:
        num_examples: Examples in an epoch.
        num_batches: Batches in an epoch.
        begin: Function (epoch, first) -> iterator over the batches of this epoch, from batch number
            `first` on; both count from 0. The function builds a new pipeline, which draws from the
            process's random number generators; callers seed these before the call.
        indexed: Whether `begin` can start at any batch. Otherwise `first` must be 0, and the caller
            skips the batches before the one it needs.
        reproducible: Whether a pipeline that another process builds yields the same batches, so
            that several workers can share an epoch.
        name: The user's name for the pipeline, for errors.
        preserved: Function () -> context manager. At its end it restores what reading batches has
            changed in the pipeline, such as counters of its data set, so that a batch can be read
            as an example before training.
        check: Function (number of an epoch, from 0): raises a DefinitionError if user code has
            changed the pipeline, because the change would have no effect. Called when training
            begins the epoch, after the `on_epoch_begin` callbacks. None: there is nothing to check.
    """

    num_examples: int
    num_batches: int
    begin: Callable[[int, int], Iterator[Batch]]
    indexed: bool
    reproducible: bool
    name: str
    preserved: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
    check: Callable[[int], None] | None = None


@dataclass(frozen=True)
class BatchesInput:
    """Input defined by a user's pipeline that reads the data itself and yields batches.

    Attributes:
        open_epochs: Function (location of the data, mode) -> `Epochs`.
        validates: Whether there is validation data even if the user gives no location for it:
            `open_epochs` is then called with the location of the training data and
            `Mode.EVALUATION`.
        predicts: Whether `open_epochs` supports prediction.
    """

    open_epochs: Callable[[str, Mode], Epochs]
    validates: bool = False
    predicts: bool = False


@dataclass(frozen=True)
class CompletedParams:
    """The params of a model, completed from its training data.

    Attributes:
        params: All params, JSON values.
        notes: Notices about them for the user, one line each.
    """

    params: Mapping[str, Any]
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class NamedMetric:
    """A metric that is reported under a name of its own.

    Attributes:
        name: The name it is reported under.
        metric: A Keras or TorchMetrics `Metric`, or a function `(labels, predictions)` that
            returns one value per example. A TorchMetrics metric is updated with
            `(predictions, labels)`.
        output: Name of the model output that it measures; None if there is only one.
        weighted: Whether sample weights count, as in Keras' `weighted_metrics`; otherwise they do
            not, as in its `metrics`.
        direction: "min" if lower values are better, "max" if higher ones are. Known if the user
            gave the name of an accuracy or a loss function of Keras; otherwise None.
    """

    name: str
    metric: Any
    output: str | None = None
    weighted: bool = False
    direction: Literal["min", "max"] | None = None


@dataclass(frozen=True)
class MetricFunctions:
    """The metrics of one mode.

    Attributes:
        scalars: Function (outputs, labels) -> {name: value of this batch}; the mean over all
            examples is reported. None if there are no such metrics.
        named: Metrics that accumulate their own state over batches; the result computed from the
            final state is reported.
        where: `file:line` of the user's function that defines the metrics; empty without one.
    """

    scalars: Callable[[Any, Any], Mapping[str, Any]] | None = None
    named: Sequence[NamedMetric] = ()
    where: str = ""


@dataclass(frozen=True)
class GradientClipping:
    """How the gradients of an update are clipped.

    Attributes:
        by: "norm" bounds the norm of all gradients together, "value" each number.
        limit: The largest norm or value that is left unchanged.
    """

    by: Literal["norm", "value"]
    limit: float


def no_metrics(mode: Mode) -> MetricFunctions:
    """Return an empty `MetricFunctions` for any mode; only the loss is then reported."""
    del mode
    return MetricFunctions()


@runtime_checkable
class WeighableLoss(Protocol):
    """A loss that itself applies sample weights and masks, as a Keras loss object does.

    A trainer passes the weights to `weighted`. For any other loss, it computes the weighted mean.
    """

    @property
    def loss(self) -> Any:
        """The Keras loss object that this loss calls."""
        ...

    def __call__(self, outputs: Any, labels: Any) -> Any:
        """Return the loss of a batch."""
        ...

    def weighted(self, outputs: Any, labels: Any, weights: Any) -> Any:
        """Return the loss of a batch whose examples have weights: a mean, or one value per example.

        Args:
            outputs: The model's outputs.
            labels: The labels.
            weights: Weight of each example. None: all examples have equal weights.
        """
        ...


@runtime_checkable
class LateLoss(Protocol):
    """A loss that is returned by a user's function, which takes neither outputs nor labels.

    That function is called when the loss is first used, not when the definition is read.
    """

    def __call__(self, outputs: Any, labels: Any) -> Any:
        """Return the loss of a batch."""
        ...

    def resolved(self) -> Callable[[Any, Any], Any]:
        """Return the underlying loss, creating it at the first call."""
        ...


def resolved(loss: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the loss that a `LateLoss` creates, or any other loss unchanged.

    Trainers call this to see of which kind the loss is.
    """
    return resolved(loss.resolved()) if isinstance(loss, LateLoss) else loss


Input: TypeAlias = RecordInput | DatasetInput | BatchesInput


@dataclass(frozen=True)
class ModelDefinition:
    """A model as read by a dialect: factories and functions with fixed argument orders.

    Attributes:
        origin: Where it was read from.
        framework: The trainer that runs the model: name of a file in `training/`.
        create_model: Function () -> new model; called once per process, after seeding.
        input: How records become batches.
        loss: Function (outputs, labels) -> mean over a batch, or one value per example or time
            step. The trainer averages such values, with the model's mask and the sample weights.
            None if the model computes its own loss (`loss_within`), is compiled, or can only
            predict.
        create_optimizer: Function () -> new optimizer. For PyTorch, it returns a function
            `make(parameters, model)` -> optimizer instead. The parameters are those of the model,
            in the model's order; a test call before training passes other ones of the same shapes.
        create_lr_schedulers: For PyTorch: function (optimizer) -> its learning rate schedulers, in
            the form that `training/torch/schedulers.py` reads.
        gradient_clipping: For PyTorch: how gradients are clipped before the optimizer step: a
            setting, or a user's function that takes a list of the parameters and changes their
            gradients in place. None for no clipping.
        create_average: For PyTorch: function (model) -> `AveragedModel` of `torch.optim.swa_utils`
            that averages the model's weights during training. The average is evaluated and
            published instead of the model itself.
        precision: For PyTorch: the format that a step computes in where that is safe (autocast):
            "bf16", "fp16", or "" for the dtype of the weights.
        loss_within: For PyTorch: name of the model's method that computes the loss, if `loss` is
            None: "forward", which receives the labels, or the "training_step" of a
            LightningModule.
        compiled: Whether the model is a compiled Keras model: then loss and metrics are those it
            was compiled with, and labels are pairs (labels, sample weights).
        class_weight: Function () -> {class: weight of its examples in training}, or None for equal
            weights.
        create_metrics: Function (mode) -> metrics of that mode.
        create_callbacks: Function () -> the user's callbacks: Keras callbacks for a Keras model;
            for a PyTorch model, objects with methods that `training/torch/callbacks.py` calls.
        labels_as_numpy: Whether the user's functions treat labels as numpy arrays
            (`labels.flatten()`), even while a step is being compiled.
        predictions: Function (outputs of a batch) -> values to write for it, name -> array. If
            there is no such function, or it returns None, the outputs themselves are written.
        classes: Names of the classes in the order of the model's outputs. If empty, the names may
            come from the data (`data.record_source.HasClassNames`).
        create_outputs_processor: Function () -> object with `process(predictions, worker_id)`,
            called with every batch of predictions.
        open_source: The user's own reader, `data -> RecordSource`; None for the built-in ones.
        params: The params that the model was created with.
        complete_params: Function (summaries of the training table's columns) -> all params,
            including those that the user did not give; the model is then defined again with these.
            None: no param depends on the data.
        required_exports: Formats the trained model must be exported to: "saved_model". A model
            that cannot be exported is refused before the first step.
        trust_used: Code in a saved model's file that runs only because the user has explicitly
            trusted it; one line describes each piece.
        notes: Function () -> notices to show when training begins, one line each; called after the
            data has been opened.
        places: Part of the definition -> file and line of the user's function for it, for errors.
            The parts are "model", "input", "validation" (if another function than that of "input"
            makes the validation data), "loss", "metrics", "optimizer", "lr_scheduler",
            "gradient_clipping", "averaged_model", "callbacks", "classes", "processor" and
            "predictions". For a part without an entry, errors name the location in `origin`.
    """

    origin: Origin
    framework: str
    create_model: Callable[[], Any]
    input: Input
    loss: Callable[[Any, Any], Any] | None
    create_optimizer: Callable[[], Any]
    create_lr_schedulers: Callable[[Any], Any] | None = None
    gradient_clipping: GradientClipping | Callable[[Sequence[Any]], Any] | None = None
    create_average: Callable[[Any], Any] | None = None
    precision: Precision = ""
    loss_within: LossWithin = ""
    compiled: bool = False
    class_weight: Callable[[], Mapping[int, float] | None] | None = None
    create_metrics: Callable[[Mode], MetricFunctions] = no_metrics
    create_callbacks: Callable[[], Sequence[Any]] = list
    labels_as_numpy: bool = False
    predictions: Callable[[Any], Mapping[str, Any] | None] | None = None
    classes: Sequence[str] = ()
    create_outputs_processor: Callable[[], Any] | None = None
    open_source: Callable[[str], RecordSource] | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    complete_params: Callable[[Sequence[ColumnSummary]], CompletedParams] | None = None
    required_exports: Collection[str] = ()
    trust_used: Sequence[str] = ()
    notes: Callable[[], Sequence[str]] = list
    places: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    @property
    def has_default_input(self) -> bool:
        """Return whether the model file has no input function.

        ElasticDL then chooses the shape of the labels.
        """
        return isinstance(self.input, RecordInput) and self.input.is_default

    def where(self, part: str) -> Origin:
        """Return the location of the user's code for a part of the definition, for an error.

        Args:
            part: A key of `places`.
        """
        file, line = self.places.get(part, (self.origin.file, self.origin.line))
        return replace(self.origin, file=file, line=line)

    def with_undeclared_schema(self) -> ModelDefinition:
        """Return the definition with its schema marked as not declared by the user.

        The user cannot change the schema of a trained model, or of a prebuilt one: error messages
        then say that it follows from the training data, and do not name `data_schema()`.
        """
        if not isinstance(self.input, RecordInput) or self.input.schema is None:
            return self
        return replace(self, input=replace(self.input, schema=self.input.schema.undeclared()))
