"""A model that initializes itself from its first batch does so from the first of the training."""

import pytest
import torch
from tests.training.torch.conftest import batch_of, definition_of, trainer_of
from torch import nn
from torch.nn import functional

from elasticdl.errors import DefinitionError


class Centered(nn.Module):
    """Takes the mean of its first batch from all of them, as an ActNorm does."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.out = nn.Linear(4, 3)

    def forward(self, x):
        if not self.is_set():
            with torch.no_grad():
                self.shift.copy_(x.mean(0))
            self.set()
        return self.out(x - self.shift)


class ByBuffer(Centered):
    def __init__(self):
        super().__init__()
        self.register_buffer("known", torch.tensor(False))

    def is_set(self):
        return bool(self.known)

    def set(self):
        self.known.fill_(True)


class ByParameter(ByBuffer):
    def __init__(self):
        super().__init__()
        del self.known
        self.known = nn.Parameter(torch.tensor(0, dtype=torch.uint8), requires_grad=False)

    def set(self):
        self.known.fill_(1)


class ByAttribute(Centered):
    known = False

    def is_set(self):
        return self.known

    def set(self):
        self.known = True


class KeepsTheFirst(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)
        self.mean = None

    def forward(self, x):
        if self.mean is None:
            self.mean = x.mean(0).detach()
        return super().forward(x - self.mean)


class FlagInABuffer(ByBuffer):
    """Keeps the flag in a buffer, but not the value."""

    def __init__(self):
        super().__init__()
        del self.shift
        self.shift = torch.zeros(4)


class TargetNetwork(nn.Linear):
    """Refreshes a copy of its weight in every fourth step."""

    def __init__(self, *, persistent):
        super().__init__(4, 3)
        self.register_buffer("steps", torch.tensor(0))
        self.register_buffer("target", torch.zeros(3, 4), persistent=persistent)

    def forward(self, x):
        if self.training:
            if self.steps % 4 == 0:
                self.target = self.weight.detach().clone()
            self.steps += 1
        return super().forward(x) + functional.linear(x, self.target)


class StartsAt(nn.Linear):
    """Keeps its first weights, from which it measures how far it has come."""

    def __init__(self):
        super().__init__(4, 3)
        self.first = None

    def forward(self, x):
        if self.first is None:
            self.first = [self.weight.detach().clone()]
        return super().forward(x) / (1 + (self.weight - self.first[0]).square().sum())


class Remembers(nn.Linear):
    """What it keeps is replaced in each call, or depends on shapes only."""

    def __init__(self):
        super().__init__(4, 3)
        self.last, self.positions = None, None

    def forward(self, x):
        if self.positions is None:
            self.positions = torch.arange(x.shape[1])
        self.last = super().forward(x + self.positions)
        return self.last


class MadeInForward(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = None

    def forward(self, x):
        if self.out is None:
            self.out = nn.Linear(x.shape[1], 3)
        return self.out(x)


@pytest.mark.parametrize("create", [ByBuffer, ByParameter])
def test_a_model_is_initialized_by_the_first_training_batch(create):
    batch = batch_of(8, seed=3)
    trainer = trainer_of(definition_of(create), batch_of(8, seed=4))

    trainer.train_steps([batch])

    torch.testing.assert_close(trainer.model.shift, torch.tensor(batch.features).mean(0))


@pytest.mark.parametrize(
    ("create", "what"),
    [
        (FlagInABuffer, "the attribute shift"),
        (lambda: TargetNetwork(persistent=False), "the buffer target, which is not persistent,"),
        (StartsAt, "the attribute first"),
    ],
)
def test_values_that_only_some_steps_set_are_refused_outside_of_buffers(create, what):
    with pytest.raises(DefinitionError, match=f"{what} of the model depends on an earlier call"):
        trainer_of(definition_of(create))


class Cached(nn.Module):
    """Keeps what a layer makes of constant inputs at the first call."""

    def __init__(self, *, is_frozen, is_scaled):
        super().__init__()
        self.encoder, self.out = nn.Linear(4, 4), nn.Linear(4, 3)
        self.encoder.requires_grad_(not is_frozen)
        self.is_scaled, self.cached = is_scaled, None

    def forward(self, x):
        if self.cached is None:
            made = self.encoder(torch.eye(4)).detach() - self.encoder.bias.detach()
            self.cached = nn.functional.normalize(made) if self.is_scaled else made
        return self.out(x @ self.cached)


def test_a_cache_of_frozen_weights_is_accepted():
    trainer_of(definition_of(lambda: Cached(is_frozen=True, is_scaled=False)))


@pytest.mark.parametrize("is_scaled", [True, False])
def test_a_cache_of_weights_that_train_is_refused(is_scaled):
    with pytest.raises(DefinitionError, match="the attribute cached of the model depends on"):
        trainer_of(definition_of(lambda: Cached(is_frozen=False, is_scaled=is_scaled)))


def test_values_that_only_some_steps_set_may_be_in_buffers():
    trainer_of(definition_of(lambda: TargetNetwork(persistent=True)))


@pytest.mark.parametrize("create", [ByAttribute, KeepsTheFirst])
def test_memory_of_earlier_examples_in_an_attribute_is_refused(create):
    with pytest.raises(DefinitionError, match=r"depends on an earlier call"):
        trainer_of(definition_of(create))


def test_values_of_the_last_call_and_of_shapes_are_accepted():
    trainer_of(definition_of(Remembers)).train_steps([batch_of(8)])


def test_a_layer_created_in_forward_trains_as_in_a_plain_script():
    batch, optimizer_of = batch_of(8), torch.optim.SGD
    trainer = trainer_of(definition_of(MadeInForward), batch)
    trainer.train_steps([batch])

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = MadeInForward()
        model(torch.tensor(batch.features))
        optimizer = optimizer_of(model.parameters(), 0.1)
    labels = torch.tensor(batch.labels)
    functional.cross_entropy(model(torch.tensor(batch.features)), labels).backward()
    optimizer.step()
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(trainer.model.state_dict()[name], tensor)
