"""gradient_accumulation_steps with an Embedding, weight averages, weight decay and clipping."""

import keras
from shared import fit, tokens, tokens_schema

GROUP = "Gradients"

data_schema, input_fn = tokens_schema, tokens
loss = keras.losses.MeanSquaredError()


def custom_model():
    return keras.Sequential(
        [
            keras.Input((10,), dtype="int64"),
            keras.layers.Embedding(20, 4, embeddings_constraint="unit_norm"),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )


def optimizer():
    return keras.optimizers.AdamW(
        keras.optimizers.schedules.CosineDecay(0.05, 5, warmup_target=0.1, warmup_steps=1),
        weight_decay=0.05,
        global_clipnorm=0.5,
        gradient_accumulation_steps=4,
        use_ema=True,
        ema_momentum=0.8,
    )


def plain(data):
    model = custom_model()
    model.compile(optimizer(), loss)
    return fit(data, model, input_fn)
