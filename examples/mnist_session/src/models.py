"""The model: one convolution, then a decision."""

import keras

from abstractions import ModelBuilderBase


class SmallConvolution(ModelBuilderBase):
    """Ten logits, one for each digit."""

    def get_compiled_model(self):
        model = keras.Sequential(
            [
                keras.Input((8, 8, 1)),
                keras.layers.Conv2D(self.filters, 3, activation="relu"),
                keras.layers.MaxPooling2D(),
                keras.layers.Flatten(),
                keras.layers.Dropout(self.dropout_rate),
                keras.layers.Dense(10),
            ]
        )
        model.compile(
            optimizer=keras.optimizers.Adam(self.learning_rate),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            metrics=[keras.metrics.SparseCategoricalAccuracy(name="accuracy")],
        )
        return model

    def _set_defaults(self):
        self.filters = 32
        self.dropout_rate = 0.2
        self.learning_rate = 0.005

    def _load_params(self, config):
        self.filters = config.model_builder.filters
        self.dropout_rate = config.model_builder.dropout_rate
        self.learning_rate = config.model_builder.learning_rate
