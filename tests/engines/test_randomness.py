"""What user code draws is a function of a seed, whoever else draws in the process."""

import itertools
import random
import threading

import numpy as np
import pytest

from elasticdl.engines.randomness import Stream, reseed, seeded


@pytest.fixture(scope="module", autouse=True)
def tf():
    """Load TensorFlow, whose generator is seeded only where it is loaded."""
    import tensorflow as tf

    return tf


def draw():
    """Return one number of each generator that user code draws from."""
    import tensorflow as tf

    return (
        random.random(),
        float(np.random.rand()),  # noqa: NPY002 - users do
        float(tf.random.uniform([])),
    )


def drawn(seed, count):
    """Return what a seed draws that nobody has drawn from, and leave it so."""
    forget_kernels()
    reseed(seed)
    numbers = [draw() for _ in range(count)]
    forget_kernels()
    return numbers


def forget_kernels():
    """Let ops of TensorFlow start anew: one that had a seed before goes on where it was."""
    import tensorflow as tf

    tf.random.set_seed(0)


def disturb(seed):
    reseed(seed)
    draw()


def numbers():
    while True:
        yield draw()


class Other(threading.Thread):
    """Seeds and draws in a thread of its own, and lets everybody know when it does."""

    def __init__(self, block):
        super().__init__(daemon=True)
        self._block = block
        self.has_begun, self.may_end = threading.Event(), threading.Event()
        self.start()

    def run(self):
        with self._block:
            self.has_begun.set()
            draw()
            self.may_end.wait(10)

    def end(self):
        self.may_end.set()
        self.join(10)


def test_drawn_numbers_depend_on_the_seed():
    one, same, other = drawn(7, 1)[0], drawn(7, 1)[0], drawn(8, 1)[0]

    assert one == same
    assert all(a != b for a, b in zip(one, other, strict=True))


def streamed(seed):
    return Stream(seed)()


@pytest.mark.parametrize("block", [seeded, streamed])
@pytest.mark.parametrize("others", [seeded, streamed])
def test_other_threads_cannot_draw_within_a_block(block, others):
    expected = drawn(7, 2)

    with block(7):
        first = draw()
        other = Other(others(9))
        assert not other.has_begun.wait(0.05)
        second = draw()
    assert other.has_begun.wait(10)
    other.end()

    assert [first, second] == expected


def test_a_stream_continues_regardless_of_other_draws():
    expected = drawn(7, 3)
    stream = Stream(7)

    got = []
    for seed in (9, 10, 11):
        with stream():
            got.append(draw())
        disturb(seed)

    assert got == expected


def test_a_stream_continues_after_a_block_that_raised():
    expected, stream = drawn(7, 2), Stream(7)

    with pytest.raises(ValueError, match="broken"), stream():
        first = draw()
        raise ValueError("broken")
    disturb(9)
    with stream():
        second = draw()

    assert [first, second] == expected


def test_user_code_can_seed_itself_within_a_block():
    """A dataset may seed itself to rotate a picture and its mask alike."""
    torch = pytest.importorskip("torch")
    expected = torch.rand(3, generator=torch.Generator().manual_seed(5)).tolist()
    torch.manual_seed(1)
    before = torch.get_rng_state()

    with seeded(7):
        torch.manual_seed(5)
        numbers = torch.rand(3).tolist()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            forked = torch.rand(3).tolist()
        state = torch.get_rng_state()
        one = torch.rand(3).tolist()
        torch.set_rng_state(state)
        again = torch.rand(3).tolist()
        seed = torch.initial_seed()

    assert numbers == forked == expected
    assert one == again
    assert seed == 5
    # What the model draws from, in another thread.
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.initial_seed() == 1


def test_alternating_streams_do_not_interfere():
    expected = [drawn(7, 3), drawn(9, 3)]
    one, other = Stream(7).drawn(numbers), Stream(9).drawn(numbers)

    turns = [(next(one), next(other)) for _ in range(3)]

    assert [list(column) for column in zip(*turns, strict=True)] == expected


