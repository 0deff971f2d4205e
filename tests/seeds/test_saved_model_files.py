"""The document that asked for saved models: its scripts are run, and each file they write loads."""

import numpy as np
import pytest
from tests.seeds import saved_models
from tests.seeds.saved_models import spec_of

from elasticdl.saved_models import compile_options
from elasticdl.saved_models.file_format import identify
from elasticdl.saved_models.loading import load

# Old formats; that is what they are.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def scripts(documents):
    return saved_models.scripts(documents)


def predicts(model, shape):
    return np.asarray(model(np.zeros((2, *shape), "float32"), training=False))


def test_four_scripts_exist(scripts):
    assert len(scripts) == 4


def test_the_model_of_keras_2_2_4_loads(scripts, tmp_path):
    file = identify(spec_of(scripts[0], tmp_path)["model_definition"])

    np.testing.assert_allclose(predicts(load(file), (28, 28, 1)).sum(axis=1), 1, rtol=1e-5)
    found = compile_options.resolve(None, file.training_config, where=str(file.path))
    assert "Adadelta, learning rate 0.001" in found.description
    assert "loss categorical_crossentropy (from the file)" in found.description


def test_the_saved_model_of_tensorflow_2_1_loads(scripts, tmp_path):
    # Its sample is numpy's, of float64.
    file = identify(spec_of(scripts[1], tmp_path)["model_definition"])

    assert predicts(load(file), (28, 28, 1)).shape == (2, 10)
    found = compile_options.resolve(None, file.training_config, where=str(file.path))
    assert "SparseCategoricalCrossentropy" in found.description
    # It was compiled with from_logits=True.
    loss = float(np.mean(found.loss(np.zeros((1, 10), "float32"), np.int64([3]))))
    np.testing.assert_allclose(loss, np.log(10), rtol=1e-5)
    assert list(found.create_metrics()) == ["accuracy"]


def test_the_h5_model_of_tensorflow_2_1_loads(scripts, tmp_path):
    file = identify(spec_of(scripts[2], tmp_path)["model_definition"])

    np.testing.assert_allclose(predicts(load(file), (28, 28, 1)).sum(axis=1), 1, rtol=1e-5)
    assert "Adam" in compile_options.resolve(None, file.training_config, where="x").description


def test_the_model_of_pytorch_loads(scripts, tmp_path):
    import torch

    from elasticdl.saved_models import torch as loader

    spec = spec_of(scripts[3], tmp_path, corrected=False)

    model = load(identify(spec["model_definition"]))

    loss = loader.loss(spec["loss_criterion"], where="spec")
    outputs = model(torch.zeros(4, 1, 28, 28))
    loss(outputs, torch.tensor([1, 2, 3, 4])).backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert loader.optimizer(spec["optimizer"], where="spec").description.startswith("Adam, ")
