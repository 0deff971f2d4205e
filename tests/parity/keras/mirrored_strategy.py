"""A model made within `tf.distribute.MirroredStrategy`."""

import keras
import tensorflow as tf
from shared import fit, mlp, numbers, table_schema

GROUP = "Custom training"
EXPECT = "refused: updates are shared by the workers of ElasticDL; make the model without a scope"
REFUSAL = "made within a scope of MirroredStrategy"

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
