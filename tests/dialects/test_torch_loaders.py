"""Batches of a DataLoader are a function of (seed, epoch, number), on every process."""

import csv
import pickle
import random
import shutil
import signal
import textwrap
import threading

import numpy as np
import pytest
import torch

import elasticdl
from elasticdl.artifacts.trained_model import load_trained_model
from elasticdl.dialects import torch_loaders
from elasticdl.dialects.loader_workers import LoaderWorkers
from elasticdl.errors import DataError, DefinitionError, UsageError, UserCodeError

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


def test_a_loader_is_used_for_training_and_evaluation(tmp_path, data):
    zoo = written(tmp_path)

    trained = train(tmp_path, data, zoo, validation_data=str(data), params={"batch_size": 16})

    assert trained.step == 2 * 4
    assert trained.metrics["val_loss"] < trained.metrics["loss"]
    with pytest.raises(UsageError, match=r"reads batches of a DataLoader .*\n.*val_dataloader"):
        elasticdl.predict(
            trained_model=str(tmp_path / "out"),
            data=str(data),
            output=str(tmp_path / "p"),
            num_workers=1,
        )
    assert (
        elasticdl.evaluate(trained_model=str(tmp_path / "out"), data=str(data)).metrics["loss"] > 0
    )


def test_in_memory_data_that_a_loader_would_ignore_are_refused(tmp_path, data):
    zoo = written(tmp_path)
    train(tmp_path, data, zoo)
    in_memory = (np.ones((3, 2), np.float32), np.ones((3, 1), np.float32))
    trained = {"trained_model": str(tmp_path / "out"), "data": in_memory}

    with pytest.raises(UsageError, match="data is in memory, but this model reads its data"):
        elasticdl.evaluate(**trained)
    with pytest.raises(UsageError, match="data is in memory, but this model reads its data"):
        elasticdl.train(
            model_zoo=str(zoo), model_def="rows", data=in_memory, output=str(tmp_path / "other")
        )
    assert not (tmp_path / "other" / "in_memory_data").exists()


def test_its_validation_loader_is_used_unless_other_data_are_named(tmp_path, data):
    zoo, other = written(tmp_path), tmp_path / "other.npy"
    np.save(other, np.load(data) * 10)

    own = train(tmp_path, data, zoo, "own").metrics["val_loss"]

    assert own == train(tmp_path, data, zoo, "same", validation_data=str(data)).metrics["val_loss"]
    assert train(tmp_path, data, zoo, "other", validation_data=str(other)).metrics["val_loss"] > own


def test_changed_data_are_reported_by_their_number_of_batches(tmp_path, data):
    zoo, own = written(tmp_path), tmp_path / "own.npy"
    shutil.copyfile(data, own)
    train(tmp_path, own, zoo, num_epochs=1)
    np.save(own, np.load(data)[:40])

    with pytest.raises(DataError, match=r"which is \d+ instead of \d+ \(another batch size"):
        train(tmp_path, own, zoo)


PREDICTED = """

def predict_dataloader(data):
    return DataLoader(np.load(data)[:10], 4)
"""


@pytest.mark.parametrize(("more", "count"), [("", 60), (PREDICTED, 10)], ids=["val", "predict"])
def test_predictions_are_made_for_the_examples_of_a_loader(tmp_path, data, more, count):
    zoo = written(tmp_path)
    (zoo / "rows.py").write_text(FILE.replace("+ 0.01 * np", "+ 0.0 * np") + more)
    train(tmp_path, data, zoo)

    elasticdl.predict(
        trained_model=str(tmp_path / "out"),
        data=str(data),
        output=str(tmp_path / "predicted"),
        format="csv",
    )

    with (tmp_path / "predicted/part-00000.csv").open() as file:
        rows = list(csv.DictReader(file))
    params = weights(tmp_path, "out")
    expected = np.load(data) @ params["weight"].T + params["bias"]
    assert [row["key"] for row in rows] == [f"example:{number}" for number in range(count)]
    np.testing.assert_allclose(
        [float(row["output"]) for row in rows], expected[:count, 0], rtol=1e-5
    )


