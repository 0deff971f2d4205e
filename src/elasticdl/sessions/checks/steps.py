"""Groups of the session check that use the model: a step, a checkpoint, an export, the reports."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from elasticdl import scratch, user_files
from elasticdl.artifacts.checkpoint_store import Checkpoint, CheckpointStore
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.data.batch import leaves
from elasticdl.dialects.abstractions import is_replaced
from elasticdl.engines.finite import StateCheck
from elasticdl.errors import ElasticDLError, NonFiniteLossError
from elasticdl.evaluation.functions import EvalFunctions
from elasticdl.evaluation.report_writer import ReportWriter, as_texts
from elasticdl.sessions.checks import model as rules
from elasticdl.sessions.checks import reading
from elasticdl.sessions.checks.check_context import CheckContext, made
from elasticdl.sessions.checks.finding import CheckFinding, Severity, error, info, of_error, warning
from elasticdl.sessions.checks.limits import captured_warnings, within
from elasticdl.sessions.report import Examples, open_split
from elasticdl.training.create import create_trainer
from elasticdl.training.trainer import Exporter, Trainer

# After this time, optional groups are skipped: the export of a large model.
_OPTIONAL_UNTIL_S = 20.0
_LARGE_MODEL_BYTES = 500 * 2**20


def check_model(context: CheckContext) -> Iterator[CheckFinding]:
    """Yield problems with the model and with one step; stores a trainer in the context."""
    batch, where = (
        made(context.batches)[0],
        context.place("model_builder_class", "get_compiled_model"),
    )
    try:
        trainer = _new_trainer(context)
    except ElasticDLError as problem:
        yield from _why_no_trainer(context, problem, where)
        return
    from elasticdl.training.keras.model_facts import facts_of  # noqa: PLC0415 - imports TensorFlow

    outputs = trainer.predict(batch.features)
    facts = facts_of(made(context.components).newest_model, len(leaves(outputs)))
    wrong = list(
        itertools.chain(
            rules.last_layers(facts, outputs, where, _line_with("from_logits", where)),
            rules.targets(facts, made(context.batches), outputs, context.places("training").labels),
            *(
                rules.shapes(facts, other, where, context.places(split))
                for split, other in context.others.items()
            ),
        )
    )
    yield from wrong
    metrics = trainer.evaluation_metrics.results(trainer.evaluate(batch))
    context.metrics = metrics
    yield from rules.best(context.config, metrics, trainer.evaluation_metrics.direction)
    if not any(finding.severity is Severity.ERROR for finding in wrong):
        if "validation" in context.others:
            trainer.evaluate(context.others["validation"])
        yield from _step(context, trainer, where)
    loss = metrics.get("loss", float("nan"))
    state = trainer.state()
    num_parameters = sum(a.size for name, a in state.items() if name.startswith("model/"))
    context.said = (
        f"{num_parameters:,} parameters, loss of the first batch {loss:.4g}, one step made"
    )
    context.trainer = trainer


def check_callbacks(context: CheckContext) -> Iterator[CheckFinding]:
    """Yield findings for callbacks that are ignored or monitor a metric that is not measured."""
    builder = made(context.components).model_builder
    everything = list((getattr(builder, "get_callbacks", list)()) or [])
    where = context.place("model_builder_class", "get_callbacks")
    for callback in everything:
        if is_replaced(callback):
            yield info(f"{type(callback).__name__} is ignored: ElasticDL replaces it.", where)
    kept = [callback for callback in everything if not is_replaced(callback)]
    yield from rules.monitors(kept, made(context.metrics), where)
    context.said = ", ".join(type(callback).__name__ for callback in kept) or "none"


def check_round_trip(context: CheckContext) -> Iterator[CheckFinding]:
    """Yield a finding if the model differs after it was saved to a checkpoint and restored."""
    trainer = made(context.trainer)
    state = trainer.state()
    size = sum(array.nbytes for array in state.values())
    if size > _LARGE_MODEL_BYTES:
        context.said = f"skipped: the state has {size / 2**20:,.0f} MiB"
        return
    with (
        tempfile.TemporaryDirectory(dir=scratch.folder()) as folder,
        CheckpointStore(OutputFolder(folder)) as store,
    ):
        metadata = {"callbacks": trainer.hooks.state()}
        arrays = trainer.hooks.arrays()
        store.save(Checkpoint(trainer.step, {**state, **arrays}, metadata))
        restored = store.latest()
    assert restored is not None  # noqa: S101 - it was just written
    again = _new_trainer(context)
    kept = restored.checkpoint.state
    again.load_state({path: array for path, array in kept.items() if path not in arrays})
    again.hooks.load_state(restored.checkpoint.metadata["callbacks"], kept)
    differing = [
        path
        for path, array in again.state().items()
        if not np.array_equal(array, state[path], equal_nan=array.dtype.kind == "f")
    ]
    if differing:
        yield error(
            f"loaded from a checkpoint, {len(differing)} tensors differ, {differing[0]} among "
            "them.",
            context.place("model_builder_class", "get_compiled_model"),
            "Make sure that the model has the same variables each time it is created.",
        )
    context.said = f"{len(state)} tensors, {size / 2**20:,.1f} MiB, saved and loaded"


def check_export(context: CheckContext) -> Iterator[CheckFinding]:
    """Yield a finding if the model cannot be exported, or predicts differently in a new process."""
    from elasticdl.sessions.export import copy_verified  # noqa: PLC0415 - imports TensorFlow

    trainer = made(context.trainer)
    size = sum(array.nbytes for array in trainer.state().values())
    if context.seconds > _OPTIONAL_UNTIL_S or size > _LARGE_MODEL_BYTES:
        context.said = "skipped: it would take too long; training does it at the end"
        return
    with (
        tempfile.TemporaryDirectory(dir=scratch.folder()) as folder,
        tempfile.TemporaryDirectory(dir=scratch.folder()) as staged,
    ):
        with captured_warnings() as said:
            written = trainer.export(Path(folder)) if isinstance(trainer, Exporter) else []
        if "saved_model" not in written:
            yield error(
                f"the model cannot be exported. {' '.join(said)}",
                context.place("model_builder_class", "get_compiled_model"),
                "Use TensorFlow's or Keras' operations in its layers, not NumPy's.",
            )
            return
        models = [Path(folder) / name for name in written]
        verified = copy_verified(
            models, Path(staged), trainer, made(context.batches)[0], name=context.run_name
        )
    context.said = f"{' and '.join(verified)} written, and loaded in a new process"


def check_reports(context: CheckContext) -> Iterator[CheckFinding]:
    """Evaluate the first examples of each split as the reports do, and yield the problems."""
    components, count = made(context.components), 0
    with within():
        given = components.eval_functions()
    names = EvalFunctions(given).names
    each = given.values() if isinstance(given, Mapping) else given or ()
    # One by one, so that the errors of all functions are found.
    functions = [EvalFunctions({name: one}) for name, one in zip(names, each, strict=True)]
    for split in ("validation", "test"):
        try:
            with within():
                opened, ids = open_split(components, made(context.session).data, split)
                some = reading.first_examples(opened, split, ids)
                yield from (info(f"{split}: {note}") for note in opened.notes)
                yield from _evaluated(made(context.trainer), split, some, functions)
                count += len(some.ids)
        except ElasticDLError as problem:
            yield of_error(problem)
    context.said = f"{', '.join(names) or 'no functions'}; {count} examples evaluated"


def _evaluated(
    trainer: Trainer, split: str, some: Examples, functions: list[EvalFunctions]
) -> Iterator[CheckFinding]:
    """Evaluate examples and write their report to a temporary folder, to find errors in doing so.

    Yields a finding for each evaluation function that raises. Such a function is removed from the
    list, so that it is not reported again for the next split.

    Args:
        trainer: A trainer with the model.
        split: Name of the split.
        some: The examples.
        functions: The evaluation functions; changed in place.
    """
    outputs = trainer.predict(some.features)
    for function in list(functions):
        try:
            function.columns(as_texts(some.ids), some.labels, outputs)
        except ElasticDLError as problem:
            functions.remove(function)
            yield of_error(problem)
    with (
        tempfile.TemporaryDirectory(dir=scratch.folder()) as folder,
        ReportWriter(folder, split=split) as writer,
    ):
        writer.add(ids=some.ids, labels=some.labels, outputs=outputs, weights=some.weights)


def _new_trainer(context: CheckContext) -> Trainer:
    job = context.job
    return create_trainer(
        made(context.components).definition(),
        made(context.batches)[0],
        minibatch_size=made(context.batches)[0].num_examples,
        seed=job.training.seed,
        deterministic=job.training.deterministic,
    )


def _why_no_trainer(
    context: CheckContext, problem: ElasticDLError, where: str
) -> Iterator[CheckFinding]:
    """Yield findings that explain why no trainer could be created.

    The rules for shapes, last layer and labels often explain it better than the framework's error.

    Args:
        context: Contains the model and the training batches.
        problem: The error that was raised; reported if the rules find no error.
        where: Location of the method that creates the model.
    """
    newest, some = made(context.components).newest_model, made(context.batches)
    found: list[CheckFinding] = []
    if getattr(newest, "compiled", False):
        from elasticdl.training.keras.model_facts import facts_of, outputs_of  # noqa: PLC0415 - as above

        facts = facts_of(newest)
        found = list(rules.shapes(facts, some[0], where, context.places("training")))
        outputs = None if found else outputs_of(newest, some[0].features)
        if outputs is not None:
            labels = context.places("training").labels
            found = list(rules.last_layers(facts, outputs, where, _line_with("from_logits", where)))
            found += rules.targets(facts, some, outputs, labels)
    yield from found
    if not any(finding.severity is Severity.ERROR for finding in found):
        yield of_error(problem)


def _step(context: CheckContext, trainer: Trainer, where: str) -> Iterator[CheckFinding]:
    """Train on one batch, and yield a finding if the step fails to train the model.

    A step fails if the loss or the state becomes NaN or infinite, or if no weight changes.

    Args:
        context: Contains the batch.
        trainer: A trainer with the model; its state is changed.
        where: Location of the model, for findings.
    """
    before = {name: array.copy() for name, array in trainer.state().items()}
    result = trainer.train_steps([made(context.batches)[0]])
    after = trainer.state()
    if not np.isfinite(result.losses).all():
        yield error(
            f"the loss of the first step is {float(result.losses[0]):g}.",
            where,
            "Check the loss, especially divisions and logarithms.",
        )
        return
    try:
        StateCheck(before).check(after, step=1, last_good=0)
    except NonFiniteLossError as problem:
        yield error(f"the session would end after one step: {problem}", where)
        return
    changed = [
        name
        for name in before
        if name.startswith("model/") and not np.array_equal(before[name], after[name])
    ]
    if not changed:
        yield warning(
            "a step changes no weight of the model.",
            where,
            "Check the learning rate, `trainable = False`, and sample weights of 0.",
        )


def _line_with(text: str, where: str) -> str:
    """Return the line of a file that contains a text, to point a finding at that line.

    Args:
        text: The text to find; comments are ignored.
        where: `file:line`; only the file is used.

    Returns:
        `file:line` of the first line with the text; `where` if there is none.
    """
    file = where.rpartition(":")[0]
    try:
        lines = user_files.read_text(file).splitlines()
    except (OSError, UnicodeDecodeError):
        return where
    found = (number for number, line in enumerate(lines, 1) if text in line.partition("#")[0])
    number = next(found, None)
    return where if number is None else f"{file}:{number}"
