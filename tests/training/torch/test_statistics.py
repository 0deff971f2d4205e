"""Buffers on workers: two trainers, uneven batches, one sum; a plain loop sees the joined batch."""

import numpy as np
import pytest
import torch
from tests.training.torch.conftest import (
    batch_of,
    definition_of,
    same_bits,
    total_of,
    trainer_of,
)
from torch import nn

from elasticdl.data.batch import Batch
from elasticdl.errors import DefinitionError


class Keeps(nn.Module):
    """A layer with a buffer that `change` moves in each training step."""

    def __init__(self, initial, change):
        super().__init__()
        self.out = nn.Linear(4, 3)
        self.change = change
        self.register_buffer("kept", initial.clone())

    def forward(self, x):
        if self.training:
            self.change(self.kept, x.detach())
        return self.out(x)


def cut(batch, *rows):
    return [Batch(batch.features[r], batch.labels[r], len(batch.labels[r])) for r in rows]


UNEVEN = (slice(0, 3), slice(3, 4), slice(4, 12))


def plain(initial, change, batch):
    kept = initial.clone()
    change(kept, torch.from_numpy(batch.features))
    return kept


def on_workers(initial, change, batch, rows=UNEVEN, num_steps=1):
    definition = definition_of(lambda: Keeps(initial, change))
    trainers = [trainer_of(definition) for _ in rows]
    for _ in range(num_steps):
        parts = cut(batch, *rows)
        total = total_of(*(t.gradients(b)[0] for t, b in zip(trainers, parts, strict=True)))
        for trainer in trainers:
            trainer.apply(total)
    assert all(same_bits(trainers[0].state(), t.state()) for t in trainers)
    return trainers[0].state()["model/kept"]


def count_steps(kept, x):
    kept += 1


def count_examples(kept, x):
    kept += len(x)


def count_positive(kept, x):
    kept += (x > 0).sum().to(kept.dtype)


def mean_of_features(kept, x):
    kept += 0.1 * (x.to(kept.dtype).mean(0) - kept)


BIG = 2**24 + 1


@pytest.mark.parametrize(
    ("initial", "change"),
    [
        (torch.tensor(7), count_steps),
        (torch.tensor(BIG), count_steps),
        (torch.tensor(2**40 + 1), count_steps),
        (torch.tensor(BIG), count_examples),
        (torch.tensor(-(2**50) - 3), count_examples),
        (torch.tensor(5, dtype=torch.int32), count_examples),
        (torch.tensor(250, dtype=torch.uint8), count_examples),
        (torch.tensor([5, BIG]), count_positive),
        (torch.tensor(0.0), count_examples),
        (torch.tensor(2.0**40 + 1, dtype=torch.float64), count_examples),
        (torch.tensor(2.0**40 + 1, dtype=torch.float64), count_steps),
        (torch.tensor(False), lambda kept, x: kept.fill_(True)),
    ],
)
def test_a_counter_on_workers_equals_that_of_the_joined_batch(initial, change):
    batch = batch_of(12)

    counted = on_workers(initial, change, batch)

    assert counted == pytest.approx(plain(initial, change, batch).numpy(), rel=0, abs=0)
    assert counted.dtype == initial.numpy().dtype


def test_a_counter_continues_over_steps():
    assert on_workers(torch.tensor(BIG), count_examples, batch_of(12), num_steps=5) == BIG + 60


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_running_statistics_on_workers_equal_those_of_the_joined_batch(dtype):
    batch, initial = batch_of(12), torch.full((4,), 1e6 / 3, dtype=dtype)

    kept = on_workers(initial, mean_of_features, batch)

    expected = plain(initial, mean_of_features, batch).numpy()
    np.testing.assert_allclose(kept, expected, rtol=1e-6 if dtype == torch.float32 else 1e-11)


def test_infinity_and_nan_in_a_buffer_are_kept_on_workers():
    initial = torch.tensor([0.0, -torch.inf, torch.nan, -0.0])

    kept = on_workers(initial, lambda kept, x: None, batch_of(12))

    assert kept.tobytes() == initial.numpy().tobytes()


