"""A LightningModule is trained as it is, or refused by name."""

import textwrap

import numpy as np
import pytest

import elasticdl
from elasticdl.data import recordio
from elasticdl.data.example import encode
from elasticdl.errors import DefinitionError, UserCodeError

MODULE = """
import lightning as L
import numpy as np
import torch
from torch.nn import functional


class Net(L.LightningModule):
    def __init__(self, lr=0.1):
        super().__init__()
        self.net = torch.nn.Linear(2, 1)
        self.lr = lr

    def forward(self, x):
        return self.net(x)

    def training_step(self, batch, batch_idx):
        x, y = batch
        loss = functional.mse_loss(self(x), y)
        # training
        return loss

    def validation_step(self, batch, batch_idx):
        x, y = batch
        # validation
        self.log("val_loss", functional.mse_loss(self(x), y))

    def configure_optimizers(self):
        # optimizers
        return torch.optim.SGD(self.parameters(), lr=self.lr)

    # methods
"""
INPUT = """

def data_schema():
    return [{"name": "x", "shape": [2], "dtype": "float32"}]


def input_fn(records):
    x = np.stack([record["x"] for record in records])
    return x, x.sum(1, keepdims=True)
"""
LOADERS = """

class Data(L.LightningDataModule):
    def __init__(self, data_dir, batch_size=8):
        super().__init__()
        self.data_dir, self.batch_size = data_dir, batch_size

    def setup(self, stage):
        x = torch.tensor(np.load(f"{self.data_dir}/x.npy"))
        rows = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
        self.train, self.val = torch.utils.data.random_split(rows, [48, 16])

    def train_dataloader(self):
        return torch.utils.data.DataLoader(
            self.train, self.batch_size, shuffle=True, num_workers=2
        )

    def val_dataloader(self):
        return torch.utils.data.DataLoader(self.val, self.batch_size)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    x = np.random.default_rng(0).normal(size=(64, 2)).astype(np.float32)
    with recordio.Writer(str(folder / "data.recordio")) as writer:
        for row in x:
            writer.write(encode({"x": row}))
    np.save(folder / "x.npy", x)
    return folder


def written(folder, *, data=INPUT, **instead):
    """Write a model file, with lines in the place of the module's comments."""
    zoo = folder / "zoo"
    zoo.mkdir(exist_ok=True)
    text = MODULE
    for comment, lines in instead.items():
        depth = 4 if comment == "methods" else 8
        text = text.replace(
            f"{' ' * depth}# {comment}", textwrap.indent(textwrap.dedent(lines), " " * depth)
        )
    (zoo / "net.py").write_text(text + data)
    return zoo


def train(folder, data, zoo, name="out", **options):
    options = {"minibatch_size": 8, "num_epochs": 3, **options}
    return elasticdl.train(
        model_zoo=str(zoo), model_def="net", data=str(data), output=str(folder / name), **options
    )


def test_it_is_trained_evaluated_and_predicted_with(tmp_path, data):
    zoo = written(tmp_path)
    records = data / "data.recordio"

    trained = train(tmp_path, records, zoo, validation_data=str(records), params={"lr": 0.3})

    assert trained.metrics["val_loss"] < 0.05
    found = elasticdl.evaluate(trained_model=str(tmp_path / "out"), data=str(records))
    assert found.metrics["loss"] == pytest.approx(trained.metrics["val_loss"], rel=1e-5)
    assert (tmp_path / "out" / "model.pt2").exists()


def test_its_data_module_is_read(tmp_path, data):
    zoo = written(tmp_path, data=LOADERS)

    first = train(tmp_path, data, zoo, validation_data=str(data), params={"batch_size": 16})
    again = train(
        tmp_path, data, zoo, "again", validation_data=str(data), params={"batch_size": 16}
    )

    assert first.metrics["val_loss"] < 1
    assert first.metrics == again.metrics
    assert first.step == 3 * 48 // 16


