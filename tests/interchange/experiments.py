"""How a written model is trained in each engine, and with what that is compared.

    in process    this process
    1 worker      elastic
    2 workers     elastic, and one update an epoch
    1 party       federated, as are the others
    3 parties     FedAvg of parties of three sizes, two epochs a round
    FedSGD        the same parties, each with one step a round, which is one step on all records

Callers: the tests beside this file.
"""

from dataclasses import dataclass, field

from tests.interchange.written import USUAL, Kind

IN_PROCESS, ELASTIC, FEDERATED = "in_process", "elastic", "federated"
ALL = ("everybody",)
PARTIES = {"north": 30, "south": 45, "west": 60}
NUM_RECORDS, NUM_TEST_RECORDS = 450, 100


@dataclass(frozen=True)
class Experiment:
    """A column of the table.

    Attributes:
        engine: Where it is trained.
        reference: The experiment whose module is compared with; None compares with the module
            of this one.
        kind: The model.
        parties: Folders of the records.
        minibatch_size: Examples in a step.
        num_epochs: Epochs, or rounds.
        num_local_epochs: Epochs in a round.
        options: Further options of the training.
        num_workers: Of an elastic training.
    """

    engine: str
    reference: str | None = None
    kind: Kind = USUAL
    parties: tuple[str, ...] = ALL
    minibatch_size: int = 16
    num_epochs: int = 7
    num_local_epochs: int = 1
    options: dict = field(default_factory=dict)
    num_workers: int = 1


# Which records meet in an update depends on how fast the workers are, unless all of an epoch do.
# Dropout draws for each worker. What is left is rounding: sums in another order.
_EPOCH_A_STEP = {
    "kind": Kind(batch_size=15, dropout=False),
    "minibatch_size": 15,
    "options": {"global_batch_size": NUM_RECORDS},
}
# A session's components have an order of their own: all of a party's records are one batch.
_UNEVEN = {"parties": tuple(PARTIES), "minibatch_size": 256}
# One step of SGD on each party's mean, weighted by examples, is one step on the mean of all.
_ONE_STEP = {
    **_UNEVEN,
    "kind": Kind(batch_size=256, batch_norm=False, dropout=False, optimizer="SGD(0.5)"),
}

EXPERIMENTS = {
    "in process": Experiment(IN_PROCESS, "in process"),
    "1 worker": Experiment(ELASTIC, "in process"),
    "2 workers": Experiment(ELASTIC, "an epoch a step", num_workers=2, **_EPOCH_A_STEP),
    "1 party": Experiment(FEDERATED, "in process"),
    "3 parties": Experiment(
        FEDERATED,
        kind=Kind(batch_size=256, dropout=False),
        num_epochs=4,
        num_local_epochs=2,
        **_UNEVEN,
    ),
    "FedSGD": Experiment(FEDERATED, "one step", **_ONE_STEP),
}
REFERENCES = {
    "an epoch a step": Experiment(IN_PROCESS, **_EPOCH_A_STEP),
    "one step": Experiment(IN_PROCESS, **_ONE_STEP),
}
