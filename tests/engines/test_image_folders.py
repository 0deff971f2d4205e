"""A folder of images is trained on, evaluated and predicted like any other data."""

import csv

import numpy as np
import pytest
from PIL import Image
from tests.engines.test_in_process import assert_same_bits, weights
from tests.notes import Notes

import elasticdl
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.data.split_files import split_files
from elasticdl.data.split_parts import parse_parts
from elasticdl.engines.federated.config.init import write_federation
from elasticdl.engines.federated.simulation import simulate
from elasticdl.engines.federated.simulation.simulate import SimulatedMember
from elasticdl.engines.progress_bar import Silent
from elasticdl.errors import DataError, ElasticDLError, SchemaError, UsageError
from elasticdl.job import Federation, Job, ModelReference, TrainingOptions

INPUT = """
import numpy as np

def data_schema():
    return [
        {"name": "image", "shape": SHAPE, "dtype": "float32"},
        {"name": "label", "shape": [], "dtype": "int64"},
    ]

def input_fn(records):
    images = np.stack([r["image"] for r in records]) / np.float32(255)
    return images, np.array([r["label"] for r in records])
"""
KERAS = (
    INPUT.replace("SHAPE", "[6, 6, 1]")
    + """
import keras

def custom_model():
    return keras.Sequential([keras.Input((6, 6, 1)), keras.layers.Flatten(), keras.layers.Dense(3)])

def loss(labels, predictions):
    return keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)

def optimizer():
    return keras.optimizers.Adam(0.05)

def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}
"""
)
TORCH = (
    INPUT.replace("SHAPE", "[3, 6, 6]")
    + """
import torch

def custom_model():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(108, 3))

def loss(labels, predictions):
    return torch.nn.functional.cross_entropy(predictions, labels)

def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.05)

def eval_metrics_fn():
    return {"accuracy": lambda labels, output: (output.argmax(1) == labels).float()}
"""
)
NUM_PER_CLASS = 16


def draw(folder, classes, num=NUM_PER_CLASS):
    """Draw pictures of one stroke each, whose place is the class."""
    rng = np.random.default_rng(len(classes))
    for number, name in classes.items():
        (folder / name).mkdir(parents=True)
        for i in range(num):
            pixels = rng.integers(0, 90, (8, 8)).astype(np.uint8)
            pixels[:, 1 + 3 * number] = 250
            Image.fromarray(pixels).save(folder / name / f"{i:02}.png")
    return str(folder)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("images")
    draw(folder / "train", {0: "bar", 1: "line", 2: "stroke"})
    # Without the first class, all numbers would be others.
    draw(folder / "rest", {1: "line", 2: "stroke"}, 4)
    draw(folder / "odd", {0: "circle"}, 2)
    (folder / "zoo").mkdir()
    (folder / "zoo/keras_model.py").write_text(KERAS)
    (folder / "zoo/torch_model.py").write_text(TORCH)
    named = 'classes = ["bar", "line", "stroke"]\n'
    (folder / "zoo/named_model.py").write_text(TORCH + named)
    return folder


def train(place, output, model_def, **options):
    return elasticdl.train(
        **{
            "model_zoo": str(place / "zoo"),
            "model_def": model_def,
            "data": str(place / "train"),
            "validation_data": str(place / "rest"),
            "num_epochs": 6,
            "minibatch_size": 8,
            "output": str(output),
            "reporter": Silent(),
            **options,
        }
    )


