"""Trainings of one feature, shared by the tests of its four places."""

from __future__ import annotations

import gc
import shutil

import pytest
from tests.parity.cells import features_of
from tests.parity.features import PLACES

STATEFUL_GROUPS = {
    "Averages of weights", "Callbacks", "Custom layers", "Learning rate schedules", "Metrics",
    "Number formats", "Optimizers", "Randomness in layers",
}  # fmt: skip
# Keras features that each worker computes for itself: what is added up over workers is the sum of
# the gradients, as it is for a plain model.
LOCAL_GROUPS = {
    "Attention", "Convolutions and pooling", "Layers", "Learning rate schedules", "Models",
    "Preprocessing layers", "Sequences", "Transfer learning",
}  # fmt: skip
# One of each kind among them, and those that are about batches: masks, lengths, statistics.
ON_TWO_WORKERS = {
    "conv2d", "cosine_decay", "dense", "dynamic_lengths", "embedding", "frozen_batch_normalization",
    "lstm", "masked_loss", "masking", "multi_head_attention", "multi_output", "normalization_adapt",
    "own_schedule",
}  # fmt: skip


def pytest_generate_tests(metafunc):
    """Give each test of a cell a feature of its file, and a place."""
    if {"trainings", "place"} <= set(metafunc.fixturenames):
        features = features_of(metafunc.module.__name__.rpartition(".")[2])
        metafunc.parametrize(
            "trainings", features, ids=lambda feature: feature.id, indirect=True, scope="module"
        )
        metafunc.parametrize("place", PLACES)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Mark the cells that other cells nearly imply; `make parity` trains them too.

    Two workers do all that one does, and more; a resumed training does all that another one does. A
    resumed Keras model without callbacks, averages or an optimizer of its own differs from the
    others by its layers only; so does one on two workers whose loss, metrics, statistics and
    callbacks are those of others. A difference that the page
    states is looked for in `make test`.
    """
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        feature, place = params.get("trainings"), params.get("place")
        is_keras = getattr(feature, "framework", "") == "keras"
        is_resumed = not is_keras or getattr(feature, "group", "") in STATEFUL_GROUPS
        if (
            place == "one worker"
            or (place == "one process" and is_resumed and _is_equal_resumed(feature))
            or (place == "resumed" and not is_resumed)
            or (is_keras and place == "two workers" and _is_local(feature))
        ):
            item.add_marker("exhaustive")


def _is_equal_resumed(feature):
    return {feature.promises[place].kind for place in ("one process", "resumed")} == {"equal"}


def _is_local(feature):
    """Return whether workers share nothing for a Keras feature but what they share for all."""
    return (
        feature.group in LOCAL_GROUPS
        and feature.name not in ON_TWO_WORKERS
        and feature.promises["two workers"].kind == "equal"
    )


@pytest.fixture(scope="session")
def data(tmp_path_factory):
    """Return a folder with the records that all features are trained on."""
    from tests.parity import runner

    folder = tmp_path_factory.mktemp("data")
    runner.write_data(folder)
    return folder


@pytest.fixture(scope="module")
def trainings(request, data, tmp_path_factory):
    """Return the trainings of a feature: each is made once, for all places that look at it."""
    from tests.parity import runner

    folder = tmp_path_factory.mktemp(request.param.name)
    yield runner.Trainings(request.param, folder, data)
    # A hundred features leave a hundred times their exports and compiled functions.
    shutil.rmtree(folder)
    gc.collect()
    # What is left belongs to the frameworks: looking at it again would cost more each time.
    gc.freeze()
