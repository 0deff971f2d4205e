"""What Keras 3 wrote is loaded by Keras 3, whole or in two files."""

import json
import shutil

import numpy as np
import pytest
from tests.saved_models.conftest import pictures

from elasticdl.errors import ModelFileError
from elasticdl.saved_models import keras as loader
from elasticdl.saved_models.file_format import identify
from elasticdl.saved_models.loading import load


@pytest.mark.parametrize("fixture", ["keras_keras", "keras_h5"])
def test_a_model_is_loaded_with_its_weights_and_not_compiled(
    request, fixture, keras_model, tmp_path
) -> None:
    path = tmp_path / "model of another name"
    shutil.copy(request.getfixturevalue(fixture), path)

    model = load(identify(path))

    for mine, theirs in zip(model.get_weights(), keras_model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert not model.compiled


@pytest.mark.parametrize("weights", ["keras_weights", "keras_h5", "keras_keras"])
def test_an_architecture_accepts_weights_from_weights_or_model_files(
    request, keras_json, weights, keras_model, tmp_path
) -> None:
    path = tmp_path / "weights"
    shutil.copy(request.getfixturevalue(weights), path)

    model = load(identify(keras_json), identify(path))

    np.testing.assert_allclose(
        model.predict(pictures()[0], verbose=0), keras_model.predict(pictures()[0], verbose=0)
    )


def test_an_architecture_alone_is_initialized(keras_json, keras_model) -> None:
    assert load(identify(keras_json)).count_params() == keras_model.count_params()


def test_weights_of_the_other_keras_are_an_error(keras_json, tfk_weights) -> None:
    with pytest.raises(ModelFileError, match="has weights of Keras 2.21.0"):
        load(identify(keras_json), identify(tfk_weights))


def test_weights_of_another_model_are_an_error(keras_json, keras_weights, tmp_path) -> None:
    config = json.loads(keras_json.read_text())
    config["config"]["layers"][-1]["config"]["units"] = 7
    (tmp_path / "other.json").write_text(json.dumps(config))

    with pytest.raises(ModelFileError, match="the weights must belong to this model"):
        load(identify(tmp_path / "other.json"), identify(keras_weights))


@pytest.mark.parametrize("fixture", ["keras_weights", "tfk_weights", "tfk_new_weights"])
def test_weights_are_not_a_model(request, fixture) -> None:
    with pytest.raises(ModelFileError, match="contains only weights"):
        load(identify(request.getfixturevalue(fixture)))


def test_a_weights_file_is_recognized_as_keras(keras_json, torch_state) -> None:
    with pytest.raises(ModelFileError, match="their layouts differ|not a weights file"):
        load(identify(keras_json), identify(torch_state))


def test_a_declared_class_creates_its_layer(tmp_path, quiet) -> None:
    import keras

    class Twice(keras.layers.Layer):
        def call(self, x):
            return x * 2

    keras.Sequential([keras.Input((4,)), Twice(), keras.layers.Dense(2)]).save(
        tmp_path / "model.keras"
    )

    with pytest.raises(ModelFileError, match="needs the class 'Twice'"):
        load(identify(tmp_path / "model.keras"))
    model = load(identify(tmp_path / "model.keras"), custom_objects={"Twice": Twice})
    assert isinstance(model.layers[0], Twice)


def test_a_file_is_scanned_before_it_is_loaded(keras_keras, monkeypatch) -> None:
    def found(*_, **__):
        raise ModelFileError("found")

    monkeypatch.setattr(loader, "scan", found)
    monkeypatch.setattr(loader.keras.models, "load_model", lambda *_, **__: pytest.fail("loaded"))

    with pytest.raises(ModelFileError, match="^found$"):
        loader.load(identify(keras_keras))
