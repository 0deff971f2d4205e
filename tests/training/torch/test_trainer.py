"""The PyTorch trainer beyond the laws every trainer keeps."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.training.torch.conftest import (
    Gated,
    batch_of,
    definition_of,
    mean_loss,
    same_bits,
    total_of,
    trainer_of,
)
from torch import nn
from torch.nn import functional

from elasticdl.data.batch import Batch
from elasticdl.definition import MetricFunctions, Mode, NamedMetric, RecordInput
from elasticdl.errors import DefinitionError, UserCodeError
from elasticdl.evaluation.metrics import add_states


class Noisy(torch.optim.Adam):
    """Adds noise to the parameters, as sampling from a posterior does."""

    def step(self, closure=None):
        super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(torch.randn_like(parameter))


# --- randomness ----------------------------------------------------------------------------------


def test_initial_weights_depend_only_on_the_seed():
    one, same, other = (trainer_of(seed=seed).state() for seed in (1, 1, 2))

    assert same_bits(one, same)
    assert not np.array_equal(one["model/weight"], other["model/weight"])


def test_training_does_not_affect_the_users_random_numbers():
    def draw(between):
        torch.manual_seed(5)
        first = torch.rand(1)
        between()
        return float(first), float(torch.rand(1))

    def train():
        definition = definition_of(
            lambda: nn.Sequential(nn.Dropout(), nn.Linear(4, 3)), optimizer=Noisy
        )
        trainer = trainer_of(definition)
        batch = batch_of(8)
        trainer.train_steps([batch])
        trainer.apply(trainer.gradients(batch)[0])
        trainer.predict(batch.features)
        trainer.load_state(trainer.state())

    assert draw(train) == draw(lambda: None)


def test_deterministic_kernels_are_requested_if_wanted():
    torch.use_deterministic_algorithms(False)
    trainer_of(deterministic=False)
    assert not torch.are_deterministic_algorithms_enabled()

    trainer_of(deterministic=True)
    assert torch.are_deterministic_algorithms_enabled()
    assert not torch.utils.deterministic.fill_uninitialized_memory


def test_a_rank_may_be_set_later():
    def dropout():
        return nn.Sequential(nn.Linear(4, 64), nn.Dropout(), nn.Linear(64, 3))

    batch = batch_of(8)
    moved, always, never = (trainer_of(definition_of(dropout), rank=s) for s in (0, 3, 0))
    moved.rank = 3

    buffers = [t.gradients(batch)[0].buffer for t in (moved, always, never)]
    np.testing.assert_array_equal(buffers[0], buffers[1])
    assert not np.array_equal(buffers[0], buffers[2])


def test_draws_of_an_optimizer_are_equal_on_every_rank():
    trainers = [trainer_of(definition_of(optimizer=Noisy), rank=rank) for rank in (0, 1)]
    contribution, _ = trainers[0].gradients(batch_of(8))
    for trainer in trainers:
        trainer.apply(contribution)

    assert same_bits(trainers[0].state(), trainers[1].state())


# --- what adds up --------------------------------------------------------------------------------


def gated_batch(sign):
    batch = batch_of(8)
    return Batch(np.concatenate([np.full((8, 1), sign), batch.features[:, 1:]], 1), batch.labels, 8)


def decaying(parameters):
    return torch.optim.AdamW(parameters, 0.1, weight_decay=0.5)


def test_a_parameter_without_any_gradient_is_left_alone():
    trainer = trainer_of(definition_of(Gated, optimizer=decaying))
    before = trainer.state()
    closed, _ = trainer.gradients(gated_batch(-1.0))
    trainer.apply(closed)
    after = trainer.state()

    assert not np.array_equal(before["model/always.weight"], after["model/always.weight"])
    for name in ("sometimes", "never"):
        np.testing.assert_array_equal(before[f"model/{name}.weight"], after[f"model/{name}.weight"])
        assert not any(path.startswith(f"optimizer/{name}") for path in after)


def test_a_gradient_of_one_of_two_workers_is_halved_and_applied():
    trainer, alone = (trainer_of(definition_of(Gated)) for _ in range(2))
    before = trainer.state()["model/sometimes.weight"]
    opened, _ = trainer.gradients(gated_batch(1.0))
    closed, _ = trainer.gradients(gated_batch(-1.0))
    trainer.apply(total_of(opened, closed))
    alone.apply(opened)

    np.testing.assert_allclose(
        trainer.state()["model/sometimes.weight"] - before,
        (alone.state()["model/sometimes.weight"] - before) / 2,
        atol=1e-7,
    )


def test_a_worker_may_apply_an_update_before_its_first_batch():
    one, other = (trainer_of(definition_of(Gated, optimizer=decaying)) for _ in range(2))
    contribution, _ = one.gradients(gated_batch(1.0))
    one.apply(contribution)
    other.apply(contribution)

    assert same_bits(one.state(), other.state())


def test_statistics_change_by_the_mean_and_counters_by_one():
    def model():
        return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))

    def mean_after(*batches):
        trainer = trainer_of(definition_of(model))
        trainer.apply(total_of(*(trainer.gradients(batch)[0] for batch in batches)))
        return trainer.state()["model/0.running_mean"], trainer.state()

    few, many = batch_of(2, 1), batch_of(6, 2)
    mean, state = mean_after(few, many)

    np.testing.assert_allclose(
        mean, (2 * mean_after(few)[0] + 6 * mean_after(many)[0]) / 8, atol=1e-6
    )
    assert state["model/0.num_batches_tracked"] == 1
    assert state["model/0.num_batches_tracked"].dtype == np.int64


def test_evaluation_restores_always_updated_averages(caplog):
    class Always(nn.BatchNorm1d):
        def forward(self, x):
            self.train()
            return super().forward(x)

    trainer = trainer_of(definition_of(lambda: nn.Sequential(Always(4), nn.Linear(4, 3))))
    before = trainer.state()
    trainer.evaluate(batch_of(8))
    trainer.predict(batch_of(8).features)

    assert same_bits(trainer.state(), before)
    assert ["changes 0.running_mean" in r.getMessage() for r in caplog.records] == [True]


def test_a_failed_step_leaves_no_gradient_behind():
    failing = []

    def scalars(outputs, labels):
        if failing:
            raise OSError("gone")
        return {}

    definition = definition_of(create_metrics=lambda mode: MetricFunctions(scalars=scalars))
    failed, fresh = trainer_of(definition), trainer_of(definition)
    failing.append(True)
    with pytest.raises(UserCodeError):
        failed.train_steps([batch_of(8, 1)])
    failing.clear()

    assert same_bits(failed.state(), fresh.state())
    buffers = [trainer.gradients(batch_of(8, 2))[0].buffer for trainer in (failed, fresh)]
    np.testing.assert_array_equal(*buffers)


def test_a_flag_set_by_every_worker_is_set():
    class Once(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.register_buffer("seen", torch.tensor(False))

        def forward(self, x):
            if self.training:
                self.seen.fill_(True)
            return super().forward(x)

    trainer = trainer_of(definition_of(Once))
    contribution, _ = trainer.gradients(batch_of(8))
    assert not trainer.state()["model/seen"]
    trainer.apply(total_of(contribution, contribution))

    assert trainer.state()["model/seen"]


def test_an_embedding_sums_the_gradients_of_a_repeated_id():
    class Ids(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 3)

        def forward(self, ids):
            return self.table(ids)

    batch = Batch(np.array([1, 1, 2], np.int32), np.array([0, 0, 0]), 3)
    trainer = trainer_of(definition_of(Ids), batch)
    before = trainer.state()["model/table.weight"]
    trainer.train_steps([batch])
    moved = before - trainer.state()["model/table.weight"]

    logits = torch.from_numpy(before)
    gradient = torch.softmax(logits, 1) - nn.functional.one_hot(torch.zeros(5, dtype=int), 3)
    np.testing.assert_allclose(moved[1], 0.1 * 2 / 3 * gradient[1], atol=1e-6)
    np.testing.assert_allclose(moved[2], 0.1 / 3 * gradient[2], atol=1e-6)
    np.testing.assert_array_equal(moved[[0, 3, 4]], 0)


# --- losses and metrics --------------------------------------------------------------------------


def test_a_loss_that_is_a_sum_is_refused_on_workers():
    def summed(outputs, labels):
        return nn.functional.cross_entropy(outputs, labels, reduction="sum")

    with pytest.raises(DefinitionError, match="need a loss that is a mean over the batch"):
        trainer_of(definition_of(loss=summed)).gradients(batch_of(8))


def test_a_loss_with_one_value_per_example_is_averaged():
    def each(outputs, labels):
        return nn.functional.cross_entropy(outputs, labels, reduction="none")

    batch = batch_of(8)
    losses = [
        trainer_of(definition_of(loss=f)).train_steps([batch]).losses for f in (each, mean_loss)
    ]

    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-6)


def test_a_loss_that_is_a_plain_number_is_refused():
    with pytest.raises(DefinitionError, match="the loss is a float; expected a tensor"):
        trainer_of(definition_of(loss=lambda o, y: 0.5)).train_steps([batch_of(8)])


def test_errors_of_a_model_are_reported_with_line_and_batch():
    class Breaks(nn.Linear):
        def forward(self, x):
            if self.training:
                raise OSError("gone")
            return super().forward(x)

    with pytest.raises(UserCodeError) as caught:
        trainer_of(definition_of(lambda: Breaks(4, 3))).train_steps([batch_of(8)])

    message = str(caught.value)
    assert "raised in training on float32[8, 4], labels int64[8]" in message
    assert 'raise OSError("gone")' in message
    assert "module.py" not in message


def relabelled(batch, kind):
    return replace(batch, labels=batch.labels.astype(kind))


@pytest.mark.parametrize(
    ("loss", "num_outputs", "kind", "advice"),
    [
        (nn.CrossEntropyLoss(), 3, "float32", 'Class numbers must be integers.*astype\\("int64"'),
        (nn.CrossEntropyLoss(), 3, "bool", 'Class numbers must be integers.*astype\\("int64"'),
        (lambda o, y: nn.L1Loss()(o[:, 0], y), 1, "bool", "needs labels of type float32"),
        (nn.BCEWithLogitsLoss(), 1, "int64", "type float32 in the shape.*y\\[:, None\\].astype"),
        (nn.BCEWithLogitsLoss(), 1, "float32", "outputs \\(8, 1\\): let the model.*squeeze"),
        (nn.BCEWithLogitsLoss(), 2, "float32", "For class numbers.*nn.CrossEntropyLoss"),
        (
            lambda o, y: nn.BCELoss()(o.sigmoid(), y),
            1,
            "int64",
            "type float32 in the shape.*y\\[:, None\\].astype",
        ),
        (nn.MSELoss(), 3, "int64", "outputs \\(8, 3\\). For class numbers.*nn.CrossEntropyLoss"),
        (lambda o, y: (y - o).abs(), 3, "int64", "For class numbers.*nn.CrossEntropyLoss"),
        (lambda o, y: nn.CrossEntropyLoss()(y, o), 3, "int64", "swapped.*\\(outputs, labels\\)"),
        (lambda o, y: functional.nll_loss(y, o), 3, "int64", "swapped.*\\(outputs, labels\\)"),
        (
            lambda o, y: functional.binary_cross_entropy(o[:, 0].sigmoid(), y),
            1,
            "int64",
            "type float32",
        ),
        (
            lambda o, y: functional.cross_entropy(o, nn.functional.one_hot(y, 3)),
            3,
            "int64",
            "one value per class",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Using a target size")
@pytest.mark.parametrize("phase", ["training", "evaluation"])
def test_an_error_about_labels_has_advice(loss, num_outputs, kind, advice, phase):
    definition = definition_of(lambda: nn.Linear(4, num_outputs), loss=loss)
    trainer, batch = trainer_of(definition), relabelled(batch_of(8), kind)

    with pytest.raises(UserCodeError, match=rf"raised in {phase} on(?s:.*)\n  .*{advice}"):
        trainer.train_steps([batch]) if phase == "training" else trainer.evaluate(batch)


def cosine(outputs, labels):
    return nn.CosineEmbeddingLoss()(outputs, outputs.flip(1), labels)


def ranking(outputs, labels):
    return nn.MarginRankingLoss()(outputs[:, 0], outputs[:, 1], labels)


@pytest.mark.parametrize(
    ("loss", "kind", "advice"),
    [
        (cosine, "float32", r"shape \(8,\), but they have the shape \(8, 1\): return y\[:, 0\]\."),
        (cosine, "int64", r"shape \(8,\), but they have the shape \(8, 1\): return y\[:, 0\]\."),
        (ranking, "float32", r"shape \(8,\), but they have the shape \(8, 1\): return y\[:, 0\]\."),
        (nn.CrossEntropyLoss(), "int64", r"shape \(8,\), but .* return y\[:, 0\]\."),
        (
            nn.CrossEntropyLoss(),
            "float32",
            r"shape \(8,\) and class numbers of type int64, but .* return y\[:, 0\]\.astype\(",
        ),
        (nn.MultiMarginLoss(), "int64", r"shape \(8,\), but .* return y\[:, 0\]\."),
    ],
)
def test_labels_in_a_column_have_advice_if_the_loss_needs_one_axis(loss, kind, advice):
    batch = relabelled(batch_of(8), kind)

    with pytest.raises(UserCodeError, match=rf"raised in training on(?s:.*)\n  .*{advice}"):
        trainer_of(definition_of(loss=loss)).train_steps(
            [replace(batch, labels=batch.labels[:, None])]
        )


def test_float_class_numbers_without_an_input_function_are_to_be_converted_in_the_data():
    definition = definition_of(loss=nn.CrossEntropyLoss())
    default = RecordInput(lambda records: records, is_default=True)
    batch = relabelled(batch_of(8), "float32")

    with pytest.raises(UserCodeError, match="but the labels are float32: convert them in the data"):
        trainer_of(replace(definition, input=default)).train_steps(
            [replace(batch, labels=batch.labels[:, None])]
        )


def test_outputs_in_columns_have_advice_if_the_labels_of_a_ranking_have_one_axis():
    def ranking_of_columns(outputs, labels):
        return nn.MarginRankingLoss()(outputs[:, :1], outputs[:, 1:2], labels)

    with pytest.raises(UserCodeError, match=r"the outputs \(8, 1\): pass the .*squeeze\(-1\)"):
        trainer_of(definition_of(loss=ranking_of_columns)).train_steps([batch_of(8)])


@pytest.mark.parametrize(
    ("loss", "advice"),
    [
        (lambda o, y: nn.BCELoss()(o * 9 + 9, y[:, None].float()), r"nn\.BCEWithLogitsLoss\(\)"),
        (lambda o, y: (o.argmax(1) - y).float().mean(), "argmax, comparisons, .* have none"),
    ],
)
def test_an_error_about_outputs_that_do_not_suit_the_loss_has_advice(loss, advice):
    trainer = trainer_of(definition_of(lambda: nn.Linear(4, 1), loss=loss))

    with pytest.raises(UserCodeError, match=rf"raised in training on(?s:.*)\n  .*{advice}"):
        trainer.train_steps([batch_of(8)])


def notes_about_gradients(caplog):
    return [r for r in caplog.records if "weights will not change" in r.getMessage()]


@pytest.mark.filterwarnings("ignore:To copy construct from a tensor")
@pytest.mark.parametrize(
    "loss",
    [
        lambda out, _: torch.tensor(out.detach().square().mean(), requires_grad=True),
        lambda out, _: torch.tensor(
            np.square(out.detach().numpy()).mean(axis=1), requires_grad=True
        ),
    ],
)
def test_a_loss_without_a_gradient_for_any_parameter_causes_one_warning(loss, caplog):
    trainer = trainer_of(definition_of(loss=loss))
    trainer.train_steps([batch_of(4), batch_of(4)])

    (note,) = notes_about_gradients(caplog)
    assert note.getMessage().startswith("model.py:1: the loss gives no parameter")


def test_a_loss_with_a_gradient_for_a_single_parameter_causes_no_warning(caplog):
    trainer = trainer_of(definition_of(Gated))
    trainer.train_steps([gated_batch(1)])

    assert not notes_about_gradients(caplog)


def test_an_error_in_an_operation_of_the_model_has_no_advice_about_labels():
    class Breaks(nn.Linear):
        def forward(self, x):
            return super().forward(x & x if self.training else x)

    with pytest.raises(UserCodeError) as caught:
        trainer_of(definition_of(lambda: Breaks(4, 3))).train_steps(
            [relabelled(batch_of(8), "float32")]
        )

    assert "y.astype" not in str(caught.value)


def test_metrics_of_uneven_batches_are_weighted_by_examples():
    def metrics(mode):
        if mode is not Mode.EVALUATION:
            return MetricFunctions()
        return MetricFunctions(
            scalars=lambda outputs, labels: {"mean_output": outputs.mean()},
            named=[NamedMetric("right", lambda labels, outputs: outputs.argmax(1) == labels)],
        )

    trainer = trainer_of(definition_of(create_metrics=metrics))
    parts = [batch_of(8, 1), batch_of(8, 2), batch_of(3, 3)]
    whole = Batch(
        np.concatenate([b.features for b in parts]), np.concatenate([b.labels for b in parts]), 19
    )

    merged = trainer.evaluation_metrics.results(add_states(trainer.evaluate(b) for b in parts))
    at_once = trainer.evaluation_metrics.results(trainer.evaluate(whole))

    assert list(merged) == ["loss", "mean_output", "right"]
    for name, value in at_once.items():
        np.testing.assert_allclose(merged[name], value, rtol=1e-5, err_msg=name)


def test_a_group_of_steps_counts_each_of_its_examples():
    result = trainer_of().train_steps([batch_of(8, 1), batch_of(8, 2)])

    total, count = result.metrics["loss"]
    assert count == 16
    np.testing.assert_allclose(total / count, result.losses.mean(), rtol=1e-6)


def test_a_metric_gets_its_output():
    class TwoHeads(nn.Linear):
        def forward(self, x):
            out = super().forward(x)
            return {"a": out, "b": -out}

    def metrics(mode):
        return MetricFunctions(named=[NamedMetric("b_mean", lambda y, p: p.mean(1), "b")])

    definition = definition_of(
        lambda: TwoHeads(4, 3), lambda o, y: mean_loss(o["a"], y), create_metrics=metrics
    )
    trainer = trainer_of(definition)
    outputs = trainer.predict(batch_of(8).features)

    value = trainer.evaluation_metrics.results(trainer.evaluate(batch_of(8)))["b_mean"]
    np.testing.assert_allclose(value, outputs["b"].mean(), rtol=1e-5)


# --- what is refused -----------------------------------------------------------------------------


def test_an_object_that_is_not_a_model_is_refused():
    with pytest.raises(DefinitionError, match="expected a torch.nn.Module"):
        trainer_of(definition_of(lambda: "net"))


def test_callbacks_without_a_method_are_refused():
    with pytest.raises(DefinitionError, match="str has no method that would be called"):
        trainer_of(definition_of(create_callbacks=lambda: ["stop"]))


def test_complex_parameters_are_refused_if_gradients_are_summed():
    class Waves(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.phase = nn.Parameter(torch.zeros(2, dtype=torch.complex64))

    trainer = trainer_of(definition_of(Waves))
    trainer.train_steps([batch_of(8)])

    with pytest.raises(DefinitionError, match="phase holds complex numbers.*in a single process"):
        trainer.gradients(batch_of(8))
