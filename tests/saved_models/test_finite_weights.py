"""Weights that come from a file are numbers: NaN, infinity and complex ones are refused by name."""

import shutil
import zipfile

import h5py
import numpy as np
import pytest
import torch
from tests.saved_models.conftest import sequential
from torch import nn

from elasticdl.errors import ModelFileError
from elasticdl.saved_models.file_format import identify
from elasticdl.saved_models.loading import load


def refused(path, weights=None, **options) -> str:
    with pytest.raises(ModelFileError) as raised:
        load(identify(path), weights and identify(weights), **options)
    return str(raised.value)


def spoiled(original, path, change):
    """Write an h5 file with another first kernel."""
    shutil.copy(original, path)
    kernels = []
    with h5py.File(path, "a") as file:
        file.visititems(
            lambda name, item: (
                kernels.append(name) if isinstance(item, h5py.Dataset) and item.ndim == 4 else None
            )
        )
        array = file[kernels[0]][()]
        del file[kernels[0]]
        file[kernels[0]] = change(array)
    return path


def with_bad_numbers(array):
    array[0, 0, 0, :2] = [np.nan, -np.inf]
    return array


@pytest.mark.parametrize("weights", ["keras_weights", "keras_h5"])
def test_non_finite_numbers_in_a_keras_weights_file_are_counted(
    request, keras_json, weights, tmp_path
) -> None:
    path = spoiled(request.getfixturevalue(weights), tmp_path / "bad.h5", with_bad_numbers)

    said = refused(keras_json, path)

    assert "bad.h5: conv2d" in said
    assert "/kernel holds 1 NaN and 1 infinite number among 36. Save the model again" in said


def test_non_finite_numbers_in_a_keras_archive_are_refused(keras_keras, tmp_path) -> None:
    with zipfile.ZipFile(keras_keras) as old, zipfile.ZipFile(tmp_path / "m.keras", "w") as new:
        for name in old.namelist():
            content = old.read(name)
            if name == "model.weights.h5":
                (tmp_path / "good.h5").write_bytes(content)
                content = spoiled(
                    tmp_path / "good.h5", tmp_path / "w.h5", with_bad_numbers
                ).read_bytes()
            new.writestr(name, content)

    assert "kernel holds 1 NaN and 1 infinite number among 36" in refused(tmp_path / "m.keras")


@pytest.mark.parametrize("fixture", ["tfk_h5", "tfk_folder"])
def test_non_finite_numbers_in_keras_2_files_are_refused(
    request, fixture, tfk, tfk_model, tmp_path, quiet
) -> None:
    model = tfk.models.clone_model(tfk_model)
    kernel = model.trainable_variables[0]
    kernel.assign(with_bad_numbers(kernel.numpy()))
    path = tmp_path / ("m.h5" if fixture == "tfk_h5" else "m")
    model.save(path)

    assert "kernel holds 1 NaN and 1 infinite number among 36" in refused(path)


@pytest.mark.parametrize("weights", ["keras_weights", "keras_h5"])
def test_complex_numbers_in_an_h5_file_are_refused_by_name(
    request, keras_json, weights, tmp_path
) -> None:
    path = spoiled(
        request.getfixturevalue(weights), tmp_path / "c.h5", lambda array: array.astype("complex64")
    )

    said = refused(keras_json, path)

    assert "holds 36 complex numbers; expected real ones" in said
    assert "c.h5: /" in said


@pytest.mark.parametrize("how", ["whole", "state"])
def test_non_finite_numbers_in_a_torch_file_are_refused(how, tmp_path) -> None:
    model = sequential()
    name, parameter = next(iter(model.named_parameters()))
    with torch.no_grad():
        parameter.view(-1)[:3] = torch.tensor([float("nan"), float("inf"), float("inf")])
    path = tmp_path / "bad.pt"
    torch.save(model if how == "whole" else model.state_dict(), path)
    objects = {} if how == "whole" else {"make": sequential}

    said = refused(path, custom_objects=objects)

    assert f"{name} holds 1 NaN and 2 infinite numbers among {parameter.numel()}" in said


def test_complex_weights_of_a_state_dict_are_refused_by_name(tmp_path) -> None:
    state = sequential().state_dict()
    name = next(iter(state))
    size = state[name].numel()
    state[name] = state[name].to(torch.complex64)
    torch.save(state, tmp_path / "c.pt")

    said = refused(tmp_path / "c.pt", custom_objects={"make": sequential})

    assert f"{name} holds {size} complex numbers; expected real ones" in said


class Masked(nn.Module):
    """A mask is a buffer of the user's own class, and infinite for a reason."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(2, 2)
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("mask", torch.tensor([0.0, float("-inf")]))


def test_infinite_masks_are_loaded_but_infinite_statistics_are_not(tmp_path) -> None:
    model = Masked()
    torch.save(model.state_dict(), tmp_path / "mask.pt")
    model.norm.running_var[0] = float("inf")
    torch.save(model.state_dict(), tmp_path / "bad.pt")

    load(identify(tmp_path / "mask.pt"), custom_objects={"Masked": Masked})
    said = refused(tmp_path / "bad.pt", custom_objects={"Masked": Masked})

    assert "norm.running_var holds 1 infinite number among 2" in said
