"""What a config asks for, once it has been read: values.

Callers: `config.py` makes them; the command line, `party.py` and `aggregator.py` read them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.engines.federated.aggregation import FUSIONS, Fusion

if TYPE_CHECKING:
    from elasticdl.job import CentralPrivacy, ModelReference


@dataclass(frozen=True)
class Tls:
    """The files of an encrypted connection.

    Attributes:
        ca_certificate: Who signs certificates.
        certificate: The aggregator's own.
        private_key: Its key; at a party, the key that says who it is.
    """

    ca_certificate: Path | None
    certificate: Path | None
    private_key: Path | None


@dataclass(frozen=True)
class Address:
    """Where an aggregator is reached.

    Attributes:
        host: Name or IP address.
        port: Its port.
    """

    host: str
    port: int


@dataclass(frozen=True)
class DataHandler:
    """A class of the user's with `get_data()`.

    Attributes:
        name: Of the class.
        file: That defines it; it lies inside the config's folder.
        info: What it is made with.
    """

    name: str
    file: Path
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Data:
    """Where examples come from: either records, or a handler.

    Attributes:
        uri: Records to train on; at an aggregator, to evaluate on.
        validation_uri: Records to evaluate on.
        handler: A class of the user's.
        data_dir: Folder that the `data_loader_class` of a model reads, to train and to evaluate on.
    """

    uri: str | None = None
    validation_uri: str | None = None
    handler: DataHandler | None = None
    data_dir: str | None = None


@dataclass(frozen=True)
class FusionChoice:
    """How parties' weights become one model.

    Attributes:
        name: Ours: a key of `aggregation.FUSIONS`.
        params: All of its params.
    """

    name: str
    params: Mapping[str, Any]

    @property
    def fusion(self) -> Fusion:
        """The fusion itself."""
        return FUSIONS[self.name]


@dataclass(frozen=True)
class Rounds:
    """How long to train, and when a round counts (`hyperparams.global`).

    Attributes:
        num_rounds: How many.
        num_parties: How many parties there are.
        perc_quorum: Which part of them must have answered for a round to count.
        max_timeout_s: How long a round waits for parties; None for as long as they take.
        termination_accuracy: Training ends when the accuracy on the aggregator's own data reaches
            this; None for never.
        seed: Decides order of records and dropout at all parties.
    """

    num_rounds: int
    num_parties: int
    perc_quorum: float = 1.0
    max_timeout_s: float | None = None
    termination_accuracy: float | None = None
    seed: int = 0

    @property
    def quorum(self) -> int:
        """How many valid replies a round needs.

        Example:
            >>> Rounds(num_rounds=1, num_parties=10, perc_quorum=0.7).quorum
            7
        """
        # 0.55 * 100 is 55.00000000000001.
        return max(1, math.ceil(self.perc_quorum * self.num_parties - 1e-9))


@dataclass(frozen=True)
class Local:
    """How parties train between two rounds (`hyperparams.local`).

    Attributes:
        num_epochs: How often each example is used in a round.
        minibatch_size: Examples in a step; None is the model's own.
        learning_rate: Of the optimizer; None is the model's own.
    """

    num_epochs: int = 1
    minibatch_size: int | None = None
    learning_rate: float | None = None


@dataclass(frozen=True)
class ModelChoice:
    """Which model.

    Attributes:
        reference: It, in the words of every other command.
        spec: `model.spec`, where it is a saved file; read by the dialect.
        trust: `model.trust`: what of a saved file may be executed. It is of this file alone, and
            travels nowhere.
        written: The whole section as the file has it.
    """

    reference: ModelReference
    spec: Mapping[str, Any] | None = None
    trust: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def has_components(self) -> bool:
        """Whether the components of a training session make it, and read their data themselves."""
        return self.reference.dialect == "abstractions"

    def is_same(self, other: ModelChoice) -> bool:
        """Return whether another config of this folder names the same model in the same words."""
        folders = {Path(str(each.reference.config_file)).parent for each in (self, other)}
        return len(folders) == 1 and self.written == other.written


@dataclass(frozen=True)
class Recorder:
    """What a party writes down of its own metrics.

    Attributes:
        output_file: Where, as JSON.
        before_training: The weights of a round are evaluated before it trains them.
        after_training: And after.
    """

    output_file: Path
    before_training: bool = True
    after_training: bool = True


@dataclass(frozen=True)
class AggregatorConfig:
    """What an aggregator's config asks for.

    Attributes:
        file: The config.
        fusion: How weights become one model.
        rounds: How long, and when a round counts.
        local: How parties train in between.
        listen: Where parties reach it; None where all are in one process.
        tls: Its certificates; None where connections are not encrypted.
        model: The model; None takes it from the parties.
        data: Of its own, to evaluate on.
        output: Where the global model goes; None where the command line says it.
        central_privacy: `privacy.central`; None where the model is not made private.
        warnings: What is good to know, each with its line.
    """

    file: Path
    fusion: FusionChoice
    rounds: Rounds
    local: Local = Local()
    listen: Address | None = None
    tls: Tls | None = None
    model: ModelChoice | None = None
    data: Data | None = None
    output: Path | None = None
    central_privacy: CentralPrivacy | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class PartyConfig:
    """What a party's config asks for.

    Attributes:
        file: The config.
        name: Of the party.
        model: The model.
        data: Its own, which stays where it is.
        aggregator: Where to connect to; None where all are in one process.
        tls: Its certificates; None where connections are not encrypted.
        local_training: What `local_training` names: "local", "gradients", "proximal" or
            "own_weights"; None where it does what the aggregator asks.
        metrics_may_leave: `privacy.metrics`: whether the aggregator is told its metrics.
        recorder: What it writes down for itself.
        output: Where its own files go; None where the command line says it.
        warnings: What is good to know, each with its line.
    """

    file: Path
    name: str
    model: ModelChoice
    data: Data
    aggregator: Address | None = None
    tls: Tls | None = None
    local_training: str | None = None
    metrics_may_leave: bool = False
    recorder: Recorder | None = None
    output: Path | None = None
    warnings: tuple[str, ...] = ()

    @property
    def state(self) -> Path:
        """The folder for what it remembers."""
        return self.output or self.file.resolve().parent / self.name / "state"
