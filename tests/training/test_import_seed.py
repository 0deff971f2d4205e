"""What a file draws while it is imported is a function of the seed."""

from __future__ import annotations

import random

import numpy as np

from elasticdl.training.create import quiet_frameworks
from elasticdl.training.import_seed import seed_loaded, seeded_import


def draws():
    import keras
    import tensorflow as tf
    import torch

    return [
        random.random(),
        np.random.random(),  # noqa: NPY002 - users call np.random.*
        float(torch.rand(())),
        float(tf.random.uniform(())),
        float(keras.random.uniform(())),
    ]


def test_draws_during_an_import_are_reproducible() -> None:
    quiet_frameworks()
    with seeded_import(7):
        first = draws()
    outside = draws()
    with seeded_import(7):
        again = draws()
    with seeded_import(8):
        other = draws()

    assert first == again
    assert not {*first} & {*outside, *other}


def test_the_generators_of_python_and_numpy_continue_as_before() -> None:
    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - users call np.random.*
    expected = random.random(), np.random.random()  # noqa: NPY002

    random.seed(1)
    np.random.seed(1)  # noqa: NPY002 - users call np.random.*
    with seeded_import(7):
        draws()

    assert (random.random(), np.random.random()) == expected  # noqa: NPY002


def test_a_framework_loaded_elsewhere_keeps_its_seed() -> None:
    import torch

    torch.manual_seed(3)
    expected = float(torch.rand(()))

    torch.manual_seed(3)
    seed_loaded("torch")

    assert float(torch.rand(())) == expected
