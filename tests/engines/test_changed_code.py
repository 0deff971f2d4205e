"""Code that was edited after a training is reported by the command that trained it."""

import shutil

import pytest
from tests.notes import Notes

import elasticdl
from elasticdl.errors import CheckpointMismatchError, UserCodeError

MODEL = """
import keras, numpy as np

def data_schema():
    return [{"name": "label", "shape": [1], "dtype": "int64"}]

def input_fn(records):
    labels = np.stack([record["label"] for record in records])
    return labels.astype("float32"), labels

def custom_model():
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])

def loss(labels, predictions):
    return keras.losses.mean_squared_error(labels, predictions)

def optimizer():
    return keras.optimizers.SGD(0.01)
"""


@pytest.fixture
def train(tmp_path, iris, monkeypatch):
    # The output lies in the folder of the code, as after a first try in one folder.
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py").write_text(MODEL)

    def train(model_zoo=".", notes_with="has changed", **options):
        notes = Notes()
        outcome = elasticdl.train(
            model_zoo=model_zoo, model_def="model", data=str(iris / "test"), output="out",
            **{"reporter": notes, **options},
        )  # fmt: skip
        return outcome, [note for note in notes.texts if notes_with in note]

    return train


def test_a_module_that_the_trained_model_will_lack_has_one_note(train, tmp_path, monkeypatch):
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo/model.py").write_text(f"import beside_the_script\n{MODEL}")
    (tmp_path / "beside_the_script.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))

    _, notes = train(model_zoo="zoo", notes_with="outside the zoo")

    assert [note.split(" is ")[0] for note in notes] == [
        "beside_the_script.py, which zoo/model.py imports,"
    ]


def test_a_finished_training_reports_edited_code(train, tmp_path):
    assert train()[1] == []
    assert train()[1] == []
    (tmp_path / "model.py").write_text(MODEL.replace("0.01", "0.02"))

    outcome, [note] = train()

    assert outcome.already_done
    assert (
        "the trained model has the old code. To start over with the new code, use another output=; "
        "if its layers are the same, raise num_epochs= to continue from this model with it." in note
    )
    assert "(model.py)" in note
    [note] = train(num_epochs=2)[1]
    assert "(model.py) has changed since step" in note
    assert "resumes with the new code" in note


def test_a_best_value_that_the_old_code_computed_is_reported(train, tmp_path, iris):
    options = {"validation_data": str(iris / "test"), "restore_best_weights": True}
    train(**options)
    (tmp_path / "model.py").write_text(
        MODEL.replace("return keras.losses", "return 100 * keras.losses")
    )

    [note] = train(**options, num_epochs=2)[1]

    assert "The best val_loss so far, " in note
    assert " was computed by the old code." in note


def test_a_refused_change_of_the_layers_is_not_reported_as_resumed(train, tmp_path):
    train()
    (tmp_path / "model.py").write_text(MODEL.replace("layers.Dense(1)", "layers.Dense(2)"))
    notes = Notes()

    with pytest.raises(CheckpointMismatchError):
        train(num_epochs=2, reporter=notes)

    assert not [note for note in notes.texts if "resumes" in note]


REFUSES = """
def callbacks():
    class Refuses(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            raise ValueError(f"not for {self.params['epochs']} epochs")
    return [Refuses()]
"""


def test_a_resume_that_a_callback_refuses_is_not_reported_as_resumed(train, tmp_path):
    train()
    (tmp_path / "model.py").write_text(MODEL + REFUSES)
    notes = Notes()

    with pytest.raises(UserCodeError, match="not for 2 epochs"):
        train(num_epochs=2, reporter=notes)

    assert not [note for note in notes.texts if "esum" in note]


STOPS = """
def callbacks():
    class Stops(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.stop_training = True
    return [Stops()]
"""


def test_a_training_that_a_callback_ended_is_not_continued_with_more_epochs(train, tmp_path):
    (tmp_path / "model.py").write_text(MODEL + STOPS)
    train(num_epochs=3)

    outcome, said = train(num_epochs=9, notes_with="already complete")
    assert outcome.already_done
    assert said[0].endswith("A callback ended it, so a larger num_epochs= changes nothing.")

    (tmp_path / "model.py").write_text(MODEL)
    [note] = train(num_epochs=9)[1]
    assert note.endswith("To start over with the new code, use another output=.")


def test_a_training_that_reached_max_steps_continues_with_more_steps(train, tmp_path):
    train(max_steps=1, num_epochs=9)
    (tmp_path / "model.py").write_text(MODEL.replace("0.01", "0.02"))

    [note] = train(max_steps=1, num_epochs=99)[1]

    assert note.endswith("raise max_steps= to continue from this model with it.")
    outcome, _ = train(max_steps=2, num_epochs=9)
    assert outcome.step == 2


def test_only_files_used_by_the_model_count_as_its_code(train, tmp_path):
    used = {"pack/__init__.py": "", "pack/parts.py": "RATE = 0.01", "words.txt": "a"}
    other = {"plot.py": "SIZE = 3", "new.csv": "a,b"}
    (tmp_path / "pack").mkdir()
    for name, text in {**used, **other}.items():
        (tmp_path / name).write_text(text)
    (tmp_path / "model.py").write_text(
        MODEL
        + "\ndef callbacks():\n    from pack import parts\n"
        + "    open(__file__.replace('model.py', '/words.txt')).close()\n    return []\n"
    )
    train()

    for name in ("plot.py", "new.csv", "added.py"):
        (tmp_path / name).write_text("SIZE = 4")
    assert train()[1] == []
    assert train(num_epochs=2)[1] == []

    for name in ("pack/parts.py", "words.txt"):
        (tmp_path / name).write_text("RATE = 0.02")
    (tmp_path / "pack" / "__init__.py").write_text("X = 1")
    [note] = train(num_epochs=2)[1]
    assert "(pack/__init__.py, pack/parts.py, words.txt)" in note


def test_a_deleted_folder_is_not_an_error(train, tmp_path):
    (tmp_path / "zoo").mkdir()
    (tmp_path / "model.py").rename(tmp_path / "zoo" / "model.py")
    train("zoo")
    shutil.rmtree(tmp_path / "zoo")

    outcome, notes = train("zoo")

    assert outcome.already_done
    assert notes == []