def test_columns_of_a_loader_cannot_be_copied(tmp_path, data):
    zoo = written(tmp_path)
    train(tmp_path, data, zoo)

    with pytest.raises(UsageError, match=r"have no columns to copy\. Leave the option out: "):
        elasticdl.predict(
            trained_model=str(tmp_path / "out"), data=str(data), output=str(tmp_path / "p"),
            columns=["label"],
        )  # fmt: skip


def test_prediction_with_a_shuffling_loader_is_refused(tmp_path, data):
    zoo = written(tmp_path)
    (zoo / "rows.py").write_text(FILE + PREDICTED.replace("4)", "4, shuffle=True)"))
    train(tmp_path, data, zoo)

    with pytest.raises(DefinitionError, match=r"rows.py:\d+: .*predict_dataloader\(\) shuffles"):
        elasticdl.predict(
            trained_model=str(tmp_path / "out"), data=str(data), output=str(tmp_path / "p")
        )


@pytest.mark.parametrize(
    ("loader", "expected"),
    [
        ("DataLoader(np.load(data)[:10], 4, sampler=Drawn())", r"predict_dataloader\(\) shuffles"),
        ("DataLoader(np.load(data)[:10], 4, drop_last=True)", "the last 2 examples would have no"),
    ],
)
def test_prediction_with_drawn_or_dropped_examples_is_refused(tmp_path, data, loader, expected):
    zoo = written(tmp_path)
    drawn = """

class Drawn(torch.utils.data.Sampler):
    def __iter__(self):
        return iter(torch.randperm(10).tolist())

    def __len__(self):
        return 10


def predict_dataloader(data):
    return """
    (zoo / "rows.py").write_text(FILE + drawn + loader + "\n")
    train(tmp_path, data, zoo, num_epochs=1)

    with pytest.raises(DefinitionError, match=expected):
        elasticdl.predict(
            trained_model=str(tmp_path / "out"), data=str(data), output=str(tmp_path / "p")
        )


def test_a_generator_shared_by_two_loaders_is_refused(tmp_path, data):
    zoo = written(tmp_path)
    text = FILE.replace("shuffle=True, num_workers=2", "shuffle=True, generator=shared()")
    text = text.replace(
        "DataLoader(Rows(data), 16)", "DataLoader(Rows(data), 16, generator=shared())"
    )
    once = "\nimport functools\nshared = functools.cache(torch.Generator)\n"
    (zoo / "rows.py").write_text(text + once)

    with pytest.raises(DefinitionError, match=r"val_dataloader\(\) shares its generator with"):
        train(tmp_path, data, zoo)


def test_a_model_trained_with_a_loader_is_loaded(tmp_path, data):
    here, elsewhere = tmp_path / "here.npy", tmp_path / "elsewhere.npy"
    shutil.copyfile(data, here)
    train(tmp_path, here, written(tmp_path))
    trained = weights(tmp_path, "out")

    loaded = elasticdl.load(str(tmp_path / "out"))
    here.rename(elsewhere)
    with pytest.raises(UsageError, match=r"built on a batch of it, but .* cannot be read"):
        elasticdl.load(str(tmp_path / "out"))
    again = elasticdl.load(str(tmp_path / "out"), data=str(elsewhere))

    for model in (loaded, again):
        assert not model.training
        with pytest.raises(UsageError, match=r"its data with its own loader.*model\(inputs\)"):
            model.predict(np.zeros((1, 2)))
        pickle.dumps(model.predict)
        assert model.state_dict().keys() == trained.keys()
        for name, value in model.state_dict().items():
            assert np.array_equal(value.numpy(), trained[name])


MAXIMUM = """

import torchmetrics


class Farthest(torchmetrics.MaxMetric):
    def update(self, preds, target):
        super().update((preds - target).abs())


def eval_metrics_fn():
    return {"farthest": Farthest()}
"""