def test_numbers_beside_a_kept_infinity_are_updated():
    def change(kept, x):
        kept[0] += 1

    kept = on_workers(torch.tensor([0.0, -torch.inf]), change, batch_of(12))

    np.testing.assert_array_equal(kept, [1, -np.inf])


def largest(kept, x):
    kept.copy_(torch.maximum(kept, x.max()))


def forgetting_count(kept, x):
    kept.copy_(0.9 * kept + 0.1 * len(x))


def now_and_then(kept, x):
    kept += int(x[0, 0] > 0)


@pytest.mark.parametrize(
    ("initial", "change", "why"),
    [
        (torch.tensor(0.0), largest, "changes neither like a mean"),
        (torch.tensor(-torch.inf), largest, "has numbers that become infinite or NaN"),
        (torch.tensor(1.0), forgetting_count, "changes neither like a mean"),
        (torch.zeros(70_000, dtype=torch.int64), count_steps, "holds 70,000 whole numbers"),
    ],
)
def test_a_buffer_that_does_not_add_up_is_refused_only_on_workers(initial, change, why):
    batch = batch_of(12)
    trainer = trainer_of(definition_of(lambda: Keeps(initial, change)))
    if not initial.isinf().any():
        trainer.train_steps([batch])
        initial = plain(initial, change, batch)

    np.testing.assert_array_equal(trainer.state()["model/kept"], initial)
    with pytest.raises(DefinitionError, match=f"model.py:1: the model's buffer kept {why}"):
        trainer.gradients(batch_of(12, 1, features=lambda x: 9 * x))


def test_workers_that_disagree_about_a_counter_are_refused():
    def part(sign, size):
        batch = batch_of(size)
        batch.features[:, 0] = sign
        return batch

    trainer = trainer_of(definition_of(lambda: Keeps(torch.tensor(7), now_and_then)))
    counting, _ = trainer.gradients(part(1.0, 5))
    not_counting, _ = trainer.gradients(part(-1.0, 3))

    with pytest.raises(DefinitionError, match="buffer kept was changed by some batches"):
        trainer.apply(total_of(counting, not_counting))


def test_a_buffer_that_changes_its_shape_is_refused():
    class Grows(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.register_buffer("seen", torch.zeros(0, 4))

        def forward(self, x):
            if self.training:
                self.seen = torch.cat([self.seen, x])
            return super().forward(x)

    with pytest.raises(DefinitionError, match=r"buffer seen .* to float32\[8, 4\]"):
        trainer_of(definition_of(Grows)).gradients(batch_of(8))


def test_batchnorm_of_every_dtype_changes_by_the_mean_of_workers():
    def model():
        return nn.Sequential(nn.BatchNorm1d(4).double(), Cast(), nn.Linear(4, 3))

    class Cast(nn.Module):
        def forward(self, x):
            return x.float()

    def moved(*batches):
        trainer = trainer_of(definition_of(lambda: nn.Sequential(ToDouble(), *model())))
        trainer.apply(total_of(*(trainer.gradients(b)[0] for b in batches)))
        return trainer.state()

    class ToDouble(nn.Module):
        def forward(self, x):
            return x.double()

    few, many = cut(batch_of(12), slice(0, 3), slice(3, 12))
    both = moved(few, many)
    for name in ("running_mean", "running_var"):
        path = f"model/1.{name}"
        expected = (3 * moved(few)[path] + 9 * moved(many)[path]) / 12
        np.testing.assert_allclose(both[path], expected, rtol=1e-10)
    assert both["model/1.num_batches_tracked"] == 1


def test_spectral_norm_on_workers_equals_that_of_one_process():
    def model():
        return nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3))

    workers, alone = trainer_of(definition_of(model)), trainer_of(definition_of(model))
    batch = batch_of(12)
    for _ in range(3):
        workers.apply(total_of(*(workers.gradients(b)[0] for b in cut(batch, *UNEVEN))))
        alone.train_steps([batch])

    for path, array in alone.state().items():
        np.testing.assert_allclose(workers.state()[path], array, atol=1e-6, err_msg=path)


