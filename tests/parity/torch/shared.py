"""Records, and the plain loop, that the features of this folder share."""

import warnings

import numpy as np
import torch
from torch import nn


def table_schema():
    """Eight numbers, a number to predict, one of three classes, and a weight."""
    return [
        {"name": "x", "shape": [8], "dtype": "float32"},
        {"name": "y", "shape": [1], "dtype": "float32"},
        {"name": "label", "shape": [1], "dtype": "int64"},
        {"name": "weight", "shape": [1], "dtype": "float32"},
    ]


def _column(records, name):
    return np.stack([record[name] for record in records])


def numbers(records):
    """Return (x, y): a number is to be predicted."""
    return _column(records, "x"), _column(records, "y")


def classes(records):
    """Return (x, label): one of three classes."""
    return _column(records, "x"), _column(records, "label")[:, 0]


def yes_or_no(records):
    """Return (x, whether y is positive)."""
    return _column(records, "x"), np.float32(_column(records, "y") > 0)


def image_schema():
    """A picture of 8 x 8 pixels with two channels, and one of three classes."""
    return [
        {"name": "image", "shape": [8, 8, 2], "dtype": "float32"},
        {"name": "label", "shape": [1], "dtype": "int64"},
    ]


def images(records):
    """Return (image with its channels first, label)."""
    return _column(records, "image").transpose(0, 3, 1, 2).copy(), _column(records, "label")[:, 0]


def series_schema():
    """Six moments of three numbers, and a number to predict."""
    return [
        {"name": "series", "shape": [6, 3], "dtype": "float32"},
        {"name": "y", "shape": [1], "dtype": "float32"},
    ]


def series(records):
    """Return (series, y)."""
    return _column(records, "series"), _column(records, "y")


def tokens_schema():
    """Up to ten tokens below 20, filled up with zeros, and a number to predict."""
    return [
        {"name": "tokens", "shape": [10], "dtype": "int64"},
        {"name": "y", "shape": [1], "dtype": "float32"},
    ]


def tokens(records):
    """Return (tokens, y)."""
    return _column(records, "tokens"), _column(records, "y")


def next_tokens(records):
    """Return (tokens, the next tokens), as long as the longest of the batch."""
    x, _ = tokens(records)
    x = x[:, : int((x > 0).sum(1).max())]
    return x[:, :-1], x[:, 1:]


def net(outputs=1):
    """Return two linear layers."""
    return nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, outputs))


def loop(  # noqa: C901, PLR0915 - a plain loop is a long one
    data,
    model,
    optimizer,
    loss,
    input_fn,
    metric=None,
    count=len,
    *,
    clip=None,
    precision=None,
    scaler=None,
    average=None,
    after_update=lambda: None,
    after_epoch=lambda _: None,
    callbacks=(),
    metrics=None,
):
    """Return the losses of a plain loop over records in their order, and the model.

    Args:
        data: Records, and how to train on them.
        model: A module.
        optimizer: Over its parameters.
        loss: (outputs, labels) -> the mean over a batch.
        input_fn: Records -> (features, labels).
        metric: (outputs, labels) -> the mean over a batch; called `metric`.
        count: Labels -> how much the loss of a batch is a mean over.
        clip: Parameters -> nothing, with their gradients clipped.
        precision: The format of `torch.autocast`.
        scaler: A `torch.amp.GradScaler`.
        average: An `AveragedModel` of the model; it is evaluated and returned.
        after_update: Called then.
        after_epoch: Called then, with the loss of the validation.
        callbacks: Objects with methods such as `on_epoch_end`.
        metrics: Name -> metric of TorchMetrics.
    """
    tell = _begin(callbacks, model, optimizer)
    metrics = metrics or {}
    scaler = scaler or torch.amp.GradScaler("cpu", enabled=False)
    autocast = torch.autocast("cpu", precision, enabled=precision is not None)
    history = {"loss": [], "val_loss": []} | ({"val_metric": []} if metric else {})
    for epoch in range(data.epochs):
        model.train()
        tell("on_epoch_begin", epoch)
        total, counted = 0.0, 0.0
        for number, first in enumerate(range(0, len(data.train), data.batch_size)):
            tell("on_train_batch_begin", number)
            features, labels = _batch(data.train[first:], data, input_fn)
            optimizer.zero_grad()
            with autocast:
                value = loss(model(features), labels)
            scaler.scale(value).backward()
            if clip:
                scaler.unscale_(optimizer)
                clip(model.parameters())
            scaler.step(optimizer)
            scaler.update()
            if average:
                average.update_parameters(model)
            after_update()
            total += value.item() * count(labels)
            counted += count(labels)
            tell("on_train_batch_end", number, {"loss": total / counted})
            if getattr(model, "stop_training", False):
                break
        history["loss"].append(total / counted)
        evaluated = average.module if average else model
        evaluated.eval()
        tell("on_test_begin")
        for each in metrics.values():
            each.reset()
        total, counted, measured = 0.0, 0.0, 0.0
        with torch.no_grad():
            for number, first in enumerate(range(0, len(data.validation), data.batch_size)):
                tell("on_test_batch_begin", number)
                features, labels = _batch(data.validation[first:], data, input_fn)
                with autocast:
                    outputs = evaluated(features)
                    value = loss(outputs, labels)
                total += value.item() * count(labels)
                counted += count(labels)
                measured += metric(outputs, labels).item() * len(labels) if metric else 0.0
                for each in metrics.values():
                    each.update(outputs, labels)
                tell("on_test_batch_end", number, {"loss": total / counted})
        history["val_loss"].append(total / counted)
        if metric:
            history["val_metric"].append(measured / len(data.validation))
        for name, each in metrics.items():
            history.setdefault(f"val_{name}", []).append(each.compute().tolist())
        logs = {name: values[-1] for name, values in history.items()}
        tell("on_test_end", {n.removeprefix("val_"): v for n, v in logs.items() if "val_" in n})
        tell("on_epoch_end", epoch, logs)
        after_epoch(history["val_loss"][-1])
        if getattr(model, "stop_training", False):
            break
    tell("on_train_end")
    return history, average.module if average else model


