"""A model created within `tf.distribute.MirroredStrategy`."""

import keras
import tensorflow as tf
from shared import fit, mlp, numbers, table_schema

GROUP = "Custom training"
EXPECT = "refused: the workers of ElasticDL share the updates; create the model outside of a scope"
REFUSAL = "created in the scope of a MirroredStrategy"

data_schema, input_fn = table_schema, numbers
loss = keras.losses.MeanSquaredError()
strategy = tf.distribute.MirroredStrategy(["CPU:0"])


def custom_model():
    with strategy.scope():
        return mlp()


def optimizer():
    with strategy.scope():
        return keras.optimizers.SGD(0.1, momentum=0.9)


def plain(data):
    with strategy.scope():
        model = custom_model()
        model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
