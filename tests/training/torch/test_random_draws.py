"""What a module draws from `numpy.random` and `random` is a function of (seed, step, rank)."""

# ruff: noqa: NPY002 - models draw from np.random.*

import random
import threading

import numpy as np
import pytest
import torch
from tests.training.torch.conftest import batch_of, definition_of, same_bits, trainer_of
from torch import nn


class Noisy(nn.Module):
    """A linear layer; in training its outputs are multiplied by what `draw` returns."""

    def __init__(self, draw):
        super().__init__()
        self.out, self.draw = nn.Linear(4, 3), draw

    def forward(self, x):
        return self.out(x) * self.draw() if self.training else self.out(x)


def of_numpy():
    return np.random.normal()


def of_python():
    return random.gauss(0, 1) + random.randint(0, 9)


def of_a_condition():
    return 1.0 if random.random() < 0.5 else float(np.random.rand())


def noisy(draw):
    return lambda: Noisy(draw)


def with_gradient_hook():
    model = nn.Linear(4, 3)
    model.weight.register_hook(lambda gradient: gradient * np.random.rand())
    return model


def with_forward_hook():
    model = nn.Linear(4, 3)
    model.register_forward_hook(lambda module, inputs, output: output * random.random())
    return model


MODELS = {
    "numpy": noisy(of_numpy),
    "python": noisy(of_python),
    "a condition": noisy(of_a_condition),
    "a compiled model": lambda: torch.compile(Noisy(of_a_condition), backend="eager"),
    "a hook on a gradient": with_gradient_hook,
    "a hook of a module": with_forward_hook,
}


def noisy_optimizer(parameters):
    optimizer = torch.optim.SGD(parameters, 0.1)

    def add_noise(*_):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad += np.random.rand()

    optimizer.register_step_pre_hook(add_noise)
    return optimizer


DEFINITIONS = {
    **{name: definition_of(create) for name, create in MODELS.items()},
    "the optimizer": definition_of(optimizer=noisy_optimizer),
    "the loss": definition_of(
        loss=lambda outputs, labels: nn.functional.cross_entropy(outputs, labels) * random.random()
    ),
}


# Of torch.compile, where it splits a function at what it cannot compile.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute")


@pytest.mark.parametrize("name", DEFINITIONS)
def test_a_resumed_training_draws_the_same_numbers(name):
    whole, first = trainer_of(DEFINITIONS[name]), trainer_of(DEFINITIONS[name])
    batches = [batch_of(8, seed) for seed in range(6)]
    expected = [whole.train_steps([batch]).losses[0] for batch in batches]

    losses = list(first.train_steps(batches[:3]).losses)
    np.random.rand(7), random.random()
    second = trainer_of(DEFINITIONS[name])
    second.load_state(first.state())
    losses += list(second.train_steps(batches[3:]).losses)

    assert losses == expected
    assert same_bits(second.state(), whole.state())


@pytest.mark.parametrize("name", MODELS)
def test_draws_differ_by_step_and_rank(name):
    if name == "a hook on a gradient":
        pytest.skip("refused where gradients are summed")
    trainer, batch = trainer_of(DEFINITIONS[name]), batch_of(8)
    before = trainer.state()

    mine = trainer.gradients(batch)[0].buffer
    np.testing.assert_array_equal(trainer.gradients(batch)[0].buffer, mine)
    trainer.rank = 1
    assert not np.array_equal(trainer.gradients(batch)[0].buffer, mine)
    trainer.rank, trainer.step = 0, 5
    assert not np.array_equal(trainer.gradients(batch)[0].buffer, mine)
    assert same_bits({**trainer.state(), "step": before["step"]}, before)


@pytest.mark.parametrize("name", MODELS)
def test_a_model_that_draws_does_not_advance_global_generators(name):
    np.random.seed(3), random.seed(3)
    expected = np.random.normal(size=9), random.random()

    np.random.seed(3), random.seed(3)
    drawn = [np.random.normal()]
    trainer = trainer_of(DEFINITIONS[name])
    trainer.train_steps([batch_of(8)])
    trainer.evaluate(batch_of(8))
    drawn += [np.random.normal() for _ in range(8)]

    np.testing.assert_array_equal(drawn, expected[0])
    assert random.random() == expected[1]


def test_weights_drawn_by_numpy_start_from_the_seed():
    def create():
        model = nn.Linear(4, 3)
        model.weight.data = torch.tensor(np.random.normal(size=(3, 4)), dtype=torch.float32)
        return model

    np.random.seed(7)
    expected = np.float32(np.random.normal(size=(3, 4)))

    state = trainer_of(definition_of(create), seed=7).state()

    np.testing.assert_array_equal(state["model/weight"], expected)


def test_concurrent_draws_of_model_and_feed_do_not_interfere():
    alone = trainer_of(DEFINITIONS["a condition"])
    batches = [batch_of(8)] * 20
    expected = alone.train_steps(batches).losses
    ended, wrong = threading.Event(), []

    def feed():
        seed = 0
        while not ended.is_set():
            seed += 1
            np.random.seed(seed), random.seed(seed)
            private, pythons = np.random.RandomState(seed), random.Random(seed)
            drawn = [np.random.normal(), *np.random.rand(999), random.gauss(0, 1), random.random()]
            meant = [private.normal(), *private.rand(999), pythons.gauss(0, 1), pythons.random()]
            wrong.extend([seed] * (drawn != meant))

    thread = threading.Thread(target=feed)
    thread.start()
    try:
        for _ in range(3):
            # Creating it calls the model, too.
            trainer = trainer_of(DEFINITIONS["a condition"])
            np.testing.assert_array_equal(trainer.train_steps(batches).losses, expected)
    finally:
        ended.set()
        thread.join()

    assert not wrong
