"""Class weights (`class_weight`)."""

import keras
from shared import classes, mlp, table_schema

GROUP = "Sample and class weights"

data_schema, input_fn = table_schema, classes
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class_weight = {0: 0.5, 1: 1.0, 2: 3.0}


def custom_model():
    return mlp(3)


def optimizer():
    return keras.optimizers.SGD(0.1)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    history = model.fit(
        *input_fn(data.train),
        class_weight=class_weight,
        batch_size=data.batch_size,
        epochs=data.epochs,
        shuffle=False,
        validation_data=input_fn(data.validation),
        verbose=0,
    )
    return history.history, model