def test_a_maximum_covers_all_batches_in_an_evaluation(tmp_path, data):
    zoo = written(tmp_path)
    (zoo / "rows.py").write_text(FILE + MAXIMUM)

    trained = train(tmp_path, data, zoo)

    evaluated = elasticdl.evaluate(trained_model=str(tmp_path / "out"), data=str(data))
    assert evaluated.metrics["farthest"] == pytest.approx(trained.metrics["val_farthest"])


def test_an_update_sums_batches_of_the_loader(tmp_path, data):
    zoo = written(tmp_path)

    # 60 examples: eight batches of 8, or four updates of 16, an epoch.
    options = {"params": {"batch_size": 8}, "minibatch_size": 64, "num_epochs": 1}
    assert train(tmp_path, data, zoo, "one", **options).step == 8
    assert train(tmp_path, data, zoo, "two", **options, global_batch_size=16).step == 4
    with pytest.raises(
        UsageError, match="is not a multiple of 20, the number of examples in a batch of"
    ):
        options["params"] = {"batch_size": 20}
        train(tmp_path, data, zoo, "odd", **options, global_batch_size=16)


def test_a_resumed_training_sees_the_same_batches(tmp_path, data):
    zoo = written(tmp_path)
    train(tmp_path, data, zoo, "whole", num_epochs=3)

    train(tmp_path, data, zoo, "resumed", num_epochs=1)
    train(tmp_path, data, zoo, "resumed", num_epochs=3)

    whole, resumed = weights(tmp_path, "whole"), weights(tmp_path, "resumed")
    assert all(np.array_equal(whole[name], resumed[name]) for name in whole)


def test_a_loaders_generator_continues_across_epochs():
    rows = torch.utils.data.TensorDataset(torch.arange(60.0)[:, None], torch.zeros(60, 1))
    made = torch.utils.data.DataLoader(
        rows, 8, shuffle=True, generator=torch.Generator().manual_seed(1)
    )
    plain = [[int(x) for batch, _ in made for x in batch[:, 0]] for _ in range(3)]
    made.generator.manual_seed(1)
    epochs = torch_loaders.epochs_of(made, SYMBOL, None, torch_loaders.as_module)

    assert [order_of(epochs, number) for number in (2, 0, 1)] == [plain[2], plain[0], plain[1]]
    assert sorted(plain[0]) == list(range(60))


@pytest.mark.parametrize("persistent", [False, True])
def test_a_generator_draws_the_seed_of_workers_when_they_start(persistent):
    rows = torch.utils.data.TensorDataset(torch.arange(60.0)[:, None], torch.zeros(60, 1))
    made = torch.utils.data.DataLoader(
        rows,
        8,
        shuffle=True,
        generator=torch.Generator().manual_seed(1),
        num_workers=1,
        persistent_workers=persistent,
    )
    plain = [[int(x) for batch, _ in made for x in batch[:, 0]] for _ in range(3)]
    made.generator.manual_seed(1)
    epochs = torch_loaders.epochs_of(made, SYMBOL, None, torch_loaders.as_module)

    assert [order_of(epochs, number) for number in (2, 0, 1)] == [plain[2], plain[0], plain[1]]


class Opened(torch.utils.data.Dataset):
    """Its numbers are in a file that only a worker opens, as one does with HDF5."""

    numbers = None

    def __len__(self):
        return 20

    def __getitem__(self, index):
        info = torch.utils.data.get_worker_info()
        if info is None:
            return self.numbers[index], -1.0
        assert info.dataset.numbers is self.numbers
        return self.numbers[index], float(info.id + 10 * info.num_workers)


def opened(worker):
    torch.manual_seed(worker)
    info = torch.utils.data.get_worker_info()
    info.dataset.numbers = [float(100 + index) for index in range(20)]


def in_order(epochs):
    return [
        [array.tolist() for array in (batch.features, batch.labels)] for batch in epochs.begin(0, 0)
    ]


