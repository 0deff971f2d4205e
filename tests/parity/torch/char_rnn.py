"""The tutorial of a character-level RNN: one name for each update, and `p.data.add_`."""

import string

import torch
from tests.parity.records import make_data
from torch import nn
from torch.utils.data import DataLoader, Dataset

GROUP = "Sequences"
EXPECT = {
    "workers": "differs: an update has eight examples on these workers, and one in the tutorial"
}

all_letters = string.ascii_lowercase + " "
n_letters = len(all_letters)
n_categories = 3
loss = nn.NLLLoss()


def line_to_tensor(line):
    tensor = torch.zeros(len(line), n_letters)
    for li, letter in enumerate(line):
        tensor[li][all_letters.find(letter)] = 1
    return tensor


class Names(Dataset):
    def __init__(self, records):
        self.names = [record["text"][0].decode() for record in records]
        self.categories = [int(record["label"][0]) for record in records]

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        return line_to_tensor(self.names[index]), self.categories[index]


def train_dataloader(data):
    return DataLoader(Names(make_data().train), batch_size=1)


def val_dataloader(data):
    return DataLoader(Names(make_data().validation), batch_size=1)


class RNN(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.i2h = nn.Linear(input_size, hidden_size)
        self.h2h = nn.Linear(hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)
        self.softmax = nn.LogSoftmax(dim=1)

    def step(self, inputs, hidden):
        hidden = torch.tanh(self.i2h(inputs) + self.h2h(hidden))
        return self.softmax(self.h2o(hidden)), hidden

    def init_hidden(self):
        return torch.zeros(1, self.hidden_size)

    def forward(self, line_tensor):
        hidden = self.init_hidden()
        for i in range(line_tensor.size(1)):
            output, hidden = self.step(line_tensor[:, i], hidden)
        return output


def custom_model():
    return RNN(n_letters, 12, n_categories)


class Manual(torch.optim.Optimizer):
    def __init__(self, params, learning_rate):
        super().__init__(params, {"lr": learning_rate})

    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.data.add_(p.grad.data, alpha=-group["lr"])


def optimizer(parameters):
    return Manual(parameters, learning_rate=0.005)


def plain(data):
    rnn = custom_model()
    history = {"loss": [], "val_loss": []}
    for _ in range(data.epochs):
        total = 0.0
        for line_tensor, category_tensor in train_dataloader(None):
            hidden = rnn.init_hidden()
            rnn.zero_grad()
            for i in range(line_tensor.size(1)):
                output, hidden = rnn.step(line_tensor[:, i], hidden)
            value = loss(output, category_tensor)
            value.backward()
            for p in rnn.parameters():
                p.data.add_(p.grad.data, alpha=-0.005)
            total += value.item()
        history["loss"].append(total / len(data.train))
        total = 0.0
        with torch.no_grad():
            for line_tensor, category_tensor in val_dataloader(None):
                total += loss(rnn(line_tensor), category_tensor).item()
        history["val_loss"].append(total / len(data.validation))
    return history, rnn
