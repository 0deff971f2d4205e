"""What the rows of a step mean: whether it commits, and what becomes of who disagrees.

Beside the gradients travels one row of numbers for each slot, in the same all-reduce. Every
worker fills in its own row and leaves the others zero, so that the sum holds them all; and
every worker draws the same conclusion from the same sum, without asking anybody:

    somebody's slot is taken twice          no commit; the older of the two leaves
    the rows are of different lineages      no commit; who is not of the lowest slot's
                                            lineage takes over its state
    the weights are not the same            the job ends: this must not happen
    else                                    commit

**Lineage.** torchft's commit is local: a worker whose all-reduce succeeded while that of the
others failed commits alone, and if it then misses a quorum, the others commit the same step
number without it. The numbers agree, the weights do not. So each state carries a hash chained
over all that was committed on the way to it: equal lineages mean equal histories.

All numbers are whole and cut into limbs of 16 bits, because float32 holds those exactly; a sum
of one such limb and zeros is exact in any order.

Callers: `committer.py`. Pure: no clock, no network, no framework.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from elasticdl.sharding.ledger import Row
from elasticdl.sharding.left_out import BatchId

if TYPE_CHECKING:
    import numpy.typing as npt

_LIMB_BITS = 16
# Field -> limbs. Bits that are given: 16 each.
_LIMBS = {
    "present": 1,
    "incarnation": 2,
    "num_examples": 2,
    "num_batches": 1,
    "finished": 1,
    "stop": 1,
    "asks": 1,
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
# Of each limb, and of each field.
_SHIFTS = np.array([_LIMB_BITS * i for n in _LIMBS.values() for i in range(n)], np.uint64)
_STARTS = np.cumsum([0, *_LIMBS.values()])[:-1]


@dataclass(frozen=True)
class Stance:
    """What one worker brings to a step.

    Attributes:
        incarnation: Which process holds the slot: higher is younger.
        num_examples: Examples its gradients are summed over.
        num_batches: Batches of its piece they are of.
        finished: Its piece has no further one.
        stop: Its callbacks ask for the training to end.
        asks: It wants all to ask anew who takes part, before the next step.
        digest: See `ledger.Row`.
        lost: Number of a slot whose worker is dead as the controller says, plus 1; 0 for none.
        bad_epoch: Epoch, plus 1, of a batch whose records all are to leave out; 0 for none.
        bad_shard: Its shard.
        bad_batch: Its number in the shard.
        num_left_out: Records that are missing from the batches it brings in.
        lineage: Hash of the history of its state.
        fingerprint: Hash of its weights; 0 where it was not asked for.
    """

    incarnation: int
    num_examples: int = 0
    num_batches: int = 0
    finished: bool = False
    stop: bool = False
    asks: bool = False
    digest: int = 0
    lost: int = 0
    bad_epoch: int = 0
    bad_shard: int = 0
    bad_batch: int = 0
    num_left_out: int = 0
    lineage: int = 0
    fingerprint: int = 0


def encode(stance: Stance, slot: int, table: npt.NDArray[np.float32]) -> None:
    """Write a worker's row into a table of zeros, float32[slots, NUM_LIMBS].

    Raises:
        ValueError: A number has no room.
    """
    at = 0
    for name, limbs in _LIMBS.items():
        value = 1 if name == "present" else int(getattr(stance, name))
        if not 0 <= value < 1 << (_LIMB_BITS * limbs):
            raise ValueError(f"{name}={value} does not fit {_LIMB_BITS * limbs} bits.")
        for i in range(limbs):
            table[slot, at + i] = (value >> (_LIMB_BITS * i)) & 0xFFFF
        at += limbs


@dataclass(frozen=True)
class Verdict:
    """What a worker has to do after a step.

    Attributes:
        commits: The step counts.
        leave: This process must end: a younger one has its slot.
        heal: This worker's state is not the others': it takes over theirs.
        drifted: Slots whose weights are not those of the lowest slot.
        slots: Who took part, lowest first.
        rows: What each of them brought in.
        lost: Slots whose worker is dead and that took no part.
        stop: The training ends here: what was brought in does not count.
        num_examples: Examples of all.
        asks: Somebody wants all to ask anew who takes part; after a step that does not commit they
            do so in any case.
        left_out: Batches whose records are left out from here on.
        num_left_out: Records that are missing from the batches of all.
    """

    commits: bool
    leave: bool = False
    heal: bool = False
    drifted: Sequence[int] = ()
    slots: Sequence[int] = ()
    rows: Sequence[Row] = ()
    lost: Collection[int] = ()
    stop: bool = False
    num_examples: int = 0
    asks: bool = False
    left_out: Sequence[BatchId] = ()
    num_left_out: int = 0


def judge(table: npt.NDArray[np.float32], slot: int, mine: Stance) -> Verdict:
    """Draw the conclusion from the summed rows; every worker draws the same.

    Args:
        table: float32[slots, NUM_LIMBS], summed over all workers.
        slot: This worker's slot.
        mine: What it brought in.
    """
    columns = _decode(table)
    present = columns["present"]
    slots = np.flatnonzero(present)
    if (present > 1).any():
        # The others' numbers are what is left when mine is taken from the sum. Compared with
        # their mean, so that of three the oldest leaves and the youngest stays as well.
        num_others = int(present[slot]) - 1
        others = int(columns["incarnation"][slot]) - mine.incarnation
        return Verdict(commits=False, leave=others > num_others * mine.incarnation)
    first = slots[0]
    lineages = columns["lineage"][slots]
    if (lineages != lineages[0]).any():
        return Verdict(commits=False, heal=mine.lineage != int(lineages[0]))
    fingerprints = columns["fingerprint"]
    drifted = slots[fingerprints[slots] != fingerprints[first]]
    worked = slots[(columns["num_batches"][slots] > 0) | (columns["finished"][slots] > 0)]
    lost = {int(number) - 1 for number in columns["lost"][slots] if number}
    # The lowest slot decides: callbacks may look at a clock.
    stop = bool(columns["stop"][first])
    return Verdict(
        commits=not len(drifted),
        drifted=drifted.tolist(),
        slots=slots.tolist(),
        rows=[
            Row(
                int(s),
                int(columns["num_batches"][s]),
                bool(columns["finished"][s]),
                int(columns["digest"][s]),
            )
            for s in (() if stop else worked)
        ],
        lost=sorted(lost - set(slots.tolist())),
        stop=stop,
        num_examples=0 if stop else int(columns["num_examples"][slots].sum()),
        asks=bool(columns["asks"][slots].any()),
        left_out=_bad_batches(columns) if columns["bad_epoch"].any() else (),
        num_left_out=0 if stop else int(columns["num_left_out"][slots].sum()),
    )


def _bad_batches(columns: Mapping[str, npt.NDArray[np.uint64]]) -> tuple[BatchId, ...]:
    rows = zip(*(columns[f"bad_{part}"].tolist() for part in BatchId._fields), strict=True)
    return tuple(
        sorted({BatchId(epoch - 1, shard, batch) for epoch, shard, batch in rows if epoch})
    )


def chain(lineage: int, verdict: Verdict) -> int:
    """Return the lineage of the state after a committed step."""
    rows, left_out = ([tuple(row) for row in some] for some in (verdict.rows, verdict.left_out))
    return _hash(repr((lineage, verdict.slots, rows, verdict.lost, left_out)))


def first_lineage(generation: int, round_: int, step: int) -> int:
    """Return the lineage of the state that a round of a start of a job begins with."""
    return _hash(repr((generation, round_, step)))


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _decode(table: npt.NDArray[np.float32]) -> dict[str, npt.NDArray[np.uint64]]:
    # All at once: with few workers, numbers are cheap and calls are not.
    limbs = table.astype(np.uint64) << _SHIFTS
    return dict(zip(_LIMBS, np.add.reduceat(limbs, _STARTS, axis=1).T, strict=True))


assert {f.name for f in fields(Stance)} == _LIMBS.keys() - {"present"}  # noqa: S101
