"""A spec whose pipeline shuffles without a seed."""

import keras
import tensorflow as tf

from elasticdl import ElasticDLSpec


class NoisySpec(ElasticDLSpec):
    def create_model(self):
        return keras.Sequential(
            [
                keras.Input((28, 28), name="image"),
                keras.layers.Flatten(),
                keras.layers.BatchNormalization(),
                # Some megabytes, so that a checkpoint takes long enough to be killed in.
                keras.layers.Dense(512, activation="relu"),
                keras.layers.Dropout(0.3),
                keras.layers.Dense(10),
            ]
        )

    def create_optimizer(self, lr=0.003):
        return keras.optimizers.Adam(lr)

    def create_loss(self, outputs=None, labels=None):
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(
                logits=outputs, labels=tf.reshape(labels, [-1])
            )
        )

    def create_metrics(self, mode=None, outputs=None, labels=None, predictions=None):
        return {}

    def create_dataset(self, dataset, mode):
        def parse(record):
            spec = {
                "image": tf.io.FixedLenFeature([28, 28], tf.float32),
                "label": tf.io.FixedLenFeature([1], tf.int64),
            }
            example = tf.io.parse_single_example(record, spec)
            noise = tf.random.normal([28, 28], stddev=0.1)
            return {"image": example["image"] / 255 + noise}, example["label"]

        return dataset.map(parse).shuffle(1024)
