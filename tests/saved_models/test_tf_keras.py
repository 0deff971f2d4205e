"""What Keras 1 and 2 wrote trains like any model of Keras 3, by the same trainer."""

import shutil
import subprocess
import sys

import numpy as np
import pytest
from tests.saved_models.conftest import of_keras_2_2_4, pictures

from elasticdl.data.batch import Batch
from elasticdl.definition import MetricFunctions, ModelDefinition, Origin, RecordInput
from elasticdl.errors import ModelFileError
from elasticdl.saved_models import compile_options
from elasticdl.saved_models.file_format import identify
from elasticdl.saved_models.loading import load
from elasticdl.testing.trainer import check_trainer

ORIGIN = Origin("ibmfl_spec", "model.yml", 1, "model.yml", ".")


def trainer_of(create_model, example, *, rank=0, optimizer="adam", size=32, **options):
    from elasticdl.training.keras import KerasTrainer

    resolved = compile_options.resolve(
        {"optimizer": optimizer, "loss": "sparse_categorical_crossentropy", "metrics": "accuracy"},
        where="model.yml",
    )
    definition = ModelDefinition(
        origin=ORIGIN,
        framework="keras",
        create_model=create_model,
        input=RecordInput(lambda records: records),
        loss=resolved.loss,
        create_optimizer=resolved.create_optimizer,
        create_metrics=lambda mode: MetricFunctions(),
    )
    return KerasTrainer(definition, example, minibatch_size=size, seed=3, rank=rank, **options)


def batches(num=4, size=32):
    return [Batch(*pictures(size, seed), size) for seed in range(num)] + [Batch(*pictures(7, 9), 7)]


def same_bits(first, second):
    assert first.keys() == second.keys()
    for name in first:
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)


@pytest.mark.parametrize("fixture", ["tfk_h5", "tfk_keras", "tfk_folder"])
def test_a_loaded_model_predicts_as_when_saved(request, fixture, tfk_model, tmp_path) -> None:
    original, path = request.getfixturevalue(fixture), tmp_path / "model of another name"
    (shutil.copytree if original.is_dir() else shutil.copy)(original, path)

    model = load(identify(path))

    images, _ = pictures()
    np.testing.assert_allclose(
        model(images, training=False), tfk_model(images, training=False), rtol=1e-5, atol=1e-6
    )
    assert not model.compiled


