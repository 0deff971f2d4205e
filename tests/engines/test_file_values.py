"""A value at the top level of a model file that goes on changing in a training is warned of."""

import numpy as np
import pytest

import elasticdl
from elasticdl.data import recordio
from elasticdl.data.example import encode
from elasticdl.engines.file_variables import FileVariables
from elasticdl.errors import DefinitionError

FILE = """
import collections
import itertools

import numpy as np
import torch
from torch import nn

def custom_model():
    return nn.Linear(2, 1)


{value}


def data_schema():
    return [{{"name": "x", "shape": [2], "dtype": "float32"}}]


def input_fn(records):
    x = np.stack([record["x"] for record in records])
    {in_input}
    return x, x[:, :1]


def loss(outputs, labels):
    {in_loss}
    return ((outputs - labels) ** 2).mean()


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""

COUNTER = """
class Counter:
    {first}
    def __init__(self):
        self.count = 0


counter = Counter()
"""
MODULE = """
class Centers(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(2))

    def move(self, x):
        self.center = 0.9 * self.center + 0.1 * x.mean(0).detach()


centers = Centers()
"""
# Of the file, and what the loss does with it.
VALUES = {
    "number": ("value = 0", "global value; value += 1", "value"),
    "list": ("value = []", "value.append(1)", "value"),
    "dict": ("value = {}", "value['n'] = value.get('n', 0) + 1", "value"),
    "counter": ("value = collections.Counter()", "value['n'] += 1", "value"),
    "array": ("value = np.zeros(3)", "value[0] += 1", "value"),
    "tensor": ("value = torch.zeros(3)", "value[0] += 1", "value"),
    "count": ("value = itertools.count()", "next(value)", "value"),
    "attribute of a function": (
        "def value():\n    pass\nvalue.n = 0", "value.n += 1", "value",
    ),
    "default of a function": (
        "def value(seen=[]):\n    seen.append(1)", "value()", "value",
    ),
    "sparse tensor": ("value = torch.eye(3).to_sparse()", "value.mul_(2)", "value"),
    "object": (COUNTER.format(first=""), "counter.count += 1", "counter"),
    "class": (COUNTER.format(first="of_all = 0"), "Counter.of_all += 1", "Counter"),
    "module": (MODULE, "centers.move(outputs)", "centers"),
    "module of a library": (
        "value = nn.Linear(2, 1)", "value.weight.data.lerp_(value.weight.data + 1, 0.5)", "value",
    ),
    "module within an average": (
        "value = torch.optim.swa_utils.AveragedModel(nn.Linear(2, 1))",
        "value.module.bias.data += 1", "value",
    ),
    "shared by processes": (
        "import multiprocessing\nvalue = multiprocessing.Value('i', 0)", "value.value += 1",
        "value",
    ),
    "array shared without a lock": (
        "import multiprocessing\nvalue = multiprocessing.Array('d', 2, lock=False)",
        "value[1] += 1", "value",
    ),
    "bytes": ("value = bytearray(8)", "value[3] += 1", "value"),
    "array of Python": ("import array\nvalue = array.array('q', [0])", "value[0] += 1", "value"),
    "namespace": ("import types\nvalue = types.SimpleNamespace(n=0)", "value.n += 1", "value"),
    "options": ("import argparse\nvalue = argparse.Namespace(n=0)", "value.n += 1", "value"),
}  # fmt: skip


OBJECT = """
class Mix:
    def __init__(self):
        self.rng = np.random.default_rng(0)


mix = Mix()
"""
# So deep that its attributes are the last that are compared.
NESTED = """
class Part:
    def __init__(self):
        self.shares = torch.distributions.Beta(0.2, 0.2)
        self.size = 1000


class Mix:
    def __init__(self):
        self.parts = [Part(), Part()]


mix = Mix()
"""
FUNCTION = """
def numbers():
    for number in range(1000):
        yield number