class RandomFeatures(nn.Module):
    """Features by a random orthogonal matrix that is redrawn at every second call (Performer).

    Args:
        dropout: Applied first; a function or a module.
        draw: Returns a new matrix.
    """

    def __init__(self, dropout=None, draw=None):
        super().__init__()
        self.draw = draw or (lambda: torch.linalg.qr(torch.randn(4, 4))[0])
        self.dropout, self.head = dropout or nn.Identity(), nn.Linear(4, 3)
        self.register_buffer("matrix", torch.eye(4))
        self.register_buffer("calls", torch.tensor(0))

    def forward(self, x):
        x = self.dropout(x)
        if self.training:
            if self.calls >= 2:
                self.matrix.copy_(self.draw())
                self.calls.zero_()
            self.calls += 1
        return self.head(x @ self.matrix.float())


def matrices_of(model, num_steps=12, batch=None, rows=UNEVEN):
    """Return the matrix after each step of workers that share uneven batches."""
    trainers = [trainer_of(definition_of(model), rank=rank) for rank in range(len(rows))]
    batch, found = batch or batch_of(12), []
    for _ in range(num_steps):
        parts = cut(batch, *rows)
        total = total_of(*(t.gradients(b)[0] for t, b in zip(trainers, parts, strict=True)))
        for trainer in trainers:
            trainer.apply(total)
        assert all(same_bits(trainers[0].state(), t.state()) for t in trainers)
        found.append(trainers[0].state()["model/matrix"])
    return found


@pytest.mark.parametrize("dropout", [None, nn.Dropout(0.5)])
def test_a_random_matrix_is_drawn_once_for_all_workers(dropout):
    matrices = matrices_of(lambda: RandomFeatures(dropout))

    assert len({matrix.tobytes() for matrix in matrices}) == 6
    for matrix in matrices:
        np.testing.assert_allclose(matrix @ matrix.T, np.eye(4), atol=1e-6)


def test_random_integers_and_booleans_are_drawn_once_for_all_workers():
    class Masked(RandomFeatures):
        def __init__(self, dtype):
            super().__init__(draw=lambda: torch.eye(4)[torch.randperm(4)].to(dtype))
            self.matrix = self.matrix.to(dtype)

    for dtype in (torch.int64, torch.bool):
        for matrix in matrices_of(lambda dtype=dtype: Masked(dtype)):
            np.testing.assert_array_equal(matrix.sum(0), 1)
            np.testing.assert_array_equal(matrix.sum(1), 1)


