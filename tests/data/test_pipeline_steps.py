"""A pipeline that makes other examples of parts of the data than of all is refused by name."""

import numpy as np
import pytest
import tensorflow as tf

from elasticdl.data.tensorflow import example_batches
from elasticdl.errors import DefinitionError

RECORDS = [b"%d" % number for number in range(16)]


def numbers(dataset):
    return dataset.map(lambda record: tf.strings.to_number(record, tf.int64))


def examples(create_dataset):
    """Return what a pipeline makes of two parts of the records, one after the other."""
    batches = [
        batch
        for part in (RECORDS[:8], RECORDS[8:])
        for batch in example_batches(part, create_dataset, 4, "zoo/m.py:3: feed()")
    ]
    return np.concatenate([batch.features for batch in batches]).tolist()


@pytest.mark.parametrize(
    "create_dataset",
    [
        lambda ds: numbers(ds).prefetch(2).with_options(tf.data.Options()),
        lambda ds: numbers(ds).cache(),
        lambda ds: numbers(ds).take(-1),
        lambda ds: numbers(ds.batch(5)).unbatch(),
        lambda ds: numbers(ds).flat_map(lambda x: tf.data.Dataset.range(9).skip(x % 9).take(1)),
        lambda ds: tf.data.Dataset.zip((numbers(ds), numbers(ds))).map(lambda x, y: y),
        lambda ds: tf.data.Dataset.from_generator(
            lambda: (int(each) for each in ds.as_numpy_iterator()),
            output_signature=tf.TensorSpec((), tf.int64),
        ),
    ],
    ids=["prefetch", "cache", "take all", "unbatch", "flat_map", "zip", "generator"],
)
def test_steps_over_single_records_can_be_applied_to_parts(create_dataset):
    whole = example_batches(RECORDS, create_dataset, 4, "m.py")

    assert examples(create_dataset) == np.concatenate([b.features for b in whole]).tolist()


REFUSED = {
    r"calls take\(\)": lambda ds: numbers(ds).take(3),
    r"calls skip\(\)": lambda ds: numbers(ds.skip(3)).shuffle(4),
    r"calls take_while\(\)": lambda ds: numbers(ds).take_while(lambda x: x < 5),
    r"calls shard\(\).* only its share": lambda ds: numbers(ds.shard(2, 0)),
    r"calls window\(\)": lambda ds: numbers(ds).window(2, 1).flat_map(lambda w: w.batch(2)),
    r"calls scan\(\)": lambda ds: numbers(ds).scan(np.int64(0), lambda s, x: (s + x, s + x)),
    r"calls unique\(\)": lambda ds: numbers(ds).map(lambda x: x % 3).unique(),
    r"calls snapshot\(\)": lambda ds: numbers(ds).snapshot("a_folder"),
    r"calls concatenate\(\).*--data": lambda ds: numbers(ds.concatenate(ds)),
    r"rejection_resample\(\)": lambda ds: numbers(ds).rejection_resample(
        lambda x: tf.cast(x % 2, tf.int32), [0.5, 0.5], seed=1
    ),
    r"choose_from_datasets\(\)": lambda ds: tf.data.Dataset.sample_from_datasets([ds, ds]),
    r"calls zip\(\) or enumerate": lambda ds: numbers(ds).enumerate(),
    r"calls zip\(\)": lambda ds: tf.data.Dataset.zip((ds, tf.data.Dataset.counter())),
    r"calls cache\(\) with a file": lambda ds: numbers(ds).cache("a_file"),
    r"drop_remainder=True": lambda ds: ds.batch(5, drop_remainder=True).unbatch(),
    r"yields batches.* --minibatch_size": lambda ds: numbers(ds).batch(4),
    r"yields batches\.": lambda ds: numbers(ds).padded_batch(4),
    r"yields batches": lambda ds: numbers(ds).ragged_batch(4),
    r"batches\. They": lambda ds: numbers(ds).bucket_by_sequence_length(lambda x: 1, [2], [4, 4]),
    r"calls group_by_window\(\)": lambda ds: (
        numbers(ds).group_by_window(lambda x: x % 2, lambda _, group: group.batch(4), 4).unbatch()
    ),
    r"does not read the dataset that it receives": lambda ds: tf.data.Dataset.range(8),
}


@pytest.mark.parametrize("what", REFUSED)
def test_steps_across_records_are_refused_by_name(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    with pytest.raises(DefinitionError, match=rf"^zoo/m.py:3: feed\(\): the pipeline .*{what}"):
        examples(REFUSED[what])
