"""The keys of a saved model's spec: what each mistake is told."""

from __future__ import annotations

import pytest

from elasticdl.dialects.saved_spec import read_spec
from elasticdl.errors import DefinitionError

GOOD = """\
model:
  name: KerasFLModel
  path: ibmfl.model.keras_fl_model
  spec:
    model_name: keras-cnn
    model_definition: files/model.h5
    custom_objects:
      - {key: my_loss, value: other_name, path: loss.py}
    compile_model_options:
      loss: categorical_crossentropy
      optimizer: adadelta
      metrics: [accuracy]
"""


@pytest.fixture
def read(tmp_path):
    def read_it(text):
        path = tmp_path / "model.yml"
        path.write_text(text)
        return read_spec(path, "model.yml")

    return read_it


def test_the_documented_keys_are_read_with_paths_beside_the_file(read, tmp_path):
    spec = read(GOOD)

    assert spec.library == "keras"
    assert spec.files == {"model_definition": tmp_path / "files" / "model.h5"}
    assert spec.spec.compile_model_options.optimizer == "adadelta"
    (custom,) = spec.custom_objects
    assert (custom.key, custom.value, custom.path) == ("my_loss", "other_name", "loss.py")
    assert spec.where == "model.yml:1"


def test_the_section_may_be_alone_or_beside_others(read):
    alone = "\n".join(line[2:] for line in GOOD.splitlines()[1:])

    assert read(alone).files == read(GOOD).files == read(f"data: {{uri: x}}\n{GOOD}").files


def test_the_path_alone_determines_the_kind_of_model(read):
    spec = read(GOOD.replace("  name: KerasFLModel\n", "").replace("keras_fl", "tensorflow_fl"))

    assert spec.library == "keras"


@pytest.mark.parametrize("key", ["compile_model_options", "compiled_options"])
def test_compile_options_have_two_names(read, key):
    spec = read(GOOD.replace("compile_model_options", key))

    assert spec.options_key == key
    assert spec.options == {
        "loss": "categorical_crossentropy",
        "optimizer": "adadelta",
        "metrics": ["accuracy"],
    }


def test_a_mistake_in_the_options_is_reported_with_the_used_name(read):
    with pytest.raises(DefinitionError, match=r"model.yml:12: compiled_options has no key 'metr"):
        read(GOOD.replace("compile_model_options", "compiled_options").replace("metrics", "metric"))


def test_architecture_and_weights_can_replace_the_definition(read, tmp_path):
    parts = "model_architecture: a.json\n    model_weights: w.h5"
    spec = read(GOOD.replace("model_definition: files/model.h5", parts))

    assert set(spec.files) == {"model_architecture", "model_weights"}


MISTAKES = {
    "both names of the options": (
        ("compile_model_options:", "compiled_options: {loss: mse}\n    compile_model_options:"),
        "model.yml:9: the spec has compile_model_options and compiled_options",
        "Remove one of them",
    ),
    "nearly the other name of the options": (
        ("compile_model_options", "compiled_option"),
        "model.yml:9: the spec of a KerasFLModel has no key 'compiled_option'",
        "Did you mean compiled_options?",
    ),
    "a name that is nearly right": (
        ("name: KerasFLModel", "name: KerasFlModel"),
        "model.yml:2: name is 'KerasFlModel'",
        "Did you mean KerasFLModel?",
    ),
    "a model that is not supported": (
        ("name: KerasFLModel", "name: SklearnSGDFLModel"),
        "model.yml:2: models of the kind SklearnSGDFLModel are not supported",
        "expected one of KerasFLModel",
    ),
    "name and path of two models": (
        ("keras_fl_model", "pytorch_fl_model"),
        "model.yml:3: path is 'ibmfl.model.pytorch_fl_model'",
        "expected 'ibmfl.model.keras_fl_model'",
    ),
    "no model": (
        ("model_definition: files/model.h5", "model_weights: w.h5"),
        "the spec names no model",
        "model_architecture and model_weights",
    ),
    "the whole and a part": (
        ("model_definition: files/model.h5", "model_definition: a.h5\n    model_weights: w.h5"),
        "model.yml:6: model_definition is the whole model",
        "Remove one or the other",
    ),
    "a custom object without a path": (
        (", path: loss.py}", "}"),
        "model.yml:7: an entry of custom_objects is",
        "path (the Python file)",
    ),
    "an option of compile that is none": (
        ("metrics: [accuracy]", "metric: [accuracy]"),
        "model.yml:12: compile_model_options has no key 'metric'",
        "Did you mean metrics?",
    ),
    "a spec that is a text": (
        ("spec:\n    model_name: keras-cnn", "spec: spec\n  other:\n    model_name: x"),
        "model.yml:5: the section `model` has no key 'other'",
        "expected name, path, spec",
    ),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_a_mistake_is_reported_with_its_line_and_a_remedy(what, read):
    (old, new), problem, way_out = MISTAKES[what]
    assert old in GOOD

    with pytest.raises(DefinitionError) as raised:
        read(GOOD.replace(old, new, 1))

    assert problem in str(raised.value)
    assert way_out in str(raised.value)


def test_a_spec_can_be_written_with_other_files(read):
    values = read(GOOD).values_with({"model_definition": "model_files/model_definition.h5"})

    assert values["model"]["spec"]["model_definition"] == "model_files/model_definition.h5"
    assert values["model"]["spec"]["compile_model_options"]["optimizer"] == "adadelta"
    assert list(values) == ["model"]
