"""What `session check` finds: each rule in a tiny project that breaks it, nothing in a whole one.

Rules of config, code and data run without a framework; those of the model share TensorFlow in
this process.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from elasticdl.cli.session import session
from elasticdl.errors import UsageError
from elasticdl.sessions import export
from elasticdl.sessions.check import GROUPS, check
from elasticdl.sessions.checks.finding import Severity

pytestmark = pytest.mark.usefixtures("in_this_process", "unhurried")

DATASET = """
import numpy as np
from abstractions import DataLoaderBase


class Loader(DataLoaderBase):
    def _set_defaults(self):
        self.shuffle = True

    def _load_params(self, config):
        self.shuffle = config.data_loader.shuffle

    def _rows(self, number):
        rows = np.random.RandomState(7)
        return rows.uniform(0, 1, (number, 16)).astype("float32"), np.arange(number) % 3

    def create_training_generator(self):
        def examples():
            x, y = self._rows(10)
            while True:
                for i in np.random.permutation(10) if self.shuffle else range(10):
                    weight = 1.0
                    yield x[i], y[i], weight
        return examples(), 10

    def create_validation_generator(self):
        def examples():
            x, y = self._rows(6)
            for i in range(6):
                yield x[i], y[i], 1.0
        return examples(), 6

    def create_test_generator(self):
        def examples():
            x, y = self._rows(5)
            for i in range(5):
                yield x[i], y[i], f"t{i}"
        return examples(), 5

    def get_validation_index(self):
        return [f"v{i}" for i in range(6)]
"""
PREPROCESSING = """
import numpy as np
from abstractions import PreprocessorBase


