"""What is exported was loaded elsewhere and said the same; else nothing is exported."""

import json
import subprocess
from types import SimpleNamespace

import numpy as np
import pytest

from elasticdl.artifacts.checkpoint_store import Checkpoint, CheckpointStore
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.config_file import ConfigStruct
from elasticdl.data.batch import Batch
from elasticdl.errors import TrainingError
from elasticdl.sessions import export
from elasticdl.training.keras import verify_export

X = np.float32([[1, 2], [3, 4]])
# A layer that only its own project can read back.
OWN_LAYER = "doubling"


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A folder with models as trainings leave them: y = x1 + x2, and twice that."""
    import keras

    from elasticdl.training.keras.export import Example, export

    class Doubling(keras.layers.Layer):
        def call(self, x):
            return x * 2

    def saved(name, inputs, outputs):
        folder = tmp_path_factory.mktemp(name)
        model = keras.Model(inputs, outputs)
        tried = keras.tree.map_structure(lambda t: np.ones((2, *t.shape[1:]), "f"), model.input)
        example = Example(tried, model(tried))
        assert set(export(model, folder, example)) == {"saved_model", "model.keras"}
        return folder

    def dense():
        return keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")

    x = keras.Input((2,))
    a, b = keras.Input((1,), name="a"), keras.Input((1,), name="b")
    pair = [keras.Input((1,)), keras.Input((1,))]
    return {
        "plain": saved("plain", x, dense()(x)),
        OWN_LAYER: saved(OWN_LAYER, x, dense()(Doubling()(x))),
        "named": saved("named", {"b": b, "a": a}, {"sum": a + b, "minus": a - b}),
        "several": saved("several", pair, [pair[0] * 2, pair[1] + 1]),
        "listed": saved("listed", [b, a], a - b),
        "one": saved("one", [x], dense()(x)),
    }


@pytest.fixture
def trained(tmp_path, models):
    """Return what makes a session's trained model, which says something of X."""

    def trained(
        name="plain", says=((3,), (7,)), sha256="1", exports=("saved_model", "model.keras")
    ):
        session = tmp_path / "session"
        session.mkdir(exist_ok=True)
        (session / "config.yaml").write_text("epochs: 1")
        said = says if isinstance(says, (dict, list)) else np.float32(says)
        description = SimpleNamespace(
            params_sha256=sha256, step=5, metrics={"val_loss": 0.5}, exports=exports
        )
        return SimpleNamespace(
            session=SimpleNamespace(
                name="first",
                folder=session,
                output=session / "training",
                config=ConfigStruct({"epochs": 1}),
                config_file=session / "config.yaml",
            ),
            model=SimpleNamespace(
                description=description, exported=lambda part: models[name] / part
            ),
            trainer=SimpleNamespace(predict=lambda features: said),
            example=Batch(X, None, 2),
        )

    return trained


@pytest.fixture
def checkpoints(tmp_path):
    """Checkpoints of five steps, of which that of step 2 is the best."""
    store = CheckpointStore(OutputFolder(tmp_path / "session" / "training"), keep_max=9)
    for step in range(1, 6):
        store.save(Checkpoint(step, {"w": np.zeros(1)}, {}), best=step == 2)
    return store


def nothing_is_there(tmp_path):
    return sorted(path.name for path in (tmp_path / "session").iterdir() if path.is_dir()) == [
        "training"
    ]


# --- what is exported -----------------------------------------------------------------------


def test_a_model_with_the_same_predictions_elsewhere_is_exported(
    trained, in_this_process, tmp_path
):
    found = export.export(trained())

    folder = tmp_path / "session" / "exported"
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.yaml",
        "export.json",
        "model.keras",
        "savedmodel",
    ]
    assert json.loads((folder / "export.json").read_text()) == found
    assert found["largest_difference"] == {"savedmodel": 0, "model.keras": 0}
    assert (found["step"], found["metrics"]) == (5, {"val_loss": 0.5})
    assert export.exported(trained().session) == found


def test_only_the_newest_and_best_checkpoints_remain_after_an_export(
    trained, checkpoints, in_this_process
):
    export.export(trained())

    assert checkpoints.steps() == [2, 5]


def test_equal_weights_are_exported_once(trained, in_this_process, tmp_path):
    export.export(trained())
    file = tmp_path / "session" / "exported" / "export.json"
    before = file.stat().st_mtime_ns

    export.export(trained(says=[[9], [9]]))
    assert file.stat().st_mtime_ns == before
    export.export(trained(sha256="2"))
    assert export.exported(trained().session)["params_sha256"] == "2"


# --- what is not ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        (((3,), (7.1,)), "they differ by up to 0.1"),
        (((3,), (np.nan,)), "they differ by up to inf"),
        (((3,), (np.inf,)), "they differ by up to inf"),
        ((3, 7), "an output has the shape (2, 1), not (2,)"),
        ([np.float32([[3], [7]])] * 2, "it has the outputs [''], not ['/0', '/1']"),
    ],
)
def test_a_model_with_different_predictions_is_refused_without_loss(
    trained, checkpoints, in_this_process, tmp_path, says, problem
):
    with pytest.raises(TrainingError) as caught:
        export.export(trained(says=says))

    assert problem in str(caught.value)
    assert "Nothing was exported, and all checkpoints are kept." in str(caught.value)
    assert nothing_is_there(tmp_path)
    assert checkpoints.steps() == [1, 2, 3, 4, 5]


