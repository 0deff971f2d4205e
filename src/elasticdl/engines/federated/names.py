"""What the class names and paths of IBM FL's configs mean here.

A config of theirs names classes: `{name: IterAvgFusionHandler, path: ibmfl.aggregator.fusion...}`.
No class is ever loaded by such a name. It is looked up, with or without its suffix, as a class, as
a module or as a word (IterAvgFusionHandler, iter_avg_fusion_handler, iter_avg), in one table a
kind. What exists there and not here is known too, with the reason; the rest is unknown, and said
with the nearest name.

Callers: `config.py`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from elasticdl.engines.federated.aggregation import FUSIONS
from elasticdl.errors import UsageError

FOREIGN = "ibmfl."
"""What paths of theirs begin with."""


@dataclass(frozen=True)
class Known:
    """What a name means here.

    Attributes:
        ours: Our name for it.
        params: Values that come with the name, as the centre of Fed+ does.
    """

    ours: str
    params: Mapping[str, Any] = field(default_factory=dict)


class UnsupportedNameError(UsageError):
    """A name means nothing here; the text says why and what to do, without place or value."""


@dataclass(frozen=True)
class Table:
    """The names of one kind of thing.

    Attributes:
        kind: What it is, for errors.
        suffix: Pattern of what all class names of the kind end with, in lower case.
        known: Name without the suffix, letters and figures in lower case -> what it means.
        unsupported: Pattern that such a name has in it -> why it is not here, and what to do.
        shown: Our names, for who errs.
    """

    kind: str
    suffix: str
    known: Mapping[str, Known]
    unsupported: Sequence[tuple[str, str]]
    shown: Sequence[str]

    def look_up(self, name: str, path: str | None = None) -> Known:
        """Return what a name means here.

        Args:
            name: A class, a module or a word.
            path: The dotted path beside it.

        Raises:
            UnsupportedNameError: There is no such thing, it is not supported, or the path is that
                of something else.

        Example:
            >>> FUSION_NAMES.look_up("IterAvgFusionHandler").ours
            'iter_avg'
            >>> FUSION_NAMES.look_up("FedAvgPlusFusionHandler")
            Known(ours='fed_plus', params={'centre': 'mean'})
        """
        word = self._word(name)
        said = [word] if path is None else [word, self._word(path)]
        for each in said:
            for pattern, reason in self.unsupported:
                if re.search(pattern, each):
                    raise UnsupportedNameError(reason)
        if path is not None and not path.startswith(FOREIGN):
            raise UnsupportedNameError(
                f"a {self.kind} of your own cannot be loaded; expected one of "
                f"{', '.join(self.shown)}. Leave `path` out"
            )
        if word not in self.known:
            near = difflib.get_close_matches(word, self.known, n=1)
            meant = f" (did you mean {self.known[near[0]].ours}?)" if near else ""
            raise UnsupportedNameError(
                f"there is no such {self.kind}{meant}; expected one of {', '.join(self.shown)}"
            )
        found = self.known[word]
        if path is not None and self.known.get(self._word(path), found) != found:
            raise UnsupportedNameError(
                f"the path beside it, {path}, is that of "
                f"{self.known[self._word(path)].ours}. Leave `path` out, or make both say the same"
            )
        return found

    def _word(self, name: str) -> str:
        last = name.rpartition(".")[2].lower().replace("+", "plus")
        return re.sub(f"{self.suffix}$", "", re.sub(r"[^a-z0-9]", "", last))


def _words(names: Mapping[str, Known]) -> dict[str, Known]:
    return {re.sub(r"[^a-z0-9]", "", name): known for name, known in names.items()}


_ENCRYPTED = (
    "homomorphic encryption is not part of ElasticDL. What travels is protected by TLS "
    "(connection.info.tls_config); take a fusion such as fedavg"
)
_NOT_NETWORKS = "it is no neural network; ElasticDL trains Keras and PyTorch models"
_FAIRNESS = (
    "methods that reweigh data for fairness are not part of ElasticDL; reweigh in your data handler"
)

FUSION_NAMES = Table(
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
                "PFNM (matching of neurons) is not part of ElasticDL; take fedavg, or fed_plus "
                "where parties differ much"
            ),
        ),
        ("spahm", f"SPAHM fuses clusters: {_NOT_NETWORKS}"),
        (
            "^afa$|adaptivefederatedaverag",
            (
                "AFA is not part of ElasticDL; take multi_krum, trimmed_mean or geometric_median, "
                "which stand liars too"
            ),
        ),
        (
            "comparativeelimination|^ce$",
            (
                "comparative elimination is not part of ElasticDL; take krum or multi_krum, which "
                "have a byzantine_threshold too"
            ),
        ),
        ("crypto|fhe|homomorphic|helayers|^he", _ENCRYPTED),
        (
            "^shuffle",
            "shuffled averaging is not part of ElasticDL; take iter_avg",
        ),
        ("id3|dtfusion|decisiontree", f"ID3 grows a decision tree: {_NOT_NETWORKS}"),
        ("naivebayes", f"naive Bayes: {_NOT_NETWORKS}"),
        (
            "^rl|reinforcement|rllib",
            "reinforcement learning is not part of ElasticDL; only supervised training is",
        ),
        ("doc2vec", f"doc2vec: {_NOT_NETWORKS}"),
        ("prej", f"the prejudice remover: {_FAIRNESS}"),
        ("reweigh", _FAIRNESS),
        ("xgb|gbm|boost", f"boosted trees: {_NOT_NETWORKS}"),
        ("kmeans|sklearn", f"a model of scikit-learn: {_NOT_NETWORKS}"),
    ),
    shown=tuple(FUSIONS),
)

_SKLEARN = (
    "models of scikit-learn are not supported; ElasticDL trains Keras and PyTorch models. A linear "
    "model is a network of one layer"
)
MODEL_NAMES = Table(
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
        ("^rl", "reinforcement learning is not part of ElasticDL; only supervised training is"),
        ("doc2vec", f"doc2vec: {_NOT_NETWORKS}"),
        ("xgb|gbm|boost", f"boosted trees: {_NOT_NETWORKS}"),
    ),
    shown=("KerasFLModel", "TensorFlowFLModel", "PytorchFLModel"),
)

_BROKER = (
    "messages over RabbitMQ are not supported. Parties here open no port and need no broker: they "
    "connect to the aggregator, whose ip and port stand in the section `aggregator`. Leave it out"
)
CONNECTION_NAMES = Table(
    kind="connection",
    suffix="(connection)?",
    known=_words({"flask": Known("flower"), "flower": Known("flower")}),
    unsupported=(("rabbit|pubsub|amqp|castor", _BROKER),),
    shown=("flower", "FlaskConnection (the same)"),
)
PROTOCOL_NAMES = Table(
    kind="protocol handler",
    suffix="(handler)?",
    known=_words({"proto": Known("aggregator"), "partyprotocol": Known("party")}),
    unsupported=(("rabbit|pubsub", _BROKER),),
    shown=("ProtoHandler at an aggregator", "PartyProtocolHandler at a party"),
)
LOCAL_TRAINING_NAMES = Table(
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
        ("pfnm", "PFNM (matching of neurons) is not part of ElasticDL"),
        ("^rl|rllib", "reinforcement learning is not part of ElasticDL"),
        (
            "dpsgd|differentialpriv|^dp",
            "differential privacy is the aggregator's here, not a party's; leave it out",
        ),
    ),
    shown=("local", "gradients", "proximal", "own_weights"),
)
RECORDER_NAMES = Table(
    kind="metrics recorder",
    suffix="(recorder)?",
    known=_words({"metrics": Known("metrics")}),
    unsupported=(),
    shown=("MetricsRecorder",),
)


def data_handler_problem(path: str) -> str | None:
    """Say why the data handler at a dotted path cannot be used; None if it is one of the user's.

    Example:
        >>> data_handler_problem("my_data")
    """
    if not path.startswith(FOREIGN):
        return None
    return (
        "data handlers of IBM FL are not part of ElasticDL. Write a class with get_data(), which "
        "returns ((x_train, y_train), (x_test, y_test)), into a file beside this one and name it "
        "here; or name files: `data: {uri: train/*.recordio, validation_uri: test/*.recordio}`"
    )