@pytest.mark.parametrize("weights", ["tfk_weights", "tfk_new_weights", "tfk_h5", "tfk_keras"])
def test_an_architecture_accepts_weights_from_weights_or_model_files(
    request, tfk_json, weights, tfk_model, tmp_path
) -> None:
    path = tmp_path / "weights"
    shutil.copy(request.getfixturevalue(weights), path)

    model = load(identify(tfk_json), identify(path))

    images, _ = pictures()
    np.testing.assert_allclose(model(images), tfk_model(images), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("as_bytes", [False, True])
def test_a_keras_2_2_4_file_is_loaded(tmp_path, as_bytes) -> None:
    path = of_keras_2_2_4(tmp_path / "model.h5", as_bytes=as_bytes)

    model = load(identify(path))

    assert [v.path for v in model.trainable_variables] == [
        "dense_1.kernel", "dense_1.bias", "dense_2.kernel", "dense_2.bias",
    ]  # fmt: skip
    np.testing.assert_allclose(np.sum(model(np.ones((2, 4), "float32")), axis=1), [1, 1], rtol=1e-6)


def test_the_keras_trainer_satisfies_the_contract_with_tf_keras(tfk_h5) -> None:
    check_trainer(
        lambda rank: trainer_of(lambda: load(identify(tfk_h5)), batches()[0], rank=rank), batches()
    )


@pytest.mark.parametrize("fixture", ["tfk_h5", "tfk_folder"])
def test_the_loss_decreases_in_training(request, fixture) -> None:
    path = request.getfixturevalue(fixture)
    trainer = trainer_of(lambda: load(identify(path)), batches()[0], optimizer={
        "value": "Adam", "path": "keras.optimizers", "args": {"learning_rate": 0.01}
    })  # fmt: skip

    losses = [float(trainer.train_steps(batches()[:-1]).losses.mean()) for _ in range(10)]

    assert losses[-1] < losses[0] / 2


def test_wrapper_and_inner_model_share_weights(tfk_h5) -> None:
    model = load(identify(tfk_h5))

    model.trainable_variables[0].assign(np.full(model.trainable_variables[0].shape, 7.0))

    np.testing.assert_array_equal(model.inner.trainable_variables[0], 7.0)


def test_mixed_precision_weights_are_listed_once(tfk, tmp_path, quiet) -> None:
    layers = tfk.layers
    model = tfk.Sequential(
        [
            layers.Dense(8, input_shape=(4,), dtype="mixed_float16"),
            layers.BatchNormalization(dtype="mixed_float16"),
            layers.Dense(3, dtype="float32"),
        ]
    )
    model.save(tmp_path / "model.h5")

    loaded = load(identify(tmp_path / "model.h5"))

    assert [v.path.split(".")[1] for v in loaded.variables] == [
        "kernel", "bias", "gamma", "beta", "kernel", "bias", "moving_mean", "moving_variance",
    ]  # fmt: skip
    assert {v.dtype for v in loaded.variables} == {"float32"}


def test_weights_with_the_same_name_get_different_names(tfk) -> None:
    from elasticdl.saved_models.tf_keras import WrappedModel

    class Twins(tfk.Model):
        def __init__(self):
            super().__init__()
            self.twins = [self.add_weight(name="w", shape=()) for _ in range(2)]

    assert [v.path for v in WrappedModel(Twins()).trainable_variables] == ["w", "w_2"]


def test_parameter_names_are_reproducible(tfk_h5, tfk_folder, tfk_json) -> None:
    for path in (tfk_h5, tfk_folder, tfk_json):
        names = [[v.path for v in load(identify(path)).variables] for _ in range(2)]

        assert names[0] == names[1]
        assert len(set(names[0])) == len(names[0])


@pytest.mark.parametrize("fixture", ["tfk_h5", "tfk_folder"])
def test_dropout_depends_only_on_seed_step_and_slot(request, fixture) -> None:
    path = request.getfixturevalue(fixture)
    first, second = (trainer_of(lambda: load(identify(path)), batches()[0]) for _ in range(2))
    other = trainer_of(lambda: load(identify(path)), batches()[0], rank=1)
    # It has drawn before; what it draws at a step must not depend on that.
    second.gradients(batches()[1])
    second.train_steps(batches()[1:3])
    for trainer in (second, other):
        trainer.load_state(first.state())

    losses = [trainer.train_steps(batches()[:2]).losses for trainer in (first, second, other)]

    np.testing.assert_array_equal(losses[0], losses[1])
    same_bits(first.state(), second.state())
    assert losses[0][0] != losses[2][0]


def test_the_state_has_statistics_and_no_seeds(tfk_h5) -> None:
    names = set(trainer_of(lambda: load(identify(tfk_h5)), batches()[0]).state())

    assert any("moving_mean" in name for name in names)
    assert not any("generator" in name for name in names)


def test_weight_penalties_are_part_of_the_loss(tfk_h5) -> None:
    model = load(identify(tfk_h5))

    model(pictures()[0], training=True)

    kernel = model.trainable_variables[0].numpy()
    np.testing.assert_allclose([float(x) for x in model.losses], [0.01 * np.sum(kernel**2)], 1e-5)


def test_tf_keras_reads_an_exported_trained_model(tfk, tfk_h5, tmp_path, quiet) -> None:
    trainer = trainer_of(lambda: load(identify(tfk_h5)), batches()[0])
    trainer.train_steps(batches()[:2])

    assert trainer.export(tmp_path) == ["saved_model"]

    images, _ = pictures()
    said = tfk.models.load_model(tmp_path / "saved_model")(images, training=False)
    np.testing.assert_allclose(said, trainer.predict(images), rtol=1e-5, atol=1e-6)
    again = trainer_of(lambda: load(identify(tmp_path / "saved_model")), batches()[0])
    np.testing.assert_allclose(again.predict(images), trainer.predict(images), rtol=1e-5, atol=1e-6)
    assert np.isfinite(again.train_steps(batches()[:2]).losses).all()


# --- models of a class of their own --------------------------------------------------------------


def own_class(tfk, *, dropout=0.0):
    class Own(tfk.Model):
        def __init__(self):
            super().__init__()
            self.flatten = tfk.layers.Flatten()
            self.drop = tfk.layers.Dropout(dropout)
            self.out = tfk.layers.Dense(3, activation="softmax")

        def call(self, x, training=None):
            x = self.flatten(x)
            return self.out(self.drop(x, training=training) if dropout else x)

    return Own


def folder_of(model, sample, path):
    model._set_inputs(sample)
    model.compile("adam", "sparse_categorical_crossentropy")
    model.save(path, save_format="tf")
    return path


def test_a_model_of_an_unknown_class_is_trained_from_its_graph(tfk, tmp_path, quiet) -> None:
    sample = np.zeros((2, 8, 8, 1), "float32")
    path = folder_of(own_class(tfk)(), sample, tmp_path / "own")

    trainer = trainer_of(lambda: load(identify(path)), batches()[0], optimizer={
        "value": "SGD", "args": {"learning_rate": 0.5}
    })  # fmt: skip

    losses = [float(trainer.train_steps(batches()[:-1]).losses.mean()) for _ in range(10)]
    assert losses[-1] < losses[0] / 2


def test_a_model_with_float64_inputs_trains_with_other_floats(tfk, tmp_path, quiet) -> None:
    # What `np.zeros(shape)` of a sample does; the weights are float32.
    original = own_class(tfk)()
    path = folder_of(original, np.zeros((2, 8, 8, 1)), tmp_path / "own")
    images, labels = pictures()

    model = load(identify(path))

    assert {v.dtype for v in model.variables} == {"float32"}
    np.testing.assert_allclose(model(images), original(images), rtol=1e-6, atol=1e-6)
    trainer = trainer_of(lambda: load(identify(path)), Batch(images, labels, 32))
    trained = [float(trainer.train_steps([Batch(images, labels, 32)]).losses[0]) for _ in range(5)]
    original.compile("adam", "sparse_categorical_crossentropy")
    plain = [original.train_on_batch(images, labels) for _ in range(5)]
    np.testing.assert_allclose(trained, plain, rtol=1e-5)


def test_a_model_with_float64_inputs_is_exported_with_them(tfk, tmp_path, quiet) -> None:
    path = folder_of(own_class(tfk)(), np.zeros((2, 8, 8, 1)), tmp_path / "own")
    images, _ = pictures()
    model = load(identify(path))

    model.export(tmp_path / "exported")

    again = load(identify(tmp_path / "exported"))
    np.testing.assert_array_equal(again(images), model(images))


@pytest.fixture(scope="module")
def saving_unseeded(tmp_path_factory):
    """Start to save a model whose graph draws without a seed; returns the process and the folder.

    In a process of its own: where bits matter, TensorFlow would not save such a graph.
    """
    path = tmp_path_factory.mktemp("unseeded") / "own"
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "import numpy as np, tf_keras\n"
        "from tests.saved_models.test_tf_keras import folder_of, identify, load, own_class\n"
        "model = own_class(tf_keras, dropout=0.5)()\n"
        f"load(identify(folder_of(model, np.zeros((2, 8, 8, 1), 'float32'), {str(path)!r})))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )
    yield process, path
    process.kill()
    process.wait()
    process.stderr.close()


@pytest.fixture(scope="module", autouse=True)
def unseeded_beside_the_others(request):
    """Begin with what has to import TensorFlow once more."""
    tests = [item for item in request.session.items if item.path == request.path]
    if any("unseeded" in item.fixturenames for item in tests):
        request.getfixturevalue("saving_unseeded")


@pytest.fixture(scope="module")
def unseeded(saving_unseeded):
    """Return a folder whose graph draws without a seed, and what is told when it is loaded."""
    process, path = saving_unseeded
    _, said = process.communicate(timeout=100)
    assert process.returncode == 0, said
    return path, said


def test_unseedable_dropout_is_an_error_if_determinism_is_required(tfk, unseeded, quiet) -> None:
    path, _ = unseeded
    own = own_class(tfk, dropout=0.5)

    with pytest.raises(ModelFileError, match="whose seeds cannot be set") as raised:
        trainer_of(lambda: load(identify(path)), batches()[0])
    assert "--no-deterministic" in str(raised.value)
    trainers = [
        trainer_of(lambda: load(identify(path), custom_objects={"Own": own}), batches()[0])
        for _ in range(2)
    ]
    losses = [trainer.train_steps(batches()[:2]).losses for trainer in trainers]
    np.testing.assert_array_equal(*losses)


def test_unseedable_dropout_is_reported_otherwise(unseeded) -> None:
    assert "cannot be repeated or resumed bit for bit" in unseeded[1]


def test_dropout_with_a_seed_in_the_graph_is_reported(tfk, tmp_path, quiet, caplog) -> None:
    import tensorflow as tf

    tf.random.set_seed(1)
    own = own_class(tfk, dropout=0.5)
    path = folder_of(own(), np.zeros((2, 8, 8, 1), "float32"), tmp_path / "own")

    load(identify(path))

    assert "cannot be repeated or resumed bit for bit" in caplog.text


def test_a_model_without_the_shape_of_its_inputs_is_an_error(tfk, tmp_path) -> None:
    model = tfk.Sequential([tfk.layers.Dense(2)])
    (tmp_path / "model.json").write_text(model.to_json())

    with pytest.raises(ModelFileError, match="input_shape"):
        load(identify(tmp_path / "model.json"))


def test_a_model_may_take_and_return_several_tensors(tfk, tmp_path, quiet) -> None:
    left, right = tfk.Input((4,), name="left"), tfk.Input((3,), dtype="int32", name="right")
    embedded = tfk.layers.Flatten()(tfk.layers.Embedding(9, 2)(right))
    joined = tfk.layers.Concatenate()([left, embedded])
    model = tfk.Model([left, right], [tfk.layers.Dense(2)(joined), tfk.layers.Dense(1)(joined)])
    model.save(tmp_path / "model.h5")
    features = {"right": np.ones((5, 3), "int32"), "left": np.ones((5, 4), "float32")}

    loaded = load(identify(tmp_path / "model.h5"))

    said = loaded(features)
    for mine, theirs in zip(said, model([features["left"], features["right"]]), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-6)


def test_a_missing_package_is_an_error_with_the_install_command(tfk_h5, run_python) -> None:
    said = run_python(
        "import sys\n"
        "sys.modules['tf_keras'] = None\n"
        "from elasticdl.errors import MissingExtraError\n"
        "from elasticdl.saved_models.loading import load\n"
        "from elasticdl.saved_models.file_format import identify\n"
        "try:\n"
        f"    load(identify({str(tfk_h5)!r}))\n"
        "except MissingExtraError as error:\n"
        "    print(error)\n"
    )

    assert "pip install 'elasticdl[specs]'" in said.stdout
