"""Batches of a DataLoader are a function of (seed, epoch, number), on every process."""

import textwrap

import numpy as np
import pytest
import torch

import elasticdl
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.dialects import torch_loaders
from elasticdl.errors import DefinitionError, UsageError

FILE = """
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset

loss = torch.nn.MSELoss()


class Rows(Dataset):
    def __init__(self, path):
        self.x = np.load(path)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        x = self.x[index]
        return x + 0.01 * np.float32(np.random.randn()), x.sum(keepdims=True)


def train_dataloader(data, batch_size=8):
    # loader
    return DataLoader(Rows(data), batch_size, shuffle=True, num_workers=2)


def val_dataloader(data):
    return DataLoader(Rows(data), 16)


def custom_model():
    return torch.nn.Linear(2, 1)


def optimizer(parameters):
    return torch.optim.SGD(parameters, lr=0.1)
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "x.npy"
    np.save(path, np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32))
    return path


def written(folder, **instead):
    zoo = folder / "zoo"
    zoo.mkdir(exist_ok=True)
    text = FILE
    for comment, lines in instead.items():
        indented = textwrap.indent(textwrap.dedent(lines), "    ")
        text = text.replace(f"    # {comment}\n", indented)
    (zoo / "rows.py").write_text(text)
    return zoo


def train(folder, data, zoo, name="out", **options):
    return elasticdl.train(
        model_zoo=str(zoo), model_def="rows", data=str(data), output=str(folder / name),
        **{"num_epochs": 2, **options},
    )  # fmt: skip


def weights(folder, name):
    return dict(load_trained_model(str(folder / name)).params)


def test_it_is_trained_on_and_evaluated(tmp_path, data):
    zoo = written(tmp_path)

    trained = train(tmp_path, data, zoo, validation_data=str(data), params={"batch_size": 16})

    assert trained.step == 2 * 4
    assert trained.metrics["val_loss"] < trained.metrics["loss"]
    with pytest.raises(UsageError, match=r"reads batches of a DataLoader .*\n.*val_dataloader"):
        elasticdl.predict(
            trained_model=str(tmp_path / "out"), data=str(data), output=str(tmp_path / "p")
        )
    assert (
        elasticdl.evaluate(trained_model=str(tmp_path / "out"), data=str(data)).metrics["loss"] > 0
    )


def test_an_update_is_made_of_batches_of_the_loader(tmp_path, data):
    zoo = written(tmp_path)

    # 60 examples: eight batches of 8, or four updates of 16, an epoch.
    options = {"params": {"batch_size": 8}, "minibatch_size": 16, "num_epochs": 1}
    assert train(tmp_path, data, zoo, "one", **options).step == 8
    assert train(tmp_path, data, zoo, "two", **options, global_batch_size=16).step == 4
    with pytest.raises(UsageError, match="expected a multiple of 20, the examples in a batch of"):
        options["params"] = {"batch_size": 20}
        train(tmp_path, data, zoo, "odd", **options, global_batch_size=16)


def test_a_resumed_training_sees_the_same_batches(tmp_path, data):
    zoo = written(tmp_path)
    train(tmp_path, data, zoo, "whole", num_epochs=3)

    train(tmp_path, data, zoo, "resumed", num_epochs=1)
    train(tmp_path, data, zoo, "resumed", num_epochs=3)

    whole, resumed = weights(tmp_path, "whole"), weights(tmp_path, "resumed")
    assert all(np.array_equal(whole[name], resumed[name]) for name in whole)


def test_a_generator_of_the_loader_draws_another_order_in_each_epoch():
    rows = torch.utils.data.TensorDataset(torch.arange(60.0)[:, None], torch.zeros(60, 1))
    made = torch.utils.data.DataLoader(
        rows, 8, shuffle=True, generator=torch.Generator().manual_seed(1)
    )
    epochs = torch_loaders.epochs_of(made, SYMBOL, None, torch_loaders.as_module)
    first, second, again = (order_of(epochs, seed) for seed in (1, 2, 1))

    assert first == again
    assert first != second
    assert sorted(first) == list(range(60))


SYMBOL = type("Symbol", (), {"name": "train_dataloader", "__str__": lambda self: "rows.py:1"})()


def order_of(epochs, seed):
    np.random.seed(seed)  # noqa: NPY002 - as engines seed it
    batches = list(epochs.begin(0, 0))
    np.random.seed(seed)  # noqa: NPY002 - as above
    tail = list(epochs.begin(0, 3))
    assert [b.features.tolist() for b in tail] == [b.features.tolist() for b in batches[3:]]
    return [int(x) for batch in batches for x in batch.features[:, 0]]


REFUSED = {
    "no loader": ("return [1, 2]\n", r"train_dataloader\(\) returned a builtins\.list"),
    "three parts": (
        "return DataLoader(Rows(data), 8, collate_fn=lambda rows: (1, 2, 3))\n",
        r"expected \(features, labels\), or a dict with labels",
    ),
    "without a length": (
        """
        class Stream(IterableDataset):
            def __iter__(self):
                yield from Rows(data)

        return DataLoader(Stream(), 8)
        """,
        r"has no length",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_read_is_refused(tmp_path, data, what):
    lines, expected = REFUSED[what]

    with pytest.raises(DefinitionError, match=expected):
        train(tmp_path, data, written(tmp_path, loader=lines.lstrip("\n")))


def test_an_iterable_dataset_is_replayed_in_one_process(tmp_path, data):
    lines = """
    class Stream(IterableDataset):
        def __len__(self):
            return 60

        def __iter__(self):
            rows = Rows(data)
            yield from (rows[i] for i in np.random.permutation(60))

    return DataLoader(Stream(), 8)
    """
    zoo = written(tmp_path, loader=lines.lstrip("\n"))
    train(tmp_path, data, zoo, "whole", checkpoint_steps=3)
    train(tmp_path, data, zoo, "again", checkpoint_steps=3)

    whole, again = weights(tmp_path, "whole"), weights(tmp_path, "again")
    assert all(np.array_equal(whole[name], again[name]) for name in whole)
    with pytest.raises(DefinitionError, match="Train in one process"):
        train(tmp_path, data, zoo, "shared", num_workers=1)
