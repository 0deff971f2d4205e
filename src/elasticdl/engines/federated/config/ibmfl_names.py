"""Tables of the class names and paths in IBM FL's configs, and their meaning in ElasticDL.

An IBM FL config names classes: `{name: IterAvgFusionHandler, path: ibmfl.aggregator.fusion...}`.
No class is ever loaded by such a name. There is one table per kind, and a name is looked up with
or without its suffix, as a class, a module or a word (IterAvgFusionHandler,
iter_avg_fusion_handler, iter_avg). The tables also list names of IBM FL that ElasticDL does not
support, each with the reason. For any other name, the error suggests the nearest one.

Callers: `reading.py`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elasticdl.engines.federated.strategies.fusions import FUSIONS
from elasticdl.errors import UsageError

FOREIGN = "ibmfl."
"""Prefix of IBM FL's module paths."""


@dataclass(frozen=True)
class Known:
    """ElasticDL's equivalent of a name in an IBM FL config.

    Attributes:
        ours: ElasticDL's name for it.
        params: Params that are fixed by the name, such as `{"centre": "mean"}`.
    """

    ours: str
    params: Mapping[str, Any] = field(default_factory=dict)


class UnsupportedNameError(UsageError):
    """Raised for an unsupported name from IBM FL; the message explains why, and what to do."""


@dataclass(frozen=True)
class NameTable:
    """The IBM FL names of one kind, such as fusions.

    Attributes:
        kind: What the names stand for, such as "fusion", for errors.
        suffix: Pattern of the common suffix of the kind's class names, in lower case.
        known: Name without the suffix, only lower-case letters and digits -> its meaning.
        unsupported: Pattern to search in such a name -> why it is not supported, and what to do.
        shown: ElasticDL's names, for errors.
    """

    kind: str
    suffix: str
    known: Mapping[str, Known]
    unsupported: Sequence[tuple[str, str]]
    shown: Sequence[str]

    def look_up(self, name: str, path: str | None = None) -> Known:
        """Return ElasticDL's equivalent of a name in an IBM FL config.

        Args:
            name: Value of `name` in the config: a class, a module or a word.
            path: Value of `path` beside it, a dotted path; None without one.

        Raises:
            UnsupportedNameError: The name is unknown or not supported, or the path belongs to
                another name.

        Example:
            >>> FUSION_NAMES.look_up("IterAvgFusionHandler").ours
            'iter_avg'
            >>> FUSION_NAMES.look_up("FedAvgPlusFusionHandler")
            Known(ours='fed_plus', params={'centre': 'mean'})
        """
        word = self._word(name)
        words = [word] if path is None else [word, self._word(path)]
        for each in words:
            for pattern, reason in self.unsupported:
                if re.search(pattern, each):
                    raise UnsupportedNameError(reason)
        if path is not None and not path.startswith(FOREIGN):
            raise UnsupportedNameError(
                f"a custom {self.kind} cannot be loaded; expected one of {', '.join(self.shown)}. "
                "Leave `path` out"
            )
        if word not in self.known:
            near = difflib.get_close_matches(word, self.known, n=1)
            meant = f" (did you mean {self.known[near[0]].ours}?)" if near else ""
            raise UnsupportedNameError(
                f"unknown {self.kind}{meant}; expected one of {', '.join(self.shown)}"
            )
        found = self.known[word]
        if path is not None and self.known.get(self._word(path), found) != found:
            raise UnsupportedNameError(
                f"the path next to it, {path}, is the path of {self.known[self._word(path)].ours}. "
                "Leave `path` out, or make name and path agree"
            )
        return found

    def _word(self, name: str) -> str:
        last = name.rpartition(".")[2].lower().replace("+", "plus")
        return re.sub(f"{self.suffix}$", "", re.sub(r"[^a-z0-9]", "", last))


def _words(names: Mapping[str, Known]) -> dict[str, Known]:
    return {re.sub(r"[^a-z0-9]", "", name): known for name, known in names.items()}


_ENCRYPTED = (
    "homomorphic encryption is not supported. Messages are encrypted with TLS "
    "(connection.info.tls_config); use a fusion such as fedavg"
)
_NOT_NETWORKS = "it is not a neural network; ElasticDL trains Keras and PyTorch models"
_FAIRNESS = "fairness methods that reweigh data are not supported; reweigh in your data handler"

