"""What to train: the one internal form every dialect is turned into.

A `ModelDefinition` is a frozen record of functions. It holds no model, no optimizer and no
data: an engine calls the factories in the process that trains, so that a definition can be
made again from the same `Job` on any worker. Argument order and names are already settled
here; nobody above a dialect asks which one it was, except an error message (`Origin`).

Callers: `dialects/` make it, `training/` and `engines/` use it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

if TYPE_CHECKING:
    from elasticdl.data.batch import Arrays, Batch, Record
    from elasticdl.data.record_source import RecordSource
    from elasticdl.data.schema import Schema


Precision: TypeAlias = Literal["", "bf16", "fp16"]
LossWithin: TypeAlias = Literal["", "forward", "training_step"]


class Mode(StrEnum):
    """What a model or a data pipeline is used for; compares equal to its string."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"


@dataclass(frozen=True)
class Origin:
    """Where a definition came from, so that an error can speak the user's own words.

    Attributes:
        dialect: Name of the dialect that made the definition.
        file: The user's file, as a path or `package:resource`.
        line: Line of the symbol that was asked for, 1 where it is the file itself.
        symbol: What `model_def` named.
        zoo: The folder or URL the file was found in.
        zoo_commit: Commit of the zoo, where it is a git repository.
    """

    dialect: str
    file: str
    line: int
    symbol: str
    zoo: str
    zoo_commit: str | None = None

    def __str__(self) -> str:
        """Return `file:line`, as an editor takes it."""
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class RecordInput:
    """Batches made from decoded records: a position is found by seeking.

    Attributes:
        input_fn: Takes the decoded records of one batch, returns `(features, labels)`; in
            prediction the labels are ignored and may be left out.
        schema: How records are decoded; None decodes what each record says of itself.
        takes_mode: Whether `input_fn` is called as `input_fn(records, mode)`.
    """

    input_fn: Callable[..., Any]
    schema: Schema | None = None
    takes_mode: bool = False


@dataclass(frozen=True)
class DatasetInput:
    """Batches made by a `tf.data` pipeline of the user's: a position is found by replaying.

    Attributes:
        create_dataset: Takes a `tf.data.Dataset` of serialized records and the mode; returns
            a dataset of single examples, `features` or `(features, labels)`.
    """

    create_dataset: Callable[[Any, Mode], Any]


@dataclass(frozen=True, eq=False)
class Epochs:
    """Batches of a pipeline of the user's that makes them by itself, epoch after epoch.

    Attributes:
        num_examples: In an epoch.
        num_batches: In an epoch.
        begin: Builds the pipeline anew, for the epoch of that number, and returns its batches
            from the given one on. It draws from the random numbers of the process, which are
            seeded before.
        indexed: `begin` reaches any batch at once. Otherwise it can only start with the first.
        elsewhere: Another process sees the same batches.
        name: What the user calls it, for errors.
    """

    num_examples: int
    num_batches: int
    begin: Callable[[int, int], Iterator[Batch]]
    indexed: bool
    elsewhere: bool
    name: str


@dataclass(frozen=True)
class BatchesInput:
    """Batches made by a pipeline of the user's that reads the data itself.

    Attributes:
        open_epochs: Takes the place of the data, and the mode; training or evaluation.
    """

    open_epochs: Callable[[str, Mode], Epochs]


@dataclass(frozen=True)
class NamedMetric:
    """A metric in the later ElasticDL style.

    Attributes:
        name: What it is reported as.
        metric: A `Metric` of Keras or TorchMetrics, or a function `(labels, predictions)` of one
            value an example. One of TorchMetrics is updated by `(predictions, labels)`.
        output: Which of several model outputs it looks at; None for the only one.
        weighted: Sample weights count in it, as in Keras' `weighted_metrics`; in others they do
            not, as in its `metrics`.
    """

    name: str
    metric: Any
    output: str | None = None
    weighted: bool = False


@dataclass(frozen=True)
class MetricFunctions:
    """What is measured in one mode.

    Attributes:
        scalars: `(outputs, labels) -> {name: value of this batch}`; reported as the mean over
            examples.
        named: Metrics with states of their own; reported as those states say.
        where: `file:line` of the user's function that says so; empty where there is none.
    """

    scalars: Callable[[Any, Any], Mapping[str, Any]] | None = None
    named: Sequence[NamedMetric] = ()
    where: str = ""


@dataclass(frozen=True)
class GradientClipping:
    """A bound on the gradients of an update.

    Attributes:
        by: "norm", of all gradients together, or "value", of each number.
        limit: The largest that is left as it is.
    """

    by: Literal["norm", "value"]
    limit: float


