"""Saved models with a spec, trained through the public door."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from tests.engines.conftest import write_records
from tests.notes import Notes

import elasticdl
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import DefinitionError, ElasticDLError, UsageError
from elasticdl.event_file import read_events
from elasticdl.events import EpochFinished, JobStarted

pytest.importorskip("tf_keras")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder with models that were saved elsewhere, and records."""
    folder = tmp_path_factory.mktemp("specs")
    code = """
        import sys
        import keras, tf_keras, torch

        def layers(k):
            return [k.layers.Dense(8, activation="relu", input_shape=(4,)), k.layers.Dropout(0.1),
                    k.layers.Dense(3, activation="softmax")]

        folder = sys.argv[1]
        for library in (keras, tf_keras):
            library.utils.set_random_seed(1)
        torch.manual_seed(1)
        model = tf_keras.Sequential(layers(tf_keras))
        model.compile(tf_keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy",
                      metrics=["accuracy"])
        model.save(f"{folder}/legacy.h5")
        model.save(f"{folder}/saved_model")
        open(f"{folder}/legacy.json", "w").write(model.to_json())
        model.save_weights(f"{folder}/weights.h5")
        model = keras.Sequential(layers(keras))
        model.compile(keras.optimizers.Adam(0.05), "categorical_crossentropy",
                      metrics=["accuracy"])
        model.save(f"{folder}/new.keras")
        torch.save(torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(),
                   torch.nn.Dropout(0.1), torch.nn.Linear(8, 3), torch.nn.LogSoftmax(1)),
                   f"{folder}/model.pt")
    """
    subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(code), str(folder)], check=True
    )
    write_records(folder / "train.recordio", 150)
    return folder


def write_spec(folder, name="KerasFLModel", more="", **spec):
    lines = [f"    {key}: {value}" for key, value in spec.items()]
    path = folder / "model.yml"
    path.write_text("\n".join(["model:", f"  name: {name}", "  spec:", *lines, more]) + "\n")
    return path


def train(place, spec, output, reporter=None, **options):
    options = {"num_epochs": 3, "minibatch_size": 25, **options}
    return elasticdl.train(
        spec=str(spec),
        data=str(place / "train.recordio"),
        output=str(output),
        reporter=reporter or Silent(),
        **options,
    )


MODELS = {
    "h5 of tf_keras": {"model_definition": "legacy.h5"},
    "a SavedModel": {"name": "TensorFlowFLModel", "model_definition": "saved_model"},
    "JSON and weights": {
        "model_architecture": "legacy.json",
        "model_weights": "weights.h5",
        "compile_model_options": "{optimizer: {value: Adam, path: keras.optimizers, args: "
        "{learning_rate: 0.05}}, loss: sparse_categorical_crossentropy, metrics: [accuracy]}",
    },
    ".keras with one-hot labels": {"model_definition": "new.keras"},
    "a module of PyTorch": {
        "name": "PytorchFLModel",
        "model_definition": "model.pt",
        "optimizer": "{value: optim.Adam, args: {lr: 0.05}}",
        "loss_criterion": "nn.NLLLoss",
    },
}


@pytest.mark.parametrize("what", MODELS)
def test_a_saved_model_trains_evaluates_and_predicts(what, place, tmp_path):
    notes = Notes()
    outcome = train(place, write_spec(place, **MODELS[what]), tmp_path / "out", notes)

    log = read_events(tmp_path / "out" / "events.jsonl")
    losses = [event.metrics["loss"] for event in log if isinstance(event, EpochFinished)]
    assert losses[-1] < 0.8 * losses[0]
    assert any("Adam" in note and "0.05" in note for note in notes.texts)
    evaluated = elasticdl.evaluate(
        trained_model=outcome.output, data=str(place / "train.recordio"), reporter=Silent()
    )
    assert evaluated.metrics["accuracy"] > 0.8
    elasticdl.predict(
        trained_model=outcome.output,
        data=str(place / "train.recordio"),
        output=str(tmp_path / "predicted"),
        reporter=Silent(),
    )


def test_training_starts_from_the_weights_of_the_file(place, tmp_path):
    spec = write_spec(
        place,
        model_definition="legacy.h5",
        compile_model_options="{optimizer: {value: SGD, args: {learning_rate: 1.0e-30}}}",
    )
    train(place, spec, tmp_path / "out", num_epochs=1)

    import tf_keras

    saved = [np.asarray(w) for w in tf_keras.models.load_model(place / "legacy.h5").get_weights()]
    trained = load_trained_model(str(tmp_path / "out")).params
    assert len(saved) == 4
    for array in saved:
        others = [other for other in trained.values() if other.shape == array.shape]
        assert any(np.allclose(array, other, rtol=0, atol=1e-25) for other in others)


