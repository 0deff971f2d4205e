"""Generators of whichever kind yield numpy, and what is wrong with them is said in their words."""

import itertools

import numpy as np
import pytest
import torch

from elasticdl.dialects.pipelines import elements, kind_of
from elasticdl.errors import DefinitionError, UserCodeError

NAME = "dataset.py:7: Loader.create_training_generator()"
PAIRS = [(1.0, 0), (2.0, 1), (3.0, 0)]


def dataset():
    import tensorflow as tf

    xs, ys = zip(*PAIRS, strict=True)
    return tf.data.Dataset.from_tensor_slices((list(xs), list(ys)))


def py_dataset():
    import keras

    class Pairs(keras.utils.PyDataset):
        def __len__(self):
            return len(PAIRS)

        def __getitem__(self, index):
            return PAIRS[index]

    return Pairs()


class OldSequence:
    """Has a length and items, and descends from nothing."""

    def __len__(self):
        return len(PAIRS)

    def __getitem__(self, index):
        # As those of Keras do, it never ends by itself.
        return PAIRS[index % len(PAIRS)]


class OnlyIterable:
    def __iter__(self):
        return iter(PAIRS)


def python_generator():
    yield from PAIRS


def endless():
    return itertools.cycle(PAIRS)


@pytest.mark.parametrize(
    ("make", "kind"),
    [
        (dataset, "tf.data"),
        (py_dataset, "indexed"),
        (OldSequence, "indexed"),
        (lambda: PAIRS, "indexed"),
        (python_generator, "iterable"),
        (endless, "iterable"),
        (OnlyIterable, "iterable"),
    ],
)
def test_each_kind_of_generator_yields_the_same_arrays(make, kind):
    generator = make()

    got = list(itertools.islice(elements(generator, NAME), 3))

    assert kind_of(generator, NAME) == kind
    assert [(float(x), int(y)) for x, y in got] == PAIRS
    assert all(isinstance(part, (np.ndarray, np.generic)) for element in got for part in element)


@pytest.mark.parametrize("make", [dataset, py_dataset, OldSequence, python_generator])
def test_a_generator_that_ends_is_read_to_its_end(make):
    assert len(list(elements(make(), NAME))) == 3


@pytest.mark.parametrize("make", [py_dataset, OldSequence, lambda: PAIRS])
def test_an_indexed_generator_reads_only_the_requested_items(make):
    assert [float(x) for x, _ in elements(make(), NAME, 2)] == [3.0]


def test_items_are_read_lazily():
    read = []

    def reading():
        for number in range(3):
            read.append(number)
            yield number

    items = elements(reading(), NAME)
    assert read == []
    next(items)
    assert read == [0]


def test_names_stay_strings_and_nested_parts_stay_nested():
    x, names = next(elements([({"image": 3.5}, ("a.jpg", b"b.jpg"))], NAME))

    assert (x["image"].shape, float(x["image"])) == ((), 3.5)
    assert names == ("a.jpg", b"b.jpg")


def test_an_unshuffled_dataset_that_maps_in_parallel_keeps_its_order():
    import tensorflow as tf

    options = tf.data.Options()
    options.deterministic = False
    mapped = tf.data.Dataset.range(200).with_options(options).map(lambda i: i, tf.data.AUTOTUNE)

    assert [int(i) for i in elements(mapped, NAME)] == [*range(200)]


@pytest.mark.parametrize("wrong", [None, 3, object()])
def test_an_object_that_is_not_a_generator_is_refused_by_name(wrong):
    with pytest.raises(DefinitionError) as caught:
        kind_of(wrong, NAME)

    assert str(caught.value).startswith(f"{NAME} is of type {type(wrong).__name__}. Expected a tf")


def test_an_error_is_raised_after_earlier_items_with_the_users_line():
    def breaking():
        yield 1
        raise KeyError("image_7.jpg")

    items = elements(breaking(), NAME)
    assert next(items) == 1
    with pytest.raises(UserCodeError) as caught:
        next(items)

    message = str(caught.value)
    assert message.startswith(f"{NAME} raised:\n")
    assert 'raise KeyError("image_7.jpg")' in message
    assert "pipelines.py" not in message.replace("test_pipelines.py", "")


def test_an_error_within_a_dataset_is_a_user_code_error():
    import tensorflow as tf

    broken = dataset().map(lambda x, y: tf.debugging.check_numerics(x / 0.0, "not finite"))

    with pytest.raises(UserCodeError, match="not finite"):
        list(elements(broken, NAME))


def test_an_error_of_an_item_is_a_user_code_error():
    class Broken(OldSequence):
        def __getitem__(self, index):
            raise OSError(f"no file {index}")

    with pytest.raises(UserCodeError, match="no file 0"):
        list(elements(Broken(), NAME))


def test_a_generator_that_exhausts_its_input_ends():
    def in_pairs(items):
        while True:
            yield next(items), next(items)

    assert list(elements(in_pairs(iter([1, 2, 3])), NAME)) == [(1, 2)]


def test_another_runtime_error_is_not_the_end():
    def breaking():
        yield 1
        raise RuntimeError("out of memory")

    with pytest.raises(UserCodeError, match="out of memory"):
        list(elements(breaking(), NAME))


def test_a_bfloat16_tensor_is_refused_by_the_name_of_the_generator():
    with pytest.raises(
        DefinitionError, match=r"generator\(\) yields a tensor .*torch.bfloat16, wh"
    ):
        list(elements(iter([torch.zeros(2).bfloat16()]), NAME))