def test_noise_of_each_call_is_drawn_once_for_all_workers():
    class Noisy(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.register_buffer("matrix", torch.zeros(1000))

        def forward(self, x):
            if self.training:
                self.matrix.copy_(torch.randn(1000))
            return super().forward(x) + self.matrix[:3]

    for matrix in matrices_of(Noisy, 3):
        assert matrix.std() == pytest.approx(1, abs=0.15)


def test_draws_that_depend_on_the_shape_of_examples_are_refused():
    class ByLength(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = RandomFeatures()

        def forward(self, x):
            return self.inner((x + torch.randn(x.shape[1]))[:, :4])

    trainers = [trainer_of(definition_of(ByLength), rank=rank) for rank in range(2)]
    parts = [batch_of(8), batch_of(8, features=lambda x: np.concatenate([x, x], 1))]

    def step():
        total = total_of(*(t.gradients(b)[0] for t, b in zip(trainers, parts, strict=True)))
        for trainer in trainers:
            trainer.apply(total)

    step()
    step()
    with pytest.raises(DefinitionError, match=r"inner.matrix was changed .* It is drawn at random"):
        step()


def test_running_statistics_with_random_draws_are_means_on_workers():
    class Statistics(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(4, 3)
            self.register_buffer("matrix", torch.zeros(4))

        def forward(self, x):
            if self.training:
                self.matrix += 0.5 * (x.mean(0) + 0.01 * torch.randn(4) - self.matrix)
            return self.out(nn.functional.dropout(x, 0.5, self.training))

    batch = batch_of(12, features=lambda x: x + 3)

    found = matrices_of(Statistics, 5, batch, [slice(0, 3), slice(3, 12)])[-1]

    np.testing.assert_allclose(found, (1 - 0.5**5) * batch.features.mean(0), atol=0.05)


def test_a_resumed_worker_draws_the_same_matrix():
    def step(trainer):
        trainer.apply(total_of(*(trainer.gradients(b)[0] for b in cut(batch_of(12), *UNEVEN))))

    straight = trainer_of(definition_of(RandomFeatures))
    for _ in range(3):
        step(straight)
    resumed = trainer_of(definition_of(RandomFeatures))
    resumed.load_state(straight.state())
    for _ in range(3):
        step(straight)
        step(resumed)

    assert same_bits(straight.state(), resumed.state())


def sign_of_mean(kept, x):
    kept += 0.01 * torch.sign(x.mean(0))


def signs(*rows):
    """Return a batch whose examples have one number each, four times."""
    return batch_of(len(rows), features=lambda x: np.float32([[row] * 4 for row in rows]))


ALIKE, MIXED = signs(*[1] * 12), signs(*[-1] * 5, *[2] * 7)


def test_a_nonlinear_statistic_such_as_a_sign_is_refused():
    trainer = trainer_of(definition_of(lambda: Keeps(torch.zeros(4), sign_of_mean)))

    with pytest.raises(DefinitionError, match="buffer kept changes neither like a mean"):
        trainer.gradients(signs(-1, *[2] * 11))


def test_a_true_mean_of_unequal_parts_is_accepted():
    batch = signs(*[3, -1] * 6)

    kept = on_workers(torch.ones(4), mean_of_features, batch, (slice(0, 6), slice(6, 12)), 3)

    np.testing.assert_allclose(kept, 1)
    np.testing.assert_allclose(
        on_workers(torch.zeros(4), mean_of_features, batch, (slice(0, 6), slice(6, 12))), 0.1
    )


def trained_on(*batches, change=sign_of_mean, initial=None):
    """Return the buffer after updates by one batch each."""
    initial = torch.zeros(4) if initial is None else initial
    trainer = trainer_of(definition_of(lambda: Keeps(initial, change)))
    for batch in batches:
        trainer.apply(total_of(trainer.gradients(batch)[0]))
    return trainer.state()["model/kept"]


def test_a_buffer_that_is_not_a_mean_in_a_later_step_is_reported_once(caplog):
    kept = trained_on(*[ALIKE] * 15, *[MIXED] * 6)

    (warning,) = [record.getMessage() for record in caplog.records]
    assert "since step 16 at the latest, the model's buffer kept no longer behaves" in warning
    assert "so the numbers differ from those of one process" in warning
    np.testing.assert_allclose(kept, 0.21, rtol=1e-5)


def test_a_count_that_does_not_add_up_in_a_later_step_is_reported(caplog):
    def count_up_to_30(kept, x):
        kept += (x > 0).sum().clip(max=30)

    few = signs(*[-1, 1] * 6)
    trained_on(*[few] * 15, *[ALIKE] * 2, change=count_up_to_30, initial=torch.tensor(5))

    (warning,) = [record.getMessage() for record in caplog.records]
    assert "at the latest, the model's buffer kept no longer behaves like a sum" in warning
    assert "Its update is the sum of the minibatches' updates" in warning


@pytest.mark.parametrize(
    ("initial", "change"),
    [
        (torch.tensor(7), count_steps),
        (torch.tensor(0.0), count_steps),
        (torch.tensor([5, BIG]), count_positive),
        (torch.tensor(0.0), count_examples),
        (torch.zeros(4), mean_of_features),
        (torch.full((4,), 300.0), mean_of_features),
        (torch.full((4,), 300.0, dtype=torch.float64), mean_of_features),
        (torch.tensor(1.0), lambda kept, x: kept.mul_(0.9)),
    ],
)
def test_counts_and_settled_means_are_not_reported(initial, change, caplog):
    batches = [batch_of(12, seed, features=lambda x: x + 300) for seed in range(33)]

    trained_on(*batches, change=change, initial=initial)

    assert not caplog.records


def test_draws_and_batchnorm_are_not_reported(caplog):
    rows = slice(0, 3), slice(3, 12)
    matrices_of(lambda: RandomFeatures(nn.BatchNorm1d(4)), 20, rows=rows)

    assert not caplog.records
