"""Knowledge distillation: a `compute_loss` that calls a frozen teacher."""

import keras
from shared import classes, fit, mlp, named, table_schema

GROUP = "Custom training"

data_schema, input_fn = table_schema, classes
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Distiller(keras.Model):
    def __init__(self, student, teacher, alpha=0.3, temperature=3.0):
        super().__init__()
        self.teacher, self.student = teacher, student
        self.teacher.trainable = False
        self.alpha, self.temperature = alpha, temperature
        self.distance = keras.losses.KLDivergence()

    def call(self, x):
        return self.student(x)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, allow_empty=False, **more
    ):
        soft = self.teacher(x, training=False)
        own = super().compute_loss(x, y, y_pred, sample_weight)
        distance = self.distance(
            keras.ops.softmax(soft / self.temperature, axis=1),
            keras.ops.softmax(y_pred / self.temperature, axis=1),
        )
        return self.alpha * own + (1 - self.alpha) * distance * self.temperature**2


def custom_model():
    teacher = keras.Sequential(
        [
            keras.Input((8,)),
            keras.layers.Dense(12, activation="relu"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3),
        ]
    )
    return Distiller(mlp(3), teacher)


def optimizer():
    return keras.optimizers.Adam(0.02)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy()}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
