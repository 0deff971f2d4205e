"""Vision transformer: patches (`ops.image.extract_patches`), position embeddings, attention."""

import keras
from keras import layers, ops
from shared import fit, image_schema, images

GROUP = "Models"

data_schema, input_fn = image_schema, images
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


class Patches(layers.Layer):
    def call(self, pictures):
        patches = ops.image.extract_patches(pictures, size=4)
        return ops.reshape(patches, (-1, 4, 4 * 4 * 2))


class PatchEncoder(layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.projection = layers.Dense(8)
        self.position = layers.Embedding(4, 8)

    def call(self, patches):
        positions = ops.expand_dims(ops.arange(4), axis=0)
        return self.projection(patches) + self.position(positions)


def custom_model():
    inputs = keras.Input((8, 8, 2))
    x = PatchEncoder()(Patches()(inputs))
    for _ in range(2):
        normed = layers.LayerNormalization(epsilon=1e-6)(x)
        x = layers.Add()([layers.MultiHeadAttention(2, 4)(normed, normed), x])
        normed = layers.LayerNormalization(epsilon=1e-6)(x)
        hidden = layers.Dense(16, activation=keras.activations.gelu)(normed)
        x = layers.Add()([layers.Dense(8)(hidden), x])
    x = layers.Flatten()(layers.LayerNormalization(epsilon=1e-6)(x))
    return keras.Model(inputs, layers.Dense(3)(x))


def optimizer():
    return keras.optimizers.SGD(0.05, momentum=0.9)


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
