"""The groups of a check that make the model: a step, a checkpoint, an export, an evaluation."""

from __future__ import annotations

import operator
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from elasticdl import scratch, user_files
from elasticdl.artifacts.checkpoint import Checkpoint, CheckpointStore
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.data.batch import leaves, map_arrays, stack
from elasticdl.dialects.abstractions import is_kept_by_us
from elasticdl.engines.randomness import seeded
from elasticdl.errors import ElasticDLError
from elasticdl.sessions.checks import functions, reading
from elasticdl.sessions.checks import model as rules
from elasticdl.sessions.checks.finding import Finding, Severity, error, info, of_error, warning
from elasticdl.sessions.checks.limits import heard, within
from elasticdl.sessions.checks.look import Look, made
from elasticdl.training.create import create_trainer
from elasticdl.training.trainer import Exporter, Trainer

# What is left out when this much of the time has gone: the export of a large model.
_OPTIONAL_UNTIL_S = 20.0
_LARGE_MODEL_BYTES = 500 * 2**20


def look_at_model(look: Look) -> Iterator[Finding]:
    """Yield what is wrong with the model, and with one step; leaves a trainer."""
    batch, where = made(look.batches)[0], look.place("model_builder_class", "get_compiled_model")
    images = look.places("training").images
    try:
        trainer = _new_trainer(look)
    except ElasticDLError as problem:
        yield from _why_no_trainer(look, problem, where, images)
        return
    from elasticdl.training.keras.facts import facts_of  # noqa: PLC0415 - imports TensorFlow

    outputs = trainer.predict(batch.features)
    look.facts = facts_of(made(look.components).newest_model, len(leaves(outputs)))
    logits = _line_with("from_logits", where)
    yield from rules.ranges(look.facts, made(look.batches), where, images)
    yield from rules.last_layers(look.facts, outputs, where, logits)
    wrong = list(
        rules.targets(look.facts, made(look.batches), outputs, look.places("training").labels)
    )
    yield from wrong
    if not all(np.isfinite(array).all() for array in leaves(outputs)):
        yield error(
            "the model says NaN or infinity of the first batch, before any step.",
            where,
            "Look at its initial weights, and at layers that divide or take logarithms.",
        )
        return
    metrics = trainer.evaluation_metrics.results(trainer.evaluate(batch))
    look.metrics = metrics
    yield from rules.best(look.config, metrics)
    bad = [n for n, v in metrics.items() if isinstance(v, float) and not np.isfinite(v)]
    if bad and not wrong:
        yield error(
            f"of the first batch, before any step, {bad[0]} is {metrics[bad[0]]:g}.",
            where,
            "Look at the loss, and at what it divides by or takes the logarithm of.",
        )
    if not bad:
        yield from _step(look, trainer, where)
    loss = metrics.get("loss", float("nan"))
    state = trainer.state()
    num_parameters = sum(a.size for name, a in state.items() if name.startswith("model/"))
    look.said = f"{num_parameters:,} parameters, loss of the first batch {loss:.4g}, one step made"
    look.trainer = trainer


def look_at_callbacks(look: Look) -> Iterator[Finding]:
    """Yield callbacks that are left out, or watch nothing."""
    builder = made(look.components).model_builder
    everything = list((getattr(builder, "get_callbacks", list)()) or [])
    where = look.place("model_builder_class", "get_callbacks")
    for callback in everything:
        if is_kept_by_us(callback):
            yield info(f"{type(callback).__name__} is left out: ElasticDL does its work.", where)
    kept = [callback for callback in everything if not is_kept_by_us(callback)]
    yield from rules.monitors(kept, made(look.metrics), where)
    look.said = ", ".join(type(callback).__name__ for callback in kept) or "none"


def look_at_round_trip(look: Look) -> Iterator[Finding]:
    """Yield whether the model is another one after a checkpoint."""
    trainer = made(look.trainer)
    state = trainer.state()
    size = sum(array.nbytes for array in state.values())
    if size > _LARGE_MODEL_BYTES:
        look.said = f"not tried: the state has {size / 2**20:,.0f} MiB"
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
    again = _new_trainer(look)
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
            look.place("model_builder_class", "get_compiled_model"),
            "Let the model have the same variables each time it is made.",
        )
    look.said = f"{len(state)} tensors, {size / 2**20:,.1f} MiB, saved and loaded"