class Preprocessor(PreprocessorBase):
    def _set_defaults(self):
        self.batch_size = 4

    def _load_params(self, config):
        self.batch_size = config.batch_size

    def image_preprocess(self, image):
        return image

    def label_preprocess(self, label):
        return label

    def add_image_preprocess(self, generator):
        for x, y, third in generator:
            yield self.image_preprocess(x), y, third

    def add_label_preprocess(self, generator):
        for x, y, third in generator:
            yield x, self.label_preprocess(y), third

    def batchify(self, generator, n_data_points):
        return self._batches(generator), -(-n_data_points // self.batch_size)

    def _batches(self, generator):
        waiting = []
        for example in generator:
            waiting.append(example)
            if len(waiting) == self.batch_size:
                yield tuple(np.array(part) for part in zip(*waiting))
                waiting = []
        if waiting:
            yield tuple(np.array(part) for part in zip(*waiting))
"""
MODELS = """
import keras
from abstractions import ModelBuilderBase


class Builder(ModelBuilderBase):
    def _set_defaults(self):
        self.units = 3

    def _load_params(self, config):
        self.units = config.model_builder.units

    def get_compiled_model(self):
        inputs = keras.Input((16,))
        outputs = keras.layers.Dense(self.units, activation="softmax")(inputs)
        model = keras.Model(inputs, outputs)
        model.compile(
            optimizer="adam",
            loss=keras.losses.SparseCategoricalCrossentropy(),
            metrics=["accuracy"],
        )
        return model

    def get_callbacks(self):
        return []
"""
EVALUATION = """
import numpy as np
from abstractions import EvaluatorBase


def right(y_true, y_pred):
    return float(np.argmax(y_pred) == y_true)


class Evaluator(EvaluatorBase):
    def get_eval_funcs(self):
        return {"right": right}
"""
CONFIG = """
src_code_path: src
data_loader_class: dataset.Loader
preprocessor_class: preprocessing.Preprocessor
model_builder_class: models.Builder
evaluator_class: evaluation.Evaluator
epochs: 2
batch_size: 4
seed: 3
data_loader:
  shuffle: true
model_builder:
  units: 3
export:
  metric: val_loss
  mode: min
"""
FILES = {
    "src/dataset.py": DATASET,
    "src/preprocessing.py": PREPROCESSING,
    "src/models.py": MODELS,
    "src/evaluation.py": EVALUATION,
    "runs/one/config.yaml": CONFIG,
}
DATA, PRE, MODEL, EVAL, CONF = FILES
NO_MODEL = GROUPS[: GROUPS.index("model")]
UP_TO_MODEL = GROUPS[: GROUPS.index("model") + 1]


@dataclass
class Project:
    """A whole project in a folder, to be broken."""

    root: Path

    def edit(self, file: str, *changes: tuple[str, str]) -> None:
        path = self.root / file
        text = path.read_text() if path.exists() else ""
        for old, new in changes:
            assert text.count(old) >= 1, f"{file} has no {old!r}"
            text = text.replace(old, new, 1) if old else new
        path.write_text(text)

    def check(self, groups=None, **settings):
        settings.setdefault("data_dir", str(self.root))
        return check("one", project_root=str(self.root), groups=groups, **settings)

    def line(self, file: str, text: str) -> int:
        lines = (self.root / file).read_text().splitlines()
        return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.fixture
def unhurried(monkeypatch):
    """Try the export even if the machine was busy before."""
    monkeypatch.setattr("elasticdl.sessions.checks.steps._OPTIONAL_UNTIL_S", float("inf"))


@pytest.fixture
def project(tmp_path, monkeypatch) -> Project:
    root = tmp_path / "project"
    write_whole(root)
    monkeypatch.chdir(root)
    return Project(root)


def write_whole(root: Path) -> None:
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def every(report, severity=None):
    return [f for s in Severity if severity in (None, s) for f in report.of(s)]


def texts(report, severity=None):
    return [f"{finding.severity}: {finding}" for finding in every(report, severity)]


def test_a_complete_project_only_lacks_a_repository(project, monkeypatch) -> None:
    # Once, the exported model is loaded in a process of its own.
    monkeypatch.setattr(export, "subprocess", subprocess)
    report = project.check()

    assert [text.partition(" the project")[0] for text in texts(report)] == [
        f"info: {project.root}:"
    ]
    assert [group.title for group in report.groups] == list(GROUPS)
    assert report.ok


def test_checking_writes_nothing_into_the_project(project, monkeypatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", False)

    def listing():
        return {
            path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
            for path in [project.root, *project.root.rglob("*")]
        }

    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], cwd=project.root, check=True)
    before = listing()
    report = project.check()

    assert listing() == before
    assert "commit" in report.groups[-1].looked_at

    project.edit(CONF, ("seed: 3", "seed: 4"))
    assert "differs from its commit" in texts(project.check(["project"]))[0]


# --- broken rules -----------------------------------------------------------------------------


@dataclass
class Broken:
    """A change to a file, and what is to be found.

    `where` is a file and a text in the line that is to be named.
    """

    file: str
    changes: list[tuple[str, str]]
    severity: str
    says: list[str]
    where: tuple[str, str] | None = None
    # Something else is broken by it, too.
    alone: bool = True


DATA_RULES = {
    "a key is missing": Broken(
        CONF,
        [("batch_size: 4\n", "")],
        "error",
        ["has no key 'batch_size'", "It has src_code_path"],
    ),
    "two keys are wrong": Broken(
        CONF,
        [("mode: min", "mode: down"), ("epochs: 2", "epochs: 0")],
        "error",
        ["export.mode is 'down'; expected min or max"],
        (CONF, "mode: down"),
    ),
    "a class is not there": Broken(
        CONF,
        [("models.Builder", "models.Bilder")],
        "error",
        ["model_builder_class: src/models.py has no 'Bilder'", "Did you mean 'Builder'"],
        (CONF, "models.Bilder"),
    ),
    "an import is missing": Broken(
        PRE,
        [("import numpy as np\n", "")],
        "error",
        ["the name 'np' is used but never defined", "import it at the top of the file"],
        (PRE, "np.array"),
    ),
    "a name is misspelled": Broken(
        EVAL,
        [('"right": right', '"right": rigth')],
        "error",
        ["'rigth' is used but never defined", "Define it"],
        (EVAL, "rigth"),
    ),
    "a package is not there": Broken(
        DATA,
        [("import numpy as np", "import numpy as np\nimport no_such_package")],
        "error",
        ["'no_such_package' is imported, but is neither installed nor a file", "Install"],
        (DATA, "no_such_package"),
    ),
    "a file is not Python": Broken(
        "src/scratch.py",
        [("", "def f(:\n")],
        "warning",
        ["this is not valid Python"],
        ("src/scratch.py", "def f("),
    ),
    "a method is missing": Broken(
        PRE,
        [("def batchify", "def batchfy")],
        "error",
        ["Preprocessor has no method batchify()", "def batchify(self, generator, n_data_points)"],
        (PRE, "class Preprocessor"),
    ),
    "a method takes too little": Broken(
        PRE,
        [("def label_preprocess(self, label)", "def label_preprocess(self)")],
        "error",
        ["label_preprocess(self) cannot be called as label_preprocess(label)", "(self, label)"],
        (PRE, "def label_preprocess"),
    ),
    "a component lacks a key": Broken(
        CONF,
        [("  shuffle: true", "  shufle: true")],
        "error",
        ["data_loader has no key 'shuffle'. Did you mean shufle"],
    ),
    "the generator is no pair": Broken(
        DATA,
        [("return examples(), 10", "return examples()")],
        "error",
        ["create_training_generator() returned", "expected a pair"],
    ),
    "batches are no tuples": Broken(
        PRE,
        [("yield tuple(np.array(part) for part in zip(*waiting))", "yield np.zeros(3)")],
        "error",
        ["expected tuples (x, y, sample weight)"],
    ),
    "x is not finite": Broken(
        PRE,
        [("return image", "return image * np.float32('nan')")],
        "warning",
        ["training: x float32[4, 16]: 160 of 160 values are NaN or infinite"],
        (PRE, "def image_preprocess"),
    ),
    "y is a text": Broken(
        PRE,
        [("return label", "return 'cat'")],
        "error",
        ["training: y text[4] is not a number: ['cat']", "label_preprocess"],
        (PRE, "def label_preprocess"),
    ),
    "there are fewer weights": Broken(
        PRE,
        [
            (
                "yield tuple(np.array(part) for part in zip(*waiting))",
                "x, y, w = zip(*waiting); yield np.array(x), np.array(y), np.array(w[:3])",
            )
        ],
        "error",
        ["create_training_generator()", "sample weights of the shape [3] for 4 examples"],
    ),
    "n_iter leaves examples out": Broken(
        PRE,
        [("-(-n_data_points // self.batch_size)", "n_data_points // self.batch_size")],
        "warning",
        ["training: n_iter is 2, but 10 examples make 3 batches of 4: 2 examples", "ceil("],
        (PRE, "def batchify"),
    ),
    "n_iter is too large": Broken(
        PRE,
        [("-(-n_data_points // self.batch_size)", "n_data_points")],
        "warning",
        ["training: n_iter is 10, but 10 examples make only 3 batches"],
        (PRE, "def batchify"),
        alone=False,
    ),
    "the batch size is another": Broken(
        PRE,
        [("self.batch_size = config.batch_size", "self.batch_size = 5")],
        "warning",
        ["training: batches have 5 examples; batch_size of the config is 4"],
        (PRE, "def batchify"),
    ),
    "the training data ends early": Broken(
        DATA,
        [("return examples(), 10", "return examples(), 40"), ("while True", "if True")],
        "error",
        [
            "create_training_generator() ended after 3 batches",
            "expected 10, the length it reported",
        ],
    ),
    "the training data is not the same again": Broken(
        DATA,
        [("np.random.permutation(10)", "np.random.Generator(np.random.PCG64()).permutation(10)")],
        "warning",
        [
            "training: when created a second time, the generator yields different examples",
            "could not be resumed",
            "which are seeded for you",
        ],
        (DATA, "def create_training_generator"),
    ),
    "validation is shuffled": Broken(
        DATA,
        [("for i in range(6):", "for i in np.random.permutation(6):")],
        "error",
        [
            "validation: the order of the generator's examples is random",
            "the ids of other examples",
        ],
        (DATA, "def create_validation_generator"),
    ),
    "validation has other ids": Broken(
        DATA,
        [('f"v{i}" for i in range(6)', 'f"v{i}" for i in range(7)')],
        "error",
        ["get_validation_index() has 7 ids", "declares 6 examples"],
    ),
    "a test id comes twice": Broken(
        DATA,
        [('f"t{i}"', '"t"')],
        "warning",
        ["test: 1 of 1 ids occur more than once: 't'", "one row per example"],
        (DATA, "def create_test_generator"),
    ),
    "a validation id comes twice": Broken(
        DATA,
        [('f"v{i}" for i', 'f"v{i // 4}" for i')],
        "warning",
        ["validation: 2 of 2 ids occur more than once: 'v0', 'v1'"],
        (DATA, "def get_validation_index"),
    ),
    "an id is no text": Broken(
        DATA,
        [('f"t{i}"', "None")],
        "error",
        ["create_test_generator()", "expected its id, a string or a number"],
    ),
    "test has no id": Broken(
        DATA,
        [('yield x[i], y[i], f"t{i}"', "yield x[i], y[i]")],
        "error",
        ["test: the generator yields a tuple of 2; expected tuples (x, y, id)"],
        (DATA, "def create_test_generator"),
    ),
    "test ends early": Broken(
        DATA,
        [("return examples(), 5", "return examples(), 8")],
        "error",
        ["test: the generator ended after 5 examples; it was declared to have 8"],
        (DATA, "def create_test_generator"),
    ),
    "test never ends": Broken(
        DATA,
        [
            (
                "            for i in range(5):",
                (
                    "            import itertools\n"
                    "            for i in (j % 5 for j in itertools.count()):"
                ),
            )
        ],
        "warning",
        ["test: the generator continues after the 5 examples", "Let it end"],
        (DATA, "def create_test_generator"),
    ),
    "x is made of objects": Broken(
        PRE,
        [("return image", "return np.array([None] * 16)")],
        "error",
        ["training: x object[4, 16] has examples of different shapes, or examples that are not"],
        (PRE, "def image_preprocess"),
    ),
    "y is not finite": Broken(
        PRE,
        [("return label", "return float('nan')")],
        "warning",
        ["training: y float64[4]: 10 of 10 values are NaN or infinite"],
        (PRE, "def label_preprocess"),
    ),
    "a weight is not finite": Broken(
        DATA,
        [("weight = 1.0", "weight = float('inf') if i == 7 else 1.0")],
        "warning",
        ["training: w float32[4]: 1 of 10 values are NaN or infinite"],
        (DATA, "def create_training_generator"),
    ),
    "training has no example": Broken(
        DATA,
        [("return examples(), 10", "return examples(), 0")],
        "error",
        ["create_training_generator(): an epoch has no batch"],
    ),
    "validation has no example": Broken(
        DATA,
        [("return examples(), 6", "return examples(), 0")],
        "error",
        ["validation: an epoch has no batch"],
        (DATA, "def create_validation_generator"),
    ),
    "test has no example": Broken(
        DATA,
        [("return examples(), 5", "return examples(), 0")],
        "error",
        ["test: the generator is declared to have 0 examples"],
        (DATA, "def create_test_generator"),
    ),
    "validation has no ids": Broken(
        DATA,
        [('[f"v{i}" for i in range(6)]', "None")],
        "info",
        ["get_validation_index() returns nothing; rows of reports are numbered"],
        (DATA, "def get_validation_index"),
    ),
    "the preprocessing loses ids": Broken(
        PRE,
        [("yield x, self.label_preprocess(y), third", "yield x, self.label_preprocess(y)")],
        "error",
        ["create_test_generator() yields", "tuples of three: x, y, and the id"],
    ),
    "test examples have different shapes": Broken(
        DATA,
        [('yield x[i], y[i], f"t{i}"', 'yield x[i][i:], y[i], f"t{i}"')],
        "error",
        ["Loader.create_test_generator() raised:", "inhomogeneous shape"],
    ),
    "a file is not there": Broken(
        CONF,
        [("models.Builder", "modls.Builder")],
        "error",
        ["model_builder_class=modls.Builder", "Did you mean models.Builder"],
        (CONF, "modls"),
    ),
}
MODEL_RULES = {
    "no model is compiled": Broken(
        MODEL,
        [("model.compile(", "dict(")],
        "error",
        ["is not compiled", "Call model.compile("],
        (MODEL, "class Builder"),
    ),
    "x has another shape than the input": Broken(
        MODEL,
        [("keras.Input((16,))", "keras.Input((4, 4))")],
        "error",
        ["training: the model expects examples of the shape [4, 4]; x has examples of [16]"],
        (PRE, "def image_preprocess"),
    ),
    "validation has another shape than the input": Broken(
        DATA,
        [("yield x[i], y[i], 1.0", "yield x[i][:8], y[i], 1.0")],
        "error",
        ["validation: the model expects examples of the shape [16]; x has examples of [8]"],
        (PRE, "def image_preprocess"),
    ),
    "labels are more than classes": Broken(
        CONF,
        [("units: 3", "units: 2")],
        "error",
        ["y is within 0..2; with 2 outputs", "expects 0 to 1", "one unit per class"],
        (PRE, "def label_preprocess"),
    ),
    "labels are numbers and the loss is for one-hot": Broken(
        MODEL,
        [("SparseCategoricalCrossentropy()", "CategoricalCrossentropy()")],
        "error",
        ["y is int64[4], but the model returns float32[4, 3]", "sparse_categorical_crossentropy"],
    ),
    "softmax and logits": Broken(
        MODEL,
        [("SparseCategoricalCrossentropy()", "SparseCategoricalCrossentropy(from_logits=True)")],
        "warning",
        ["the last layer is a softmax", "(from_logits=True)", "Write from_logits=False"],
        (MODEL, "from_logits"),
    ),
    "no activation and no logits": Broken(
        MODEL,
        [(', activation="softmax"', "")],
        "warning",
        ["the last layer has no activation", "(from_logits=False)", "Write from_logits=True"],
        (MODEL, "def get_compiled_model"),
    ),
    "a sigmoid and logits": Broken(
        MODEL,
        [
            ('self.units, activation="softmax"', '1, activation="sigmoid"'),
            ("SparseCategoricalCrossentropy()", "BinaryCrossentropy(from_logits=True)"),
        ],
        "warning",
        ["the last layer is a sigmoid, and binary_crossentropy"],
        (MODEL, "from_logits"),
    ),
    "labels of a binary loss are classes": Broken(
        MODEL,
        [
            ('self.units, activation="softmax"', '1, activation="sigmoid"'),
            ("SparseCategoricalCrossentropy()", "BinaryCrossentropy()"),
        ],
        "warning",
        ["y is within 0..2; binary_crossentropy expects 0 to 1"],
        (PRE, "def label_preprocess"),
    ),
    "a softmax of one": Broken(
        CONF,
        [("units: 3", "units: 1")],
        "warning",
        ["a softmax of one unit, which always returns 1"],
        (MODEL, "def get_compiled_model"),
        alone=False,
    ),
    "the metric of the export is not measured": Broken(
        CONF,
        [("val_loss", "val_acuracy")],
        "error",
        ["export.metric is 'val_acuracy', which is not measured", "Did you mean 'val_accuracy'"],
        (CONF, "val_acuracy"),
    ),
    "the best accuracy is the lowest": Broken(
        CONF,
        [("val_loss", "val_accuracy")],
        "warning",
        ["export.mode is min, but a larger val_accuracy is better", "mode: max"],
        (CONF, "mode: min"),
    ),
    "the best loss is the highest": Broken(
        CONF,
        [("mode: min", "mode: max")],
        "warning",
        ["export.mode is max, but a smaller val_loss is better"],
        (CONF, "mode: max"),
    ),
    "nothing is trainable": Broken(
        MODEL,
        [('optimizer="adam"', "optimizer=keras.optimizers.SGD(0.0)")],
        "warning",
        ["a step changes no weight of the model", "learning rate"],
        (MODEL, "def get_compiled_model"),
    ),
    "the step has no number": Broken(
        MODEL,
        [('optimizer="adam"', "optimizer=keras.optimizers.SGD(1e39)")],
        "error",
        ["would end after one step: model/", "contains NaN or infinity", "Lower the learning rate"],
        (MODEL, "def get_compiled_model"),
    ),
    "the model starts as NaN": Broken(
        MODEL,
        [
            (
                "Dense(self.units",
                (
                    "Dense(self.units, kernel_initializer=lambda *a, **k: "
                    "keras.ops.full(a[0], float('nan'))"
                ),
            )
        ],
        "error",
        ["the loss of the first step is nan"],
        (MODEL, "def get_compiled_model"),
    ),
    "a step of its own": Broken(
        MODEL,
        [
            (
                "class Builder",
                (
                    "class Own(keras.Model):\n    def train_step(self, data):\n"
                    "        return {}\n\n\nclass Builder"
                ),
            ),
            ("model = keras.Model(", "model = Own("),
        ],
        "error",
        ["Own has its own train_step()"],
    ),
}


def function(name, value):
    """Return the changes that give the evaluator one more function."""
    return [
        (
            "class Evaluator",
            f"def {name}(y_true, y_pred):\n    return {value}\n\n\nclass Evaluator",
        ),
        ('"right": right', f'"right": right, "{name}": {name}'),
    ]


LATER_RULES = {
    "a callback does what is done anyway": Broken(
        MODEL,
        [("return [", "return [keras.callbacks.TensorBoard('logs'), ")],
        "info",
        ["TensorBoard is ignored: ElasticDL replaces it"],
        (MODEL, "def get_callbacks"),
    ),
    "a callback watches nothing": Broken(
        MODEL,
        [("return [", "return [keras.callbacks.EarlyStopping(monitor='val_los'), ")],
        "warning",
        ["EarlyStopping monitors 'val_los', which is not measured", "Did you mean 'val_loss'"],
        (MODEL, "def get_callbacks"),
    ),
    "the model is another one each time": Broken(
        MODEL,
        [
            ("class Builder", "NUMBERS = iter(range(9))\n\n\nclass Builder"),
            ("Dense(self.units", "Dense(self.units, name=f'd{next(NUMBERS)}'"),
        ],
        "error",
        ["The checkpoint does not match this model", "model/d1/kernel"],
    ),
    "the model cannot be exported": Broken(
        MODEL,
        [
            (
                "class Builder",
                (
                    "class Odd(keras.Model):\n"
                    "    def __init__(self, units):\n        super().__init__()\n"
                    "        self.dense = keras.layers.Dense(units, activation='softmax')\n"
                    "    def call(self, x):\n"
                    # As the served function calls it.
                    "        if getattr(x, 'name', '').startswith('inputs'):\n"
                    "            raise ValueError('no way out')\n"
                    "        return self.dense(x)\n"
                    "\n\nclass Builder"
                ),
            ),
            ("model = keras.Model(inputs, outputs)", "model = Odd(self.units)"),
        ],
        "error",
        ["the model cannot be exported", "no way out"],
        (MODEL, "def get_compiled_model"),
    ),
    "a function raises": Broken(
        EVAL,
        function("raising", "y_true.mean(axis=1)"),
        "error",
        [
            "the evaluation function 'raising' raised on the example 'v0'",
            "AxisError",
        ],
        (EVAL, "y_true.mean(axis=1)"),
    ),
    "a function returns an array": Broken(
        EVAL,
        function("whole", "y_pred"),
        "error",
        ["'whole' returned a ndarray of shape [3]", "one example, not a batch"],
        (EVAL, "def whole"),
    ),
    "there are no functions": Broken(
        EVAL,
        [('{"right": right}', "3")],
        "error",
        ["The evaluation functions are a int. Expected a dict of name -> function"],
    ),
    "two functions share a name": Broken(
        EVAL,
        [('{"right": right}', "[right, right]")],
        "error",
        ["Two evaluation functions are named 'right'", "return a dict"],
        (EVAL, "def right"),
    ),
    "a key is misspelled": Broken(
        CONF,
        [("seed: 3", "sede: 3")],
        "warning",
        ["sede is not read by any component; seed is read", "Did you mean seed?"],
        (CONF, "sede"),
    ),
    "a key is read by nobody": Broken(
        CONF,
        [("  units: 3", "  units: 3\n  colour: red")],
        "info",
        ["not read by any component: model_builder.colour."],
        (CONF, "colour"),
    ),
}


# What can be broken at the same time is looked at in one run.
TOGETHER = (
    ("softmax and logits", "the best accuracy is the lowest", "nothing is trainable"),
    ("no activation and no logits", "the best loss is the highest"),
    (
        *("a callback does what is done anyway", "a callback watches nothing"),
        *("a function raises", "a function returns an array"),
        *("a key is misspelled", "a key is read by nobody"),
    ),
)


@pytest.fixture(scope="module")
def broken_together(tmp_path_factory):
    """Return what breaks a rule, and those that are broken with it; gives project and report."""

    @functools.cache
    def look(names, groups):
        project = Project(tmp_path_factory.mktemp("together"))
        write_whole(project.root)
        for name in names:
            broken = {**MODEL_RULES, **LATER_RULES}[name]
            project.edit(broken.file, *broken.changes)
        with contextlib.chdir(project.root):
            return project, project.check(groups)

    def broken_together(name, groups):
        names = next((names for names in TOGETHER if name in names), (name,))
        return look(names, tuple(groups))

    return broken_together


def found(project, report, broken):
    hits = [
        finding
        for finding in report.of(Severity(broken.severity))
        if all(part in str(finding) for part in broken.says)
    ]
    assert hits, "\n".join([str(broken.says), *texts(report)])
    if broken.where is not None:
        file, text = broken.where
        assert f"{file}:{project.line(file, text)}" in str(hits[0])


@pytest.mark.parametrize("name", DATA_RULES)
def test_data_rule(name, project) -> None:
    broken = DATA_RULES[name]
    project.edit(broken.file, *broken.changes)
    report = project.check(NO_MODEL)

    found(project, report, broken)
    assert report.ok == (broken.severity != "error" and broken.alone)


@pytest.mark.parametrize("name", MODEL_RULES)
def test_model_rule(name, broken_together) -> None:
    broken = MODEL_RULES[name]
    project, report = broken_together(name, UP_TO_MODEL)

    found(project, report, broken)
    assert report.ok == (broken.severity != "error" and broken.alone)


@pytest.mark.parametrize("name", LATER_RULES)
def test_later_rule(name, broken_together) -> None:
    broken = LATER_RULES[name]
    of = {"export": "export", "checkpoint": "checkpoint"}
    wanted = [title for title in GROUPS if title not in of or of[title] in " ".join(broken.says)]
    found(*broken_together(name, wanted), broken)


@pytest.mark.parametrize(("file", "method"), [(EVAL, "get_eval_funcs"), (MODEL, "get_callbacks")])
def test_an_error_in_the_projects_code_is_a_finding(file, method, project) -> None:
    project.edit(
        file, (f"def {method}(self):", f"def {method}(self):\n        raise KeyError('k')")
    )
    (error, *_) = project.check().of(Severity.ERROR)

    assert "KeyError: 'k'" in error.what
    assert f'{file}", line {project.line(file, "raise KeyError")}' in error.what


SPARSE, ONE_HOT = "sparse_categorical_crossentropy", "categorical_crossentropy"


@pytest.mark.parametrize(
    ("loss", "labels", "says"),
    [
        (SPARSE, [0, 1, 2], None),
        (SPARSE, [0, 1, 3], "y is within 0..3; with 3 outputs"),
        (SPARSE, [-1, 1, 2], "y is within -1..2"),
        (SPARSE, [0.0, 1.5, 2.0], "expects whole numbers"),
        (SPARSE, np.eye(3), "which looks one-hot"),
        (ONE_HOT, np.eye(3), None),
        (ONE_HOT, np.eye(3)[:, :2], "Use the same number of classes in both"),
        ("mean_squared_error", [1.0, 2.0, 3.0], "broadcasts each value of y against several"),
        ("mean_squared_error", np.ones((3, 3)), None),
        ("a_function_of_the_users", [1.0, 2.0, 3.0], None),
    ],
)
def test_labels_must_fit_outputs_and_loss(loss, labels, says) -> None:
    from elasticdl.data.batch import Batch
    from elasticdl.sessions.checks import model
    from elasticdl.training.keras.model_facts import ModelFacts, OutputFacts

    facts = ModelFacts(((None, 16),), (OutputFacts((None, 3), "softmax", loss, False),))
    batch = Batch(np.zeros((3, 16)), (np.array(labels), np.ones(3)), 3)
    found = [str(f) for f in model.targets(facts, [batch], np.full((3, 3), 1 / 3), "pre.py:1")]

    assert (found == []) if says is None else (says in found[0] and "pre.py:1" in found[0])


@pytest.mark.parametrize(
    ("outputs", "from_logits", "says"),
    [
        ([[0.5, 0.5], [0.1, 0.9]], True, "the last layer is a softmax"),
        ([[0.5, 0.5], [0.1, 0.9]], False, None),
        ([[0.5, -0.5], [0.1, 0.9]], False, "the last layer has no activation"),
        ([[0.5, -0.5], [0.1, 0.9]], True, None),
        ([[0.5, 0.7], [0.1, 0.9]], False, None),
    ],
)
def test_an_unknown_output_layer_is_judged_by_its_values(outputs, from_logits, says) -> None:
    from elasticdl.sessions.checks import model
    from elasticdl.training.keras.model_facts import ModelFacts, OutputFacts

    facts = ModelFacts((), (OutputFacts((), None, SPARSE, from_logits),))
    found = [str(f) for f in model.last_layers(facts, np.array(outputs), "m.py:1", "m.py:2")]

    assert (found == []) if says is None else (says in found[0] and "m.py:2" in found[0])


def test_a_finding_names_its_input() -> None:
    from elasticdl.data.batch import Batch
    from elasticdl.sessions.checks import batches

    features = {"left": np.ones((2, 3)), "right": np.array([[1.0, np.nan], [2.0, 3.0]])}
    places = batches.Places("training", "a.py:1", "b.py:2", "b.py:3", "b.py:4")
    (found,) = batches.arrays([Batch(features, (np.ones(2), np.ones(2)), 2)], places)

    assert "x['right'] float64[2, 2]: 1 of 4 values are NaN" in found.what


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        (lambda config: config.a, {"a"}),
        (lambda config: config.b.c, {"b", "b.c"}),
        (lambda config: config.get("z"), {"z"}),
        (lambda config: hasattr(config, "z"), {"z"}),
        (lambda config: vars(config.b), {"b", "b.c", "b.d"}),
        (lambda config: config.b.to_dict(), {"b", "b.c", "b.d"}),
        (lambda config: config.with_values(z=1).a, {"a"}),
    ],
)
def test_a_config_records_the_requested_keys(read, expected) -> None:
    from elasticdl.config_file import ConfigStruct
    from elasticdl.sessions.checks.keys import NotingConfig

    asked = set()
    read(NotingConfig(ConfigStruct({"a": 1, "b": {"c": 2, "d": 3}}), asked))

    assert asked == expected


def test_a_preprocessor_may_make_its_own_batches(project) -> None:
    project.edit(
        PRE,
        (
            "    def image_preprocess",
            (
                "    def add_preprocess(self, generator, n):\n"
                "        return self.batchify(generator, n)\n\n    def image_preprocess"
            ),
        ),
    )
    report = project.check()

    assert report.of(Severity.ERROR) == []
    assert report.groups[GROUPS.index("reports")].looked_at == "right; 8 examples evaluated"


def test_code_that_a_session_accepts_gives_no_finding(project) -> None:
    project.edit("requirements.txt", ("", "no-such-package>=2\n"))
    project.edit(PRE, ("return image", "return (image * 255).round()"))
    project.edit(DATA, ('f"t{i}"', "i / 2"), ("weight = 1.0", "weight = -1.0 if i == 5 else 1.0"))
    project.edit(EVAL, *function("undefined", "float('nan')"))
    project.edit(EVAL, ('"right": right', '"right": right, "right@1 (%)": right'))

    assert [f.what.partition(",")[0] for f in every(project.check())] == [
        "the project is not in a git repository"
    ]


def test_an_export_with_different_predictions_is_an_error(project, monkeypatch) -> None:
    def run(command, **options):
        answers = [json.dumps({"model": model, "difference": 0.5}) for model in command[-2:]]
        return subprocess.CompletedProcess(command, 0, "\n".join(answers), "")

    monkeypatch.setattr(export.subprocess, "run", run)
    (error,) = project.check().of(Severity.ERROR)

    assert (
        "the exported savedmodel, loaded in a new process, returns different outputs" in error.what
    )


def test_errors_of_all_functions_and_of_both_splits_are_found(project) -> None:
    project.edit(EVAL, *function("first", "y_pred"), *function("second", "y_true.nothing"))
    project.edit(DATA, ('f"t{i}"', "None"))
    errors = [f.what for f in project.check().of(Severity.ERROR)]

    assert [
        sum(part in error for error in errors)
        for part in ("'first' returned", "'second' raised", "expected its id")
    ] == [1, 1, 1]


def test_an_evaluator_is_optional(project) -> None:
    project.edit(CONF, ("evaluator_class: evaluation.Evaluator\n", ""))
    report = project.check()

    assert report.ok
    assert report.groups[GROUPS.index("reports")].looked_at == "no functions; 8 examples evaluated"


def test_errors_are_collected(project) -> None:
    project.edit(CONF, ("mode: min", "mode: down"), ("epochs: 2", "epochs: 0"))
    project.edit(EVAL, ("import numpy as np\n", ""))
    report = project.check()

    assert len(report.of(Severity.ERROR)) == 3
    assert [group.title for group in report.groups if group.skipped] == list(GROUPS[2:-1])


def test_a_missing_import_is_reported_once(project) -> None:
    project.edit(PRE, ("import numpy as np\n", ""))
    errors = project.check().of(Severity.ERROR)

    assert [error.where for error in errors] == [f"{PRE}:{project.line(PRE, 'np.array')}"]


@pytest.mark.parametrize(
    ("code", "names"),
    [
        ("def f(x: Undefined): pass", ["Undefined"]),
        ("from __future__ import annotations\ndef f(x: Undefined): pass", []),
        ("class A:\n    b = 1\n    c = b", []),
        ("class A:\n    b = 1\n    def f(self): return b", ["b"]),
        ("[x for x in range(3)]\nprint(__file__, __name__)", []),
        ("def f():\n    global g\n    g = 1\ndef h(): return g", []),
        ("try:\n    import a\nexcept ImportError:\n    a = None\na", []),
        ("from os import *\nlistdir", []),
        ("def outer():\n    x = 1\n    def inner(): return x + y\n    return inner", ["y"]),
        ("for i in range(3): pass\nwith open(i) as f: f", []),
        ("@decorated\ndef f(): pass", ["decorated"]),
        ("def f(x: 'Undefined') -> 'list[Undefined]': pass", []),
        ("def f(): return late\nlate = 1", []),
        ("def f():\n    b\n    a", ["b", "a"]),
    ],
)
def test_undefined_names_are_reported(code, names, tmp_path) -> None:
    from elasticdl.sessions.checks.names import Module

    assert [*Module(tmp_path / "m.py", code.encode()).undefined] == names


def test_a_generator_that_hangs_is_given_up(project, monkeypatch) -> None:
    monkeypatch.setattr("elasticdl.sessions.checks.reading._END_S", 0.3)
    monkeypatch.setattr("elasticdl.sessions.checks.limits.PATIENCE_S", 0.5)
    project.edit(
        PRE,
        (
            "        for x, y, third in generator:\n            yield self.image",
            (
                "        while True:\n            for x, y, third in generator:\n"
                "                yield self.image"
            ),
        ),
    )
    project.edit(
        DATA,
        (
            "            for i in range(5):\n",
            "            for i in range(99):\n                while i == 5: pass\n",
        ),
    )
    started = time.monotonic()
    report = project.check(NO_MODEL)

    assert any("neither ends nor continues after the 5 examples" in text for text in texts(report))
    assert any("validation data: no output for 0.5 s" in text for text in texts(report))
    assert time.monotonic() - started < 10


def test_indexed_batches_resume_exactly_and_generators_are_replayed(project) -> None:
    def said():
        return next(g.looked_at for g in project.check(NO_MODEL).groups if "training" in g.title)

    assert "resuming within an epoch: replayed, at worst" in said()
    project.edit(
        PRE,
        (
            "return self._batches(generator), ",
            "return Indexed(self._batches(generator)), ",
        ),
        (
            "class Preprocessor",
            (
                "class Indexed:\n    def __init__(self, batches):\n"
                "        self.batches = [batch for _, batch in zip(range(3), batches)]\n"
                "    def __len__(self):\n        return len(self.batches)\n"
                "    def __getitem__(self, i):\n        return self.batches[i]\n\n\n"
                "class Preprocessor"
            ),
        ),
    )
    assert said().endswith("resuming within an epoch: exact")


def test_a_config_that_is_a_list_is_a_finding(project) -> None:
    project.edit(CONF, ("src_code_path: src", "- src_code_path: src"))
    (error,) = project.check().of(Severity.ERROR)

    assert "config.yaml:" in str(error)


def test_settings_of_the_command_are_checked(project) -> None:
    report = project.check(["config"], settings=["epochs=0"])

    assert "epochs is 0; expected a whole number" in texts(report)[0]


# --- the command ------------------------------------------------------------------------------


def invoke(project, *more):
    arguments = ["check", "--run_name=one", f"--project_root={project.root}"]
    return CliRunner().invoke(session, [*arguments, f"--data_dir={project.root}", *more])


def test_the_command_ends_with_3_and_prints_what_to_do(project) -> None:
    project.edit(PRE, ("import numpy as np\n", ""))
    result = invoke(project)

    assert result.exit_code == 3
    assert "✗ code" in result.output
    assert "- model" in result.output
    assert "error: src/preprocessing.py:" in result.output
    assert "the name 'np' is used but never defined" in result.output
    assert "Session one cannot be trained: errors 1, warnings 0" in result.output


def test_the_command_ends_with_0_without_errors_and_prints_json(project) -> None:
    result = invoke(project, "--json")
    report = json.loads(result.output)

    assert result.exit_code == 0
    assert report["ok"] is True
    assert [group["title"] for group in report["groups"]] == list(GROUPS)


def test_a_missing_session_is_not_a_finding(project) -> None:
    with pytest.raises(UsageError, match="There are: one"):
        check("two", project_root=str(project.root))


# --- the documents ----------------------------------------------------------------------------

ABSTRACTIONS = "abstractions-training-job.md"
MISSING = {
    "dataset": "import pathlib\nimport pandas as pd\nimport tensorflow as tf\n",
    "preprocessing": "import numpy as np\nimport tensorflow as tf\n"
    "from abstractions.utils import ConfigStruct\n",
    "evaluation": "import tensorflow.keras as tfk\n",
}
BLOCKS = {
    "models": ["class ModelBuilder("],
    "dataset": ["class DataLoaderTF(", "class DataLoader("],
    "preprocessing": ["class PreprocessorTF(", "class Preprocessor("],
    "evaluation": ["class Evaluator("],
}


@pytest.fixture(scope="module")
def documents(repository):
    """Return the documents, found as the tests of the documents find them."""
    file = repository / "tests" / "seeds" / "conftest.py"
    spec = importlib.util.spec_from_file_location("seeds_conftest", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["seeds_conftest"] = module
    spec.loader.exec_module(module)
    return module.documents.__wrapped__(repository)


def write_documents(documents, root: Path, missing) -> None:
    (root / "src").mkdir(parents=True)
    for module, names in BLOCKS.items():
        code = [missing.get(module, ""), *(documents.block(ABSTRACTIONS, n) for n in names)]
        (root / "src" / f"{module}.py").write_text("\n\n".join(code))
    for name in ("TF", ""):
        folder = root / "runs" / (name or "gen")
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(
            "input_height: 28\ninput_width: 28\nsrc_code_path: src\n"
            f"data_loader_class: dataset.DataLoader{name}\n"
            f"preprocessor_class: preprocessing.Preprocessor{name}\n"
            "model_builder_class: models.ModelBuilder\nevaluator_class: evaluation.Evaluator\n"
            "epochs: 10\nbatch_size: 8\ndata_loader:\n  shuffle: true\n"
            "model_builder:\n  name: baseline-unet\n  activation: relu\n  n_filters: 512\n"
            "  dropout_rate: 0.2\npreprocessor:\n  normalize_by: 255\n"
            "export:\n  metric: val_loss\n  mode: min\nproject_name: mnist\n"
        )


def write_images(documents, folder: Path) -> None:
    writing = documents.block(ABSTRACTIONS, "def write_images")
    code = writing[writing.index("def write_images") : writing.index("data_dir = ")]
    names = {"pd": importlib.import_module("pandas"), "skimage": importlib.import_module("skimage")}
    importlib.import_module("skimage.io")
    exec(code, names)
    digits = importlib.import_module("sklearn.datasets").load_digits()
    pictures = (np.kron(digits.images, np.ones((4, 4)))[:, 2:-2, 2:-2] * 15.9375).astype("uint8")
    start = 0
    for name, size in {"train": 50, "validation": 21, "test": 20}.items():
        (folder / name).mkdir(parents=True)
        stop = start + size
        names["write_images"](pictures[start:stop], digits.target[start:stop], folder / name)
        start = stop


@pytest.mark.parametrize("run", ["TF", "gen"])
def test_the_documented_project_has_one_expected_warning(run, documents, tmp_path) -> None:
    pytest.importorskip("skimage")
    write_documents(documents, tmp_path / "project", MISSING)
    write_images(documents, tmp_path / "data")
    report = check(run, project_root=str(tmp_path / "project"), data_dir=str(tmp_path / "data"))

    assert texts(report, Severity.ERROR) == []
    (warning,) = report.of(Severity.WARNING)
    assert "the last layer is a softmax" in warning.what
    assert next(f.what for f in report.of(Severity.INFO)) == (
        "not read by any component: model_builder.name."
    )


def test_the_original_documents_lack_imports(documents, tmp_path) -> None:
    write_documents(documents, tmp_path / "project", {})
    report = check(
        "TF", project_root=str(tmp_path / "project"), data_dir=str(tmp_path), groups=["code"]
    )
    names = {f.what.split("'")[1] for f in report.of(Severity.ERROR)}

    assert names == {"pathlib", "tf", "np", "tfk"}