@pytest.fixture(scope="module", params=["keras_model", "torch_model"])
def trained(request, place, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained") / "out"
    return request.param, train(place, folder, request.param)


def test_a_model_learns_a_folder_and_validation_may_lack_classes(trained):
    _, outcome = trained

    assert outcome.metrics["val_accuracy"] == 1.0


def test_the_trained_model_has_the_folder_names_as_classes(trained):
    _, outcome = trained

    description = load_trained_model(outcome.output).description
    assert tuple(description.classes) == ("bar", "line", "stroke")


def test_a_trained_model_can_be_evaluated_on_some_of_its_classes(trained, place):
    _, outcome = trained

    found = elasticdl.evaluate(
        trained_model=outcome.output, data=str(place / "rest"), reporter=Silent()
    )

    assert found.metrics["accuracy"] == 1.0


def test_an_unknown_class_is_refused_in_an_evaluation_and_ignored_in_a_prediction(
    trained, place, tmp_path
):
    _, outcome = trained
    asked = {"trained_model": outcome.output, "data": str(place / "odd"), "reporter": Silent()}

    with pytest.raises(DataError, match=r"circle/00\.png is in the class folder 'circle', which"):
        elasticdl.evaluate(**asked)
    found = elasticdl.predict(**asked, output=str(tmp_path / "p.csv"))

    assert found.metrics["num_records"] == 2
    with pytest.raises(
        UsageError,
        match=r"^columns: the images have no column 'label': .*'circle', which is",
    ):
        elasticdl.predict(**asked, output=str(tmp_path / "q.csv"), columns=["label"])


def test_the_label_that_a_prediction_copies_is_the_name_of_the_class(trained, place, tmp_path):
    _, outcome = trained

    elasticdl.predict(
        trained_model=outcome.output, data=str(place / "rest"), reporter=Silent(),
        output=str(tmp_path / "p.csv"), columns=["label"],
    )  # fmt: skip

    rows = list(csv.DictReader((tmp_path / "p.csv").read_text().splitlines()))
    assert [row["label"] for row in rows] == [row["prediction"] for row in rows]
    assert {row["label"] for row in rows} <= {"bar", "line", "stroke"}


def test_wrong_classes_in_the_model_file_are_to_be_corrected_there(place, tmp_path):
    (place / "zoo/misnamed_model.py").write_text(TORCH + 'classes = ["pipe", "dash"]\n')

    with pytest.raises(
        DataError,
        match=r"'bar', which is not one of the model's 2 classes 'pipe', 'dash' \(there are 3 "
        r"class folders\)\. .*\. If the model file lists the wrong classes, correct them there\.$",
    ):
        train(place, tmp_path / "out", "misnamed_model")


def test_a_misspelt_class_of_the_model_file_is_named(place, tmp_path):
    (place / "zoo/misspelt_model.py").write_text(TORCH + 'classes = ["bar", "line", "stoke"]\n')

    with pytest.raises(
        DataError,
        match=r"the class folder 'stroke', which is not .* `classes` of .*misspelt_model\.py:27 "
        r"has 'stoke', which the data do not have; did you mean 'stroke'\?$",
    ):
        train(place, tmp_path / "out", "misspelt_model")


@pytest.mark.parametrize("code", [KERAS, TORCH])
@pytest.mark.parametrize("num", [2, 4])
def test_other_outputs_than_classes_are_noted_before_the_first_step(place, tmp_path, code, num):
    names = ["bar", "line", "stroke", "dot"]
    data = place / ("train" if num == 4 else "rest")
    (tmp_path / "zoo").mkdir()
    listed = f"classes = {names}\n" if num == 4 else ""
    (tmp_path / "zoo/noted.py").write_text(code + listed)
    seen = []

    class Recorder(Silent):
        def note(self, message):
            seen.append(message)

        def advanced(self, done, facts):
            seen.append(done)

    train(
        place, tmp_path / "out", "noted", model_zoo=str(tmp_path / "zoo"), data=str(data),
        validation_data=None, num_epochs=1, reporter=Recorder(),
    )  # fmt: skip

    before = seen[: next(i for i, each in enumerate(seen) if isinstance(each, int))]
    (note,) = [each for each in before if "the model has names" in each]
    assert f"the model has names for {num} classes, but its output is for 3" in note


@pytest.mark.parametrize("model_def", ["cifar10", "mnist"])
def test_a_prebuilt_model_with_more_outputs_than_classes_is_noted_with_its_param(
    place, tmp_path, model_def
):
    options = {"model_zoo": None, "validation_data": None, "max_steps": 1, "reporter": Notes()}
    data = tmp_path / "data"
    for name in ("bar", "dot"):
        (data / name).mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(data / name / "0.png")

    train(place, tmp_path / "out", model_def, **options, data=str(data))

    (note,) = [
        each for each in options["reporter"].texts if "outputs" in each or "output is" in each
    ]
    assert note == (
        "The model has names for 2 classes, but its output is for 10: the other classes are "
        'predicted as their numbers. Set params={"num_classes": 2}.'
    )


@pytest.mark.parametrize("code", ["keras_model", "torch_model"])
def test_a_class_without_an_output_is_refused_with_one_record(place, tmp_path, code):
    written = (place / f"zoo/{code}.py").read_text()
    written = written.replace("Dense(3)", "Dense(2)").replace("Linear(108, 3)", "Linear(108, 2)")
    (place / f"zoo/small_{code}.py").write_text(written)

    with pytest.raises(
        DataError,
        match=r"the data have label 2, but the model has 2 outputs, for labels 0 to 1\. There are "
        r"3 classes \('bar', 'line', 'stroke'\)\. Found in [^,]*/stroke/\d\d\.png, record 0"
        r"(, and \d+ more records? \(other .*\))?\.\n"
        r"  Correct the labels, or give the model 3 outputs, one for each class\.$",
    ):
        train(place, tmp_path / "out", f"small_{code}")


@pytest.mark.parametrize(
    "stack",
    [
        "np.stack([r['image'] for r in records])",
        "np.array([r['image'] for r in records])",
        "torch.stack([torch.tensor(r['image']) for r in records])",
        None,
    ],
)
def test_images_of_different_sizes_without_a_schema_are_to_be_resized(tmp_path, stack):
    for name, size in (("a", (8, 6)), ("b", (9, 5))):
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.new("RGB", size).save(tmp_path / "data" / name / "1.png")
    code = f"def input_fn(records):\n    return {stack}, np.zeros(2)\n" if stack else ""
    (tmp_path / "model.py").write_text(
        "import numpy as np\n" + TORCH.removeprefix(INPUT.replace("SHAPE", "[3, 6, 6]")) + code
    )

    with pytest.raises(ElasticDLError) as caught:
        elasticdl.train(
            data=str(tmp_path / "data"),
            output=str(tmp_path / "out"),
            model_zoo=str(tmp_path),
            model_def="model.custom_model",
        )

    message = str(caught.value)
    assert "Write input_fn" not in message
    assert "have different sizes, such as the shapes [" in message
    assert "[6, 8, 3]" in message
    assert message.endswith(
        "Add to the model file:\n    def data_schema():\n        return ["
        '{"name": "image", "shape": [5, 9, 3], "dtype": "uint8"}, '
        '{"name": "label", "shape": [], "dtype": "int64"}]'
    )


@pytest.mark.parametrize("sizes", [((8, 6), (9, 5)), ((8, 6), (8, 6))])
@pytest.mark.parametrize("has_input", [True, False])
def test_images_of_another_size_than_the_models_are_to_get_its_shape(tmp_path, sizes, has_input):
    for name, size in zip("ab", sizes, strict=True):
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.new("RGB", size).save(tmp_path / "data" / name / "1.jpg")
    rest = KERAS.removeprefix(INPUT.replace("SHAPE", "[6, 6, 1]")).replace("6, 6, 1", "4, 3, 3")
    code = INPUT[INPUT.index("def input_fn") :] if has_input else ""
    (tmp_path / "model.py").write_text(f"import numpy as np\n{code}{rest}")

    with pytest.raises(ElasticDLError) as caught:
        elasticdl.train(
            data=str(tmp_path / "data"),
            output=str(tmp_path / "out"),
            model_zoo=str(tmp_path),
            model_def="model.custom_model",
        )

    assert str(caught.value).endswith(
        "dd to the model file:\n    def data_schema():\n        return ["
        '{"name": "image", "shape": [4, 3, 3], "dtype": "uint8"}, '
        '{"name": "label", "shape": [], "dtype": "int64"}]'
    )


def test_predictions_of_a_flat_folder_are_keyed_by_file_names(trained, place, tmp_path):
    _, outcome = trained

    elasticdl.predict(
        trained_model=outcome.output,
        data=str(place / "train/line"),
        output=str(tmp_path / "p.csv"),
        reporter=Silent(),
    )

    keys = [row.partition(",")[0] for row in (tmp_path / "p.csv").read_text().splitlines()[1:]]
    assert keys == [f"{i:02}.png:0" for i in range(NUM_PER_CLASS)]


def test_a_training_on_images_resumes_with_the_same_numbers(trained, place, tmp_path):
    model_def, outcome = trained

    train(place, tmp_path / "out", model_def, max_steps=10)
    train(place, tmp_path / "out", model_def)

    assert_same_bits(weights(tmp_path / "out"), weights(outcome.output))


def test_images_without_classes_are_refused_before_the_first_step(place, tmp_path):
    with pytest.raises(SchemaError, match="has no class, so the field 'label' is missing"):
        train(place, tmp_path / "out", "torch_model", data=str(place / "train/line"))


def test_validation_images_without_classes_are_refused(place, tmp_path):
    flat = str(place / "train/line")
    with pytest.raises(
        SchemaError, match="has no class.* If 'line' is .* validation_data='?/.*/train"
    ):
        train(place, tmp_path / "out", "torch_model", validation_data=flat)


def test_an_evaluation_on_images_without_classes_is_refused(trained, place):
    with pytest.raises(SchemaError, match="has no class.* If 'line' is .* data='?/.*/train"):
        elasticdl.evaluate(
            trained_model=trained[1].output, data=str(place / "train/line"), reporter=Silent()
        )


def test_the_classes_of_a_folder_are_noted(place, tmp_path):
    notes = Notes()

    train(place, tmp_path / "out", "torch_model", num_epochs=1, reporter=notes)

    assert "3 classes: bar, line, stroke" in notes.texts


def test_folders_that_differ_only_by_case_are_named(place, tmp_path):
    notes = []
    reporter = Silent()
    reporter.note = notes.append
    draw(tmp_path / "data", {0: "bar", 1: "line", 2: "Line"})
    options = {"data": str(tmp_path / "data"), "num_epochs": 1, "reporter": reporter}

    train(place, tmp_path / "out", "torch_model", validation_data=None, **options)

    found = [note for note in notes if "are 2 classes" in note]
    assert [note.partition(",")[0] for note in found] == ["'Line' and 'line' are 2 classes"]


def test_a_share_of_the_images_is_held_out(place, tmp_path):
    outcome = train(
        place, tmp_path / "out", "torch_model", validation_data=None, validation_split=0.25
    )

    assert outcome.metrics["val_accuracy"] == 1.0
    description = load_trained_model(outcome.output).description
    assert tuple(description.classes) == ("bar", "line", "stroke")


def test_splitting_images_into_files_is_refused(place, tmp_path):
    with pytest.raises(UsageError, match="is a folder of images, which are not copied"):
        split_files(
            str(place / "train"),
            str(tmp_path / "parts"),
            parse_parts("a=0.5,b=0.5"),
            on_progress=lambda *_: None,
        )


# --- parties -------------------------------------------------------------------------------------


def simulated(place, output, model_def):
    model = ModelReference(str(place / "zoo"), model_def)
    training = TrainingOptions(minibatch_size=8)
    federation = Federation(num_rounds=6, num_parties=2, join_timeout_s=1.0)
    job = Job("train", "", str(output), model=model, training=training, federation=federation)
    members = [SimulatedMember(f"p{i}", str(place / name)) for i, name in enumerate(_OF_PARTIES)]
    return simulate.train(job, Silent(), members)


_OF_PARTIES = ("train", "rest")


def test_parties_number_classes_by_the_model_file(place, tmp_path):
    simulated(place, tmp_path / "out", "named_model")

    found = elasticdl.evaluate(
        trained_model=str(tmp_path / "out"), data=str(place / "rest"), reporter=Silent()
    )
    assert found.metrics["accuracy"] == 1.0


def test_parties_without_common_class_numbers_are_refused(place, tmp_path):
    with pytest.raises(ElasticDLError, match=r"in the model file: classes = \['bar', 'line'"):
        simulated(place, tmp_path / "out", "torch_model")


def test_distributing_images_to_parties_is_refused(place, tmp_path):
    with pytest.raises(DataError, match="is a folder of images, which cannot be distributed"):
        write_federation(
            tmp_path / "parties",
            data=str(place / "train"),
            validation_data=None,
            num_parties=2,
            split="iid",
            settings={},
            label=None,
            seed=0,
            address={},
            aggregator={},
            model=lambda _: {},
        )


# --- workers -------------------------------------------------------------------------------------


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workers_train_on_a_folder_and_resume(place, tmp_path):
    options = {"num_workers": 2, "global_batch_size": 8, "minibatch_size": 4}
    train(place, tmp_path / "out", "torch_model", **options, max_steps=5)
    outcome = train(place, tmp_path / "out", "torch_model", **options)

    assert outcome.step == 6 * 3 * NUM_PER_CLASS // 8
    assert outcome.metrics["val_accuracy"] == 1.0
    description = load_trained_model(outcome.output).description
    assert tuple(description.classes) == ("bar", "line", "stroke")
