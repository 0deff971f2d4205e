"""What input functions draw with PyTorch is theirs alone, and leaves the model's draws alone."""

import threading

import pytest
import torch

from elasticdl.engines.randomness import Stream, seeded

DRAWS = {
    "rand": lambda: torch.rand(3),
    "randn": lambda: torch.randn(2, 2),
    "randint": lambda: torch.randint(5, (8,)),
    "randint from": lambda: torch.randint(2, 50, (8,)),
    "randperm": lambda: torch.randperm(20),
    "rand_like": lambda: torch.rand_like(torch.ones(3)),
    "uniform_": lambda: torch.empty(3).uniform_(),
    "normal": lambda: torch.normal(0.0, 1.0, (3,)),
    "bernoulli": lambda: torch.bernoulli(torch.full((20,), 0.5)),
    "multinomial": lambda: torch.multinomial(torch.ones(20), 10),
    "dropout": lambda: torch.nn.functional.dropout(torch.ones(20)),
    "distribution": lambda: torch.distributions.Normal(0.0, 1.0).sample((3,)),
    "random_split": lambda: torch.tensor(
        list(torch.utils.data.random_split(range(20), [12, 8])[0])
    ),
    "exponential_": lambda: torch.empty(3).exponential_(),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_draws_depend_only_on_the_seed(draw):
    with seeded(1):
        first, second = draw(), draw()
    torch.rand(5)
    with seeded(1):
        again = draw()
    with seeded(2):
        other = draw()

    assert torch.equal(first, again)
    assert not torch.equal(first, second)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_a_draw_does_not_advance_the_generator_of_the_model(draw):
    before = torch.get_rng_state()

    with seeded(1):
        draw()

    assert torch.equal(torch.get_rng_state(), before)


def test_a_given_generator_is_used():
    mine = torch.Generator().manual_seed(3)
    expected = torch.rand(4, generator=torch.Generator().manual_seed(3))

    with seeded(1):
        assert torch.equal(torch.rand(4, generator=mine), expected)


def test_a_stream_continues_where_it_stopped():
    def numbers():
        while True:
            yield torch.rand(1).item()

    one = Stream(1).drawn(numbers)
    expected = [next(one) for _ in range(6)]
    again, other = Stream(1).drawn(numbers), Stream(2).drawn(numbers)

    got = []
    for _ in range(6):
        got.append(next(again))
        next(other)
        torch.rand(1)

    assert got == expected


def test_concurrent_draws_in_threads_do_not_interfere():
    def of_the_model(seed):
        torch.manual_seed(seed)
        return [torch.rand(50).sum().item() for _ in range(20)]

    expected = [of_the_model(seed) for seed in range(30)]
    done = threading.Event()

    def make_batches():
        while not done.is_set():
            with seeded(1):
                torch.rand(50)
                torch.randperm(10)

    feed = threading.Thread(target=make_batches)
    feed.start()
    try:
        got = [of_the_model(seed) for seed in range(30)]
    finally:
        done.set()
        feed.join()

    assert got == expected
