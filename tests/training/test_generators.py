"""What `numpy.random` and `random` draw from is decided by the thread."""

# ruff: noqa: NPY002 - models draw from np.random.*

import copy
import pickle
import random
import threading
import time

import numpy as np
import pytest

from elasticdl.errors import DefinitionError
from elasticdl.training import generators
from elasticdl.training.generators import Generators


@pytest.fixture(autouse=True)
def installed():
    generators.install()


def seed_all(seed):
    np.random.seed(seed), random.seed(seed)


def drawn():
    """Return one number of each kind; of two normal numbers, one is kept for the next call."""
    return (
        np.random.normal(),
        np.random.rand(),
        np.random.permutation(9).tolist(),
        random.gauss(0, 1),
        random.random(),
        random.randbytes(3),
        random.sample(range(99), 3),
    )


def test_seeding_gives_the_same_numbers_as_global_functions():
    own = Generators()
    own.seed(5)
    with own.used():
        of_generators = drawn(), drawn()
    seed_all(5)

    assert of_generators == (drawn(), drawn())


def test_installing_does_not_change_any_number():
    np.random.set_bit_generator(np.random.MT19937())
    seed_all(3)
    before, state = drawn(), (np.random.get_state(), random.getstate())
    expected = drawn()

    generators.install()
    np.random.set_state(state[0]), random.setstate(state[1])

    assert drawn() == expected
    assert np.random.get_state()[0] == state[0][0]
    seed_all(3)
    assert drawn() == before


def test_draws_of_a_trainer_do_not_advance_global_generators():
    seed_all(3)
    expected = drawn(), drawn()
    seed_all(3)
    first = drawn()

    with Generators().used():
        np.random.normal(), random.gauss(0, 1)
        seed_all(9)

    assert (first, drawn()) == expected


def test_states_saved_and_restored_by_user_code_are_its_own():
    with Generators().used():
        drawn()
        states = np.random.get_state(), random.getstate()
        expected = drawn()
        seed_all(9), drawn()
        np.random.set_state(states[0]), random.setstate(states[1])

        assert drawn() == expected


def test_functions_imported_by_name_use_the_threads_generators():
    from random import choice, getrandbits, uniform

    from numpy.random import rand

    own = Generators()
    twice = []
    for _ in "12":
        own.seed(1)
        with own.used():
            twice.append((rand(), uniform(0, 1), choice(range(9)), getrandbits(9)))

    assert twice[0] == twice[1]


def test_a_list_may_draw_while_being_shuffled():
    class Drawing(list):
        def __setitem__(self, at, value):
            super().__setitem__(at, value)
            moved.append(np.random.normal())

    twice = []
    for _ in "12":
        own, moved = Generators(), []
        with own.used():
            items = Drawing(range(5))
            np.random.shuffle(items)
            twice.append((list(items), moved, np.random.rand()))

    assert twice[0] == twice[1]
    assert twice[0][1]


def test_copies_of_global_generators_are_plain_generators():
    seed_all(3)
    numpys, pythons = np.random.mtrand._rand, random._inst
    copies = [copy.deepcopy(numpys), pickle.loads(pickle.dumps(numpys))]
    pythons = [copy.deepcopy(pythons), pickle.loads(pickle.dumps(pythons))]

    with Generators().used():
        own = np.random.rand(), random.random()
        of_copies = [(n.rand(), p.random()) for n, p in zip(copies, pythons, strict=True)]

    assert of_copies == [(np.random.rand(), random.random())] * 2
    assert of_copies[0] != own
    assert type(pythons[0]) is random.Random


def test_concurrent_draws_in_threads_do_not_interfere():
    ended, wrong = time.monotonic() + 2, []

    def feed():
        """Reseed for each batch, and draw, as threads do that make batches."""
        seed = 0
        while time.monotonic() < ended:
            seed += 1
            seed_all(seed)
            meant, pythons = np.random.RandomState(seed), random.Random(seed)
            for _ in range(3):
                same = (
                    np.random.normal() == meant.normal()
                    and (np.random.rand(2000) == meant.rand(2000)).all()
                    and str(np.random.get_state(legacy=False)) == str(meant.get_state(legacy=False))
                    and random.gauss(0, 1) == pythons.gauss(0, 1)
                    and random.randint(0, 99) == pythons.randint(0, 99)
                )
                wrong.extend([] if same else ["feed"])

    def train(seed):
        own, expected = Generators(), None
        while time.monotonic() < ended:
            own.seed(seed)
            with own.used():
                found = [drawn() for _ in range(3)]
            expected = expected or found
            wrong.extend([] if found == expected else ["train"])

    threads = [threading.Thread(target=feed)]
    threads += [threading.Thread(target=train, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert not wrong


def test_a_refusal_is_raised_only_in_the_drawing_thread():
    refusing = Generators(lambda: DefinitionError("no draws here"))
    with refusing.used():
        for draw in (np.random.rand, random.random, lambda: np.random.seed(1)):
            with pytest.raises(DefinitionError, match="no draws here"):
                draw()
        other = threading.Thread(target=drawn)
        other.start()
        other.join()

    drawn()


def test_another_kind_of_bit_generator_is_refused():
    np.random.set_bit_generator(np.random.PCG64())
    try:
        with pytest.raises(DefinitionError, match="set_bit_generator was given a PCG64"):
            generators.install()
    finally:
        np.random.set_bit_generator(np.random.MT19937())
