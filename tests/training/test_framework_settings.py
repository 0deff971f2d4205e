"""Settings of a framework and random generators after jobs, in a process that runs several."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf
import torch

import elasticdl
from elasticdl.errors import ElasticDLError
from elasticdl.training import framework_settings
from elasticdl.training.torch import determinism


@pytest.fixture
def _nondeterministic():
    before = torch.get_deterministic_debug_mode()
    torch.set_deterministic_debug_mode("default")
    yield
    torch.set_deterministic_debug_mode(before)


@pytest.mark.usefixtures("_nondeterministic")
def test_a_job_that_ends_keeps_another_one_deterministic():
    with framework_settings.restored():
        determinism.be_deterministic()
        with framework_settings.restored():
            determinism.be_deterministic()

        assert torch.get_deterministic_debug_mode() == 1

    assert torch.get_deterministic_debug_mode() == 0


def seed_all():
    keras.utils.set_random_seed(5)
    random.seed(1)
    np.random.seed(2)  # noqa: NPY002 - as users do
    torch.manual_seed(3)
    tf.random.set_seed(4)


def draw_from_all():
    return [
        random.random(),
        random.gauss(),
        float(np.random.normal()),  # noqa: NPY002 - as users do
        float(torch.rand(())),
        float(tf.random.uniform(())),
        float(keras.random.uniform(())),
    ]


def test_calls_do_not_change_the_random_generators_of_a_script(tmp_path):
    data = {"a": np.arange(32.0), "label": np.arange(32) % 2}
    out = str(tmp_path / "out")
    seed_all()
    draw_from_all()
    expected = draw_from_all()

    seed_all()
    draw_from_all()
    elasticdl.train(model_def="classifier.DNN", data=data, output=out, quiet=True)
    elasticdl.evaluate(trained_model=out, data=data, quiet=True)
    elasticdl.predict(trained_model=out, data=data, output=f"{out}.csv", quiet=True)
    elasticdl.load(out)

    assert draw_from_all() == expected


def test_a_failed_call_does_not_change_the_random_generators(tmp_path):
    data = {"a": np.arange(32.0), "label": np.arange(32) % 2}
    seed_all()
    expected = draw_from_all()

    seed_all()
    with pytest.raises(ElasticDLError):
        elasticdl.train(
            model_def="classifier.DNN", params="x=1", data=data, output=str(tmp_path / "out")
        )

    assert draw_from_all() == expected


def test_an_unseeded_script_stays_unseeded_after_a_job(run_python):
    loaded = run_python("""
from elasticdl.training import framework_settings
with framework_settings.restored():
    import keras, tensorflow, torch
    keras.utils.set_random_seed(0)
    torch.manual_seed(0)
    keras.random.uniform(())
from tensorflow.python.eager.context import global_seed
from keras.src.utils.rng_utils import get_random_seed
print(torch.initial_seed(), global_seed(), get_random_seed())
""")

    torchs, tensorflows, kerases = loaded.stdout.split()
    assert torchs != "0"
    assert (tensorflows, kerases) == ("None", "None")


def test_the_last_of_several_jobs_restores_the_generators():
    random.seed(1)
    expected = random.random()

    random.seed(1)
    with framework_settings.restored():
        with framework_settings.restored():
            random.seed(2)
        within = random.random()

    assert within != expected
    assert random.random() == expected
