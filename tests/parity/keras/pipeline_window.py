"""`window` in a `tf.data` pipeline: sequences of neighbouring records."""

import keras
import tensorflow as tf
from shared import numbers, table_schema

GROUP = "Input"
EXPECT = (
    "refused: store each window as one record; workers share parts of the data, shuffled by "
    "--shuffle"
)
REFUSAL = r"the pipeline calls window\(\)"

LENGTH = 4

data_schema = table_schema
loss = keras.losses.MeanSquaredError()

FIELDS = {
    "x": tf.io.FixedLenFeature([8], tf.float32),
    "y": tf.io.FixedLenFeature([1], tf.float32),
}


def windows(dataset):
    """Return a dataset of (x of so many records, y of the last one)."""

    def series(x, y):
        return tf.data.Dataset.zip((x.batch(LENGTH), y.batch(LENGTH)))

    return (
        dataset.window(LENGTH, shift=1, drop_remainder=True)
        .flat_map(series)
        .map(lambda x, y: (x, y[-1]))
    )


def feed(dataset, mode):
    def parse(record):
        example = tf.io.parse_single_example(record, FIELDS)
        return example["x"], example["y"]

    return windows(dataset.map(parse))


def custom_model():
    return keras.Sequential([keras.Input((LENGTH, 8)), keras.layers.GRU(4), keras.layers.Dense(1)])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    def batches(records):
        dataset = tf.data.Dataset.from_tensor_slices(numbers(records))
        return windows(dataset).batch(data.batch_size)

    model = custom_model()
    model.compile(optimizer(), loss)
    history = model.fit(
        batches(data.train),
        epochs=data.epochs,
        shuffle=False,
        validation_data=batches(data.validation),
        verbose=0,
    )
    return history.history, model
