"""A LightningModule is trained as it is, or refused by name."""

import csv
import textwrap

import numpy as np
import pytest

import elasticdl
from elasticdl.artifacts.checkpoint_store import CheckpointStore
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.artifacts.trained_model import load_trained_model
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
        self.stage = stage
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


def learning_rate(output):
    state = CheckpointStore(OutputFolder(output)).latest().checkpoint.state
    return float(state["optimizer/param_groups/0/lr"])


def train(folder, data, zoo, name="out", **options):
    options = {"minibatch_size": 8, "num_epochs": 3, **options}
    return elasticdl.train(
        model_zoo=str(zoo), model_def="net", data=str(data), output=str(folder / name), **options
    )


def test_a_module_trains_evaluates_and_predicts(tmp_path, data):
    zoo = written(tmp_path)
    records = data / "data.recordio"

    trained = train(tmp_path, records, zoo, validation_data=str(records), params={"lr": 0.3})

    assert trained.metrics["val_loss"] < 0.05
    found = elasticdl.evaluate(trained_model=str(tmp_path / "out"), data=str(records))
    assert found.metrics["loss"] == pytest.approx(trained.metrics["val_loss"], rel=1e-5)
    assert (tmp_path / "out" / "model.pt2").exists()


def test_a_data_module_is_read(tmp_path, data):
    zoo = written(tmp_path, data=LOADERS)

    first = train(tmp_path, data, zoo, validation_data=str(data), params={"batch_size": 16})
    again = train(
        tmp_path, data, zoo, "again", validation_data=str(data), params={"batch_size": 16}
    )

    assert first.metrics["val_loss"] < 1
    assert first.metrics == again.metrics
    assert first.step == 3 * 48 // 16