FUSION_NAMES = NameTable(
    kind="fusion",
    suffix="(fusion)?(handler)?",
    known=_words(
        {
            **{name: Known(name) for name in FUSIONS},
            "iterative_averaging": Known("iter_avg"),
            "gradient": Known("gradient_avg"),
            "gradient_aggregation": Known("gradient_avg"),
            "median": Known("coordinate_median"),
            "coordinate_wise_median": Known("coordinate_median"),
            "trimmed_avg": Known("trimmed_mean"),
            "fedavgplus": Known("fed_plus", {"centre": "mean"}),
            "coordinate_median_plus": Known("fed_plus", {"centre": "median"}),
            "geometric_median_plus": Known("fed_plus", {"centre": "geometric_median"}),
        }
    ),
    unsupported=(
        (
            "pfnm",
            (
                "PFNM (matching of neurons) is not supported; use fedavg, or fed_plus if the "
                "parties' data differ a lot"
            ),
        ),
        ("spahm", f"SPAHM combines clusters: {_NOT_NETWORKS}"),
        (
            "^afa$|adaptivefederatedaverag",
            (
                "AFA is not supported; use multi_krum, trimmed_mean or geometric_median, which "
                "also tolerate malicious parties"
            ),
        ),
        (
            "comparativeelimination|^ce$",
            (
                "comparative elimination is not supported; use krum or multi_krum, which also have "
                "a byzantine_threshold"
            ),
        ),
        ("crypto|fhe|homomorphic|helayers|^he", _ENCRYPTED),
        (
            "^shuffle",
            "shuffled averaging is not supported; use iter_avg",
        ),
        ("id3|dtfusion|decisiontree", f"ID3 grows a decision tree: {_NOT_NETWORKS}"),
        ("naivebayes", f"naive Bayes: {_NOT_NETWORKS}"),
        (
            "^rl|reinforcement|rllib",
            "reinforcement learning is not supported; only supervised training is",
        ),
        ("doc2vec", f"doc2vec: {_NOT_NETWORKS}"),
        ("prej", f"the prejudice remover: {_FAIRNESS}"),
        ("reweigh", _FAIRNESS),
        ("xgb|gbm|boost", f"boosted trees: {_NOT_NETWORKS}"),
        ("kmeans|sklearn", f"a scikit-learn model: {_NOT_NETWORKS}"),
    ),
    shown=tuple(FUSIONS),
)

_SKLEARN = (
    "scikit-learn models are not supported; ElasticDL trains Keras and PyTorch models. A linear "
    "model is a network with one layer"
)
MODEL_NAMES = NameTable(
    kind="model",
    suffix="(model)?",
    known=_words(
        {
            "kerasfl": Known("KerasFLModel"),
            "tensorflowfl": Known("TensorFlowFLModel"),
            "pytorchfl": Known("PytorchFLModel"),
        }
    ),
    unsupported=(
        ("sklearn|kmeans|sgdfl", _SKLEARN),
        ("naivebayes", f"naive Bayes: {_NOT_NETWORKS}"),
        ("^dtfl|decisiontree|id3", f"a decision tree: {_NOT_NETWORKS}"),
        ("prej", f"the prejudice remover: {_FAIRNESS}"),
        ("^rl", "reinforcement learning is not supported; only supervised training is"),
        ("doc2vec", f"doc2vec: {_NOT_NETWORKS}"),
        ("xgb|gbm|boost", f"boosted trees: {_NOT_NETWORKS}"),
    ),
    shown=("KerasFLModel", "TensorFlowFLModel", "PytorchFLModel"),
)

_BROKER = (
    "messages over RabbitMQ are not supported. Parties open no port and need no broker: they "
    "connect to the aggregator, whose ip and port are in the section `aggregator`. Leave it out"
)
CONNECTION_NAMES = NameTable(
    kind="connection",
    suffix="(connection)?",
    known=_words({"flask": Known("flower"), "flower": Known("flower")}),
    unsupported=(("rabbit|pubsub|amqp|castor", _BROKER),),
    shown=("flower", "FlaskConnection (the same)"),
)
PROTOCOL_NAMES = NameTable(
    kind="protocol handler",
    suffix="(handler)?",
    known=_words({"proto": Known("aggregator"), "partyprotocol": Known("party")}),
    unsupported=(("rabbit|pubsub", _BROKER),),
    shown=("ProtoHandler for an aggregator", "PartyProtocolHandler for a party"),
)
LOCAL_TRAINING_NAMES = NameTable(
    kind="local training",
    suffix="(localtraining)?(handler)?",
    known=_words(
        {
            "": Known("local"),
            "fedavg": Known("local"),
            "iteravg": Known("local"),
            "local": Known("local"),
            "gradient": Known("gradients"),
            "gradients": Known("gradients"),
            "fedprox": Known("proximal"),
            "proximal": Known("proximal"),
            "fedplus": Known("own_weights"),
            "fedavgplus": Known("own_weights"),
            "own_weights": Known("own_weights"),
        }
    ),
    unsupported=(
        ("crypto|fhe|homomorphic", _ENCRYPTED),
        ("reweigh", _FAIRNESS),
        ("prej", f"the prejudice remover: {_FAIRNESS}"),
        ("naivebayes|id3|decisiontree|kmeans|spahm|doc2vec|xgb|gbm|boost", _NOT_NETWORKS),
        ("pfnm", "PFNM (matching of neurons) is not supported"),
        ("^rl|rllib", "reinforcement learning is not supported"),
        (
            "dpsgd|differentialpriv|^dp",
            "differential privacy is applied by the aggregator, not by a party; leave it out",
        ),
    ),
    shown=("local", "gradients", "proximal", "own_weights"),
)
RECORDER_NAMES = NameTable(
    kind="metrics recorder",
    suffix="(recorder)?",
    known=_words({"metrics": Known("metrics")}),
    unsupported=(),
    shown=("MetricsRecorder",),
)


def data_handler_problem(path: str) -> str | None:
    """Return why a data handler cannot be used; None if it is a user's own class.

    IBM FL's own data handlers are not supported.

    Args:
        path: The dotted path of the handler, as in a config.

    Returns:
        The reason, with what to do; None if the handler may be used.

    Example:
        >>> data_handler_problem("my_data")
    """
    if not path.startswith(FOREIGN):
        return None
    return (
        "IBM FL's data handlers are not supported. Write a class with get_data(), which returns "
        "((x_train, y_train), (x_test, y_test)), into a file next to this config and name it here; "
        "or name files: `data: {uri: train/*.recordio, validation_uri: test/*.recordio}`"
    )