def weights_after_a_step(place, spec, output, **options):
    train(place, spec, output, num_epochs=1, max_steps=1, **options)
    return load_trained_model(str(output)).params


def test_params_of_the_command_override_those_of_the_section(place, tmp_path):
    nothing = "  params: {learning_rate: 1.0e-30}"
    spec = write_spec(place, model_definition="legacy.h5", more=nothing)
    still = weights_after_a_step(place, spec, tmp_path / "still")
    moved = weights_after_a_step(place, spec, tmp_path / "moved", params="learning_rate=0.1")
    spec = write_spec(place, model_definition="legacy.h5")
    as_asked = weights_after_a_step(place, spec, tmp_path / "asked", params="learning_rate=1e-30")

    assert all(np.array_equal(still[path], as_asked[path]) for path in still)
    assert not all(np.array_equal(still[path], moved[path]) for path in still)


def test_the_trained_model_does_not_depend_on_its_original_files(place, tmp_path):
    moved = tmp_path / "project"
    moved.mkdir()
    (moved / "legacy.h5").write_bytes((place / "legacy.h5").read_bytes())
    train(place, write_spec(moved, model_definition="legacy.h5"), tmp_path / "out")
    for path in moved.iterdir():
        path.unlink()

    evaluated = elasticdl.evaluate(
        trained_model=str(tmp_path / "out"), data=str(place / "train.recordio"), reporter=Silent()
    )

    assert evaluated.metrics["accuracy"] > 0.8


LOSS = """
import tensorflow as tf

def test_loss(labels, predictions):
    return tf.reduce_mean(tf.square(tf.one_hot(tf.reshape(labels, [-1]), 3) - predictions), -1)
"""


def test_a_custom_loss_is_taken_from_the_project(place, tmp_path):
    (place / "loss.py").write_text(LOSS)
    spec = write_spec(
        place,
        model_definition="legacy.h5",
        custom_objects="[{key: test_loss, value: test_loss, path: loss.py}]",
        compile_model_options="{loss: test_loss, optimizer: adam}",
    )
    outcome = train(place, spec, tmp_path / "out")

    # A mean of these squares is never more; the cross entropy of so short a training is.
    assert outcome.metrics["loss"] < 2 / 3


def test_code_outside_the_project_is_refused(place, tmp_path):
    (tmp_path / "loss.py").write_text(LOSS)
    spec = write_spec(
        place,
        model_definition="legacy.h5",
        custom_objects=f"[{{key: test_loss, value: test_loss, path: {tmp_path}/loss.py}}]",
    )

    with pytest.raises(UsageError, match="is outside of"):
        train(place, spec, tmp_path / "out")


ROWS = """
import tensorflow as tf

def test_loss(labels, predictions):
    return tf.keras.losses.categorical_crossentropy(labels, predictions)
"""


@pytest.mark.parametrize("model", ["legacy.h5", "saved_model", "new.keras"])
def test_a_custom_loss_for_one_hot_rows_gets_them(place, tmp_path, model):
    (place / "rows.py").write_text(ROWS)
    notes = Notes()
    spec = write_spec(
        place,
        model_definition=model,
        custom_objects="[{key: test_loss, value: test_loss, path: rows.py}]",
        compiled_options="{loss: test_loss, optimizer: sgd, metrics: [accuracy]}",
    )
    outcome = train(place, spec, tmp_path / "own", notes)
    assert "rows of 3: test_loss does not accept class numbers" in " ".join(notes.texts)

    named = "{loss: sparse_categorical_crossentropy, optimizer: sgd, metrics: [accuracy]}"
    spec = write_spec(place, model_definition=model, compiled_options=named)
    expected = train(place, spec, tmp_path / "named")
    assert outcome.metrics == pytest.approx(expected.metrics, rel=1e-5)


def test_the_user_can_keep_labels_as_numbers(place, tmp_path):
    (place / "rows.py").write_text(ROWS)
    spec = write_spec(
        place,
        model_definition="legacy.h5",
        custom_objects="[{key: test_loss, value: test_loss, path: rows.py}]",
        compiled_options="{loss: test_loss, optimizer: sgd}",
    )

    with pytest.raises(ElasticDLError, match="rank"):
        train(place, spec, tmp_path / "own", params="one_hot=False")