value = numbers()
"""
# Of the file, what the input function does with it, and what is named.
REFUSED = {
    "generator": ("value = np.random.default_rng(0)", "value.random()", "generator 'value'"),
    "object": (OBJECT, "mix.rng.random()", r"generator 'mix\.rng'"),
    "dict": (
        "value = {'a': np.random.RandomState(0)}", "value['a'].rand()", r"generator .*\['a'\]\"",
    ),
    "loader": (
        "value = torch.utils.data.DataLoader(range(8), generator=torch.Generator())",
        "list(value)", r"generator 'value\.generator'",
    ),
    "default of a function": (
        "def value(rng=np.random.default_rng(0)):\n    rng.random()", "value()",
        r"generator 'value\(\.\.\.\)'",
    ),
    "generator function": (FUNCTION, "next(value)", "iterator 'value'"),
    "cycle": ("value = itertools.cycle([1, 2, 3])", "next(value)", "iterator 'value'"),
    "map": ("value = map(abs, range(99))", "next(value)", "iterator 'value'"),
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.recordio"
    with recordio.Writer(str(path)) as writer:
        for i in range(64):
            writer.write(encode({"x": np.float32([i, 1]) / 64}))
    return path


def warnings_of(
    folder, data, caplog, value, in_input="pass", in_loss="pass", more="", num_epochs=4
):
    zoo = folder / "zoo"
    zoo.mkdir()
    text = FILE.format(value=value, in_input=in_input, in_loss=in_loss)
    (zoo / "remembering.py").write_text(text + more)
    elasticdl.train(
        model_zoo=str(zoo), model_def="remembering", data=str(data), output=str(folder / "out"),
        minibatch_size=8, num_epochs=num_epochs,
    )  # fmt: skip
    return [r.getMessage() for r in caplog.records if "changes during" in r.getMessage()]


@pytest.mark.parametrize("kind", VALUES)
def test_a_changed_file_value_is_reported_once(tmp_path, data, caplog, kind):
    value, change, name = VALUES[kind]

    found = warnings_of(tmp_path, data, caplog, value, in_loss=change)

    assert len(found) == 1
    assert f"remembering.py: {name} at the top level of the file changes" in found[0]


def test_an_input_function_with_a_counter_is_reported(tmp_path, data, caplog):
    # Longer than batches are made ahead.
    found = warnings_of(
        tmp_path, data, caplog, "seen = [0]", in_input="seen[0] += len(x)", num_epochs=100
    )

    assert len(found) == 1


@pytest.mark.parametrize("kind", REFUSED)
def test_an_input_function_that_uses_a_file_generator_is_refused(tmp_path, data, caplog, kind):
    value, draw, name = REFUSED[kind]

    with pytest.raises(DefinitionError, match=f"remembering.py: the {name} at the top level"):
        warnings_of(tmp_path, data, caplog, value, in_input=draw)


@pytest.mark.parametrize(
    ("value", "change"),
    [
        ("value = itertools.cycle([1, 2])", "pass"),
        ("value = np.random.mtrand._rand", "value.rand()"),
        ("constants = {'a': 1}", "constants['a']"),
        ("cache = {}", "cache.setdefault('table', np.arange(3))"),
        ("net = None", "global net; net = net or nn.Linear(1, 1)"),
        ("net = nn.Linear(2, 1)", "net(torch.ones(2))"),
        ("net = nn.LazyLinear(1)", "pass"),
        ("net = nn.Linear(2, 1).to('meta')", "pass"),
        ("net = nn.Linear(2, 1, dtype=torch.complex64)", "pass"),
        ("net = nn.Linear(2, 1)\n\n\ndef custom_model():\n    return net", "pass"),
        (
            "nets = {}\n\n\ndef custom_model():\n    return nets.setdefault(0, nn.Linear(2, 1))",
            "pass",
        ),
        ("near = torch.eye(3).to_sparse()", "torch.sparse.mm(near, near)"),
        (NESTED, "mix.parts"),
    ],
)
def test_unchanged_and_other_values_are_not_reported(tmp_path, data, caplog, value, change):
    assert warnings_of(tmp_path, data, caplog, value, in_loss=change) == []


HOOKS = {
    "dict": """
sums = {}

def average(optimizer, args, kwargs):
    for number, parameter in enumerate(optimizer.param_groups[0]["params"]):
        sums[number] = sums.get(number, 0) + parameter.grad
""",
    "object": """
class Average:
    num_calls = 0

    def __call__(self, optimizer, args, kwargs):
        self.num_calls += 1

average = Average()
""",
    "class": """
class Average:
    num_calls = 0

def average(optimizer, args, kwargs):
    Average.num_calls += 1
""",
}


@pytest.mark.parametrize("kind", HOOKS)
def test_what_a_hook_of_the_optimizer_changes_is_stored_and_not_reported(
    tmp_path, data, caplog, kind
):
    optimizer = """
def optimizer(parameters):
    made = torch.optim.SGD(parameters, lr=0.1)
    made.register_step_pre_hook(average)
    return made
"""

    assert warnings_of(tmp_path, data, caplog, "", more=HOOKS[kind] + optimizer) == []


def test_nothing_is_checked_without_a_folder():
    variables = FileVariables()
    for _ in range(4):
        variables.check()