def test_items_see_the_worker_of_their_batch():
    made = torch.utils.data.DataLoader(Opened(), 8, num_workers=2, worker_init_fn=opened)
    plain = [[part.tolist() for part in batch] for batch in made]
    torch.manual_seed(7)
    before = torch.get_rng_state()

    epochs = torch_loaders.epochs_of(made, SYMBOL, None, torch_loaders.as_module)

    assert in_order(epochs) == plain
    assert [len(numbers) for numbers, _ in plain] == [8, 8, 4]
    # From the second batch, as when a training is resumed.
    (first, *_) = epochs.begin(0, 1)
    assert [first.features.tolist(), first.labels.tolist()] == plain[1]
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.utils.data.get_worker_info() is None


def test_batches_are_not_in_shared_memory():
    rows = torch.utils.data.TensorDataset(torch.ones(8, 2), torch.ones(8))
    shared = []

    def collate(items):
        batch = torch.utils.data.default_collate(items)
        shared.append(batch[0].is_shared())
        return batch

    made = torch.utils.data.DataLoader(rows, 4, num_workers=1, collate_fn=collate)
    in_order(torch_loaders.epochs_of(made, SYMBOL, None, torch_loaders.as_module))

    assert shared
    assert not any(shared)


def test_settings_of_worker_init_fn_do_not_stay():
    def quiet(worker):
        torch.set_num_threads(1)
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    num_threads = torch.get_num_threads()
    torch.set_num_threads(2)
    handler = signal.getsignal(signal.SIGINT)
    made = torch.utils.data.DataLoader(Opened(), 8, num_workers=2, worker_init_fn=quiet)

    torch_loaders.epochs_of(made, SYMBOL, None, torch_loaders.as_module)

    found = torch.get_num_threads(), signal.getsignal(signal.SIGINT)
    torch.set_num_threads(num_threads)
    assert found == (2, handler)


def test_an_error_of_worker_init_fn_names_it():
    def broken(worker):
        raise OSError(f"no file {worker}")

    made = torch.utils.data.DataLoader(Opened(), 8, num_workers=2, worker_init_fn=broken)

    with pytest.raises(UserCodeError, match=r"(?s)worker_init_fn\(0\) raised:.*no file 0"):
        torch_loaders.epochs_of(made, SYMBOL, None, torch_loaders.as_module)


class Counted(torch.utils.data.IterableDataset):
    """It yields its part only, if a worker iterates over it."""

    def __len__(self):
        return 20

    def __iter__(self):
        info = torch.utils.data.get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return ((float(i), 0.0) for i in range(first, 20, step))


def test_an_iterable_dataset_does_not_see_the_worker_of_another_loader():
    items = torch.utils.data.DataLoader(Opened(), 8, num_workers=2, worker_init_fn=opened)
    other = torch.utils.data.DataLoader(Counted(), 8)
    workers = LoaderWorkers(items, "items")
    found = []

    def read():
        epochs = torch_loaders.epochs_of(other, SYMBOL, None, torch_loaders.as_module)
        found.extend(in_order(epochs))

    thread = threading.Thread(target=read)
    with workers.making(1):
        thread.start()
        thread.join(0.5)
    thread.join()

    assert [number for numbers, _ in found for number in numbers] == [*map(float, range(20))]


