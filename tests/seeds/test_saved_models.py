"""The document's models, saved by its scripts, train by the command it stands beside."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from click.testing import CliRunner
from tests.engines.federated.flower.deployed import Commands, connect
from tests.seeds import saved_models
from tests.seeds.saved_models import spec_of

from elasticdl import federated
from elasticdl.cli.main import cli
from elasticdl.data import recordio
from elasticdl.data.example import encode
from elasticdl.data.sources import open_source
from elasticdl.event_file import read_events
from elasticdl.events import EpochFinished, RoundFinished

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.usefixtures("weights_only"),
    # Of old formats; that is what they are.
    pytest.mark.filterwarnings("ignore"),
]

NUM_TRAINED, NUM_TESTED = 480, 200
# What Keras 2.2.4 would have trained with; the file has what tf_keras says of today.
RATE_OF_KERAS_2 = "learning_rate=1.0"
CHANNELS_FIRST = "shape=[1, 28, 28]"
MODELS = {
    "the .h5 file of Keras 2.2.4": (0, "KerasFLModel", RATE_OF_KERAS_2),
    "the SavedModel of TensorFlow 2.1": (1, "TensorFlowFLModel", ""),
    "the .h5 file of TensorFlow 2.1": (2, "TensorFlowFLModel", ""),
    "the module of PyTorch": (3, "PytorchFLModel", CHANNELS_FIRST),
}
H5 = "the .h5 file of TensorFlow 2.1"
TRAIN = "train --spec=model.yml --data=train.recordio --output=out --minibatch_size=32"


@pytest.fixture(scope="module")
def files(documents, tmp_path_factory):
    """Return a folder with digits and, in a folder each, the models."""
    pytest.importorskip("tf_keras")
    folder = tmp_path_factory.mktemp("digits")
    from sklearn.datasets import load_digits

    found = load_digits()
    images = np.kron(found.images, np.ones((4, 4)))[:, 2:-2, 2:-2] / 16
    for name, start, number in (("train", 0, NUM_TRAINED), ("test", NUM_TRAINED, NUM_TESTED)):
        with recordio.Writer(str(folder / f"{name}.recordio")) as writer:
            for row in range(start, start + number):
                image, label = images[row].astype("float32"), found.target[[row]]
                writer.write(encode({"image": image, "label": label.astype("int64")}))
    return folder


def copy_digits(files, folder):
    for name in ("train", "test"):
        shutil.copy(files / f"{name}.recordio", folder)


@pytest.fixture
def empty(files, tmp_path, monkeypatch):
    """Return the folder the commands are given in: nothing is in it but the digits."""
    copy_digits(files, tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def save(documents, tmp_path_factory):
    """Return a function: model, folder -> its section of a config, once its script has run."""
    saved = {}

    def script(what):
        number, name, _ = MODELS[what]
        code = saved_models.scripts(documents)[number]
        folder = tmp_path_factory.mktemp("saved")
        spec = spec_of(code, folder, corrected=name != "PytorchFLModel")
        return folder, spec

    def to(what, folder):
        if what not in saved:
            saved[what] = script(what)
        made, spec = saved[what]
        shutil.copytree(made, folder, dirs_exist_ok=True)
        moved = {key: value.replace(f"{made}/", "") for key, value in spec.items()}
        _, name, _ = MODELS[what]
        # The document shows no section for PyTorch, but says what stands in it.
        section = (
            {"name": name, "path": "ibmfl.model.pytorch_fl_model"}
            if name == "PytorchFLModel"
            else saved_models.section(documents, name)
        )
        return {**section, "spec": moved}

    return to


def write_config(section, path=Path("model.yml")):
    path.write_text(yaml.safe_dump({"model": section}))


def command(words, *arguments):
    """Give a command; returns what it printed.

    Raises:
        AssertionError: It did not end with 0.
    """
    result = CliRunner().invoke(cli, [*words.split(), *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def train(*arguments):
    return command(TRAIN, *arguments)


def losses(output, kind=EpochFinished):
    log = read_events(Path(output) / "events.jsonl")
    return [event.metrics["loss"] for event in log if isinstance(event, kind)]


def accuracy(output):
    command(f"evaluate --trained_model={output} --data=test.recordio")
    return json.loads((Path(output) / "evaluation.json").read_text())["metrics"]["accuracy"]


@pytest.mark.parametrize("what", MODELS)
def test_a_saved_model_trains_by_one_command(what, save, empty):
    write_config(save(what, empty))

    train("--num_epochs=2", f"--params={MODELS[what][2]}")

    first, last = losses("out")
    assert last < 0.9 * first
    assert accuracy("out") > 0.6


@pytest.fixture(scope="module")
def on_workers(files, save, tmp_path_factory):
    """Start to train on workers; returns the process, and the folder it works in."""
    folder = tmp_path_factory.mktemp("workers")
    copy_digits(files, folder)
    write_config(save(H5, folder), folder / "model.yml")
    words = f"{TRAIN} --num_epochs=4 --num_workers=2 --quiet".split()
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "elasticdl.cli.main", *words],
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    yield process, folder
    process.terminate()
    process.wait(60)


@pytest.fixture(scope="module", autouse=True)
def on_workers_beside_the_others(request):
    """Begin with what takes longest: most of it is waiting for processes to start."""
    tests = [item for item in request.session.items if item.path == request.path]
    if any(item.get_closest_marker("ray") for item in tests):
        request.getfixturevalue("on_workers")


@pytest.mark.ray
def test_a_saved_model_trains_on_workers(on_workers, monkeypatch):
    process, folder = on_workers
    monkeypatch.chdir(folder)

    assert process.wait(280) == 0, Path("log").read_text()

    first, *_, last = losses("out")
    assert last < 0.9 * first
    assert accuracy("out") > 0.6


# One of each framework; the other forms are loaded by the tests above.
@pytest.mark.parametrize(
    "what",
    [
        pytest.param(name, marks=[] if number in {0, 3} else pytest.mark.chaos)
        for name, (number, *_) in MODELS.items()
    ],
)
def test_a_saved_model_trains_with_parties(what, save, empty):
    write_config(save(what, empty))

    command(
        "federated init hospitals --spec=model.yml --data=train.recordio --num_parties=2 "
        "--num_rounds=4 --num_epochs=1",
        f"--params={MODELS[what][2]}",
    )
    command("federated simulate hospitals/aggregator.yml --output=out")

    first, *_, last = losses("out", RoundFinished)
    assert last < 0.9 * first
    assert accuracy("out") > 0.5


@pytest.mark.chaos  # of its parts, `test_deployment.py` and the test above are shorter
@pytest.mark.flower
@pytest.mark.parametrize("what", MODELS)
def test_a_saved_model_trains_with_two_processes_over_tls(what, save, empty):
    made = federated_configs(what, save, empty)
    connect(made, empty / "keys")
    commands = Commands(empty)
    try:
        for path in made.parties:
            commands.start(path.stem, "party", path)
        aggregator = commands.start("aggregator", "aggregator", made.aggregator, "--output=out")
        assert commands.end_of(aggregator) == 0, commands.logs()
    finally:
        commands.end()

    first, *_, last = losses("out", RoundFinished)
    assert last < 0.9 * first
    assert accuracy("out") > 0.3


def federated_configs(what, save, folder):
    write_config(save(what, folder))
    return federated.init(
        str(folder / "hospitals"), spec="model.yml", data="train.recordio", num_parties=2,
        num_rounds=3, num_epochs=1, params=MODELS[what][2],
    )  # fmt: skip


# --- the other forms of a spec ----------------------------------------------------------------


@pytest.fixture
def tfk_model(save, empty):
    """Return the model of Keras 2.2.4, as its users have it in a script."""
    import tf_keras

    section = save("the .h5 file of Keras 2.2.4", empty)
    return tf_keras.models.load_model(section["spec"]["model_definition"])


def test_architecture_weights_and_options_form_a_model(documents, tfk_model, empty):
    spec, _ = saved_models.shown_specs(documents)
    section = saved_models.section(documents, "KerasFLModel")
    Path("model_architecture.json").write_text(tfk_model.to_json())
    tfk_model.save_weights("model_weights.h5")
    Path("federation").mkdir()
    write_config({**section, "spec": spec}, Path("federation/model.yml"))

    told = command(
        "train --spec=federation/model.yml --data=train.recordio --output=out --num_epochs=2",
        f"--params={RATE_OF_KERAS_2}",
    )

    assert "Adadelta" in told
    assert "loss categorical_crossentropy (from the spec)" in told
    first, last = losses("out")
    assert last < first
    assert accuracy("out") > 0.3


def test_a_custom_loss_is_loaded_from_its_file(documents, tfk_model, empty):
    _, spec = saved_models.shown_specs(documents)
    section = saved_models.section(documents, "KerasFLModel")

    def test_loss(labels, outputs):
        return outputs

    tfk_model.compile("adam", test_loss, metrics=["sparse_categorical_accuracy"])
    tfk_model.save("model.h5")
    Path("loss.py").write_text(
        "import keras\n\n\ndef test_loss(labels, outputs):\n"
        "    return 1000 + keras.losses.sparse_categorical_crossentropy(labels, outputs)\n"
    )
    Path("federation").mkdir()
    write_config({**section, "spec": spec}, Path("federation/model.yml"))

    # As the document has it, the code lies beside the folder of the spec.
    command("train --spec=federation/model.yml --data=train.recordio --output=out --num_epochs=2")

    first, last = losses("out")
    assert 1000 < last < first < 1010

    command(
        "federated init hospitals --spec=federation/model.yml --data=train.recordio --num_rounds=1"
    )
    # All that parties need is in the folder.
    Path("hospitals").rename("elsewhere")
    for name in ("model.h5", "loss.py", "federation/model.yml"):
        Path(name).unlink()
    command("federated simulate elsewhere/aggregator.yml --output=with_parties")

    assert losses("with_parties", RoundFinished)[0] > 1000


def test_the_other_documented_name_of_the_options_is_accepted(save, empty):
    section = save(H5, empty)
    section["spec"]["compiled_options"] = {"optimizer": "adadelta"}
    write_config({**section, "params": {"learning_rate": 1e-30}})

    assert "Adadelta" in train("--max_steps=3")


def test_a_custom_loss_may_compare_one_hot_rows(documents, tfk_model, empty):
    _, spec = saved_models.shown_specs(documents)
    section = saved_models.section(documents, "KerasFLModel")

    def test_loss(labels, outputs):
        return outputs

    # The document's model compares such rows, by categorical_crossentropy.
    tfk_model.compile("adam", test_loss, metrics=["accuracy"])
    tfk_model.save("model.h5")
    Path("loss.py").write_text(
        "import keras\n\n\ndef test_loss(labels, outputs):\n"
        "    return keras.losses.categorical_crossentropy(labels, outputs)\n"
    )
    Path("federation").mkdir()
    write_config({**section, "spec": spec}, Path("federation/model.yml"))

    told = command(
        "train --spec=federation/model.yml --data=train.recordio --output=out --num_epochs=2"
    )

    assert "Labels become one-hot rows of 10: test_loss does not accept class numbers" in told
    first, last = losses("out")
    assert last < first


def test_the_saved_model_trains_as_with_its_library(documents, empty):
    """The document's only model without dropout, whose draws differ between libraries."""
    # Its `model` is what its library goes on with: tf_keras of today cannot train what it loads
    # from the folder, which was saved for float64.
    code = saved_models.scripts(documents)[1].replace(
        "    return spec\n", "    return spec, model\n"
    )
    spec, model = saved_models.spec_of(code, empty)
    section = saved_models.section(documents, "TensorFlowFLModel")
    write_config({**section, "spec": spec})

    train("--num_epochs=3", "--no-shuffle")

    images, labels = digits("train.recordio")
    history = model.fit(
        images.reshape(-1, 28, 28, 1), labels, batch_size=32, epochs=3, shuffle=False, verbose=0
    )
    np.testing.assert_allclose(losses("out"), history.history["loss"], rtol=1e-4)


def digits(file):
    records = open_source(file).read_records(0, NUM_TRAINED, None)
    return (np.stack([record["image"] for record in records]),
            np.stack([record["label"] for record in records]))  # fmt: skip


def test_options_of_the_spec_override_those_of_the_file(save, empty):
    section = save(H5, empty)
    section["spec"]["compile_model_options"] = {"optimizer": "adadelta"}
    write_config({**section, "params": {"learning_rate": 1e-30}})

    told = train("--max_steps=3")

    assert "Adadelta" in told
    assert "loss categorical_crossentropy (from the file)" in told
