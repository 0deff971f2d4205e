"""Checks that any implementation of `training.trainer.Trainer` keeps the contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from elasticdl.data.batch import leaves, map_arrays
from elasticdl.training.trainer import Contribution, PerExampleEvaluator, State, Trainer

if TYPE_CHECKING:
    from elasticdl.data.batch import Batch


def check_trainer(create: Callable[[int], Trainer], batches: Sequence[Batch]) -> None:
    """Check that a trainer keeps the contract of `training.trainer.Trainer`.

    Args:
        create: Function (rank of a worker) -> new trainer of the same model. Two trainers of the
            same rank must be equal.
        batches: At least five batches of equal structure: all but the last of equal size, and the
            last one smaller.

    Raises:
        AssertionError: The trainer breaks the contract; the message says how.
    """
    check_grouping_changes_nothing(create, batches[:-1])
    check_gradients_and_apply_are_a_step(create, batches)
    check_evaluation_leaves_no_trace(create, batches[0])
    check_contributions_add_up(create, batches[0])
    check_nothing_to_add_is_no_update(create, batches[0])
    check_state_restores_everything(create, batches)
    check_finish_can_be_undone(create, batches)
    check_ranks_draw_differently(create, batches[0])


def check_grouping_changes_nothing(
    create: Callable[[int], Trainer], batches: Sequence[Batch]
) -> None:
    """Check that `train_steps([a, b])` gives the same bits as two calls with one batch each."""
    together, alone = create(0), create(0)
    grouped = together.train_steps(batches)
    losses = [alone.train_steps([batch]).losses[0] for batch in batches]
    _same_bits(together.state(), alone.state(), "Steps in one group differ from single steps")
    np.testing.assert_array_equal(grouped.losses, losses)
    assert together.step == len(batches), "A step was not counted"  # noqa: S101


def check_gradients_and_apply_are_a_step(
    create: Callable[[int], Trainer], batches: Sequence[Batch]
) -> None:
    """Check that `apply(gradients(b))` equals the update of `train_steps([b])`, up to rounding."""
    fused, split = create(0), create(0)
    for batch in batches:
        fused.train_steps([batch])
        contribution, _ = split.gradients(batch)
        split.apply(contribution)
    _nearly_same(
        fused.state(), split.state(), "apply(gradients(batch)) differs from train_steps([batch])"
    )


def check_evaluation_leaves_no_trace(create: Callable[[int], Trainer], batch: Batch) -> None:
    """Check that `gradients`, `evaluate` and `predict` leave the state unchanged."""
    trainer = create(0)
    trainer.train_steps([batch])
    before = trainer.state()
    trainer.gradients(batch)
    _same_bits(before, trainer.state(), "gradients() changed the state")
    trainer.evaluate(batch)
    _same_bits(before, trainer.state(), "evaluate() changed the state")
    trainer.predict(batch.features)
    _same_bits(before, trainer.state(), "predict() changed the state")
    if isinstance(trainer, PerExampleEvaluator):
        check_examples_are_those_of_the_batch(trainer, batch)
        _same_bits(before, trainer.state(), "evaluate_per_example() changed the state")


def check_examples_are_those_of_the_batch(trainer: Any, batch: Batch) -> None:
    """Check that `evaluate_per_example` agrees with `evaluate` and `predict` on a batch.

    It must return one value per example. Its metrics, outputs and the mean of its losses must be
    the same up to rounding.
    """
    examined, metrics = trainer.evaluate_per_example(batch), trainer.evaluation_metrics
    states = (metrics.results(examined.states), metrics.results(trainer.evaluate(batch)))
    for name, value in states[1].items():
        np.testing.assert_allclose(states[0][name], value, rtol=1e-5, err_msg=name)
    outputs = zip(leaves(examined.outputs), leaves(trainer.predict(batch.features)), strict=True)
    for mine, other in outputs:
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-6)
    if "loss" in examined.values:
        mean = np.mean(examined.values["loss"])
        np.testing.assert_allclose(mean, states[1]["loss"], rtol=1e-5, err_msg="the batch's loss")
    for name, column in examined.values.items():
        assert column.shape == (batch.num_examples,), name  # noqa: S101


def check_contributions_add_up(create: Callable[[int], Trainer], batch: Batch) -> None:
    """Check that `apply` divides the summed gradients by the number of examples.

    Several workers' sums are added before `apply`. Doubling both the sum and the number of examples
    must therefore give the same update.
    """
    once, twice = create(0), create(0)
    contribution, _ = once.gradients(batch)
    once.apply(contribution)
    twice.gradients(batch)
    twice.apply(Contribution(contribution.buffer * 2, contribution.num_examples * 2))
    _nearly_same(
        once.state(),
        twice.state(),
        "Doubling the gradient sum and the number of examples changes the update",
    )


def check_parts_make_the_whole(create: Callable[[int], Trainer], parts: Sequence[Batch]) -> None:
    """Check that workers with a batch each make the same step as one worker with all examples.

    The workers apply the sum of their gradients.

    Not part of `check_trainer`: it only holds if no layer draws random numbers or depends on other
    examples.

    Args:
        create: Function (rank of a worker) -> new trainer of the same model. Two trainers of the
            same rank must be equal.
        parts: Batches of equal structure and different sizes.
    """
    whole = create(0)
    whole.train_steps([_joined(parts)])
    workers = [create(rank) for rank in range(len(parts))]
    added = [worker.gradients(part)[0] for worker, part in zip(workers, parts, strict=True)]
    buffer = np.sum([each.buffer for each in added], axis=0)
    total = Contribution(buffer, sum(each.num_examples for each in added))
    for worker in workers:
        worker.apply(total)
        _nearly_same(
            whole.state(),
            worker.state(),
            "Summed gradients of uneven batches differ from one step on all examples",
        )


def _joined(parts: Sequence[Batch]) -> Batch:
    first = parts[0]

    def join(trees: Sequence[Any]) -> Any:
        arrays = iter([np.concatenate(each) for each in zip(*map(leaves, trees), strict=True)])
        return map_arrays(lambda _: next(arrays), trees[0])

    return replace(
        first,
        features=join([part.features for part in parts]),
        labels=join([part.labels for part in parts]),
        num_examples=sum(part.num_examples for part in parts),
        weights=join([part.weights for part in parts]),
    )


def check_nothing_to_add_is_no_update(create: Callable[[int], Trainer], batch: Batch) -> None:
    """Check that applying a gradient sum over zero examples leaves weights and state unchanged.

    Such a sum occurs when all records of a step are left out.
    """
    trainer = create(0)
    contribution, _ = trainer.gradients(batch)
    before = trainer.state()
    trainer.apply(Contribution(np.zeros_like(contribution.buffer), 0))
    _same_bits(
        before, trainer.state(), "Applying a gradient sum over zero examples changed the state"
    )


def check_state_restores_everything(
    create: Callable[[int], Trainer], batches: Sequence[Batch]
) -> None:
    """Check that a trainer that loads another's state continues bit for bit like the other."""
    first, second = create(0), create(0)
    for batch in batches:
        first.train_steps([batch])
    second.load_state(first.state())
    _same_bits(first.state(), second.state(), "The state differs after load_state(state())")
    for batch in batches:
        first.train_steps([batch])
        second.train_steps([batch])
    _same_bits(first.state(), second.state(), "A restored trainer continues differently")


