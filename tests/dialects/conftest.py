"""Model files as users write them, small: written to a folder, loaded and defined for real."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

from elasticdl.job import ModelReference
from elasticdl.zoo import define as define_model

if TYPE_CHECKING:
    from elasticdl.definition import ModelDefinition
    from elasticdl.errors import ElasticDLError

# A class is a Keras model by its ancestors' names: importing Keras would take seconds.
FAKE_KERAS = """
class Model:
    made = 0
    def __init__(self, **kwargs):
        Model.made += 1
        self.number = Model.made
        self.kwargs = kwargs
    def __call__(self, x):
        return x
Model.__module__ = "keras.fake"
class Loss:
    def __call__(self, y_true, y_pred, sample_weight=None):
        return ("y_true", y_true, "y_pred", y_pred)
Loss.__module__ = "keras.fake"
class Settings:
    def __init__(self, name="it", rate=0.5):
        self.name, self.rate = name, rate
    def get_config(self):
        return {"name": self.name, "rate": self.rate}
    @classmethod
    def from_config(cls, config):
        return cls(**config)
class Optimizer(Settings): ...
Optimizer.__module__ = "keras.fake"
class Metric(Settings): ...
Metric.__module__ = "keras.fake"
"""


@pytest.fixture(autouse=True)
def clean_imports() -> Iterator[None]:
    """Leave neither modules nor search path of a test's zoo behind."""
    modules, path = dict(sys.modules), list(sys.path)
    yield
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if name not in modules and "pytest" in str(getattr(module, "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return what writes a file of the zoo, which is the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fake_keras.py").write_text(FAKE_KERAS)

    def write(text: str, name: str = "m.py") -> None:
        (tmp_path / name).write_text(text)

    return write


@pytest.fixture
def define(write: Callable[..., None], tmp_path: Path) -> Callable[..., ModelDefinition]:
    """Return what turns the text of a model file into a definition."""

    def define(text: str, model_def: str = "m", context: Any = None, **kwargs: Any) -> Any:
        write(text)
        return define_model(ModelReference(str(tmp_path), model_def, **kwargs), context)

    return define


@pytest.fixture
def refused(define: Callable[..., Any]) -> Callable[..., str]:
    """Return what gives the message a model file is refused with."""

    def refused(text: str, kind: type[ElasticDLError], **kwargs: Any) -> str:
        with pytest.raises(kind) as caught:
            define(text, **kwargs)
        assert type(caught.value) is kind
        return str(caught.value)

    return refused


@pytest.fixture
def module_of() -> Callable[[str], ModuleType]:
    """Return what gives a file of the zoo as it was imported last."""
    return lambda name: sys.modules[name]
