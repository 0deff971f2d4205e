"""`class_weight` as an option of the command line."""

import keras
from shared import classes, fit, mlp, table_schema

GROUP = "Sample and class weights"
EXPECT = "refused: set class_weight in the model file"
REFUSAL = "class_weight"
JOB = {"class_weight": "{0: 0.5}"}

data_schema, input_fn = table_schema, classes
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def custom_model():
    return mlp(3)


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
