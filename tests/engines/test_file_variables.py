"""A generator at the top level of a model file that draws in a training is refused by name."""

import numpy as np
import pytest

import elasticdl
from elasticdl.data import recordio
from elasticdl.data.example import encode
from elasticdl.errors import DefinitionError

FILE = """
import random

import numpy as np
import torch
from torch import nn

{generator}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(2, 1)

    def forward(self, x):
        if self.training:
            x = x + {in_model}
        return self.out(x)


def custom_model():
    return {model}


def data_schema():
    return [{{"name": "x", "shape": [2], "dtype": "float32"}}]


def input_fn(records):
    x = np.stack([record["x"] for record in records])
    return x + np.float32({in_input}), x[:, :1]


loss = nn.MSELoss()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""

GENERATORS = {
    "numpy": ("rng = np.random.default_rng(0)", "float(rng.random())"),
    "numpy, old": ("rng = np.random.RandomState(0)", "float(rng.rand())"),
    "python": ("rng = random.Random(0)", "rng.random()"),
    "torch": (
        "rng = torch.Generator().manual_seed(0)",
        "float(torch.rand(1, generator=rng))",
    ),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.recordio"
    with recordio.Writer(str(path)) as writer:
        for i in range(64):
            writer.write(encode({"x": np.float32([i, 1]) / 64}))
    return path


def train(folder, data, generator, in_input="0", in_model="0", model="Net()"):
    zoo = folder / "zoo"
    zoo.mkdir()
    (zoo / "drawing.py").write_text(
        FILE.format(generator=generator, in_input=in_input, in_model=in_model, model=model)
    )
    return elasticdl.train(
        model_zoo=str(zoo), model_def="drawing", data=str(data), output=str(folder / "out"),
        minibatch_size=8,
    )  # fmt: skip


@pytest.mark.parametrize("where", ["in_input", "in_model"])
@pytest.mark.parametrize("kind", GENERATORS)
def test_a_file_generator_is_refused_where_it_draws(tmp_path, data, kind, where):
    generator, draw = GENERATORS[kind]

    what = {
        "in_input": ": the generator 'rng'",
        "in_model": ":\\d+: the variable rng, which Net.fo",
    }
    with pytest.raises(DefinitionError, match=rf"drawing\.py{what[where]}") as got:
        train(tmp_path, data, generator, **{where: draw})

    assert "raw from the functions of " in str(got.value)


@pytest.mark.parametrize("kind", GENERATORS)
def test_a_generator_of_code_outside_the_zoo_is_refused(tmp_path, data, monkeypatch, kind):
    generator, draw = GENERATORS[kind]
    (tmp_path / "hub").mkdir()
    # As `torch.hub.load` imports the code of a model.
    monkeypatch.syspath_prepend(tmp_path / "hub")
    name = f"outside_{kind.replace(', ', '_')}"
    (tmp_path / "hub" / f"{name}.py").write_text(
        f"import random\nimport numpy as np\nimport torch\n\n{generator}\n\n"
        "class Noisy(torch.nn.Linear):\n"
        f"    def forward(self, x):\n        return super().forward(x) + float({draw})\n"
    )

    with pytest.raises(
        DefinitionError, match=rf"rng, which Noisy\.forward \(.*/{name}\.py:8\) uses"
    ):
        train(tmp_path, data, f"from {name} import Noisy", model="Noisy(2, 1)")


COUNTERS = {
    "shared by processes": ("import multiprocessing\nn = multiprocessing.Value('i', 0)", "n.value"),
    "shared, without a lock": (
        "import multiprocessing\nn = multiprocessing.Value('d', 0, lock=False)",
        "n.value",
    ),
    "shared array": ("import multiprocessing\nn = multiprocessing.Array('l', [0, 0])", "n[1]"),
    "bytes": ("n = bytearray(8)", "n[3]"),
    "array": ("import array\nn = array.array('q', [0])", "n[0]"),
    "namespace": ("import types\nn = types.SimpleNamespace(seen=0)", "n.seen"),
    "options": ("import argparse\nn = argparse.Namespace(seen=0)", "n.seen"),
}


@pytest.mark.parametrize("kind", COUNTERS)
def test_a_counter_of_the_model_that_is_no_plain_number_is_refused(tmp_path, data, kind):
    variable, counter = COUNTERS[kind]
    count = f"\n\ndef count():\n    {counter} = int({counter}) + 1\n    return float({counter})\n"

    with pytest.raises(DefinitionError, match=r"drawing\.py:\d+: the variable count, which"):
        train(tmp_path, data, variable + count, in_model="count()")


def test_a_file_generator_used_before_training_is_accepted(tmp_path, data):
    train(tmp_path, data, "rng = np.random.default_rng(0)\nSHIFT = float(rng.random())", "SHIFT")


@pytest.mark.parametrize(
    "imported", ["import outer_noise as noise", "from outer_noise import draw"]
)
def test_a_generator_of_an_imported_file_outside_the_zoo_is_refused(
    tmp_path, data, monkeypatch, imported
):
    (tmp_path / "lib").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "lib")
    (tmp_path / "lib" / "outer_noise.py").write_text("from inner_noise import draw\n")
    (tmp_path / "lib" / "inner_noise.py").write_text(
        "import numpy as np\n\nrng = np.random.default_rng(0)\n\n"
        "def draw():\n    return float(rng.random())\n"
    )
    draw = "noise.draw()" if imported.startswith("import") else "draw()"

    with pytest.raises(DefinitionError, match=r"inner_noise\.py: the generator 'rng' at the top"):
        train(tmp_path, data, imported, in_input=draw)


def test_the_generator_of_the_process_may_be_used_by_its_own_name(tmp_path, data):
    generator = "rng = np.random.mtrand._rand\ntorch_rng = torch.default_generator"

    train(
        tmp_path,
        data,
        generator,
        in_model="rng.rand() + float(torch.rand(1, generator=torch_rng))",
    )


def test_objects_that_import_when_they_are_read_are_left_alone(tmp_path, data, monkeypatch):
    (tmp_path / "lib").mkdir()
    monkeypatch.syspath_prepend(tmp_path / "lib")
    (tmp_path / "lib" / "lazy_reader.py").write_text(
        "class Lazy:\n    def __getattr__(self, name):\n        raise ImportError(name)\n\n"
        "reader = Lazy()\n\ndef read():\n    return 0.0\n"
    )

    train(tmp_path, data, "from lazy_reader import read", in_input="read()")