def _begin(callbacks, model, optimizer):
    """Give callbacks what they work on; return what calls a method of each that has it."""

    def tell(moment, *args):
        for each in callbacks:
            if hasattr(each, moment):
                getattr(each, moment)(*args)

    for each in callbacks:
        each.model, each.optimizer = model, optimizer
        model.stop_training = False
    tell("on_train_begin")
    return tell


def _batch(records, data, input_fn):
    features, labels = input_fn(records[: data.batch_size])
    if isinstance(features, dict):
        return {name: torch.tensor(each) for name, each in features.items()}, torch.tensor(labels)
    return torch.tensor(features), torch.tensor(labels)


def loader_loop(model, optimizer, loss, epochs, training, validation):
    """Return the losses of a plain loop over the batches of two loaders, and the model.

    Args:
        model: A module.
        optimizer: Over its parameters.
        loss: (outputs, labels) -> the mean over a batch.
        epochs: How many.
        training: Yields (features, labels); so does `validation`.
        validation: Is iterated after each epoch.
    """
    history = {"loss": [], "val_loss": []}
    for _ in range(epochs):
        for batches in (training, validation):
            model.train(batches is training)
            total, counted = 0.0, 0
            with torch.set_grad_enabled(batches is training):
                for features, labels in batches:
                    value = loss(model(features), labels)
                    if batches is training:
                        optimizer.zero_grad()
                        value.backward()
                        optimizer.step()
                    total, counted = total + value.item() * len(labels), counted + len(labels)
            history["loss" if batches is training else "val_loss"].append(total / counted)
    return history, model


def fit_lightning(data, module, input_fn, **flags):
    """Return what Lightning's own Trainer logs in each epoch, and the module.

    Args:
        data: Records, and how to train on them.
        module: A LightningModule that logs `train_loss` of an epoch, and `val_loss`.
        input_fn: Records -> (features, labels).
        flags: Of the Trainer.
    """
    import lightning as L  # noqa: N812 - as its users call it; few features need it
    from lightning.pytorch.loggers.logger import Logger

    class Noted(Logger):
        name, version = "noted", 0

        def __init__(self):
            super().__init__()
            self.epochs = [{} for _ in range(data.epochs)]

        def log_metrics(self, metrics, step=None):
            self.epochs[metrics.pop("epoch")].update(metrics)

        def log_hyperparams(self, *args, **kwargs):
            pass

    def batches(records):
        starts = range(0, len(records), data.batch_size)
        made = [_batch(records[first:], data, input_fn) for first in starts]
        # A list of batches alone would be a list of loaders.
        return torch.utils.data.DataLoader(made, batch_size=None)

    logger = Noted()
    trainer = L.Trainer(
        max_epochs=data.epochs,
        accelerator="cpu",
        logger=logger,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        **flags,
    )
    with warnings.catch_warnings():
        # Lightning 2.6 asks PyTorch in a way that PyTorch 2.13 has come to dislike.
        warnings.simplefilter("ignore", FutureWarning)
        trainer.fit(module, batches(data.train), batches(data.validation))
    # Lightning calls it so where a module logs its steps too.
    loss = "train_loss_epoch" if "train_loss_epoch" in logger.epochs[0] else "train_loss"
    history = {"loss": [epoch.pop(loss) for epoch in logger.epochs]}
    for name in logger.epochs[0]:
        history[name.replace("train_", "")] = [epoch[name] for epoch in logger.epochs]
    return history, module
