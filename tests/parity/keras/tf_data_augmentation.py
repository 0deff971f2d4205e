"""A `tf.data` pipeline that augments images in a parallel `map`, shuffles and prefetches."""

import keras
import tensorflow as tf
from shared import image_net, image_schema, images

from elasticdl import Mode

GROUP = "Input"
EXPECT = "differs: random draws are a function of (seed, epoch, shard), not of a generator's state"

data_schema = image_schema
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def augmented(image, label):
    image = tf.image.random_flip_left_right(image)
    image = tf.image.random_brightness(image, 0.2)
    image = tf.image.random_crop(tf.pad(image, [[1, 1], [1, 1], [0, 0]]), (8, 8, 2))
    return image + tf.random.normal(tf.shape(image), stddev=0.1), label


def feed(dataset, mode, metadata):
    """Return a pipeline of (image, label) over serialized records."""
    fields = {
        "image": tf.io.FixedLenFeature([8, 8, 2], tf.float32),
        "label": tf.io.FixedLenFeature([1], tf.int64),
    }

    def parse(record):
        example = tf.io.parse_single_example(record, fields)
        return example["image"], example["label"][0]

    dataset = dataset.map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    if mode == Mode.TRAINING:
        dataset = dataset.shuffle(16)
        dataset = dataset.map(augmented, num_parallel_calls=tf.data.AUTOTUNE)
    return dataset.prefetch(tf.data.AUTOTUNE)


def custom_model():
    return image_net()


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    train = tf.data.Dataset.from_tensor_slices(images(data.train)).shuffle(16)
    history = model.fit(
        train.map(augmented, num_parallel_calls=tf.data.AUTOTUNE).batch(data.batch_size),
        epochs=data.epochs,
        shuffle=False,
        validation_data=tf.data.Dataset.from_tensor_slices(images(data.validation)).batch(
            data.batch_size
        ),
        verbose=0,
    )
    return history.history, model
