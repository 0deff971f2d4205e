"""A model whose outputs for an example depend on the rest of its batch is refused."""

import json
import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from tests.training.torch.conftest import batch_of, definition_of, trainer_of
from torch import nn
from torch.nn import functional

from elasticdl.data.batch import repeated
from elasticdl.errors import DefinitionError
from elasticdl.training.trainer import Contribution

DEPENDS = "depend on the other examples of its batch"


class Model(nn.Module):
    """A linear layer behind a function, which receives the module and the features."""

    def __init__(self, function, **modules):
        super().__init__()
        self.function, self.out = function, nn.Linear(4, 3)
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, x):
        return self.out(self.function(self, x))


def gradients_of(function, batch=None, **create):
    def create_model():
        return Model(function, **{name: of() for name, of in create.items()})

    trainer = trainer_of(definition_of(create_model))
    for each in [batch_of(8), batch_of(8, 1)] if batch is None else [batch]:
        trainer.gradients(each)


def alone(self, x):
    return x


def centered(self, x):
    return x - x.mean(0) if self.training else x


def generator_noise(x):
    return x + torch.normal(0.0, 0.1, x.shape)


def lstm_with_dropout():
    return nn.LSTM(4, 4, num_layers=2, batch_first=True, dropout=0.5)


def per_example_path(self, x):
    keep = torch.bernoulli(torch.full((len(x), 1), 0.8))
    return x + keep * torch.tanh(x) if self.training else x


def attended(x, dropout):
    heads = x[:, None, :, None]
    return functional.scaled_dot_product_attention(heads, heads, heads, dropout_p=dropout)[
        :, 0, :, 0
    ]


def masked_patches(x):
    order = torch.rand(x.shape).argsort(1)
    return x * (order < 2)


RANDOM = {
    "a small noise": lambda self, x: x + 1e-4 * torch.randn_like(x),
    "noise from numpy": lambda self, x: x + torch.from_numpy(np.random.rand(*x.shape)).float(),  # noqa: NPY002
    "noise from Python": lambda self, x: x * torch.tensor([[random.random()] for _ in x]),
    "normal": lambda self, x: generator_noise(x),
    "dropout that is always on": lambda self, x: functional.dropout(x, 0.3),
    "alpha dropout": lambda self, x: functional.alpha_dropout(x, 0.3, training=True),
    "feature dropout": lambda self, x: functional.dropout1d(x, 0.3),
    "rrelu": lambda self, x: functional.rrelu(x, training=True),
    "stochastic depth": per_example_path,
    "uniform_": lambda self, x: x + torch.empty_like(x).uniform_(),
    "gumbel": lambda self, x: functional.gumbel_softmax(x),
    "attention": lambda self, x: attended(x, 0.5),
    "a mask of patches": lambda self, x: masked_patches(x),
    "one number per batch": lambda self, x: x * torch.rand(()),
    "fractional max pool": lambda self, x: (
        x
        + functional.fractional_max_pool2d(x.view(-1, 1, 2, 2).repeat(1, 1, 4, 4), 2, 2).view(-1, 4)
    ),
    "a condition": lambda self, x: 2 * x if random.random() < 0.5 else x,
    "poisson": lambda self, x: x + torch.poisson(20 * x.abs()),
    "gamma": lambda self, x: x + torch.distributions.Gamma(x.abs() + 0.1, 1.0).sample(),
    "dirichlet": lambda self, x: x + torch.distributions.Dirichlet(x.abs() + 0.1).sample(),
    "binomial": lambda self, x: x + torch.binomial(torch.full_like(x, 50), torch.sigmoid(x)),
    # The number of draws depends on the values.
    "as many as chosen": lambda self, x: x.masked_scatter(x > 0, torch.rand(int((x > 0).sum()))),
}
FIXED_DRAWS = [name for name in RANDOM if name != "as many as chosen"]


@pytest.mark.parametrize("name", RANDOM)
def test_a_random_model_of_single_examples_is_accepted(name):
    gradients_of(RANDOM[name])


def test_a_recurrent_model_with_dropout_is_accepted():
    gradients_of(lambda self, x: self.lstm(x[:, None])[0][:, 0], lstm=lstm_with_dropout)


@pytest.mark.parametrize("name", FIXED_DRAWS)
def test_a_mean_over_the_batch_in_training_is_refused_beside_random_draws(name):
    with pytest.raises(DefinitionError, match=DEPENDS):
        gradients_of(lambda self, x: RANDOM[name](self, centered(self, x)))


@pytest.mark.parametrize("size", [2, 3, 4, 8])
def test_two_repeated_records_suffice_to_detect_it_beside_draws(size):
    batch = repeated(batch_of(2), size)

    with pytest.raises(DefinitionError, match=DEPENDS):
        gradients_of(lambda self, x: centered(self, x) + 0.1 * torch.randn_like(x), batch)


def test_attention_between_examples_with_dropout_is_refused():
    def attend(self, x):
        return self.layer(x[:, None])[:, 0] if self.training else x

    with pytest.raises(DefinitionError, match=DEPENDS):
        gradients_of(attend, layer=lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5))


def test_attention_within_an_example_with_dropout_is_accepted():
    def attend(self, x):
        return self.layer(x[:, :, None].expand(-1, -1, 4))[:, 0]

    gradients_of(
        attend, layer=lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.5, batch_first=True)
    )


def test_mixing_random_pairs_in_the_model_is_refused():
    def mix(self, x):
        return 0.7 * x + 0.3 * x[torch.randperm(len(x))] if self.training else x

    with pytest.raises(DefinitionError, match=DEPENDS):
        gradients_of(mix)


