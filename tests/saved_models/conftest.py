"""Model files as people have them, written by the libraries that write them, once a session."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from elasticdl.saved_models import trust

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch) -> None:
    """Let each test hear of what is trusted: files are shared, and a process is told once."""
    monkeypatch.setattr(trust, "_logged", set())


@pytest.fixture(scope="session")
def tfk():
    """Return tf_keras; skips the test where it is not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("tf_keras")


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Return what writes a file in the session's first test that needs it."""
    folder = tmp_path_factory.mktemp("models")

    def write(name: str, save: Callable[[Path], object]) -> Path:
        path = folder / name
        if not path.exists():
            with warnings.catch_warnings():
                # Of old formats; that is what they are.
                warnings.simplefilter("ignore")
                save(path)
        return path

    return write


def pictures(num: int = 32, seed: int = 0):
    """Return pictures that are easily told apart, and what is on them."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 3, num)
    images = rng.normal(0, 0.3, (num, 8, 8, 1)).astype("float32")
    images[np.arange(num), labels] += 1
    return images, labels


def picture_layers(library):
    """Return layers of everything that is hard: statistics, dropout, penalties."""
    layers = library.layers
    return [
        layers.Conv2D(4, 3, activation="relu", kernel_regularizer="l2"),
        layers.BatchNormalization(),
        layers.Flatten(),
        layers.Dropout(0.3),
        layers.Dense(3, activation="softmax"),
    ]


def picture_model(library, **shape):
    """Return a compiled model of a library."""
    model = library.Sequential([library.layers.InputLayer(**shape), *picture_layers(library)])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.fixture(scope="session")
def tfk_model(tfk):
    """Return a model of tf_keras that has been trained a little: all its statistics are its own."""
    model = picture_model(tfk, input_shape=(8, 8, 1))
    model.fit(*pictures(), epochs=1, verbose=0)
    return model


@pytest.fixture(scope="session")
def tfk_h5(tfk_model, once) -> Path:
    return once("tf_keras.h5", tfk_model.save)


@pytest.fixture(scope="session")
def tfk_keras(tfk_model, once) -> Path:
    return once("tf_keras.keras", tfk_model.save)


@pytest.fixture(scope="session")
def tfk_folder(tfk_model, once) -> Path:
    return once("tf_keras_saved", lambda path: tfk_model.save(path, save_format="tf"))


@pytest.fixture(scope="session")
def tfk_json(tfk_model, once) -> Path:
    return once("tf_keras.json", lambda path: path.write_text(tfk_model.to_json()))


@pytest.fixture(scope="session")
def tfk_weights(tfk_model, once) -> Path:
    """As Keras 2 arranged them."""
    return once("tf_keras_weights.h5", tfk_model.save_weights)


@pytest.fixture(scope="session")
def tfk_new_weights(tfk_model, once) -> Path:
    """As Keras arranges them since 2.13."""
    return once("tf_keras.weights.h5", tfk_model.save_weights)


@pytest.fixture(scope="session")
def keras_model():
    import keras

    model = picture_model(keras, shape=(8, 8, 1))
    model.fit(*pictures(), epochs=1, verbose=0)
    return model


@pytest.fixture(scope="session")
def keras_keras(keras_model, once) -> Path:
    return once("keras.keras", keras_model.save)


@pytest.fixture(scope="session")
def keras_h5(keras_model, once) -> Path:
    # Saving h5 would take the optimizer from the live model.
    import keras

    model = keras.models.clone_model(keras_model)
    model.set_weights(keras_model.get_weights())
    model.compile(keras.optimizers.Adam(0.02), "sparse_categorical_crossentropy")
    return once("keras.h5", model.save)


@pytest.fixture(scope="session")
def keras_json(keras_model, once) -> Path:
    return once("keras.json", lambda path: path.write_text(keras_model.to_json()))


@pytest.fixture(scope="session")
def keras_weights(keras_model, once) -> Path:
    return once("keras.weights.h5", keras_model.save_weights)


def of_keras_2_2_4(path: Path, *, as_bytes: bool = False) -> Path:
    """Write a file as Keras 2.2.4 did: a list of layers, lr and decay, texts or bytes."""
    import h5py

    rng = np.random.default_rng(0)
    shapes = {"dense_1": (4, 3), "dense_2": (3, 2)}
    layers = [
        {
            "class_name": "Dense",
            "config": {
                "name": name,
                "trainable": True,
                "units": shape[1],
                "activation": "relu" if number == 0 else "softmax",
                "use_bias": True,
                "kernel_initializer": {
                    "class_name": "VarianceScaling",
                    "config": {
                        "scale": 1.0,
                        "mode": "fan_avg",
                        "distribution": "uniform",
                        "seed": None,
                    },
                },
                "bias_initializer": {"class_name": "Zeros", "config": {}},
                **({"batch_input_shape": [None, 4], "dtype": "float32"} if number == 0 else {}),
            },
        }
        for number, (name, shape) in enumerate(shapes.items())
    ]
    config = {
        "class_name": "Sequential",
        "config": {"name": "sequential_1", "layers": layers} if as_bytes else layers,
    }
    training = {
        "optimizer_config": {
            "class_name": "Adadelta",
            "config": {"lr": 1.0, "rho": 0.95, "decay": 0.0, "epsilon": 1e-07},
        },
        "loss": "categorical_crossentropy",
        "metrics": ["accuracy"],
        "sample_weight_mode": None,
        "loss_weights": None,
    }

    def text(value: str):
        return value.encode() if as_bytes else value

    with h5py.File(path, "w") as file:
        file.attrs["keras_version"] = text("2.2.4")
        file.attrs["backend"] = text("tensorflow")
        file.attrs["model_config"] = text(json.dumps(config))
        file.attrs["training_config"] = text(json.dumps(training))
        weights = file.create_group("model_weights")
        weights.attrs["layer_names"] = [name.encode() for name in shapes]
        weights.attrs["keras_version"] = text("2.2.4")
        weights.attrs["backend"] = text("tensorflow")
        for name, shape in shapes.items():
            group = weights.create_group(name)
            names = [f"{name}/kernel:0", f"{name}/bias:0"]
            group.attrs["weight_names"] = [each.encode() for each in names]
            group[names[0]] = rng.normal(size=shape).astype("float32")
            group[names[1]] = np.zeros(shape[1], "float32")
    return path


@pytest.fixture(scope="session")
def old_h5(once) -> Path:
    return once("keras_2_2_4.h5", of_keras_2_2_4)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Let a library warn of what a test makes it do."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def sequential():
    from torch import nn

    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))


@pytest.fixture(scope="session")
def torch_whole(once) -> Path:
    import torch

    return once("sequential.pt", lambda path: torch.save(sequential(), path))


@pytest.fixture(scope="session")
def torch_state(once) -> Path:
    import torch

    return once("state.pt", lambda path: torch.save(sequential().state_dict(), path))


@pytest.fixture(scope="session")
def torch_old(once) -> Path:
    import torch

    def save(path: Path) -> None:
        torch.save(sequential(), path, _use_new_zipfile_serialization=False)

    return once("old.pt", save)


@pytest.fixture(scope="session")
def torch_script(once) -> Path:
    import torch

    return once("script.pt", lambda path: torch.jit.script(sequential()).save(str(path)))


@pytest.fixture(scope="session")
def torch_exported(once) -> Path:
    import torch

    def save(path: Path) -> None:
        batch = torch.export.Dim("batch", min=2)
        program = torch.export.export(
            sequential().train(), (torch.zeros(4, 4),), dynamic_shapes=({0: batch},)
        )
        torch.export.save(program, path)

    return once("exported.pt2", save)