class Wrapped:
    """A sampler around another one."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __len__(self):
        return len(self.sampler)

    def __iter__(self):
        return iter(self.sampler)


class Drawn:
    """A sampler whose order is drawn by a function, which may keep state in `self`."""

    def __init__(self, draw, **state):
        self.draw = draw
        vars(self).update(state)

    def __len__(self):
        return 60

    def __iter__(self):
        return iter(self.draw(self))


def by_numpy(sampler):
    return sampler.rng.permutation(60).tolist()


def in_place(sampler):
    sampler.rng.shuffle(sampler.order)
    return list(sampler.order)


def by_counter(sampler):
    sampler.epoch += 1
    generator = torch.Generator().manual_seed(sampler.epoch)
    return torch.randperm(60, generator=generator).tolist()


def seeded():
    return torch.Generator().manual_seed(1)


def batches_of(sampler):
    return {"batch_sampler": torch.utils.data.BatchSampler(sampler, 8, drop_last=False)}


ROWS = torch.utils.data.TensorDataset(torch.arange(60.0)[:, None], torch.zeros(60, 1))
WITH_STATE = {
    "in a batch sampler": lambda: batches_of(
        torch.utils.data.RandomSampler(ROWS, generator=seeded())
    ),
    "weighted": lambda: batches_of(
        torch.utils.data.WeightedRandomSampler(torch.arange(60) + 1.0, 60, generator=seeded())
    ),
    "wrapped": lambda: {
        "sampler": Wrapped(torch.utils.data.RandomSampler(ROWS, generator=seeded())),
        "batch_size": 8,
    },
    "of NumPy": lambda: {"sampler": Drawn(by_numpy, rng=np.random.default_rng(7)), "batch_size": 8},
    "of Python, in place": lambda: {
        "sampler": Drawn(in_place, rng=random.Random(7), order=list(range(60))),
        "batch_size": 8,
    },
    "a counter": lambda: batches_of(Drawn(by_counter, epoch=0)),
}


@pytest.mark.parametrize("kind", WITH_STATE)
def test_sampler_state_continues_across_epochs(kind):
    made = torch.utils.data.DataLoader(ROWS, **WITH_STATE[kind]())
    plain = [[int(x) for batch, _ in made for x in batch[:, 0]] for _ in range(3)]
    made = torch.utils.data.DataLoader(ROWS, **WITH_STATE[kind]())

    epochs = torch_loaders.epochs_of(made, SYMBOL, None, torch_loaders.as_module)

    assert plain[0] != plain[1]
    assert [order_of(epochs, number) for number in (2, 0, 1)] == [plain[2], plain[0], plain[1]]


class Reading:
    """What `epochs_of` makes its errors with."""

    def error(self, _symbol, *sentences):
        return DefinitionError(" ".join(sentences))


class Paced(Wrapped):
    """A sampler whose number of examples is a function of the epoch."""

    def __init__(self, num_of):
        self.num_of = num_of
        self.set_epoch(0)

    def set_epoch(self, epoch):
        self.sampler = range(self.num_of(epoch))


@pytest.mark.parametrize(
    ("num_of", "actual"),
    [(lambda epoch: 16 * (epoch + 1), 4), (lambda epoch: 16 // (epoch + 1), 1)],
)
def test_an_epoch_with_another_length_than_the_first_is_refused(num_of, actual):
    made = torch.utils.data.DataLoader(ROWS, 8, sampler=Paced(num_of))
    epochs = torch_loaders.epochs_of(made, SYMBOL, Reading(), torch_loaders.as_module)

    assert len(order_of(epochs, 0)) == 16
    with pytest.raises(DefinitionError, match=rf"batches in epoch 2 is {actual}; expected 2, "):
        epochs.begin(1, 0)


def weighted(**given):
    sampler = torch.utils.data.WeightedRandomSampler([1.0] * 60, 60, **given)
    return torch.utils.data.DataLoader(ROWS, 8, sampler=sampler)


def distributed():
    return torch.utils.data.DistributedSampler(ROWS, num_replicas=1, rank=0)


def in_batches(sampler):
    return torch.utils.data.DataLoader(
        ROWS, batch_sampler=torch.utils.data.BatchSampler(sampler, 8, drop_last=False)
    )


def of_subset():
    return torch.utils.data.DataLoader(
        ROWS, 8, sampler=torch.utils.data.SubsetRandomSampler(list(range(60)))
    )


def as_listed():
    return Drawn(lambda sampler: sampler.order, order=list(range(60)))


CHANGES = {
    "replaced": (
        weighted,
        lambda made, _: setattr(made.sampler, "weights", torch.arange(60) + 1.0),
        "`weights` of the WeightedRandomSampler",
    ),
    "in place": (
        weighted,
        lambda made, _: made.sampler.weights[:30].fill_(0.2),
        "`weights` of the WeightedRandomSampler",
    ),
    "items of a list": (
        of_subset,
        lambda made, _: made.sampler.indices.reverse(),
        "`indices` of the SubsetRandomSampler",
    ),
    "another epoch": (
        lambda: torch.utils.data.DataLoader(ROWS, 8, sampler=distributed()),
        lambda made, epoch: made.sampler.set_epoch(epoch + 10),
        "`epoch` of the DistributedSampler",
    ),
    "seeded": (
        lambda: weighted(generator=seeded()),
        lambda made, epoch: made.sampler.generator.manual_seed(epoch + 10),
        "`generator` of the WeightedRandomSampler",
    ),
    "another generator": (
        lambda: torch.utils.data.DataLoader(ROWS, 8, shuffle=True, generator=seeded()),
        lambda made, epoch: setattr(made, "generator", torch.Generator().manual_seed(epoch + 10)),
        "`generator` of the DataLoader",
    ),
    "size of batches": (
        lambda: in_batches(torch.utils.data.SequentialSampler(ROWS)),
        lambda made, _: setattr(made.batch_sampler, "batch_size", 4),
        "`batch_size` of the BatchSampler",
    ),
    "wrapped": (
        lambda: torch.utils.data.DataLoader(ROWS, 8, sampler=Wrapped(as_listed())),
        lambda made, _: made.sampler.sampler.order.reverse(),
        "`order` of the Drawn",
    ),
    "a new attribute": (
        lambda: torch.utils.data.DataLoader(ROWS, 8, sampler=Wrapped(range(60))),
        lambda made, _: setattr(made.sampler, "level", 2),
        "`level` of the Wrapped",
    ),
}


@pytest.mark.parametrize("kind", CHANGES)
def test_a_sampler_change_without_effect_is_refused(kind):
    make, change, named = CHANGES[kind]
    made = make()
    epochs = torch_loaders.epochs_of(made, SYMBOL, Reading(), torch_loaders.as_module)

    epochs.check(1)
    change(made, 1)

    with pytest.raises(DefinitionError, match=f"{named} has changed since .* no effect"):
        epochs.check(1)


@pytest.mark.parametrize(
    ("make", "set_epoch"),
    [
        (
            lambda: torch.utils.data.DataLoader(ROWS, 8, sampler=distributed()),
            lambda made, epoch: made.sampler.set_epoch(epoch),
        ),
        (
            lambda: in_batches(distributed()),
            lambda made, epoch: made.batch_sampler.sampler.set_epoch(epoch),
        ),
        (
            lambda: torch.utils.data.DataLoader(ROWS, 8, sampler=Paced(lambda epoch: 60)),
            lambda made, epoch: made.sampler.set_epoch(epoch),
        ),
    ],
)
def test_set_epoch_with_the_current_epoch_is_not_a_change(make, set_epoch):
    plain, made = make(), make()
    epochs = torch_loaders.epochs_of(made, SYMBOL, Reading(), torch_loaders.as_module)

    for epoch in range(3):
        set_epoch(plain, epoch)
        set_epoch(made, epoch)
        epochs.check(epoch)
        expected = [int(x) for batch, _ in plain for x in batch[:, 0]]
        assert order_of(epochs, epoch) == expected


@pytest.mark.parametrize("kind", WITH_STATE)
def test_drawing_epochs_in_advance_is_not_a_change(kind):
    made = torch.utils.data.DataLoader(ROWS, **WITH_STATE[kind]())
    epochs = torch_loaders.epochs_of(made, SYMBOL, Reading(), torch_loaders.as_module)

    order_of(epochs, 2)
    list(made.dataset)

    epochs.check(0)
    epochs.check(1)


class Cached(Wrapped):
    """A sampler that leaves a cache out of its copies."""

    cache = ()

    def __getstate__(self):
        return {"sampler": self.sampler}


def test_state_that_a_sampler_does_not_copy_is_ignored():
    sampler = Cached(range(60))
    sampler.cache, sampler.sizes = [1], {object(): 1}
    made = torch.utils.data.DataLoader(ROWS, 8, sampler=sampler)

    torch_loaders.epochs_of(made, SYMBOL, Reading(), torch_loaders.as_module).check(0)


CALLBACK = """


