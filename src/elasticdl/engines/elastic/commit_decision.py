"""Voting on a step: whether it commits, and what a worker that disagrees must do.

One row of numbers for each rank is summed in the same all-reduce as the gradients. Every worker
fills in its own row and leaves the others zero, so the sum contains all rows. Every worker then
draws the same conclusion from the same sum, without any further message:

    the sum failed (a worker died)          not decided here; `committer.py` repeats the step
    a rank is held by two workers           no commit; the older of the two leaves
    the rows have different lineages        no commit; a worker with another lineage than the
                                            lowest rank takes over that rank's state
    the weights differ                      the job ends with `DriftError`
    otherwise                               commit

**Lineage.** torchft's commit is local: a worker whose all-reduce succeeded while those
of the other workers failed commits alone. If it then misses a quorum, they commit the same step
number without it. The step numbers agree, the weights do not. Therefore each state carries a hash
chained over all commits that led to it: equal lineages mean equal histories.

All numbers are integers, split into limbs of 16 bits, because float32 represents those exactly. A
sum of one such limb and zeros is exact in any order.

Callers: `committer.py`. Pure: no clock, no network, no framework.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from elasticdl.sharding.ledger import LeaseUpdate
from elasticdl.sharding.left_out import BatchId

if TYPE_CHECKING:
    import numpy.typing as npt

_LIMB_BITS = 16
# Field -> number of limbs of 16 bits.
_LIMBS = {
    "present": 1,
    "incarnation": 2,
    "num_examples": 2,
    "num_batches": 1,
    "finished": 1,
    "stop": 1,
    "requests_quorum": 1,
    "digest": 2,
    "lost": 2,
    "bad_epoch": 2,
    "bad_shard": 2,
    "bad_batch": 2,
    "num_left_out": 2,
    "lineage": 4,
    "fingerprint": 4,
}
NUM_LIMBS = sum(_LIMBS.values())
# Bit shift of each limb, and first limb of each field.
_SHIFTS = np.array([_LIMB_BITS * i for n in _LIMBS.values() for i in range(n)], np.uint64)
_STARTS = np.cumsum([0, *_LIMBS.values()])[:-1]


@dataclass(frozen=True)
class Vote:
    """One worker's vote on a step: its row in the table that is summed over all workers.

    A lease is the batches of a shard that are assigned to the worker's rank.

    Attributes:
        incarnation: Number, from 1, of the process that holds the rank; higher is younger.
        num_examples: Number of examples that its gradients are summed over.
        num_batches: Number of batches of its lease that this step completes.
        finished: Whether its lease has no further batch.
        stop: Whether its callbacks request the end of training.
        requests_quorum: Whether it requests a new quorum before the next step.
        digest: Rolling hash of its lease's batches through this step; see `ledger.LeaseUpdate`.
        lost: A rank whose worker is dead according to the controller, plus 1; 0 for none.
        bad_epoch: Epoch, plus 1, of a batch whose records all workers should skip; 0 for none.
        bad_shard: Shard of that batch.
        bad_batch: Number of that batch in the shard.
        num_left_out: Number of records that are missing from its batches because they are skipped.
        lineage: Hash of the history of its state.
        fingerprint: Hash of its weights; 0 in steps without a fingerprint.
    """

    incarnation: int
    num_examples: int = 0
    num_batches: int = 0
    finished: bool = False
    stop: bool = False
    requests_quorum: bool = False
    digest: int = 0
    lost: int = 0
    bad_epoch: int = 0
    bad_shard: int = 0
    bad_batch: int = 0
    num_left_out: int = 0
    lineage: int = 0
    fingerprint: int = 0


def encode(vote: Vote, rank: int, table: npt.NDArray[np.float32]) -> None:
    """Write a vote into the row of its rank in a table of zeros, float32[ranks, NUM_LIMBS].

    Args:
        vote: The vote.
        rank: Rank of the worker that votes.
        table: The table, changed in place; then summed over all workers.

    Raises:
        ValueError: A number does not fit its field.
    """
    at = 0
    for name, limbs in _LIMBS.items():
        value = 1 if name == "present" else int(getattr(vote, name))
        if not 0 <= value < 1 << (_LIMB_BITS * limbs):
            raise ValueError(f"{name}={value} does not fit {_LIMB_BITS * limbs} bits.")
        for i in range(limbs):
            table[rank, at + i] = (value >> (_LIMB_BITS * i)) & 0xFFFF
        at += limbs


@dataclass(frozen=True)
class Decision:
    """Outcome of a step for one worker.

    Attributes:
        commits: Whether the step commits.
        leave: Whether this process must end because a newer one has taken over its rank.
        heal: Whether this worker must take over a peer's state because its lineage differs.
        drifted: Ranks whose weights differ from those of the lowest rank.
        ranks: Ranks that took part, lowest first.
        rows: Update of the lease of each rank that had a batch or finished its lease; empty if
            `stop`.
        lost: Ranks whose worker is reported dead and that did not take part.
        stop: Whether training ends here; the batches of this step are then not applied.
        num_examples: Number of examples that the summed gradients of all workers are based on.
        requests_quorum: Whether a worker requests a new quorum. After a step that does not commit,
            a new one is formed in any case.
        left_out: Batches whose records are skipped from here on.
        num_left_out: Number of records missing from this step's batches because they are skipped.
    """

    commits: bool
    leave: bool = False
    heal: bool = False
    drifted: Sequence[int] = ()
    ranks: Sequence[int] = ()
    rows: Sequence[LeaseUpdate] = ()
    lost: Collection[int] = ()
    stop: bool = False
    num_examples: int = 0
    requests_quorum: bool = False
    left_out: Sequence[BatchId] = ()
    num_left_out: int = 0


def decide_commit(table: npt.NDArray[np.float32], rank: int, mine: Vote) -> Decision:
    """Decide whether a step is applied, from the votes of all workers.

    All workers call this with the same table and reach the same decision, except for what only one
    of them has to do (`leave`, `heal`).

    Args:
        table: float32[ranks, NUM_LIMBS], the sum of the workers' tables. Each worker fills only
            its own row, with `encode`.
        rank: This worker's rank.
        mine: This worker's vote.
    """
    columns = _decode(table)
    present = columns["present"]
    ranks = np.flatnonzero(present)
    if (present > 1).any():
        # The sum minus this worker's own number is the sum of the others' numbers. Compare with
        # their mean, so that of three workers the oldest leaves and the youngest stays as well.
        num_others = int(present[rank]) - 1
        others = int(columns["incarnation"][rank]) - mine.incarnation
        return Decision(commits=False, leave=others > num_others * mine.incarnation)
    first = ranks[0]
    lineages = columns["lineage"][ranks]
    if (lineages != lineages[0]).any():
        return Decision(commits=False, heal=mine.lineage != int(lineages[0]))
    fingerprints = columns["fingerprint"]
    drifted = ranks[fingerprints[ranks] != fingerprints[first]]
    worked = ranks[(columns["num_batches"][ranks] > 0) | (columns["finished"][ranks] > 0)]
    lost = {int(number) - 1 for number in columns["lost"][ranks] if number}
    # The lowest rank decides, because callbacks may depend on a clock.
    stop = bool(columns["stop"][first])
    return Decision(
        commits=not len(drifted),
        drifted=drifted.tolist(),
        ranks=ranks.tolist(),
        rows=[
            LeaseUpdate(
                int(s),
                int(columns["num_batches"][s]),
                bool(columns["finished"][s]),
                int(columns["digest"][s]),
            )
            for s in (() if stop else worked)
        ],
        lost=sorted(lost - set(ranks.tolist())),
        stop=stop,
        num_examples=0 if stop else int(columns["num_examples"][ranks].sum()),
        requests_quorum=bool(columns["requests_quorum"][ranks].any()),
        left_out=_bad_batches(columns) if columns["bad_epoch"].any() else (),
        num_left_out=0 if stop else int(columns["num_left_out"][ranks].sum()),
    )


def _bad_batches(columns: Mapping[str, npt.NDArray[np.uint64]]) -> tuple[BatchId, ...]:
    rows = zip(*(columns[f"bad_{part}"].tolist() for part in BatchId._fields), strict=True)
    return tuple(
        sorted({BatchId(epoch - 1, shard, batch) for epoch, shard, batch in rows if epoch})
    )


def chain(lineage: int, verdict: Decision) -> int:
    """Return the lineage (hash of the commit history) after a committed step.

    Args:
        lineage: The lineage before the step.
        verdict: The decision on the step; it must be one that commits.
    """
    rows, left_out = ([tuple(row) for row in some] for some in (verdict.rows, verdict.left_out))
    return _hash(repr((lineage, verdict.ranks, rows, verdict.lost, left_out)))


def first_lineage(generation: int, round_: int, step: int) -> int:
    """Return the lineage (hash of the commit history) at the start of a round of workers.

    Args:
        generation: Number of the job's start.
        round_: Number of the round within that start.
        step: The step that the round starts from.
    """
    return _hash(repr((generation, round_, step)))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _decode(table: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[np.uint64]]:
    # All limbs at once: with few workers, the number of calls costs more than the arithmetic.
    limbs = table.astype(np.uint64) << _SHIFTS
    return dict(zip(_LIMBS, np.add.reduceat(limbs, _STARTS, axis=1).T, strict=True))


assert {f.name for f in fields(Vote)} == _LIMBS.keys() - {"present"}  # noqa: S101
