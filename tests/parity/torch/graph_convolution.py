"""GCN on one graph: all nodes in each step, a sparse adjacency, nodes to train and to validate."""

import math

import numpy as np
import torch
from tests.parity.records import make_data
from torch import nn
from torch.nn import functional
from torch.nn.parameter import Parameter
from torch.utils.data import DataLoader

GROUP = "Models"
JOB = {"num_epochs": 20}
EXPECT = {"workers": "refused: a batch is the whole graph, which workers cannot share"}
REFUSAL = "multiple of 46, the number of examples in a batch"


def load_data():
    """Return the adjacency, features and labels of 46 nodes, and which are trained on."""
    records = make_data().train
    features = np.stack([record["x"] for record in records])
    labels = np.concatenate([record["label"] for record in records])
    near = np.linalg.norm(features[:, None] - features[None], axis=-1) < 3
    adj = near / near.sum(1, keepdims=True)
    train = np.arange(len(records)) % 3 != 0
    return (
        torch.from_numpy(np.float32(adj)).to_sparse_coo(),
        torch.from_numpy(features),
        torch.from_numpy(labels),
        torch.from_numpy(train),
    )


class GraphConvolution(nn.Module):
    def __init__(self, in_features, out_features):
        super().__init__()
        self.weight = Parameter(torch.FloatTensor(in_features, out_features))
        self.bias = Parameter(torch.FloatTensor(out_features))
        self.reset_parameters()

    def reset_parameters(self):
        stdv = 1.0 / math.sqrt(self.weight.size(1))
        self.weight.data.uniform_(-stdv, stdv)
        self.bias.data.uniform_(-stdv, stdv)

    def forward(self, inputs, adj):
        support = torch.mm(inputs, self.weight)
        output = torch.spmm(adj, support)
        return output + self.bias


class GCN(nn.Module):
    def __init__(self, nfeat, nhid, nclass, dropout, adj):
        super().__init__()
        self.gc1 = GraphConvolution(nfeat, nhid)
        self.gc2 = GraphConvolution(nhid, nclass)
        self.dropout = dropout
        self.register_buffer("adj", adj)

    def forward(self, x):
        x = functional.relu(self.gc1(x, self.adj))
        x = functional.dropout(x, self.dropout, training=self.training)
        x = self.gc2(x, self.adj)
        return functional.log_softmax(x, dim=1)


def train_dataloader(data):
    _, features, labels, train = load_data()
    return DataLoader([(features, {"labels": labels, "mask": train})], batch_size=None)


def val_dataloader(data):
    _, features, labels, train = load_data()
    return DataLoader([(features, {"labels": labels, "mask": ~train})], batch_size=None)


def loss(output, target):
    mask = target["mask"]
    return functional.nll_loss(output[mask], target["labels"][mask])


def custom_model():
    adj, _, _, _ = load_data()
    return GCN(nfeat=8, nhid=16, nclass=3, dropout=0.0, adj=adj)


def optimizer(parameters):
    return torch.optim.Adam(parameters, lr=0.01, weight_decay=5e-4)


def plain(data):
    adj, features, labels, train = load_data()
    idx_train, idx_val = torch.where(train)[0], torch.where(~train)[0]
    model = GCN(nfeat=8, nhid=16, nclass=3, dropout=0.0, adj=adj)
    stepping = optimizer(model.parameters())
    history = {"loss": [], "val_loss": []}
    for _ in range(JOB["num_epochs"]):
        model.train()
        stepping.zero_grad()
        output = model(features)
        loss_train = functional.nll_loss(output[idx_train], labels[idx_train])
        loss_train.backward()
        stepping.step()
        model.eval()
        with torch.no_grad():
            output = model(features)
        history["loss"].append(loss_train.item())
        history["val_loss"].append(functional.nll_loss(output[idx_val], labels[idx_val]).item())
    return history, model