REFUSED = {
    "metric object": (
        {
            "methods": """
            def setup(self, stage):
                from torchmetrics import MeanSquaredError
                self.error = MeanSquaredError()
            """
        },
        r"error of the model is a metric of TorchMetrics.*self\.log\(name, ",
    ),
    "validation hook": (
        {"methods": "def on_validation_epoch_end(self):\n    pass\n"},
        r"net\.py:\d+: Net has on_validation_epoch_end\(\), which nothing here would call",
    ),
    "optimizer_step": (
        {"methods": "def optimizer_step(self, *args, **more):\n    pass\n"},
        r"Net has optimizer_step\(\)",
    ),
    "two optimizers": (
        {"optimizers": "return [torch.optim.SGD([p], 0.1) for p in self.parameters()]\n"},
        r"configure_optimizers\(\) returned 2 optimizers",
    ),
    "manual": (
        {"methods": "automatic_optimization = False\n"},
        "has automatic_optimization = False",
    ),
    "batch index": (
        {"training": "if batch_idx % 2:\n    loss = loss * 2\n"},
        r"a step uses batch_idx",
    ),
    "no loss": ({"training": "loss = None\n"}, r"training_step\(\) returned None"),
    "reduced otherwise": (
        {"training": "self.log('worst', loss, reduce_fx='max')\n"},
        r"reduce_fx='max'",
    ),
    "several numbers": (
        {"training": "self.log('outputs', self(x))\n"},
        r"the tensor has the shape \[\d+, 1\]",
    ),
    "Trainer": (
        {"training": "loss = loss / self.trainer.max_epochs\n"},
        r"asks for self\.trainer\.max_epochs",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_nothing_here_would_do_is_refused(tmp_path, data, what):
    instead, expected = REFUSED[what]

    with pytest.raises(DefinitionError, match=expected):
        train(tmp_path, data / "data.recordio", written(tmp_path, **instead))


def test_an_epoch_and_a_step_are_known(tmp_path, data):
    lines = "self.log('epoch_and_step', self.current_epoch + self.global_step / 1000)\n"
    trained = train(tmp_path, data / "data.recordio", written(tmp_path, training=lines))

    # Of the last epoch: steps 16 to 23.
    assert trained.metrics["epoch_and_step"] == pytest.approx(2 + 0.0195)


def test_what_a_step_raises_is_told_with_its_line(tmp_path, data):
    zoo = written(tmp_path, training="raise ValueError('odd')\n")

    with pytest.raises(UserCodeError, match=r"net\.py:\d+: .*training_step|odd"):
        train(tmp_path, data / "data.recordio", zoo)


def test_a_loss_that_couples_examples_is_refused_where_sums_are_shared(tmp_path, data):
    lines = "loss = ((self(x) - y).mean() ** 2)\n"
    zoo = written(tmp_path, training=lines)

    train(tmp_path, data / "data.recordio", zoo)
    with pytest.raises(DefinitionError, match="no mean over examples"):
        train(tmp_path, data / "data.recordio", zoo, "shared", global_batch_size=16)


def test_without_data_it_says_what_could_be_added(tmp_path, data):
    with pytest.raises(DefinitionError, match="there is no data for it"):
        train(tmp_path, data / "data.recordio", written(tmp_path, data=""))


def test_what_a_module_does_by_itself_is_refused_beside_it(tmp_path, data):
    more = INPUT + "\n\ndef eval_metrics_fn():\n    return {}\n"

    with pytest.raises(DefinitionError, match="nothing here would read eval_metrics_fn"):
        train(tmp_path, data / "data.recordio", written(tmp_path, data=more))


def test_callbacks_of_the_file_are_called(tmp_path, data):
    stopping = """

class Stop:
    def on_epoch_end(self, epoch, logs):
        self.model.stop_training = epoch == 1


def callbacks():
    return [Stop()]
"""
    zoo = written(tmp_path, data=INPUT + stopping)

    assert train(tmp_path, data / "data.recordio", zoo, num_epochs=5).step == 2 * 8
