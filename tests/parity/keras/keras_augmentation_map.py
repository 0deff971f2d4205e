"""Keras layers in the `map` of a `tf.data` pipeline: a picture and its mask are flipped alike."""

import keras
import tensorflow as tf
from keras import layers
from shared import image_schema, images

GROUP = "Input"
EXPECT = "differs: random draws are a function of (seed, epoch, shard), not of a generator's state"

data_schema = image_schema
loss = keras.losses.BinaryCrossentropy(from_logits=True)


class Augment(layers.Layer):
    """As in TensorFlow's tutorial of segmentation: both flips have the same seed."""

    def __init__(self, seed=42):
        super().__init__()
        self.augment_inputs = layers.RandomFlip(mode="horizontal", seed=seed)
        self.augment_labels = layers.RandomFlip(mode="horizontal", seed=seed)
        self.noise = layers.GaussianNoise(0.1)

    def call(self, picture, mask):
        return self.noise(self.augment_inputs(picture), training=True), self.augment_labels(mask)


augment = Augment()


def with_mask(picture):
    return picture, tf.cast(picture[..., :1] > 0.5, tf.float32)


def flipped_alike(picture, mask):
    near = tf.abs(picture[..., :1] - 0.5) < 0.4
    same = (picture[..., :1] > 0.5) == (mask > 0.5)
    tf.debugging.Assert(tf.reduce_mean(tf.cast(same | near, tf.float32)) > 0.9, [picture, mask])
    return picture, mask


def feed(dataset, mode):
    fields = {"image": tf.io.FixedLenFeature([8, 8, 2], tf.float32)}

    def parse(record):
        return tf.io.parse_single_example(record, fields)["image"]

    dataset = dataset.map(parse).map(with_mask)
    return dataset.map(augment, num_parallel_calls=tf.data.AUTOTUNE).map(flipped_alike)


def custom_model():
    return keras.Sequential([keras.Input((8, 8, 2)), layers.Conv2D(1, 3, padding="same")])


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    def batches(records):
        dataset = tf.data.Dataset.from_tensor_slices(images(records)[0]).map(with_mask)
        return dataset.map(augment).map(flipped_alike).batch(data.batch_size)

    model = custom_model()
    model.compile(optimizer(), loss)
    history = model.fit(
        batches(data.train),
        validation_data=batches(data.validation),
        epochs=data.epochs,
        shuffle=False,
        verbose=0,
    )
    return history.history, model
