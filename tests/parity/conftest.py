"""Trainings of one feature, shared by the tests of its four places."""

from __future__ import annotations

import gc
import shutil

import pytest
from tests.parity.cells import features_of
from tests.parity.features import PLACES

STATEFUL_GROUPS = {
    "Weight averages", "Callbacks", "Custom layers", "Learning rate schedules", "Metrics",
    "Number formats", "Optimizers", "Randomness in layers",
}  # fmt: skip
# What is resumed of an optimizer, a schedule or a metric is variables, whatever they mean: one of
# each kind is enough. Ranks of other shapes than a weight's, several optimizers, what users write;
# sums, matrices and what is derived from them. So it is of tensors that a PyTorch module holds.
RESUMED = {
    ("keras", "Learning rate schedules"): {"cosine_decay_restarts", "own_schedule"},
    ("keras", "Metrics"): {
        "correlation_metrics", "f1_score", "layer_metric", "mean_iou", "metric_function",
        "own_metric",
    },
    ("keras", "Optimizers"): {
        "adafactor", "adam", "ftrl", "gradient_centralization", "loss_scale_optimizer",
        "multi_optimizer", "muon", "nadam", "own_optimizer", "schedule_free_adamw",
    },
    ("keras", "Weight averages"): {"ema", "swap_ema_weights"},
    ("keras", "Number formats"): {
        "bfloat16_batch_normalization", "complex_weights", "float8", "layer_policies",
        "mixed_float16", "mixed_float16_small_loss",
    },
    ("keras", "Randomness in layers"): {"dropout", "numpy_random", "seed_generator", "tf_random"},
    # Callbacks that remember nothing, or what others of their kind remember.
    ("keras", "Callbacks"): {
        "annealed_attribute", "backup_and_restore", "batch_callback", "callback_arrays",
        "callback_freezes", "callback_model_counter", "callback_predicts", "callback_saves",
        "callback_seed_generator", "callback_sets_weights", "callback_stops",
        "callback_stops_a_batch", "callback_teacher", "callback_weight_decay",
        "csv_logger", "csv_logger_append", "early_stopping_restore", "model_checkpoint",
        "reduce_lr_on_plateau", "resumed_history", "tensorboard_of_batches",
    },
    ("torch", "Gradients"): {"clip_grad_norm", "gradient_hooks", "post_accumulate_hook"},
    ("torch", "Layers"): {
        "batch_norm", "cumulative_batch_norm", "dropout", "embedding", "numpy_random",
        "random_input",
    },
    ("torch", "Learning rate schedules"): {"one_cycle_lr", "sequential_lr", "tensor_rate"},
    ("torch", "Losses"): set(),
    ("torch", "Models"): {"graph_convolution", "lazy_modules", "torch_compile"},
    ("torch", "Parameters and buffers"): {
        "boolean_buffer", "buffers", "frozen_layers", "large_counter", "pruning", "sparse_buffer",
        "spectral_norm", "weight_tying",
    },
    ("torch", "Optimizers"): {
        "adafactor", "adam", "asgd", "gradual_unfreezing", "lookahead", "param_groups",
        "param_groups_rates", "rprop", "sgd_momentum", "sparse_adam",
    },
    ("torch", "Sequences"): {"dynamic_lengths"},
}  # fmt: skip
# Models whose export has parts of its own; `make parity` exports those of all features.
EXPORTED = {
    "boolean_state", "conv2d", "feature_space", "float8", "lambda_layer", "lora", "lstm",
    "masking", "mixed_float16", "multi_head_attention", "nested_autoencoder",
    "running_mean_layer", "seed_generator", "subclass", "text_vectorization", "tfsm_layer",
}  # fmt: skip
# Keras features that each worker computes for itself: what is added up over workers is the sum of
# the gradients, as it is for a plain model. Workers take the mean over all examples of a batch
# whatever the loss of one example is, add the states of metrics alike, and each gives the sum of
# the gradients to an optimizer of its own.
LOCAL_GROUPS = {
    "Attention", "Convolutions and pooling", "Layers", "Learning rate schedules", "Losses",
    "Metrics", "Models", "Optimizers", "Preprocessing layers", "Sequences", "Transfer learning",
}  # fmt: skip
# One of each kind among them, and those that are about batches: masks, lengths, statistics, losses
# of all their examples; optimizers whose state is no tensor for each weight; and what users write.
ON_TWO_WORKERS = {
    "adafactor", "adam", "conv2d", "cosine_decay", "ctc", "dense", "dynamic_lengths", "embedding",
    "f1_score", "frozen_batch_normalization", "gradient_centralization", "layer_metric",
    "loss_of_a_batch", "loss_per_example", "loss_scale_optimizer", "masked_loss", "mean_iou",
    "metric_function", "metric_of_metrics", "multi_head_attention", "multi_optimizer",
    "multi_output", "multiclass_metrics", "muon", "normalization_adapt", "own_loss_class",
    "own_metric", "own_optimizer", "own_schedule", "schedule_free_adamw", "softmax_crossentropy",
    "tversky",
}  # fmt: skip
# Groups whose features are about how gradients, losses or metrics are made of the examples of a
# batch: what gives the plain script's numbers on halves of a batch gives them on the whole. So it
# does for all of PyTorch, of which nothing is compiled.
HALVED_GROUPS = {
    "Gradients", "Learning rate schedules", "Losses", "Metrics", "Normalization",
    "Regularization", "Sample and class weights",
}  # fmt: skip
# One of each of them is trained in one process all the same.
IN_ONE_PROCESS = {
    "accumulation_embedding", "adamw", "class_weight", "clipnorm", "cosine_decay", "kl_div",
    "layer_normalization", "lstm", "multiclass_metrics", "regularizers", "softmax_crossentropy",
    "spatial_transformer",
}  # fmt: skip
# What others of their group imply on two workers: a draw or a sum of another layer or format, and
# callbacks that do there what others do, or what one process refuses too. A training ends, its rate
# or its weights are set, logs are kept, files are written: one of each kind, or two.
IMPLIED_ON_TWO_WORKERS = {
    "backup_and_restore", "callback_params", "callback_stops", "callback_stops_as_an_epoch_begins",
    "callback_teacher", "callback_train_begin", "csv_logger_append", "early_stopping",
    "ema_overwrite", "float64", "gradient_noise", "lambda_callback", "learning_rate_scheduler",
    "loss_with_state", "mirrored_strategy", "mixed_bfloat16", "model_checkpoint_of_batches",
    "own_loss_tracker", "rand_augment", "random_contrast", "recurrent_dropout", "resumed_history",
    "spatial_dropout", "tensorboard_callback", "vae", "vector_quantizer",
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

    Two workers do all that one does, and more; a resumed training does all that another one does,
    and if two workers give the numbers of the plain script, so does one process. A
    resumed Keras model without callbacks, averages or an optimizer of its own differs from the
    others by its layers only; so does one on two workers whose loss, metrics, statistics and
    callbacks are of the kind of others. What is kept of optimizers, schedules and metrics is
    resumed in the same way for all of a kind, and a PyTorch loss keeps nothing. What a Keras model
    is made of does not change how a step is made: layers of each kind are trained on two workers,
    and those that have an export of their own in one process. A difference that the page states is
    looked for in `make test`, in one process at least. What is refused in one process is refused by
    the same call before it can be resumed, and on each worker; callbacks, which not all workers
    call alike, are looked at on both.
    """
    for item in items:
        params = getattr(getattr(item, "callspec", None), "params", {})
        feature, place = params.get("trainings"), params.get("place")
        is_keras = getattr(feature, "framework", "") == "keras"
        is_resumed = feature is not None and _has_state_of_its_own(feature)
        is_local = is_keras and _is_local(feature)
        if (
            place == "one worker"
            or (place == "one process" and is_resumed and not is_local and _is_equal(feature))
            or (place == "one process" and is_local and _is_like_others(feature))
            or (place == "one process" and not is_local and _is_halved(feature))
            or (place == "resumed" and (not is_resumed or _is_refused_before(feature)))
            or (place == "two workers" and (is_local or _is_refused_as_it_is_made(feature)))
            or (place == "two workers" and is_keras and feature.name in IMPLIED_ON_TWO_WORKERS)
        ):
            item.add_marker("exhaustive")


def _has_state_of_its_own(feature):
    """Return whether what is resumed of a feature is of another kind than of others."""
    kinds = RESUMED.get((feature.framework, feature.group), {feature.name})
    is_stateful = feature.framework != "keras" or feature.group in STATEFUL_GROUPS
    return is_stateful and feature.name in kinds


def _is_equal(feature):
    """Return whether a feature gives the plain script's numbers wherever `make test` trains it."""
    places = ("one process", "resumed", "two workers")
    return feature.name not in IMPLIED_ON_TWO_WORKERS and {
        feature.promises[place].kind for place in places
    } == {"equal"}


def _is_like_others(feature):
    """Return whether a feature is one more layer, loss or rate in steps that all share."""
    return feature.promises["one process"].kind == "equal" and feature.name not in EXPORTED


def _is_halved(feature):
    """Return whether two workers, in `make test`, do all that one process does for a feature."""
    promises = feature.promises
    return (
        (feature.framework == "torch" or feature.group in HALVED_GROUPS)
        and feature.name not in IN_ONE_PROCESS | IMPLIED_ON_TWO_WORKERS
        and promises["one process"].kind == promises["two workers"].kind == "equal"
    )


def _is_refused_as_it_is_made(feature):
    """Return whether a trainer of a feature cannot be made, wherever it is to be."""
    promises = feature.promises
    return (
        feature is not None
        and feature.group != "Callbacks"
        and promises["one process"].kind == promises["two workers"].kind == "refused"
    )


def _is_refused_before(feature):
    return feature.promises["one process"].kind == feature.promises["resumed"].kind == "refused"


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

    # What other files of this process have left need not be looked at after each feature.
    gc.freeze()
    folder = tmp_path_factory.mktemp("data")
    runner.write_data(folder)
    return folder


@pytest.fixture(scope="module")
def trainings(request, data, tmp_path_factory):
    """Return the trainings of a feature: each is made once, for all places that look at it."""
    from tests.parity import runner

    folder = tmp_path_factory.mktemp(request.param.name)
    is_exhaustive = any(item.get_closest_marker("exhaustive") for item in request.session.items)
    exports = is_exhaustive or request.param.name in EXPORTED
    yield runner.Trainings(request.param, folder, data, exports=exports)
    # A hundred features leave a hundred times their exports and compiled functions.
    shutil.rmtree(folder)
    gc.collect()
    # What is left belongs to the frameworks: looking at it again would cost more each time.
    gc.freeze()