@pytest.fixture
def beside(place, tmp_path, monkeypatch):
    """Return a spec in a folder of its own, with its loss beside the folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loss.py").write_text(LOSS)
    (tmp_path / "federation").mkdir()
    return write_spec(
        tmp_path / "federation",
        model_definition=place / "legacy.h5",
        custom_objects="[{key: test_loss, value: test_loss, path: ../loss.py}]",
        compile_model_options="{loss: test_loss, optimizer: adam}",
    )


def test_code_beside_the_spec_is_used_within_the_working_directory(place, beside, tmp_path):
    outcome = train(place, "federation/model.yml", "out")

    assert outcome.metrics["loss"] < 2 / 3
    # It goes along with the trained model.
    (tmp_path / "loss.py").unlink()
    evaluated = elasticdl.evaluate(
        trained_model="out", data=str(place / "train.recordio"), reporter=Silent()
    )
    assert evaluated.metrics["loss"] < 2 / 3


def test_code_above_the_working_directory_is_never_used(place, beside, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "federation")
    (tmp_path / "loss.py").write_text(f"open({str(tmp_path / 'it ran')!r}, 'w')\n{LOSS}")

    with pytest.raises(UsageError, match=r"\.\./loss.py is outside of .*model_zoo=DIR"):
        train(place, "model.yml", "out")

    assert not (tmp_path / "it ran").exists()


def test_a_link_out_of_the_working_directory_is_not_followed(place, beside, tmp_path, monkeypatch):
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "federation").mkdir(parents=True)
    shutil.copy(beside, elsewhere / "federation")
    (elsewhere / "loss.py").symlink_to(tmp_path / "loss.py")
    monkeypatch.chdir(elsewhere)

    with pytest.raises(UsageError, match="is outside of"):
        train(place, "federation/model.yml", "out")


def test_builtin_functions_are_not_custom_objects(place, tmp_path):
    spec = write_spec(
        place,
        model_definition="legacy.h5",
        custom_objects="[{key: a, value: system, path: os}]",
    )

    with pytest.raises(DefinitionError, match=r"model.yml:5: .*a is os.system.*path: loss.py"):
        train(place, spec, tmp_path / "out")


MISTAKES = {
    "a file that is not there": (
        {"model_definition": "nowhere.h5"},
        "model.yml:4: model_definition",
    ),
    "a model of another library": ({"model_definition": "model.pt"}, "PytorchFLModel"),
    "a misspelt optimizer": (
        {
            "name": "PytorchFLModel",
            "model_definition": "model.pt",
            "optimizer": "optim.Adm",
            "loss_criterion": "nn.NLLLoss",
        },
        "optim.Adam",
    ),
    "no loss": (
        {"name": "PytorchFLModel", "model_definition": "model.pt", "optimizer": "optim.Adam"},
        "is missing",
    ),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_reported_before_training(what, place, tmp_path):
    spec, said = MISTAKES[what]

    with pytest.raises(DefinitionError) as raised:
        train(place, write_spec(place, **spec), tmp_path / "out")

    assert said in str(raised.value)
    assert not (tmp_path / "out" / "checkpoints").exists()


def test_trust_is_recorded_with_the_run(place, tmp_path):
    code = """
        import sys, torch
        class Net(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = torch.nn.Linear(4, 3)
            def forward(self, x):
                return self.inner(x)
        Net.__module__ = "net"
        sys.modules["net"] = sys.modules["__main__"]
        torch.save(Net(), sys.argv[1])
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(place / "net.pt")], check=True)
    (place / "net.py").write_text(
        textwrap.dedent(code)
        .split("Net.__module__")[0]
        .replace("import sys, torch", "import torch")
    )
    from elasticdl.saved_models.file_format import sha256_of

    spec = {
        "name": "PytorchFLModel",
        "model_definition": "net.pt",
        "optimizer": "optim.Adam",
        "loss_criterion": "nn.CrossEntropyLoss",
    }
    with pytest.raises(DefinitionError, match="allow_pickle"):
        train(place, write_spec(place, **spec), tmp_path / "refused")
    trusted = f"  trust: {{allow_pickle: true, sha256: {sha256_of(place / 'net.pt')}}}"
    train(place, write_spec(place, more=trusted, **spec), tmp_path / "out", num_epochs=1)

    started = [
        e for e in read_events(tmp_path / "out" / "events.jsonl") if isinstance(e, JobStarted)
    ]
    assert "allow_pickle" in started[0].trust_used[0]
    assert "net.pt" in started[0].trust_used[0]


def test_the_folder_of_a_spec_is_its_zoo(place, tmp_path):
    from elasticdl import job_options

    spec = write_spec(place, model_definition="legacy.h5")
    by_spec = job_options.training_job(spec=str(spec), data="d", output="o")
    in_zoo = job_options.training_job(spec="model.yml", model_zoo=str(place), data="d", output="o")

    assert (by_spec.model.zoo, by_spec.model.model_def) == (str(place), "model.yml")
    assert in_zoo == by_spec
    with pytest.raises(UsageError, match="neither is given"):
        job_options.training_job(data="d", output="o")
    with pytest.raises(UsageError, match="both are given"):
        job_options.training_job(spec="model.yml", model_def="x.Y", data="d", output="o")