def test_numbers_drawn_while_creating_an_iterator_belong_to_its_stream():
    expected = drawn(7, 3)

    def begin():
        first = draw()
        return itertools.chain([first], itertools.islice(numbers(), 2))

    made = list(Stream(7).drawn(begin))

    assert made == expected


def test_a_tensorflow_shuffle_continues_between_other_draws(tf):
    def shuffled():
        return iter(tf.data.Dataset.range(50).shuffle(50).as_numpy_iterator())

    forget_kernels()
    undisturbed = list(Stream(7).drawn(shuffled))
    disturbed = []
    for item in Stream(7).drawn(shuffled):
        disturbed.append(item)
        disturb(9)

    assert disturbed == undisturbed
    assert undisturbed != sorted(undisturbed)


def test_seeded_blocks_can_be_nested():
    expected = drawn(9, 1)

    with seeded(7), seeded(9):
        assert draw() == expected[0]


def test_an_abandoned_iterator_releases_the_generators():
    items = Stream(7).drawn(numbers)
    next(items)

    other = Other(seeded(9))
    assert other.has_begun.wait(10)
    other.end()


@pytest.fixture
def keras_draws():
    """Return a function that draws from each kind of generator that Keras has."""
    import keras

    flip = keras.layers.RandomFlip("horizontal", seed=3)
    noise, generator = keras.layers.GaussianNoise(1.0), keras.random.SeedGenerator(5)
    pixels = np.arange(64.0, dtype=np.float32).reshape(32, 1, 2, 1)

    def draws():
        return [
            np.array(keras.random.normal([2])).tolist(),
            np.array(keras.random.normal([2], seed=generator)).tolist(),
            np.array(noise(pixels, training=True)).ravel().tolist(),
            np.array(flip(pixels, training=True)).ravel().tolist(),
        ]

    return draws


def test_keras_generators_restart_with_each_block(keras_draws):
    with seeded(7):
        first, second = keras_draws(), keras_draws()
    keras_draws()
    with seeded(7):
        again = keras_draws(), keras_draws()
    with seeded(8):
        other = keras_draws()

    assert again == (first, second)
    assert all(one != two for one, two in zip(first, second, strict=True))
    assert all(one != two for one, two in zip(first, other, strict=True))


def test_a_stream_continues_with_keras_generators(keras_draws):
    with streamed(7):
        expected = [keras_draws(), keras_draws()]
    stream, got = Stream(7), []
    for seed in (9, 10):
        with stream():
            got.append(keras_draws())
        with seeded(seed):
            keras_draws()

    assert got == expected


def test_a_pipeline_repeats_its_draws_from_keras_generators(tf):
    import keras

    noise = keras.layers.GaussianNoise(1.0)

    def noisy():
        numbers = tf.data.Dataset.from_tensors(tf.zeros([3])).repeat(3)
        made = numbers.map(lambda x: noise(x, training=True) + keras.random.normal([3]))
        return iter(made.as_numpy_iterator())

    first = [item.tolist() for item in Stream(7).drawn(noisy)]
    noise(tf.zeros([3]), training=True)
    again = [item.tolist() for item in Stream(7).drawn(noisy)]

    assert again == first
    assert first[0] != first[1] != first[2]


def test_layers_with_equal_seeds_draw_equally_for_image_and_mask():
    import keras

    one, other = (keras.layers.RandomFlip("horizontal", seed=3) for _ in range(2))
    pixels = np.arange(64.0, dtype=np.float32).reshape(32, 1, 2, 1)

    with seeded(7):
        flipped = [np.array(layer(pixels, training=True)) for layer in (one, other)]

    assert np.array_equal(*flipped)
    assert not np.array_equal(flipped[0], pixels)


def test_a_model_in_another_thread_draws_from_its_own_generators():
    import keras

    generator = keras.random.SeedGenerator(5)
    before = np.array(generator.state)

    with seeded(7):
        keras.random.normal([2], seed=generator)

    assert np.array_equal(generator.state, before)


def test_a_seed_that_recurs_draws_the_same_with_tensorflow(tf):
    forget_kernels()
    got = []
    for _ in range(3):
        with seeded(7, recurs=True):
            got.append(float(tf.random.uniform([])))

    assert got[0] == got[1] == got[2]