def test_the_previous_export_is_kept_when_the_next_is_refused(trained, in_this_process):
    export.export(trained())

    with pytest.raises(TrainingError):
        export.export(trained(says=((0,), (0,)), sha256="2"))

    assert export.exported(trained().session)["params_sha256"] == "1"


def test_a_relative_difference_of_1e_4_is_rounding(trained, in_this_process):
    found = export.export(trained(says=((3,), (7.0005,))))

    assert found["largest_difference"]["savedmodel"] == pytest.approx(0.0005, rel=1e-3)


def test_a_keras_file_that_needs_custom_classes_is_omitted(trained, in_this_process, tmp_path):
    found = export.export(trained(OWN_LAYER, says=((6,), (14,))))

    folder = tmp_path / "session" / "exported"
    assert found["largest_difference"] == {"savedmodel": 0}
    assert (folder / "savedmodel").is_dir()
    assert not (folder / "model.keras").exists()


def test_a_model_that_tensorflow_cannot_export_is_reported(trained, checkpoints, tmp_path):
    with pytest.raises(TrainingError, match="first: TensorFlow could not export the model"):
        export.export(trained(exports=("model.keras",)))

    assert checkpoints.steps() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (subprocess.CalledProcessError(1, "x", stderr="a\nNo memory.\n"), "No memory."),
        (subprocess.CalledProcessError(-9, "x", stderr="\n"), "died with <Signals.SIGKILL: 9>."),
        (subprocess.TimeoutExpired("x", 300), "timed out after 300 seconds"),
    ],
)
def test_a_process_without_an_answer_is_reported_with_its_last_output(
    trained, monkeypatch, tmp_path, error, said
):
    def run(*arguments, **options):
        raise error

    monkeypatch.setattr(export.subprocess, "run", run)
    with pytest.raises(TrainingError, match="could not be tested in a new process") as caught:
        export.export(trained())

    assert str(caught.value).endswith(said)
    assert not (tmp_path / "session" / "exported").exists()


# --- the program that tries them ------------------------------------------------------------


def answers(capsys, tmp_path, features, outputs, *models):
    verify_export.write_probe(tmp_path / "probe.npz", features, outputs)
    verify_export.main([str(tmp_path / "probe.npz"), *map(str, models)])
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def test_a_new_process_tries_models_and_reports_on_each(models, tmp_path, monkeypatch):
    # No file of the user's folder is taken for one of Python's.
    (tmp_path / "csv.py").write_text("raise RuntimeError")
    monkeypatch.chdir(tmp_path)
    probe = tmp_path / "probe.npz"
    verify_export.write_probe(probe, X, np.float32([[3], [7]]))
    asked = [models["plain"] / "saved_model", models["plain"] / "model.keras"]
    asked += [models[OWN_LAYER] / "saved_model", models[OWN_LAYER] / "model.keras"]

    done = subprocess.run(
        export.verify_command(probe, asked), capture_output=True, text=True, check=True
    )

    plain, keras_file, own, own_file = map(json.loads, done.stdout.splitlines())
    assert (plain["model"], plain["difference"]) == (str(asked[0]), 0)
    assert (keras_file["difference"], own["difference"]) == (0, 7)
    assert "Doubling" in own_file["error"]


@pytest.mark.filterwarnings("ignore:The structure of `inputs`")
@pytest.mark.filterwarnings("ignore:Exception encountered when calling")
@pytest.mark.parametrize("kind", ["saved_model", "model.keras"])
@pytest.mark.parametrize(
    ("name", "features", "outputs"),
    [
        # In another order than the model's own.
        (
            "named",
            {"a": np.float32([[5]]), "b": np.float32([[2]])},
            {"sum": np.float32([[7]]), "minus": np.float32([[3]])},
        ),
        (
            "several",
            [np.float32([[5]]), np.float32([[2]])],
            [np.float32([[10]]), np.float32([[3]])],
        ),
        ("plain", np.float64([[1, 2]]), np.float32([[3]])),
        # As Keras takes them as well.
        ("listed", {"a": np.float32([[5]]), "b": np.float32([[2]])}, np.float32([[3]])),
        ("one", np.float32([[1, 2]]), np.float32([[3]])),
    ],
)
def test_several_inputs_and_outputs_are_supported(
    capsys, tmp_path, models, kind, name, features, outputs
):
    (answer,) = answers(capsys, tmp_path, features, outputs, models[name] / kind)

    assert answer == {"model": str(models[name] / kind), "difference": 0}


def test_equal_non_finite_outputs_are_not_a_difference(capsys, tmp_path, models):
    features = np.float32([[np.nan, 1], [np.inf, 1]])

    (answer,) = answers(
        capsys,
        tmp_path,
        features,
        np.float32([[np.nan], [np.inf]]),
        models["plain"] / "saved_model",
    )

    assert answer["difference"] == 0
