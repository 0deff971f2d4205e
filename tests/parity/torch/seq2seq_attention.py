"""The tutorial of translation: GRUs, Bahdanau attention, teacher forcing by `random.random()`."""

import random

import numpy as np
import torch
from shared import loop
from torch import nn
from torch.nn import functional

GROUP = "Sequences"
EXPECT = "differs: random draws are a function of (seed, step, worker), not of a generator's state"

SOS_token, MAX_LENGTH, VOCABULARY = 0, 5, 20
teacher_forcing_ratio = 0.5
criterion = nn.NLLLoss()


def data_schema():
    return [{"name": "tokens", "shape": [10], "dtype": "int64"}]


def input_fn(records):
    tokens = np.stack([record["tokens"] for record in records])
    source, target = tokens[:, :MAX_LENGTH], tokens[:, MAX_LENGTH:]
    return {"input_tensor": source, "target_tensor": target}, target


class EncoderRNN(nn.Module):
    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.embedding = nn.Embedding(input_size, hidden_size)
        self.gru = nn.GRU(hidden_size, hidden_size, batch_first=True)

    def forward(self, inputs):
        return self.gru(self.embedding(inputs))


class BahdanauAttention(nn.Module):
    def __init__(self, hidden_size):
        super().__init__()
        self.Wa = nn.Linear(hidden_size, hidden_size)
        self.Ua = nn.Linear(hidden_size, hidden_size)
        self.Va = nn.Linear(hidden_size, 1)

    def forward(self, query, keys):
        scores = self.Va(torch.tanh(self.Wa(query) + self.Ua(keys)))
        scores = scores.squeeze(2).unsqueeze(1)
        weights = functional.softmax(scores, dim=-1)
        return torch.bmm(weights, keys), weights


class AttnDecoderRNN(nn.Module):
    def __init__(self, hidden_size, output_size):
        super().__init__()
        self.embedding = nn.Embedding(output_size, hidden_size)
        self.attention = BahdanauAttention(hidden_size)
        self.gru = nn.GRU(2 * hidden_size, hidden_size, batch_first=True)
        self.out = nn.Linear(hidden_size, output_size)

    def forward(self, encoder_outputs, encoder_hidden, target_tensor=None):
        batch_size = encoder_outputs.size(0)
        decoder_input = torch.empty(
            batch_size, 1, dtype=torch.long, device=encoder_outputs.device
        ).fill_(SOS_token)
        decoder_hidden = encoder_hidden
        decoder_outputs = []
        for i in range(MAX_LENGTH):
            decoder_output, decoder_hidden, _ = self.forward_step(
                decoder_input, decoder_hidden, encoder_outputs
            )
            decoder_outputs.append(decoder_output)
            if target_tensor is not None:
                decoder_input = target_tensor[:, i].unsqueeze(1)
            else:
                _, topi = decoder_output.topk(1)
                decoder_input = topi.squeeze(-1).detach()
        return functional.log_softmax(torch.cat(decoder_outputs, dim=1), dim=-1)

    def forward_step(self, inputs, hidden, encoder_outputs):
        embedded = self.embedding(inputs)
        query = hidden.permute(1, 0, 2)
        context, attn_weights = self.attention(query, encoder_outputs)
        output, hidden = self.gru(torch.cat((embedded, context), dim=2), hidden)
        return self.out(output), hidden, attn_weights


class Seq2Seq(nn.Module):
    def __init__(self, hidden_size=8):
        super().__init__()
        self.encoder = EncoderRNN(VOCABULARY, hidden_size)
        self.decoder = AttnDecoderRNN(hidden_size, VOCABULARY)

    def forward(self, input_tensor, target_tensor=None):
        encoder_outputs, encoder_hidden = self.encoder(input_tensor)
        use_teacher_forcing = self.training and random.random() < teacher_forcing_ratio
        return self.decoder(
            encoder_outputs, encoder_hidden, target_tensor if use_teacher_forcing else None
        )


def loss(outputs, targets):
    return criterion(outputs.view(-1, outputs.size(-1)), targets.reshape(-1))


def custom_model():
    return Seq2Seq()


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def plain(data):
    model = custom_model()

    def called(features):
        return model(**features)

    called.train, called.eval, called.parameters = model.train, model.eval, model.parameters
    history, _ = loop(data, called, optimizer(model.parameters()), loss, input_fn)
    return history, model
