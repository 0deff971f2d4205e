"""A ConvNeXt block (keras.applications): a grouped convolution, LayerScale, label smoothing."""

import keras
from keras import layers
from shared import fit, image_schema, images, named

GROUP = "Models"

data_schema = image_schema
loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1)


class LayerScale(layers.Layer):
    def __init__(self, init_values, projection_dim, **kwargs):
        super().__init__(**kwargs)
        self.init_values = init_values
        self.projection_dim = projection_dim

    def build(self, _):
        self.gamma = self.add_weight(
            shape=(self.projection_dim,),
            initializer=keras.initializers.Constant(self.init_values),
            trainable=True,
        )

    def call(self, x):
        return x * self.gamma

    def get_config(self):
        return {
            **super().get_config(),
            "init_values": self.init_values,
            "projection_dim": self.projection_dim,
        }


def block(inputs, projection_dim, name):
    x = layers.Conv2D(
        projection_dim,
        kernel_size=7,
        padding="same",
        groups=projection_dim,
        name=name + "_depthwise_conv",
    )(inputs)
    x = layers.LayerNormalization(epsilon=1e-6, name=name + "_layernorm")(x)
    x = layers.Dense(4 * projection_dim, name=name + "_pointwise_conv_1")(x)
    x = layers.Activation("gelu", name=name + "_gelu")(x)
    x = layers.Dense(projection_dim, name=name + "_pointwise_conv_2")(x)
    x = LayerScale(1e-1, projection_dim, name=name + "_layer_scale")(x)
    return inputs + x


def input_fn(records):
    x, label = images(records)
    return x, keras.utils.to_categorical(label, 3)


def custom_model():
    inputs = keras.Input((8, 8, 2))
    x = layers.Conv2D(4, 2, strides=2, name="stem_conv")(inputs)
    x = layers.LayerNormalization(epsilon=1e-6, name="stem_layernorm")(x)
    x = block(x, 4, "stage_0_block_0")
    x = layers.GlobalAveragePooling2D(name="head_gap")(x)
    x = layers.LayerNormalization(epsilon=1e-6, name="head_layernorm")(x)
    return keras.Model(inputs, layers.Dense(3, name="head_dense")(x), name="convnext")


def optimizer():
    return keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecay(0.0, 18, warmup_target=0.01, warmup_steps=3),
        weight_decay=0.05,
    )


def eval_metrics_fn():
    return {"accuracy": keras.metrics.CategoricalAccuracy()}


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn)