class Changes:
    def on_epoch_begin(self, epoch):
        # change


def callbacks():
    return [Changes()]
"""
WEIGHTED = """
global sampler
sampler = torch.utils.data.WeightedRandomSampler([1.0] * 60, 60)
return DataLoader(Rows(data), 8, sampler=sampler)
"""


def test_a_callback_that_changes_the_sampler_is_refused_before_that_epoch(
    tmp_path, data, monkeypatch
):
    monkeypatch.setattr(f"{__name__}.FILE", FILE + CALLBACK)
    change = "sampler.weights = torch.ones(60) if epoch < 1 else torch.arange(60) + 1.0\n"
    zoo = written(tmp_path, loader=WEIGHTED.lstrip("\n"), change=change)

    with pytest.raises(DefinitionError, match="`weights` of the WeightedRandomSampler has changed"):
        train(tmp_path, data, zoo, num_epochs=2)


def test_a_callback_that_sets_the_epoch_of_the_sampler_is_accepted(
    tmp_path, data, monkeypatch, caplog
):
    monkeypatch.setattr(f"{__name__}.FILE", FILE + CALLBACK)
    sampler = "torch.utils.data.DistributedSampler(Rows(data), num_replicas=1, rank=0)"
    weighted = "torch.utils.data.WeightedRandomSampler([1.0] * 60, 60)"
    loader = WEIGHTED.lstrip("\n").replace(weighted, sampler)
    zoo = written(tmp_path, loader=loader, change="sampler.set_epoch(epoch)\n")

    assert train(tmp_path, data, zoo, num_epochs=3).step == 3 * 8
    assert "sampler" not in caplog.text


def test_an_irreproducible_order_is_refused():
    unseeded = Drawn(lambda _: random.SystemRandom().sample(range(60), 60))
    made = torch.utils.data.DataLoader(ROWS, 8, sampler=unseeded)

    with pytest.raises(DefinitionError, match=r"dataloader\(\) yields a different order each time"):
        torch_loaders.epochs_of(made, SYMBOL, Reading(), torch_loaders.as_module)


def test_opening_a_loader_does_not_advance_global_generators():
    made = torch.utils.data.DataLoader(
        ROWS, 8, sampler=Drawn(lambda _: torch.randperm(60).tolist())
    )
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)

    torch_loaders.epochs_of(made, SYMBOL, Reading(), torch_loaders.as_module)

    assert torch.equal(torch.rand(3), expected)


class Noisy(torch.utils.data.Dataset):
    """Adds noise from a generator of its own, which a transform holds."""

    def __init__(self, generator, draw):
        self.transforms = [{"generator": generator}]
        self.draw = draw

    def __len__(self):
        return 60

    def __getitem__(self, index):
        return torch.full((1,), index + self.draw(self.transforms[0]["generator"])), 0.0


NOISE = {
    "PyTorch": lambda: Noisy(seeded(), lambda g: torch.rand((), generator=g)),
    "NumPy": lambda: Noisy(np.random.default_rng(1), lambda g: g.random()),
    "NumPy, of old": lambda: Noisy(np.random.RandomState(1), lambda g: g.rand()),
    "Python": lambda: Noisy(random.Random(1), lambda g: g.random()),
}


@pytest.mark.parametrize("kind", NOISE)
@pytest.mark.parametrize("is_subset", [False, True])
def test_a_dataset_that_draws_from_its_own_generator_is_refused(kind, is_subset):
    noisy = NOISE[kind]()
    rows = torch.utils.data.Subset(noisy, range(60)) if is_subset else noisy
    made = torch.utils.data.DataLoader(rows, 8)
    epochs = torch_loaders.epochs_of(made, SYMBOL, Reading(), torch_loaders.as_module)

    name = r"`dataset\.(dataset\.)?transforms\[0\]\['generator'\]`"
    with pytest.raises(DefinitionError, match=f"draws from a generator of its own, {name}"):
        next(epochs.begin(0, 0))


def test_an_unused_generator_of_a_dataset_is_ignored():
    made = torch.utils.data.DataLoader(Noisy(seeded(), lambda _: 0.0), 8)
    epochs = torch_loaders.epochs_of(made, SYMBOL, Reading(), torch_loaders.as_module)

    assert len(list(epochs.begin(0, 0))) == 8


SYMBOL = type("Symbol", (), {"name": "train_dataloader", "__str__": lambda self: "rows.py:1"})()


def order_of(epochs, number):
    batches, tail = list(epochs.begin(number, 0)), list(epochs.begin(number, 3))
    assert [b.features.tolist() for b in tail] == [b.features.tolist() for b in batches[3:]]
    return [int(x) for batch in batches for x in batch.features[:, 0]]


REFUSED = {
    "no loader": ("return [1, 2]\n", r"train_dataloader\(\) returned a builtins\.list"),
    "three parts": (
        "return DataLoader(Rows(data), 8, collate_fn=lambda rows: (np.ones((8, 2)), 1, [2]))\n",
        r"yields a tuple of 3: float64\[8, 2\], an int, a list; expected \(features, labels\)",
    ),
    "a list of labels": (
        "return DataLoader(Rows(data), 8, collate_fn=lambda rows: (np.ones((8, 2)), [2] * 8))\n",
        r"yields labels that are a list of 8 single values; make them .*torch\.tensor\(labels\)",
    ),
    "a tuple of labels": (
        """
        return DataLoader(
            Rows(data), 8, collate_fn=lambda rows: (np.ones((8, 2)), (torch.ones(()),) * 8)
        )
        """,
        r"yields labels that are a tuple of 8 single values",
    ),
    "labels of another length": (
        "return DataLoader(Rows(data), 8, collate_fn=lambda rows: (np.ones((8, 2)), np.ones(7)))\n",
        r"shapes \[\[8, 2\], \[7\]\]; expected \(features, labels\), every array with",
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
def test_unsupported_loaders_are_refused(tmp_path, data, what):
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


STREAM = """
class Stream(IterableDataset):
    def __len__(self):
        return {length}

    def __iter__(self):
        rows = Rows(data)
        yield from (rows[i] for i in {numbers})