def test_a_coupled_loss_in_the_model_is_refused_beside_draws():
    class Contrasts(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(4, 3)

        def forward(self, x, labels=None):
            one, other = (functional.dropout(self.out(x), 0.2) for _ in range(2))
            loss = functional.cross_entropy(one @ other.T, torch.arange(len(x)))
            return {"loss": loss}

    definition = definition_of(Contrasts, None, loss_within="forward")
    batch = batch_of(8)

    with pytest.raises(DefinitionError, match="depends on which of them share a batch"):
        trainer_of(definition, batch).gradients(batch)


def test_a_loss_of_single_examples_within_a_random_model_is_accepted():
    class Classifies(nn.Module):
        def __init__(self):
            super().__init__()
            self.out = nn.Linear(4, 3)

        def forward(self, x, labels=None):
            logits = self.out(functional.dropout(x, 0.2))
            if labels is None:
                return {"logits": logits}
            return {"loss": functional.cross_entropy(logits, labels, ignore_index=0)}

    definition = definition_of(Classifies, None, loss_within="forward")
    batch = batch_of(8)

    trainer_of(definition, batch).gradients(batch)


class Graph(nn.Module):
    """Adds up the neighbours of each node."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x, adj):
        return self.out(adj @ x)


def graph_of(size, *, edges):
    adj = np.eye(size, dtype=np.float32)
    if edges:
        adj[:, :] = 1 / size
    return batch_of(size, features=lambda x: {"x": x, "adj": adj})


@pytest.mark.parametrize("size", [2, 3])
def test_a_graph_of_few_examples_is_refused(size):
    batch = graph_of(size, edges=True)

    with pytest.raises(DefinitionError, match=DEPENDS):
        trainer_of(definition_of(Graph), batch).gradients(batch)


@pytest.mark.parametrize("edges", [True, False])
@pytest.mark.parametrize("size", [4, 8])
def test_a_graph_over_examples_is_refused_even_without_edges(size, edges):
    batch = graph_of(size, edges=edges)

    with pytest.raises(DefinitionError) as caught:
        trainer_of(definition_of(Graph), batch).gradients(batch)

    assert "raises on its first 2 examples alone" in str(caught.value)
    assert "with a column for each example: " in str(caught.value)
    assert "adj." in str(caught.value)
    assert "trained in a single process and without --global_batch_size." in str(caught.value)


def test_a_model_of_single_examples_for_one_batch_size_is_accepted():
    def fixed(self, x):
        return x.view(-1 if len(x) < 8 and not self.training else 8, 4)

    gradients_of(fixed)


def test_a_model_that_needs_several_examples_is_accepted():
    class NeedsTwo(nn.Linear):
        def forward(self, x):
            if self.training and len(x) < 2:
                raise ValueError("needs two")
            return super().forward(x)

    for size in (2, 3, 4, 5, 8):
        trainer_of(definition_of(lambda: NeedsTwo(4, 3)), batch_of(size)).gradients(batch_of(size))


def test_a_model_that_fails_on_parts_is_refused():
    class Picky(nn.Linear):
        def forward(self, x):
            if len(x) > 2 and len(torch.unique(x, dim=0)) < 8:
                raise ValueError("needs eight different examples")
            return super().forward(x)

    trainer = trainer_of(definition_of(lambda: Picky(4, 3)))

    with pytest.raises(DefinitionError, match="raises on its last 6 .* needs eight different"):
        trainer.gradients(batch_of(8))


def test_a_model_with_its_own_generator_is_accepted():
    generator = torch.Generator().manual_seed(0)

    with pytest.raises(DefinitionError) as caught:
        gradients_of(lambda self, x: x + torch.randn(x.shape, generator=generator))

    assert DEPENDS not in str(caught.value)


@pytest.mark.parametrize("size", [3, 4, 8])
def test_as_many_numbers_as_examples_are_not_mistaken_for_rows(size):
    """Two parts of a batch of four have two examples, as many as the model has weights of tasks."""

    class Tasks(nn.Linear):
        def __init__(self):
            super().__init__(4, 3)
            self.log_variances = nn.Parameter(torch.zeros(2))

        def forward(self, x):
            return super().forward(x), self.log_variances

    def loss(outputs, labels):
        scores, log_variances = outputs
        weights = torch.exp(-log_variances)
        entropy = functional.cross_entropy(scores, labels)
        return weights[0] * entropy + weights[1] * scores.square().mean() + log_variances.sum()

    trainer = trainer_of(definition_of(Tasks, loss=loss), batch_of(size))
    for each in (size, size, 2):
        trainer.gradients(batch_of(each))


@pytest.mark.parametrize(("capacity", "is_refused"), [(15, True), (16, False)])
def test_a_limit_reached_only_by_a_whole_update_is_refused(capacity, is_refused):
    def served(self, x):
        """Pass on the first rows only, as an expert with a capacity does."""
        return x * (torch.arange(len(x)) < capacity)[:, None]

    trainer = trainer_of(definition_of(lambda: Model(served)))
    for seed in (0, 1):
        contribution, _ = trainer.gradients(batch_of(8, seed))
    trainer.apply(Contribution(2 * contribution.buffer, 16))

    with pytest.raises(DefinitionError, match=DEPENDS) if is_refused else nullcontext():
        trainer.gradients(batch_of(8))


def test_a_joining_worker_does_not_repeat_checks():
    first = trainer_of(definition_of(lambda: Model(alone)))
    joining = trainer_of(definition_of(lambda: Model(centered)))
    for seed in (0, 1):
        first.gradients(batch_of(8, seed))

    joining.take_over_checks(json.loads(json.dumps(first.checks_done())))

    # Which it would refuse.
    joining.gradients(batch_of(8))
