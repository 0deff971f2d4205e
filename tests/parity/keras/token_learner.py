"""TokenLearner in a vision transformer (Keras example)."""

import math
import os
from pathlib import Path

import keras
import numpy as np
from keras import layers, ops
from shared import fit, image_schema, images, named

GROUP = "Models"

INPUT_SHAPE, IMAGE_SIZE, PATCH_SIZE, NUM_CLASSES = (8, 8, 2), 8, 2, 3
NUM_PATCHES = (IMAGE_SIZE // PATCH_SIZE) ** 2
LAYER_NORM_EPS, PROJECTION_DIM, NUM_HEADS, NUM_LAYERS = 1e-6, 8, 2, 2
MLP_UNITS = [PROJECTION_DIM * 2, PROJECTION_DIM]
NUM_TOKENS = 4
DROPOUT = 0.0

data_schema = image_schema
loss = "sparse_categorical_crossentropy"


def input_fn(records):
    x, label = images(records)
    return x * 255, label


def position_embedding(projected_patches, num_patches=NUM_PATCHES, projection_dim=PROJECTION_DIM):
    # Build the positions.
    positions = ops.arange(start=0, stop=num_patches, step=1)

    # Encode the positions with an Embedding layer.
    encoded_positions = layers.Embedding(input_dim=num_patches, output_dim=projection_dim)(
        positions
    )

    # Add encoded positions to the projected patches.
    return projected_patches + encoded_positions


def mlp(x, dropout_rate, hidden_units):
    for units in hidden_units:
        x = layers.Dense(units, activation=ops.gelu)(x)
        x = layers.Dropout(dropout_rate)(x)
    return x


def token_learner(inputs, number_of_tokens=NUM_TOKENS):
    # Layer normalize the inputs.
    x = layers.LayerNormalization(epsilon=LAYER_NORM_EPS)(inputs)  # (B, H, W, C)

    # Applying Conv2D => Reshape => Permute
    convolutions = [
        layers.Conv2D(
            filters=number_of_tokens,
            kernel_size=(3, 3),
            activation=activation,
            padding="same",
            use_bias=False,
        )
        for activation in (ops.gelu, ops.gelu, ops.gelu, "sigmoid")
    ]
    attention_maps = keras.Sequential(
        [
            *convolutions,
            layers.Reshape((-1, number_of_tokens)),  # (B, H*W, num_of_tokens)
            layers.Permute((2, 1)),
        ]
    )(x)  # (B, num_of_tokens, H*W)

    # Reshape the input to align it with the output of the conv block.
    num_filters = inputs.shape[-1]
    inputs = layers.Reshape((1, -1, num_filters))(inputs)  # inputs == (B, 1, H*W, C)

    # Element-Wise multiplication of the attention maps and the inputs
    attended_inputs = ops.expand_dims(attention_maps, axis=-1) * inputs

    # Global average pooling the element wise multiplication result.
    return ops.mean(attended_inputs, axis=2)  # (B, num_tokens, C)


def transformer(encoded_patches):
    x1 = layers.LayerNormalization(epsilon=LAYER_NORM_EPS)(encoded_patches)
    attention_output = layers.MultiHeadAttention(
        num_heads=NUM_HEADS, key_dim=PROJECTION_DIM, dropout=DROPOUT
    )(x1, x1)
    x2 = layers.Add()([attention_output, encoded_patches])
    x3 = layers.LayerNormalization(epsilon=LAYER_NORM_EPS)(x2)
    x4 = mlp(x3, hidden_units=MLP_UNITS, dropout_rate=DROPOUT)
    return layers.Add()([x4, x2])


def create_vit_classifier(use_token_learner=True, token_learner_units=NUM_TOKENS):
    data_augmentation = keras.Sequential(
        [
            layers.Rescaling(1 / 255.0),
            layers.Resizing(INPUT_SHAPE[0] + 2, INPUT_SHAPE[0] + 2),
            layers.CenterCrop(IMAGE_SIZE, IMAGE_SIZE),
        ],
        name="data_augmentation",
    )
    inputs = layers.Input(shape=INPUT_SHAPE)  # (B, H, W, C)

    # Augment data.
    augmented = data_augmentation(inputs)

    # Create patches and project the patches.
    projected_patches = layers.Conv2D(
        filters=PROJECTION_DIM,
        kernel_size=(PATCH_SIZE, PATCH_SIZE),
        strides=(PATCH_SIZE, PATCH_SIZE),
        padding="VALID",
    )(augmented)
    _, h, w, c = projected_patches.shape
    projected_patches = layers.Reshape((h * w, c))(projected_patches)  # (B, number_patches, C)

    # Add positional embeddings to the projected patches.
    encoded_patches = position_embedding(projected_patches)
    encoded_patches = layers.Dropout(DROPOUT)(encoded_patches)

    for i in range(NUM_LAYERS):
        # Add a Transformer block.
        encoded_patches = transformer(encoded_patches)

        # Add TokenLearner layer in the middle of the architecture.
        if use_token_learner and i == NUM_LAYERS // 2:
            _, hh, c = encoded_patches.shape
            h = int(math.sqrt(hh))
            encoded_patches = layers.Reshape((h, h, c))(encoded_patches)  # (B, h, h, C)
            encoded_patches = token_learner(encoded_patches, token_learner_units)

    # Layer normalization and Global average pooling.
    representation = layers.LayerNormalization(epsilon=LAYER_NORM_EPS)(encoded_patches)
    representation = layers.GlobalAvgPool1D()(representation)

    # Classify outputs.
    outputs = layers.Dense(NUM_CLASSES, activation="softmax")(representation)
    return keras.Model(inputs=inputs, outputs=outputs)


def custom_model():
    return create_vit_classifier()


def optimizer():
    return keras.optimizers.SGD(learning_rate=0.05)


def eval_metrics_fn():
    return {
        "accuracy": keras.metrics.SparseCategoricalAccuracy(),
        "top-2-accuracy": keras.metrics.SparseTopKCategoricalAccuracy(2),
    }


def callbacks():
    return [
        keras.callbacks.ModelCheckpoint(
            f"{os.environ.get('PARITY_FILES', '.')}/best.weights.h5",
            monitor="val_accuracy",
            save_best_only=True,
            save_weights_only=True,
        )
    ]


def read_files(folder):
    model = custom_model()
    model.load_weights(Path(folder) / "best.weights.h5")
    return {f"weight {i}": np.array(weight) for i, weight in enumerate(model.get_weights())}


def plain(data):
    model = custom_model()
    model.compile(optimizer=optimizer(), loss=loss, metrics=named(eval_metrics_fn()))
    return fit(data, model, input_fn, callbacks())
