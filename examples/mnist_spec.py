r"""Handwritten digits as an ElasticDLSpec: one object, so its parts can share what they know.

A spec reads serialized records with `tf.data` and may do there whatever `tf.data` can. The price
is that a position in the data is found again by replaying the pipeline, not by seeking.

    elasticdl train --model_zoo=examples --model_def=mnist_spec.Digits --params="dropout=0.3" \
        --data=demo/data/train --output=demo/mnist_spec --num_epochs=8
"""

import keras
import tensorflow as tf

from elasticdl import ElasticDLSpec, Mode


class Digits(ElasticDLSpec):
    """Model, data, loss and metrics of the digits.

    Args:
        context: Where this runs: worker_id, world_size, job_id, mode.
        dropout: Share of the last features that is dropped in training.
    """

    def __init__(self, context=None, dropout=0.25):
        super().__init__(context=context)
        self.dropout = dropout

    def create_model(self):
        """Return a new model."""
        return keras.Sequential(
            [
                keras.Input((28, 28), name="image"),
                keras.layers.Reshape((28, 28, 1)),
                keras.layers.Conv2D(16, 3, activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Conv2D(32, 3, activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Flatten(),
                keras.layers.Dropout(self.dropout),
                keras.layers.Dense(10),
            ]
        )

    def create_dataset(self, dataset, mode):
        """Return single examples, parsed and shuffled; ElasticDL batches them."""
        fields = {"image": tf.io.FixedLenFeature([28, 28], tf.float32)}
        if mode != Mode.PREDICTION:
            fields["label"] = tf.io.FixedLenFeature([], tf.int64)

        def parse(record):
            example = tf.io.parse_single_example(record, fields)
            features = {"image": example["image"] / 255.0}
            return features if mode == Mode.PREDICTION else (features, example["label"])

        dataset = dataset.map(parse)
        return dataset.shuffle(1024) if mode == Mode.TRAINING else dataset

    def create_loss(self, outputs=None, labels=None):
        """Return the cross-entropy of the true digits."""
        return tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=outputs)
        )

    def create_optimizer(self, lr=0.003):
        """Return Adam."""
        return keras.optimizers.Adam(lr)

    def create_metrics(self, mode=Mode.TRAINING, outputs=None, labels=None, predictions=None):
        """Return the share of digits that are right; training needs no metric."""
        if mode != Mode.EVALUATION:
            return {}
        right = tf.equal(tf.argmax(outputs, axis=1), labels)
        return {"accuracy": tf.reduce_mean(tf.cast(right, tf.float32))}