def no_metrics(mode: Mode) -> MetricFunctions:
    """Measure nothing but the loss."""
    del mode
    return MetricFunctions()


@runtime_checkable
class WeighableLoss(Protocol):
    """A loss that applies sample weights, and masks, by itself: a loss object of Keras."""

    @property
    def loss(self) -> Any:
        """The object of Keras."""
        ...

    def __call__(self, outputs: Any, labels: Any) -> Any:
        """Return the loss of a batch."""
        ...

    def weighted(self, outputs: Any, labels: Any, weights: Any) -> Any:
        """Return the loss of a batch whose examples count differently; None counts each once."""
        ...


@runtime_checkable
class LateLoss(Protocol):
    """A loss that is made by a function of the user's, when it is first needed."""

    def __call__(self, outputs: Any, labels: Any) -> Any:
        """Return the loss of a batch."""
        ...

    def made(self) -> Callable[[Any, Any], Any]:
        """Return the loss that was made."""
        ...


def made(loss: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the loss, made by now."""
    return made(loss.made()) if isinstance(loss, LateLoss) else loss


Input: TypeAlias = RecordInput | DatasetInput | BatchesInput


@dataclass(frozen=True)
class ModelDefinition:
    """What to train: factories and functions with their argument order settled.

    Attributes:
        origin: Where it came from.
        framework: Which trainer runs it: the name of a file in `training/`.
        create_model: Returns the model; called once a process, after seeding.
        input: How records become batches.
        loss: `(outputs, labels)` -> a batch mean, or one value an example or time step (then
            averaged, by the model's mask and the sample weights). None where a definition can
            only predict, or the model is compiled.
        create_optimizer: Returns the optimizer; for PyTorch, what makes one for a list of
            parameters.
        create_lr_schedulers: For PyTorch: takes the optimizer and returns its learning rate
            schedulers, as `training/torch/schedulers.py` reads them.
        gradient_clipping: For PyTorch: what is done to the gradients of an update before the
            optimizer sees them; a function takes the parameters.
        create_average: For PyTorch: takes the model and returns the `AveragedModel` of
            `torch.optim.swa_utils` that follows its weights; it is what is evaluated and published.
        precision: For PyTorch: the format that a step computes in where that is safe (autocast):
            "bf16", "fp16", or "" for that of the weights.
        loss_within: For PyTorch: where the model computes its loss by itself, so that `loss` is
            None: in `forward`, which is given the labels, or in the `training_step` of a
            LightningModule.
        compiled: The model is a Keras model that was compiled: loss and metrics are those it was
            compiled with, and labels are pairs (labels, sample weights).
        class_weight: Returns how much the examples of each class count in training: class ->
            weight, or None.
        create_metrics: What to measure in a mode.
        create_callbacks: Callbacks of the user's: Keras' for a Keras model, for a PyTorch model
            objects as `training/torch/callbacks.py` calls them.
        labels_as_numpy: The user's functions treat labels as numpy arrays
            (`labels.flatten()`), also while a step is being compiled.
        predictions: Returns what is written of a batch of outputs: name -> array; None, or a
            function that returns None, writes the outputs themselves.
        create_outputs_processor: Returns an object with `process(predictions, worker_id)`,
            called with every batch of predictions.
        open_source: A reader of the user's own, `data -> RecordSource`; None for ours.
        params: The params it was made with, for the record.
        required_exports: What the trained model must be exported as: "saved_model". A model that
            cannot be is refused before the first step.
        trust_used: What a person has allowed to run that would be refused, one line each.
        notes: What a person should be told when a training begins, one line each; asked after
            the data were opened.
        places: File and line of the user's functions, for errors: of "model", "input", "loss",
            "optimizer", "lr_scheduler", "gradient_clipping", "averaged_model",
            "callbacks", "processor", "predictions"; others are at the origin.
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
    create_outputs_processor: Callable[[], Any] | None = None
    open_source: Callable[[str], RecordSource] | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    required_exports: Collection[str] = ()
    trust_used: Sequence[str] = ()
    notes: Callable[[], Sequence[str]] = list
    places: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def where(self, part: str) -> Origin:
        """Return where a part of the definition is, for an error.

        Args:
            part: One of those in `places`.
        """
        file, line = self.places.get(part, (self.origin.file, self.origin.line))
        return replace(self.origin, file=file, line=line)


InputFunction: TypeAlias = "Callable[[Sequence[Record]], tuple[Arrays, Arrays]]"
