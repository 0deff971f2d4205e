"""One step and a group of 32: our Keras trainer against Keras' own `train_function`.

Prints one line of JSON; run by `benchmarks.training`, pinned to one core.
"""

import importlib
import json
import statistics
import sys
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from benchmarks.record import ratio
from elasticdl.data.batch import Batch
from elasticdl.definition import ModelDefinition, Origin, RecordInput
from elasticdl.training.keras import KerasTrainer

SIZE, ROUNDS = 32, 7
sys.path.insert(0, str(Path(__file__).parent / "zoo"))
zoo = importlib.import_module("mlp")


def ours(batches, group):
    trainer = KerasTrainer(
        ModelDefinition(
            Origin("benchmark", "mlp.py", 1, "mlp", "zoo"),
            "keras",
            zoo.custom_model,
            RecordInput(lambda records: records),
            zoo.loss,
            zoo.optimizer,
            labels_as_numpy=True,
        ),
        batches[0],
        minibatch_size=SIZE,
        deterministic=False,
    )
    groups = [batches[i : i + group] for i in range(0, len(batches), group)]
    for some in groups:
        trainer.train_steps(some)

    def measure():
        begin = time.perf_counter()
        for some in groups:
            trainer.train_steps(some)
        return (time.perf_counter() - begin) / len(batches) * 1e6

    return measure


def keras_own(batches, group):
    model = zoo.custom_model()
    model.compile(
        zoo.optimizer(),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        steps_per_execution=group,
    )
    x = np.concatenate([batch.features["image"] for batch in batches])
    y = np.concatenate([batch.labels for batch in batches])
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(SIZE).repeat().prefetch(64)
    iterator = iter(dataset)
    model.make_train_function()
    train_function = model.train_function
    for _ in range(len(batches) // group):
        train_function(iterator)

    def measure():
        begin = time.perf_counter()
        for _ in range(len(batches) // group):
            logs = train_function(iterator)
            logs = logs.get_value() if hasattr(logs, "get_value") else logs
            float(logs["loss"])
        return (time.perf_counter() - begin) / len(batches) * 1e6

    return measure


def main():
    rng = np.random.default_rng(0)
    batches = [
        Batch(
            {"image": rng.normal(size=(SIZE, *zoo.SHAPE)).astype("float32")},
            rng.integers(0, zoo.CLASSES, (SIZE, 1)),
            SIZE,
        )
        for _ in range(512)
    ]
    result = {}
    for group in (1, 32):
        mine, theirs = ours(batches, group), keras_own(batches, group)
        taken = [(mine(), theirs()) for _ in range(ROUNDS)]
        name = f"mlp_us_per_step_{group}_a_call"
        result[name] = ratio(*zip(*taken, strict=True), bar=1.0, higher_is_better=False)
        extra = statistics.median(m - t for m, t in taken)
        result[name]["extra_us"] = round(extra, 1)
        result[name]["extra_us_bar"] = 100
    print(json.dumps(result))


main()