def test_its_own_loaders_are_used_for_validation_and_prediction(tmp_path, data):
    predicting = """
        def predict_step(self, batch, batch_idx):
            x, y = batch
            return {"out": self(x), "off": self(x) - y}
    """
    zoo = written(tmp_path, data=LOADERS, methods=predicting)
    text = (zoo / "net.py").read_text()
    (zoo / "net.py").write_text(
        text
        + """
    def predict_dataloader(self):
        assert self.stage == "predict"
        return torch.utils.data.DataLoader(self.val, 8)
"""
    )

    trained = train(tmp_path, data, zoo)
    elasticdl.predict(
        trained_model=str(tmp_path / "out"),
        data=str(data),
        output=str(tmp_path / "predicted"),
        format="csv",
    )

    with (tmp_path / "predicted/part-00000.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 16
    found = np.mean([float(row["off"]) ** 2 for row in rows])
    assert found == pytest.approx(trained.metrics["val_loss"], rel=1e-5)


STREAM = LOADERS.replace(
    "    def train_dataloader(self):\n",
    """    def train_dataloader(self):
        return torch.utils.data.DataLoader(Endless(self.train), self.batch_size)

    def unused(self):
""",
).replace(
    "class Data(",
    """class Endless(torch.utils.data.IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __iter__(self):
        while True:
            yield from self.rows


class Data(""",
)


def test_a_step_that_the_object_wraps_is_called(tmp_path, data):
    wrapped = {
        "methods": "def setup(self, stage):\n    step = self.training_step\n"
        "    self.training_step = lambda batch, batch_idx: 100 * step(batch, batch_idx)\n"
    }
    losses = {}
    for name, methods in (("plain", {}), ("wrapped", wrapped)):
        (tmp_path / name).mkdir()
        zoo = written(tmp_path / name, **methods)
        trained = train(tmp_path / name, data, zoo, minibatch_size=64, num_epochs=1)
        losses[name] = trained.metrics["loss"]

    assert losses["wrapped"] == pytest.approx(100 * losses["plain"])


def test_attributes_with_names_of_methods_are_no_hooks(tmp_path, data):
    named = {
        "methods": "def setup(self, stage):\n    self.freeze, self.type = True, torch.nn.GELU\n"
        "    self.print, self.forward = print, self.net.forward\n"
    }

    trained = train(tmp_path, data, written(tmp_path, **named))

    assert trained.metrics["loss"] < 0.1


def test_a_class_that_another_of_the_file_extends_is_not_the_model(tmp_path, data):
    extended = "\n\nclass Small(Net):\n    def __init__(self):\n        super().__init__(lr=0.0)\n"

    trained = train(tmp_path, data, written(tmp_path, data=INPUT + extended))

    assert load_trained_model(tmp_path / "out").description.model_def == "net"
    assert trained.metrics["loss"] > 0.1


@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
def test_an_epoch_ends_at_the_length_of_a_stream_as_in_lightning(tmp_path, data):
    assert train(tmp_path, data, written(tmp_path, data=STREAM)).step == 3 * 48 // 8


def test_prepare_data_of_a_module_is_called_once_and_before_setup(tmp_path, data):
    prepared = tmp_path / "prepared"
    methods = f"""
        def prepare_data(self):
            with open({str(prepared)!r}, "a") as file:
                file.write("x")

        def setup(self, stage):
            with open({str(prepared)!r}) as file:
                assert file.read() == "x"
    """

    train(tmp_path, data / "data.recordio", written(tmp_path, methods=methods))

    assert prepared.read_text() == "x"


def test_a_plateau_monitors_the_metric_configured_beside_it(tmp_path, data):
    """As in Lightning, which takes the metric from the dict with the optimizer."""
    records = data / "data.recordio"
    rates = []
    for monitor in ("loss", "val_loss"):
        optimizers = f"""
            optimizer = torch.optim.SGD(self.parameters(), 0.1)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau
            scheduler = plateau(optimizer, mode="max", factor=0.01, patience=0)
            return {{"optimizer": optimizer, "lr_scheduler": scheduler, "monitor": "{monitor}"}}
        """
        # The validation is better in each epoch, the training worse.
        steps = {
            "validation": "self.log('val_loss', torch.tensor(1.0) * self.global_step)\nreturn\n"
        }
        zoo = written(tmp_path, optimizers=optimizers, **steps)
        name = f"by_{monitor}"
        train(tmp_path, records, zoo, name, validation_data=str(records))
        rates.append(float(load_trained_model(str(tmp_path / name)).params["net.weight"][0, 0]))

    assert rates[0] != rates[1]


@pytest.mark.parametrize(
    "returned", ["return self(x)", "return 100 + 0 * x.mean()", "return {'loss': 100 + x.mean()}"]
)
def test_the_logged_loss_counts_whatever_validation_step_returns(tmp_path, data, returned):
    lines = f"self.log('val_loss', torch.tensor(3.0))\n{returned}\n"
    zoo = written(tmp_path, validation=lines)

    trained = train(
        tmp_path, data / "data.recordio", zoo, validation_data=str(data / "data.recordio")
    )

    assert trained.metrics["val_loss"] == 3


def test_a_validation_step_that_logs_no_loss_may_return_it(tmp_path, data):
    records = data / "data.recordio"
    for name, returned in (("loss", "x.mean() * 0 + 5"), ("predictions", "self(x)")):
        zoo = written(tmp_path, validation=f"self.log('val_one', 1.0)\nreturn {returned}\n")
        trained = train(tmp_path, records, zoo, name, validation_data=str(records))
        assert trained.metrics["val_one"] == 1
        assert trained.metrics.get("val_loss") == (5 if name == "loss" else None)


def test_the_logged_training_loss_is_reported(tmp_path, data):
    lines = "self.log('train_loss', 3.0, on_epoch=True)\n"

    trained = train(tmp_path, data / "data.recordio", written(tmp_path, training=lines))

    assert trained.metrics["loss"] == 3


@pytest.mark.parametrize("on_epoch", [True, False])
def test_a_plateau_for_the_loss_of_the_last_batch_is_refused(tmp_path, data, on_epoch):
    optimizers = """
        optimizer = torch.optim.SGD(self.parameters(), 0.1)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        return {"optimizer": optimizer, "lr_scheduler": plateau, "monitor": "train_loss"}
    """
    lines = f"self.log('train_loss', loss, on_epoch={on_epoch})\n"
    zoo = written(tmp_path, optimizers=optimizers, training=lines)

    if on_epoch:
        train(tmp_path, data / "data.recordio", zoo)
        return
    with pytest.raises(DefinitionError, match=r"net\.py:\d+: .*monitors 'train_loss', which tra"):
        train(tmp_path, data / "data.recordio", zoo)


def test_clipping_uses_the_parameters_of_the_optimizer(tmp_path, data):
    methods = """
        def setup(self, stage):
            torch.nn.init.ones_(self.net.weight)
    """
    # The gradient of the weight is 100 times that of the bias.
    lines = "loss = 100 * self.net.weight.sum() * (1 + 0 * x.mean()) + self.net.bias.sum()\n"
    zoo = written(
        tmp_path,
        methods=methods,
        training=lines,
        optimizers="return torch.optim.SGD([self.net.bias], lr=1.0)\n",
        data=INPUT + "\ngradient_clipping = 0.5\n",
    )

    trained = train(tmp_path, data / "data.recordio", zoo, num_epochs=1, minibatch_size=64)

    before = train(tmp_path, data / "data.recordio", zoo, "none", max_steps=1)
    biases = [
        float(load_trained_model(str(tmp_path / name)).params["net.bias"][0])
        for name in ("out", "none")
    ]
    assert trained.step == before.step == 1
    assert biases[0] == biases[1]


FLOAT64 = INPUT.replace(
    "return x, x.sum(1, keepdims=True)",
    """x = np.float64(x)
    return 1.7e9 + x, x.sum(1, keepdims=True)""",
)


@pytest.mark.parametrize("kind", ["shifted", "double"])
def test_steps_receive_float64_that_they_accept(tmp_path, data, kind):
    checked = "assert x.dtype == y.dtype == torch.float64\n"
    shifted = "x = (x - 1.7e9)\n" + ("x = x.float()\n" if kind == "shifted" else "")
    setup = "def setup(self, stage):\n    self.double()\n" if kind == "double" else ""
    text = MODULE.replace("x, y = batch\n", f"x, y = batch\n{checked}{shifted}")
    text = text.replace(
        "x, y = batch\n" + checked + shifted,
        "x, y = batch\n" + textwrap.indent(checked + shifted, " " * 8),
    )
    zoo = written(tmp_path)
    (zoo / "net.py").write_text(
        text.replace("    # methods\n", textwrap.indent(setup, "    ")) + FLOAT64
    )
    records = data / "data.recordio"

    trained = train(tmp_path, records, zoo, validation_data=str(records))

    assert trained.metrics["loss"] < 2


def test_a_module_of_float32_gets_features_of_float32(tmp_path, data):
    zoo = written(tmp_path, data=FLOAT64.replace("1.7e9 + x", "x"))

    assert train(tmp_path, data / "data.recordio", zoo).metrics["loss"] < 2


HOOKED = (
    LOADERS.replace(", num_workers=2", "")
    + """
    def on_after_batch_transfer(self, batch, dataloader_idx):
        \"\"\"Of a template.\"\"\"
        return batch

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

    def teardown(self, stage=None):
        pass
"""
)


def test_hooks_of_a_data_module_that_do_nothing_are_accepted(tmp_path, data, caplog):
    train(tmp_path, data, written(tmp_path, data=HOOKED), num_epochs=1)

    assert "teardown" not in caplog.text


@pytest.mark.parametrize(
    ("empty", "full", "name"),
    [
        ("return batch", "return 2 * batch[0], batch[1]", "on_after_batch_transfer"),
        ("return {}", "return {'seen': 1}", "state_dict"),
        ("self.stage = stage", "self.on_exception = print", "on_exception"),
    ],
)
def test_hooks_of_a_data_module_are_refused(tmp_path, data, empty, full, name):
    assert empty in HOOKED
    hooked = HOOKED.replace(empty, full)
    if name == "on_exception":
        hooked = hooked.replace("super().__init__()", "super().__init__()\n        " + full)
    zoo = written(tmp_path, data=hooked)

    with pytest.raises(DefinitionError, match=rf"net\.py:\d+: Data has {name}\(\), which would"):
        train(tmp_path, data, zoo)


def test_a_teardown_of_a_data_module_has_a_warning(tmp_path, data, caplog):
    hooked = (
        LOADERS.replace(", num_workers=2", "")
        + "\n    def teardown(self, stage=None):\n        print(stage)\n"
    )

    train(tmp_path, data, written(tmp_path, data=hooked), num_epochs=1)

    assert "Data has teardown(), which is not called here" in caplog.text


def test_a_module_and_its_data_may_be_imported_from_other_files(tmp_path, data):
    zoo = written(tmp_path, data=LOADERS)
    (zoo / "net.py").rename(zoo / "project.py")
    (zoo / "net.py").write_text("from project import Data, Net\n")

    assert train(tmp_path, data, zoo).metrics["val_loss"] < 2
    (zoo / "net.py").write_text("from project import Data\n" + MODULE)
    assert train(tmp_path, data, zoo, "own").metrics["val_loss"] < 2


FROZEN = """
def __init__(self):
    super().__init__()
    self.net, self.lr = torch.nn.Linear(2, 1), 0.1
    self.frozen = torch.nn.BatchNorm1d(2, affine=False)
    self.frozen.eval()

def forward(self, x):
    return self.net(self.frozen(x))
"""


def test_layers_keep_the_mode_set_by_the_module(tmp_path, data):
    """Lightning's Trainer never calls `train()`, and restores modes after a validation."""
    records = data / "data.recordio"
    zoo = written(tmp_path, methods=FROZEN)

    train(tmp_path, records, zoo, validation_data=str(records))

    params = load_trained_model(str(tmp_path / "out")).params
    assert params["frozen.num_batches_tracked"] == 0
    assert not params["frozen.running_mean"].any()


METRIC = """
def setup(self, stage):
    from torchmetrics import MeanSquaredError
    self.error = MeanSquaredError()
"""
OWN_METRIC = """
def setup(self, stage):
    import torchmetrics

    class Latest(torchmetrics.Metric):
        def __init__(self):
            super().__init__()
            self.add_state("value", torch.tensor(0.0), dist_reduce_fx="sum")
            self._seen = 0

        def update(self, preds, target):
            # update

        def compute(self):
            return self.value

    self.latest = Latest()
"""
LOG_LATEST = "self.latest(self(x), target=y)\nself.log('latest', self.latest)\n"
REFUSED = {
    "a training metric that says it adds up": (
        {
            "methods": OWN_METRIC.replace("# update", "self.value = preds.mean() - target.mean()"),
            "training": LOG_LATEST,
        },
        r"'latest' \(Latest\) declares \"sum\" for its states",
    ),
    "data of a metric beside its states": (
        {
            "methods": OWN_METRIC.replace("# update", "self._seen += len(target)"),
            "training": LOG_LATEST,
        },
        r"'latest' \(Latest\) keeps data in self._seen",
    ),
    "a metric among layers": (
        {
            "methods": """
            def setup(self, stage):
                from torchmetrics import MeanSquaredError
                self.parts = torch.nn.ModuleList([torch.nn.Tanh(), MeanSquaredError()])
            """
        },
        r"parts.1 of the model is a metric of TorchMetrics.*Make it a separate attribute",
    ),
    "a metric's value so far": (
        {"methods": METRIC, "training": "self.error(self(x), y)\nself.error.compute()\n"},
        r"self\.error\.compute\(\) is called in a step.*\n?.*self\.log\(name, self\.metric\)",
    ),
    "a metric that is reset": (
        {"methods": METRIC, "training": "self.error.reset()\n"},
        r"self\.error\.reset\(\) is called in a step",
    ),
    "a collection's values so far": (
        {
            "methods": METRIC.replace(
                "self.error = MeanSquaredError()",
                "from torchmetrics import MetricCollection\n"
                "    self.errors = MetricCollection({'mse': MeanSquaredError()}, prefix='val_')",
            ),
            "training": "self.errors['mse'](self(x), y)\nself.errors.compute()\n",
        },
        r"self\.errors\.val_mse\.compute\(\) is called in a step",
    ),
    "a running mean": (
        {
            "methods": METRIC.replace("MeanSquaredError", "RunningMean"),
            "training": "self.error(loss)\nself.log('recent', self.error)\n",
        },
        r"the metric 'error' \(RunningMean\) is a wrapper \(Running\) .*not supported",
    ),
    "a metric as the loss": (
        {"methods": METRIC, "training": "self.log('train_loss', self.error)\n"},
        r"self\.log\('train_loss', \.\.\.\) logs a metric as the loss",
    ),
    "a maximum of the training": (
        {
            "methods": METRIC.replace("MeanSquaredError", "MaxMetric"),
            "training": "self.error(loss)\nself.log('worst', self.error)\n",
        },
        r"metric 'worst' \(MaxMetric\) do not add up: .* by the steps of an epoch\. Log it in val",
    ),
    "validation hook": (
        {"methods": "def on_validation_epoch_end(self):\n    pass\n"},
        r"net\.py:\d+: Net has on_validation_epoch_end\(\), which would not be called here",
    ),
    "hook on the object": (
        {
            "methods": "def setup(self, stage):\n    self.on_train_epoch_end = self.end\n\n"
            "def end(self):\n    pass\n"
        },
        r"net\.py:\d+: the attribute on_train_epoch_end of the Net replaces a method",
    ),
    "step on the object only": (
        {
            "methods": "def setup(self, stage):\n    self.test_step = self.training_step\n"
            "    self.predict_step = lambda batch, batch_idx: 2 * self(batch[0])\n"
        },
        r"the attribute (predict|test)_step of the Net(?s:.*)Define the method in the class",
    ),
    "optimizer_step": (
        {"methods": "def optimizer_step(self, *args, **more):\n    pass\n"},
        r"Net has optimizer_step\(\)",
    ),
    "two optimizers": (
        {"optimizers": "return [torch.optim.SGD([p], 0.1) for p in self.parameters()]\n"},
        r"configure_optimizers\(\) returned 2 optimizers",
    ),
    "a key that Lightning does not use": (
        {
            "optimizers": "sgd = torch.optim.SGD(self.parameters(), 0.1)\n"
            "return {'optimizer': sgd, 'lr_schedulers': []}\n"
        },
        r"configure_optimizers\(\) returned a dict with lr_schedulers",
    ),
    "steps of the Trainer": (
        {
            "optimizers": "total = self.trainer.estimated_stepping_batches\n"
            "return torch.optim.SGD(self.parameters(), 1 / total)\n"
        },
        r"configure_optimizers\(\) uses self\.trainer(?s:.*)Pass the value to the class",
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
    "an option that is not there": (
        {"training": "self.log('x', loss, on_epoc=True)\n"},
        r"self\.log\('x', on_epoc=\.\.\.\): there is no such option",
    ),
    "several numbers": (
        {"training": "self.log('outputs', self(x))\n"},
        r"the tensor has the shape \[\d+, 1\]",
    ),
    "Trainer": (
        {"training": "loss = loss / self.trainer.max_epochs\n"},
        r"uses self\.trainer\.max_epochs",
    ),
}


OF_STEPS = {
    "batch_idx": (
        {"training": "if batch_idx % 2:\n    loss = loss * 2\n"},
        "a step uses batch_idx",
    ),
    "log": ({"training": "self.log('worst', loss, reduce_fx='max')\n"}, "reduce_fx='max'"),
    "the optimizer": ({"training": "self.optimizers()\n"}, "the module uses self.optimizers. St"),
    "other processes": (
        {"training": "self.all_gather(x)\n"},
        "the module uses self.all_gather. Th",
    ),
    "the trainer": (
        {"validation": "self.trainer.datamodule\n"},
        "the module uses self.trainer.datamodule. There is no Lightning Trainer here",
    ),
    "the end": (
        {"training": "self.trainer.should_stop = True\n"},
        "the module sets self.trainer.should_stop, which would have no effect",
    ),
    "a metric": (
        {"methods": METRIC, "training": "self.error.compute()\n"},
        "self.error.compute() is called in a step",
    ),
    "manual": (
        {
            "methods": METRIC.replace(
                "self.error =", "self.automatic_optimization = False; self.e ="
            )
        },
        "Net has automatic_optimization = False.",
    ),
}


@pytest.mark.parametrize("what", OF_STEPS)
def test_unsupported_code_in_a_step_is_refused_with_its_line(tmp_path, data, what):
    instead, expected = OF_STEPS[what]
    zoo = written(tmp_path, **instead)
    lines = (zoo / "net.py").read_text().splitlines()
    statement = list(instead.values())[-1].strip().splitlines()[what == "manual" and -1]
    line = next(i for i, each in enumerate(lines, 1) if each.strip() == statement.strip())

    with pytest.raises(DefinitionError) as caught:
        train(tmp_path, data / "data.recordio", zoo, validation_data=str(data / "data.recordio"))

    assert f"net.py:{line}: " in str(caught.value)
    assert expected in str(caught.value)


@pytest.mark.parametrize("what", REFUSED)
def test_unsupported_modules_are_refused(tmp_path, data, what):
    instead, expected = REFUSED[what]

    with pytest.raises(DefinitionError, match=expected):
        train(tmp_path, data / "data.recordio", written(tmp_path, **instead))


@pytest.mark.parametrize("error", ["error", "error.detach()"])
def test_a_metric_of_the_users_class_is_no_hidden_state(tmp_path, data, error):
    update = f"error = (preds - target).abs().mean(); self.value = self.value + {error}"
    methods = OWN_METRIC.replace("# update", update)

    train(tmp_path, data / "data.recordio", written(tmp_path, methods=methods, training=LOG_LATEST))


def test_a_composed_metric_is_computed_over_all_batches(tmp_path, data):
    methods = """
        def setup(self, stage):
            from torchmetrics import MeanAbsoluteError, MeanSquaredError
            self.ratio = MeanSquaredError() / MeanAbsoluteError()
    """
    lines = "self.ratio.update(self(x), y)\nself.log('val_ratio', self.ratio)\n"
    zoo = written(tmp_path, methods=methods, validation=lines)
    records = str(data / "data.recordio")

    found = train(tmp_path, records, zoo, validation_data=records).metrics["val_ratio"]

    rows = np.load(data / "x.npy")
    params = dict(load_trained_model(str(tmp_path / "out")).params)
    error = rows @ params["net.weight"].T + params["net.bias"] - rows.sum(1, keepdims=True)
    expected = np.square(error).mean() / np.abs(error).mean()
    assert found == pytest.approx(expected, rel=1e-4)


def test_custom_metrics_resume_and_choose_the_best_model(tmp_path, data):
    methods = """
        def setup(self, stage):
            from torchmetrics import MaxMetric, R2Score
            self.farthest, self.val_r2 = MaxMetric(), R2Score()
    """
    lines = "self.farthest.update((self(x) - y).abs())\nself.log('val_farthest', self.farthest)\n"
    lines += "self.val_r2(self(x), y)\nself.log('val_r2', self.val_r2)\n"
    zoo = written(tmp_path, methods=methods, validation=lines)
    records = str(data / "data.recordio")
    options = {"validation_data": records, "best_metric": "val_r2", "evaluation_steps": 5}

    whole = train(tmp_path, records, zoo, "whole", **options)
    train(tmp_path, records, zoo, "resumed", **options, num_epochs=1)
    resumed = train(tmp_path, records, zoo, "resumed", **options)

    assert resumed.metrics == whole.metrics
    # No mean over batches: the largest of all errors, and a value for all of the data.
    rows = np.load(data / "x.npy")
    params = dict(load_trained_model(str(tmp_path / "whole")).params)
    found = rows @ params["net.weight"].T + params["net.bias"]
    expected = np.abs(found[:, 0] - rows.sum(1)).max()
    evaluated = elasticdl.evaluate(trained_model=str(tmp_path / "whole"), data=records)
    assert evaluated.metrics["farthest"] == pytest.approx(expected, rel=1e-5)
    assert evaluated.metrics["r2"] == pytest.approx(
        1
        - np.square(found[:, 0] - rows.sum(1)).sum()
        / np.square(rows.sum(1) - rows.sum(1).mean()).sum(),
        rel=1e-5,
    )


def test_training_can_start_from_a_lightning_checkpoint(tmp_path, data):
    import lightning as L  # noqa: N812 - as its users call it

    zoo = written(tmp_path)
    records = data / "data.recordio"
    before = {}
    exec((zoo / "net.py").read_text(), before)
    net = before["Net"](lr=0.0)
    trainer = L.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, default_root_dir=tmp_path,
        enable_progress_bar=False, enable_checkpointing=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.strategy.connect(net)
    trainer.save_checkpoint(tmp_path / "before.ckpt")
    text = (zoo / "net.py").read_text()
    path = str(tmp_path / "before.ckpt")
    maker = f"\n\ndef custom_model(lr):\n    return Net.load_from_checkpoint({path!r}, lr=lr)\n"
    (zoo / "net.py").write_text(text + maker)

    train(tmp_path, records, zoo, params={"lr": 0.0})

    params = dict(load_trained_model(str(tmp_path / "out")).params)
    for name, tensor in net.state_dict().items():
        np.testing.assert_array_equal(params[name], tensor.numpy())
    (zoo / "net.py").write_text(
        text + "\n\ndef custom_model():\n    return torch.nn.Linear(2, 1)\n"
    )
    with pytest.raises(DefinitionError, match=r"returned a Linear\.[\s\S]* a Net"):
        train(tmp_path, records, zoo, "other")


def test_current_epoch_and_global_step_are_available(tmp_path, data):
    lines = "self.log('epoch_and_step', self.current_epoch + self.global_step / 1000)\n"
    trained = train(tmp_path, data / "data.recordio", written(tmp_path, training=lines))

    # Of the last epoch: steps 16 to 23.
    assert trained.metrics["epoch_and_step"] == pytest.approx(2 + 0.0195)


def test_current_epoch_is_right_after_a_resume_within_an_epoch(tmp_path, data):
    zoo = written(tmp_path, training="self.log('epoch', float(self.current_epoch))\n")
    train(tmp_path, data / "data.recordio", zoo, max_steps=20)

    resumed = train(tmp_path, data / "data.recordio", zoo)

    assert resumed.step == 24
    assert resumed.metrics["epoch"] == 2


def test_the_frequency_of_a_scheduler_counts_updates_of_an_epoch(tmp_path, data):
    lines = """
        optimizer = torch.optim.SGD(self.parameters(), lr=1.0)
        decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        schedule = {"scheduler": decay, "interval": "step", "frequency": 3}
        return {"optimizer": optimizer, "lr_scheduler": schedule}
    """
    zoo = written(tmp_path, optimizers=lines)
    records, rates = data / "data.recordio", {}

    # Epochs of eight updates: it steps after the updates 3 and 6 of each.
    for name, max_steps in (("whole", (None,)), ("resumed", (18, None))):
        for until in max_steps:
            limit = {} if until is None else {"max_steps": until}
            train(tmp_path, records, zoo, name, **limit)
        rates[name] = learning_rate(tmp_path / name)

    assert rates == {"whole": 0.5**6, "resumed": 0.5**6}


def test_an_error_in_a_step_is_reported_with_its_line(tmp_path, data):
    zoo = written(tmp_path, training="raise ValueError('odd')\n")

    with pytest.raises(UserCodeError, match=r"net\.py:\d+: .*training_step|odd"):
        train(tmp_path, data / "data.recordio", zoo)


def test_a_loss_that_couples_examples_is_refused_in_shared_sums(tmp_path, data):
    lines = "loss = ((self(x) - y).mean() ** 2)\n"
    zoo = written(tmp_path, training=lines)

    train(tmp_path, data / "data.recordio", zoo)
    with pytest.raises(DefinitionError, match="not a mean over examples"):
        train(tmp_path, data / "data.recordio", zoo, "shared", global_batch_size=16)


def test_missing_data_are_reported_with_suggestions(tmp_path, data):
    with pytest.raises(DefinitionError, match="there is no data for it"):
        train(tmp_path, data / "data.recordio", written(tmp_path, data=""))


@pytest.mark.parametrize("name", ["eval_metrics_fn", "lr_scheduler"])
def test_functions_that_a_module_replaces_are_refused_beside_it(tmp_path, data, name):
    more = INPUT + f"\n\ndef {name}():\n    return {{}}\n"

    with pytest.raises(DefinitionError, match=f"{name} would be ignored: "):
        train(tmp_path, data / "data.recordio", written(tmp_path, data=more))


def test_a_function_that_the_module_calls_is_not_refused(tmp_path, data):
    more = INPUT + "\n\ndef class_weight():\n    return 1.0\n"
    zoo = written(tmp_path, training="        loss = loss * class_weight()\n", data=more)

    train(tmp_path, data / "data.recordio", zoo)


def test_a_module_of_pytorch_beside_a_lightning_module_is_not_refused(tmp_path, data):
    more = "from torch.optim import lr_scheduler\n\n" + INPUT

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


def test_parts_without_effect_beside_a_module_are_refused(tmp_path, data):
    more = INPUT + "\n\nclass PredictionOutputsProcessor:\n    pass\n"

    with pytest.raises(DefinitionError, match="PredictionOutputsProcessor would be ignored: "):
        train(tmp_path, data / "data.recordio", written(tmp_path, data=more))
