"""Settings of a federation: the checked values of the aggregator's and the parties' configs.

Callers: `reading.py` creates them; the command line, the parties and the aggregator read them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.engines.federated.strategies.fusions import FUSIONS, Fusion

if TYPE_CHECKING:
    from elasticdl.job import CentralPrivacy, ModelReference


@dataclass(frozen=True)
class Tls:
    """Paths of the certificates and the key for an encrypted connection.

    Attributes:
        ca_certificate: Certificate of the authority that signs the certificates.
        certificate: The aggregator's own certificate; not used at a party.
        private_key: Its private key; at a party, the key that authenticates the party.
    """

    ca_certificate: Path | None
    certificate: Path | None
    private_key: Path | None


@dataclass(frozen=True)
class Address:
    """Network address of an aggregator; the host is a name or an IP address."""

    host: str
    port: int


@dataclass(frozen=True)
class DataHandler:
    """A user's class whose method `get_data()` returns a party's data.

    Attributes:
        name: Name of the class.
        file: The file that defines it, inside the config's folder.
        info: The section `data.info`, which is the argument of its constructor.
    """

    name: str
    file: Path
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Data:
    """Source of the examples: records, a data handler, or the folder of a `data_loader_class`.

    Attributes:
        uri: Location of the records to train on; at an aggregator, to evaluate on. None if a
            handler or `data_dir` is given instead.
        validation_uri: Location of the records to evaluate on; None if there are none.
        handler: A user's class that returns the data; None without one.
        data_dir: Folder that the `data_loader_class` of a model reads, to train and to evaluate on;
            None for any other model.
    """

    uri: str | None = None
    validation_uri: str | None = None
    handler: DataHandler | None = None
    data_dir: str | None = None


@dataclass(frozen=True)
class FusionChoice:
    """The fusion chosen in a config, with its params.

    Attributes:
        name: A key of `fusions.FUSIONS`.
        params: All of its params, including defaults.
    """

    name: str
    params: Mapping[str, Any]

    @property
    def fusion(self) -> Fusion:
        """The registered fusion with this name."""
        return FUSIONS[self.name]


@dataclass(frozen=True)
class Rounds:
    """Number of rounds, and how many replies each needs and waits for (`hyperparams.global`).

    Attributes:
        num_rounds: Number of rounds.
        num_parties: Number of parties.
        perc_quorum: Fraction of the parties, above 0 and at most 1, that must reply in each round.
        max_timeout_s: How long a round waits for replies; None means without limit.
        termination_accuracy: Training ends when the accuracy on the aggregator's own data reaches
            this; None means never.
        seed: Seed of the order of records and of dropout, at all parties.
    """

    num_rounds: int
    num_parties: int
    perc_quorum: float = 1.0
    max_timeout_s: float | None = None
    termination_accuracy: float | None = None
    seed: int = 0

    @property
    def quorum(self) -> int:
        """Number of usable replies that a round needs.

        Example:
            >>> Rounds(num_rounds=1, num_parties=10, perc_quorum=0.7).quorum
            7
        """
        # The tolerance is needed because 0.55 * 100 is 55.00000000000001.
        return max(1, math.ceil(self.perc_quorum * self.num_parties - 1e-9))


@dataclass(frozen=True)
class Local:
    """Settings of the parties' training between two rounds (`hyperparams.local`).

    Attributes:
        num_epochs: Number of local epochs in a round.
        minibatch_size: Examples in a step; None means the model's own.
        learning_rate: The optimizer's learning rate; None means the model's own.
    """

    num_epochs: int = 1
    minibatch_size: int | None = None
    learning_rate: float | None = None


@dataclass(frozen=True)
class ModelChoice:
    """The section `model` of a config.

    Attributes:
        reference: Where the model's code or file is, and its params, as in a job of any engine.
        spec: `model.spec`, if the model is a saved file; the reader of its format (a module in
            `dialects/`) interprets the contents. None if it is not a saved file.
        trust: `model.trust`: which parts of a saved file may be executed. It applies only to the
            saved file of this config, and is never sent to other machines.
        written: The whole section `model` as in the file; two configs have the same model if these
            are equal.
    """

    reference: ModelReference
    spec: Mapping[str, Any] | None = None
    trust: Mapping[str, Any] = field(default_factory=dict)
    written: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def has_components(self) -> bool:
        """Whether the model is given as the component classes of a training session.

        In a session (dialect `abstractions`), a data loader, a preprocessor and a model builder
        read the data and build the model, instead of a model file.
        """
        return self.reference.dialect == "abstractions"

    def is_same(self, other: ModelChoice) -> bool:
        """Return whether another config has the same model: an equal section, in the same folder.

        Paths in the section are relative to the folder of the config.
        """
        folders = {Path(str(each.reference.config_file)).parent for each in (self, other)}
        return len(folders) == 1 and self.written == other.written


@dataclass(frozen=True)
class Recorder:
    """Settings of a party's metrics file.

    Attributes:
        output_file: The JSON file to write; see `client/recorder.py`.
        before_training: Whether to evaluate the global weights before each round's training.
        after_training: Whether to evaluate the party's own weights after it.
    """

    output_file: Path
    before_training: bool = True
    after_training: bool = True


@dataclass(frozen=True)
class AggregatorConfig:
    """Settings of an aggregator.

    Attributes:
        file: The config.
        fusion: The fusion that combines the weights.
        rounds: Number of rounds, and how many replies each needs and waits for.
        local: How parties train between two rounds.
        listen: The address that it listens on; None if not set, because a simulation needs none.
        tls: Its certificates; None if connections are not encrypted.
        model: The model. None: take it from the parties.
        data: Its own data, to evaluate on.
        output: Folder for the global model; None if the command line names it.
        central_privacy: `privacy.central`; None without differential privacy.
        warnings: Warnings about the config, each with its line.
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
    """Settings of a party.

    Attributes:
        file: The config.
        name: The party's name.
        model: The model.
        data: Its own data, which never leaves it.
        aggregator: The address to connect to; None if it is not set, as for a simulation.
        tls: Its certificates; None if connections are not encrypted.
        local_training: Kind of local training that the config names: "local" (plain training),
            "gradients", "proximal" or "own_weights". It must be the kind that the fusion needs;
            "local" and None are accepted with every fusion.
        metrics_may_leave: `privacy.metrics`: whether its metrics are sent to the aggregator.
        recorder: Its own metrics file; None if it writes none.
        output: Folder for its own files; None means `NAME/state` beside the config.
        warnings: Warnings about the config, each with its line.
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
        """Folder in which the party keeps its client state between rounds."""
        return self.output or self.file.resolve().parent / self.name / "state"