def check_finish_can_be_undone(create: Callable[[int], Trainer], batches: Sequence[Batch]) -> None:
    """Check that loading an earlier state undoes `finish`, which publishes averaged weights.

    The trainer must then continue bit for bit like one that was never finished.
    """
    finished, other = create(0), create(0)
    for batch in batches:
        finished.train_steps([batch])
        other.train_steps([batch])
    before = finished.state()
    finished.finish()
    if not finished.keeps_averages:
        _same_bits(before, finished.state(), "finish() changed weights without averages")
    finished.load_state(before)
    for trainer in (finished, other):
        trainer.train_steps([batches[0]])
    _same_bits(finished.state(), other.state(), "After finish(), training continues differently")


def check_ranks_draw_differently(create: Callable[[int], Trainer], batch: Batch) -> None:
    """Check that random layers, such as dropout, draw different numbers on different ranks.

    On one rank, a repeated call must draw the same numbers. Requires a model with such layers.
    """
    same, other = create(0), create(1)
    mine, _ = same.gradients(batch)
    again, _ = same.gradients(batch)
    theirs, _ = other.gradients(batch)
    np.testing.assert_array_equal(mine.buffer, again.buffer)
    is_equal = np.array_equal(mine.buffer, theirs.buffer)
    assert not is_equal, "Random layers drew equal values on two ranks"  # noqa: S101


def _same_bits(one: State, other: State, what: str) -> None:
    differing = [
        path
        for path in sorted({*one, *other})
        if path not in one or path not in other or one[path].tobytes() != other[path].tobytes()
    ]
    assert not differing, f"{what}: {differing}"  # noqa: S101


def _nearly_same(one: State, other: State, what: str) -> None:
    assert one.keys() == other.keys(), what  # noqa: S101
    for path in one:
        np.testing.assert_allclose(
            one[path], other[path], rtol=1e-4, atol=1e-6, err_msg=f"{what}: {path}"
        )
