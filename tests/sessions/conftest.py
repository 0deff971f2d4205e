"""A project whose training can be followed in the head.

The model is one weight w that starts at 0 and sees the input 1; the loss is the output. So each
update takes 1 off it, and with ten examples in batches of four an epoch takes 3: after epochs 1,
2 and 3, `loss` of the validation data is -3, -6 and -9.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator

import numpy as np
import pytest
from tests.notes import Notes

PARTS = """
import itertools
import numpy as np
from abstractions import DataLoaderBase, EvaluatorBase, ModelBuilderBase, PreprocessorBase

N = 10

class NoParams:
    def _set_defaults(self): ...
    def _load_params(self, config): ...

def pictures(thirds):
    return [(np.full((2, 2), i, np.uint8), np.float32(i), thirds[i]) for i in range(N)]

class Loader(NoParams, DataLoaderBase):
    def create_training_generator(self):
        return iter(pictures(np.ones(N))), N
    def create_validation_generator(self):
        return iter(pictures(np.ones(N))), N
    def create_test_generator(self):
        return iter(pictures([f"image_{i}.jpg" for i in range(N)])), N

class Preprocessor(NoParams, PreprocessorBase):
    def add_image_preprocess(self, gen):
        return ((np.ones(1, np.float32), y, w) for _, y, w in gen)
    def add_label_preprocess(self, gen):
        return gen
    def batchify(self, gen, n):
        def batches():
            while part := list(itertools.islice(gen, 4)):
                yield tuple(np.stack(column) for column in zip(*part))
        return batches(), -(-n // 4)

class Evaluator(EvaluatorBase):
    def get_eval_funcs(self):
        return {"label": lambda y_true, y_pred: float(y_true)}

class Builder(ModelBuilderBase):
    def _set_defaults(self): ...
    def _load_params(self, config):
        self.metric = config.get("model_metric")
    def get_compiled_model(self):
        import keras
        def late(y_true, y_pred):
            return keras.ops.where(y_pred > -4, np.nan, -y_pred)
        def never(y_true, y_pred):
            return y_pred * np.nan
        def value(y_true, y_pred):
            return y_pred
        def output(y_true, y_pred):
            return y_pred
        model = keras.Sequential(
            [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
        )
        known = {"late": late, "never": never, "value": value}
        model.compile(
            optimizer=keras.optimizers.SGD(1.0),
            loss=output,
            weighted_metrics=[known[self.metric]] if self.metric else [],
        )
        return model
"""
CONFIG = """\
src_code_path: src
data_loader_class: parts.Loader
preprocessor_class: parts.Preprocessor
model_builder_class: parts.Builder
evaluator_class: parts.Evaluator
data_dir: data
epochs: 2
batch_size: 4
export:
  metric: val_loss
  mode: min
"""


@pytest.fixture
def notes():
    return Notes()


@pytest.fixture
def project(tmp_path):
    """Return what writes the project, with more code and lines of the config replaced."""

    def project(more="", **lines):
        root = tmp_path / "project"
        for folder in ("src", "data", "runs/first"):
            (root / folder).mkdir(parents=True, exist_ok=True)
        (root / "src" / "parts.py").write_text(PARTS + textwrap.dedent(more))
        text = CONFIG
        for key, value in lines.items():
            old = [line for line in text.splitlines() if line.strip().split(":")[0] == key]
            new = "" if value is None else f"{key}: {value}\n"
            if old:
                indent = " " * (len(old[0]) - len(old[0].lstrip()))
                text = text.replace(old[0] + "\n", indent + new if new else "")
            else:
                text += new
        (root / "runs" / "first" / "config.yaml").write_text(text)
        return root

    return project


@pytest.fixture(autouse=True)
def clean_imports() -> Iterator[None]:
    """Leave nothing of a test's project imported."""
    modules, path = dict(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if name not in modules and "pytest" in str(getattr(module, "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def in_this_process(monkeypatch):
    """Try exported models in this process: starting TensorFlow for each test takes too long."""
    import contextlib
    import io
    import subprocess
    from types import SimpleNamespace

    from elasticdl.sessions import export
    from elasticdl.training.keras import verify_export

    def run(command, **options):
        assert command[:4] == [sys.executable, "-P", "-m", "elasticdl.training.keras.verify_export"]
        with contextlib.redirect_stdout(io.StringIO()) as out:
            verify_export.main(command[4:])
        return SimpleNamespace(stdout=out.getvalue())

    replaced = SimpleNamespace(run=run, SubprocessError=subprocess.SubprocessError)
    monkeypatch.setattr(export, "subprocess", replaced)


@pytest.fixture(scope="session")
def rows_of():
    """Return what reads a table of a session."""
    import csv

    def rows_of(file):
        with file.open(newline="") as lines:
            return list(csv.DictReader(lines))

    return rows_of


def weight_of(output):
    """Return the one weight of a trained model."""
    from elasticdl.artifacts.trained_model import load_trained_model

    (weight,) = load_trained_model(str(output)).params.values()
    return float(np.asarray(weight).item())