return DataLoader(Stream(), 8)
"""


@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
@pytest.mark.parametrize(
    ("length", "numbers", "expected"),
    [
        (40, "range(60)", "yields more batches than the 5 that its length promises, .* with 40 ex"),
        (40, "itertools.cycle(range(60))", "yields more batches than the 5 that"),
        (60, "range(40)", "ended after 5 batches of an epoch; expected 8, the length it reported"),
    ],
    ids=["longer", "endless", "shorter"],
)
def test_an_iterable_dataset_with_a_wrong_length_is_refused(
    tmp_path, data, length, numbers, expected
):
    lines = "import itertools\n" + STREAM.format(length=length, numbers=numbers)

    with pytest.raises(DefinitionError, match=expected):
        train(tmp_path, data, written(tmp_path, loader=lines))


@pytest.mark.filterwarnings("ignore:Length of IterableDataset")
def test_a_validation_on_an_iterable_dataset_with_a_short_length_is_refused(tmp_path, data):
    zoo = written(tmp_path)
    stream = textwrap.indent(STREAM.format(length=40, numbers="range(60)"), "    ")
    text = FILE.replace("    return DataLoader(Rows(data), 16)\n", stream)
    (zoo / "rows.py").write_text(text)

    with pytest.raises(DefinitionError, match=r"val_dataloader\(\) yields more batches than"):
        train(tmp_path, data, zoo)