def look_at_export(look: Look) -> Iterator[Finding]:
    """Yield whether the model can be exported."""
    trainer = made(look.trainer)
    size = sum(array.nbytes for array in trainer.state().values())
    if look.seconds > _OPTIONAL_UNTIL_S or size > _LARGE_MODEL_BYTES:
        look.said = "not tried: it would take too long; the training ends with it"
        return
    with tempfile.TemporaryDirectory(dir=scratch.folder()) as folder, heard() as said:
        written = trainer.export(Path(folder)) if isinstance(trainer, Exporter) else []
    if "saved_model" not in written:
        yield error(
            f"the model cannot be exported. {' '.join(said)}",
            look.place("model_builder_class", "get_compiled_model"),
            "Use TensorFlow's or Keras' operations in its layers, not NumPy's.",
        )
    look.said = f"{' and '.join(written) or 'nothing'} written"


def look_at_evaluation(look: Look) -> Iterator[Finding]:
    """Yield what is wrong with the evaluation functions."""
    if made(look.components).evaluator is None:
        look.said = "there is no evaluator_class"
        return
    where = look.place("evaluator_class", "get_eval_funcs")
    with within(), seeded(look.job.training.seed):
        returned = made(look.components).evaluator.get_eval_funcs()
        validation = reading.first_examples(
            made(look.components).split(made(look.session).data, "validation")
        )
    examples: list[functions.Example] = []
    for split, some in (("validation", validation), ("test", look.test or ())):
        if some:
            outputs = made(look.trainer).predict(stack([example[0] for example in some]))
            examples += [
                (split, example[1], map_arrays(operator.itemgetter(i), outputs))
                for i, example in enumerate(some)
            ]
    with within():
        yield from functions.look(returned, examples, where)
    shown = ", ".join(name for name, _ in functions.named(returned) or ())
    look.said = f"{shown}; called on {len(examples)} examples"


def _new_trainer(look: Look) -> Trainer:
    job = look.job
    return create_trainer(
        made(look.components).definition(),
        made(look.batches)[0],
        minibatch_size=made(look.batches)[0].num_examples,
        seed=job.training.seed,
        deterministic=job.training.deterministic,
    )


def _why_no_trainer(
    look: Look, problem: ElasticDLError, where: str, images: str
) -> Iterator[Finding]:
    """Yield how the first batch does not fit the model, or what making it has said."""
    newest, some = made(look.components).newest_model, made(look.batches)
    found: list[Finding] = []
    if getattr(newest, "compiled", False):
        from elasticdl.training.keras.facts import facts_of, outputs_of  # noqa: PLC0415 - as above

        facts = facts_of(newest)
        found = list(rules.shapes(facts, some[0], where, images))
        outputs = None if found else outputs_of(newest, some[0].features)
        if outputs is not None:
            labels = look.places("training").labels
            found = list(rules.last_layers(facts, outputs, where, _line_with("from_logits", where)))
            found += rules.targets(facts, some, outputs, labels)
    yield from found
    if not any(finding.severity is Severity.ERROR for finding in found):
        yield of_error(problem)


def _step(look: Look, trainer: Trainer, where: str) -> Iterator[Finding]:
    """Make one step; yields what went wrong."""
    before = {name: array.copy() for name, array in trainer.state().items()}
    result = trainer.train_steps([made(look.batches)[0]])
    after = trainer.state()
    if not np.isfinite(result.losses).all():
        yield error(
            f"the loss of the first step is {float(result.losses[0]):g}.",
            where,
            "Look at the loss, and at what it divides by or takes the logarithm of.",
        )
        return
    bad = [n for n, a in after.items() if a.dtype.kind == "f" and not np.isfinite(a).all()]
    if bad:
        yield error(
            f"after one step {bad[0]} has values that are NaN or infinite.",
            where,
            "Lower the learning rate, or clip the gradients (clipnorm=1.0).",
        )
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
            "Look at the learning rate, at `trainable = False`, and at sample weights of 0.",
        )


def _line_with(text: str, where: str) -> str:
    """Return the first line of a place's file that has a text; the place if none has."""
    file = where.rpartition(":")[0]
    try:
        lines = user_files.read_text(file).splitlines()
    except (OSError, UnicodeDecodeError):
        return where
    found = (number for number, line in enumerate(lines, 1) if text in line.partition("#")[0])
    number = next(found, None)
    return where if number is None else f"{file}:{number}"
