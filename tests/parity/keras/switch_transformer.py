"""Switch Transformer (Keras example): a router with a capacity, and a loss for its balance."""

import keras
from keras import layers, ops
from shared import fit, tokens, tokens_schema

GROUP = "Custom layers"
EXPECT = {"workers": "refused: each worker would balance the experts over its own minibatch only"}
REFUSAL = r"the loss that layers add of \d examples is"

EMBED_DIM, NUM_EXPERTS, FF_DIM, NUM_HEADS = 6, 3, 6, 2
MAX_TOKENS, NUM_TOKENS_PER_EXAMPLE, BATCH_SIZE = 20, 10, 8
NUM_TOKENS_PER_BATCH = BATCH_SIZE * NUM_TOKENS_PER_EXAMPLE

data_schema = tokens_schema
loss = keras.losses.SparseCategoricalCrossentropy()


def input_fn(records):
    x, y = tokens(records)
    return x, (y[:, 0] > 0).astype("int64")


class TokenAndPositionEmbedding(layers.Layer):
    def __init__(self, maxlen, vocab_size, embed_dim):
        super().__init__()
        self.token_emb = layers.Embedding(input_dim=vocab_size, output_dim=embed_dim)
        self.pos_emb = layers.Embedding(input_dim=maxlen, output_dim=embed_dim)

    def call(self, x):
        maxlen = ops.shape(x)[-1]
        positions = ops.arange(start=0, stop=maxlen, step=1)
        positions = self.pos_emb(positions)
        x = self.token_emb(x)
        return x + positions


def create_feedforward_network(ff_dim, embed_dim, name=None):
    return keras.Sequential(
        [layers.Dense(ff_dim, activation="relu"), layers.Dense(embed_dim)], name=name
    )


def load_balanced_loss(router_probs, expert_mask):
    num_experts = ops.shape(expert_mask)[-1]
    density = ops.mean(expert_mask, axis=0)
    density_proxy = ops.mean(router_probs, axis=0)
    return ops.mean(density_proxy * density) * ops.cast((num_experts**2), "float32")


class Router(layers.Layer):
    def __init__(self, num_experts, expert_capacity):
        self.num_experts = num_experts
        self.route = layers.Dense(units=num_experts)
        self.expert_capacity = expert_capacity
        super().__init__()

    def call(self, inputs, training=False):
        # router_logits shape: [tokens_per_batch, num_experts]
        router_logits = self.route(inputs)
        router_probs = keras.activations.softmax(router_logits, axis=-1)
        expert_gate, expert_index = ops.top_k(router_probs, k=1)
        expert_mask = ops.one_hot(ops.squeeze(expert_index, -1), self.num_experts)
        self.add_loss(load_balanced_loss(router_probs, expert_mask))
        # Experts have a fixed capacity, ensure we do not exceed it.
        position_in_expert = ops.cast(ops.cumsum(expert_mask, axis=0) * expert_mask, "int32")
        expert_mask *= ops.cast(ops.less(position_in_expert, self.expert_capacity), "float32")
        expert_mask_flat = ops.sum(expert_mask, axis=-1, keepdims=True)
        expert_gate *= expert_mask_flat
        combined_tensor = ops.expand_dims(
            expert_gate
            * expert_mask_flat
            * ops.one_hot(ops.squeeze(expert_index, -1), self.num_experts),
            -1,
        ) * ops.one_hot(position_in_expert, self.expert_capacity)
        dispatch_tensor = ops.cast(combined_tensor > 0, "float32")
        return dispatch_tensor, combined_tensor


class Switch(layers.Layer):
    def __init__(self, num_experts, embed_dim, ff_dim, num_tokens_per_batch):
        self.num_experts = num_experts
        self.embed_dim = embed_dim
        self.experts = [create_feedforward_network(ff_dim, embed_dim) for _ in range(num_experts)]
        self.expert_capacity = num_tokens_per_batch // self.num_experts
        self.router = Router(self.num_experts, self.expert_capacity)
        super().__init__()

    def call(self, inputs):
        batch_size = ops.shape(inputs)[0]
        num_tokens_per_example = ops.shape(inputs)[1]
        inputs = ops.reshape(inputs, [-1, self.embed_dim])
        dispatch_tensor, combine_tensor = self.router(inputs)
        # expert_inputs shape: [num_experts, expert_capacity, embed_dim]
        expert_inputs = ops.einsum("ab,acd->cdb", inputs, dispatch_tensor)
        expert_inputs = ops.reshape(
            expert_inputs, [self.num_experts, self.expert_capacity, self.embed_dim]
        )
        expert_input_list = ops.unstack(expert_inputs, axis=0)
        expert_output_list = [
            self.experts[idx](expert_input) for idx, expert_input in enumerate(expert_input_list)
        ]
        expert_outputs = ops.stack(expert_output_list, axis=1)
        expert_outputs_combined = ops.einsum("abc,xba->xc", expert_outputs, combine_tensor)
        return ops.reshape(
            expert_outputs_combined, [batch_size, num_tokens_per_example, self.embed_dim]
        )


class TransformerBlock(layers.Layer):
    def __init__(self, embed_dim, num_heads, ffn):
        super().__init__()
        self.att = layers.MultiHeadAttention(num_heads=num_heads, key_dim=embed_dim)
        # The ffn can be either a standard feedforward network or a switch layer with a MoE.
        self.ffn = ffn
        self.layernorm1 = layers.LayerNormalization(epsilon=1e-6)
        self.layernorm2 = layers.LayerNormalization(epsilon=1e-6)

    def call(self, inputs, training=False):
        attn_output = self.att(inputs, inputs)
        out1 = self.layernorm1(inputs + attn_output)
        ffn_output = self.ffn(out1)
        return self.layernorm2(out1 + ffn_output)


def custom_model():
    switch = Switch(NUM_EXPERTS, EMBED_DIM, FF_DIM, NUM_TOKENS_PER_BATCH)
    transformer_block = TransformerBlock(EMBED_DIM // NUM_HEADS, NUM_HEADS, switch)
    inputs = layers.Input(shape=(NUM_TOKENS_PER_EXAMPLE,))
    x = TokenAndPositionEmbedding(NUM_TOKENS_PER_EXAMPLE, MAX_TOKENS, EMBED_DIM)(inputs)
    x = transformer_block(x)
    x = layers.GlobalAveragePooling1D()(x)
    x = layers.Dense(FF_DIM, activation="relu")(x)
    outputs = layers.Dense(2, activation="softmax")(x)
    return keras.Model(inputs=inputs, outputs=outputs)


def optimizer():
    return keras.optimizers.SGD(0.05)


def eval_metrics_fn():
    return {"accuracy": keras.metrics.SparseCategoricalAccuracy(name="accuracy")}


def plain(data):
    model = custom_model()
    model.compile(optimizer=optimizer(), loss=loss, metrics=list(eval_metrics_fn().values()))
    return fit(data, model, input_fn)
