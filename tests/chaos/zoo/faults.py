"""An engine that is broken on purpose: what an audit is worth shows where something is wrong.

    forgetful   the ledger loses the lease of a worker that died
    skipping    the ledger counts one batch twice, and so leaves the next one out
    forked      rank 0 commits a step alone and is late for the next quorum (the silent fork)
    blind       lineages are not looked at, so that such a fork stays unnoticed

Callers: `kill_points.py`, in every worker.
"""

import time
from dataclasses import replace

import numpy as np

from elasticdl.engines.elastic import commit_decision, committer
from elasticdl.engines.elastic.allreduce import Quorum
from elasticdl.engines.elastic.committer import ElasticCommitter
from elasticdl.sharding.ledger import LeaseUpdate, Ledger

# In the second epoch, in the middle of a shard.
_EPOCH, _BATCH = 1, 5
# What four workers have in hand in the middle of an epoch that all began: 3 of 8 batches are done
# by each. Equal parts, so that the forked ones do not come to blows over a rest; and of less than
# three the Lighthouse makes no quorum while one more is alive.
_FORKED_PIECES = [(3, 8), (19, 24), (11, 16), (27, 32)]
_JOIN_TIMEOUT_S = 0.5
_PATIENCE_S = 20.0


def install(folder, names):
    """Break what is named."""
    for name in names:
        {"forgetful": _forget, "skipping": _skip, "forked": _fork, "blind": _look_away}[name](
            folder
        )


def _forget(folder):
    def release(ledger, ranks):
        kept = ~np.isin(ledger._leased[:, 4], list(ranks))
        return replace(ledger, _leased=ledger._leased[kept])

    Ledger.release = release


def _skip(folder):
    advance = Ledger.advance

    def advance_too_far(ledger, rows):
        if ledger.epoch == _EPOCH:
            rows = [_too_far(ledger.lease_of(row.rank), row) for row in rows]
        return advance(ledger, rows)

    Ledger.advance = advance_too_far


def _too_far(lease, row):
    if lease is not None and (lease.shard, lease.next_batch) == (0, _BATCH):
        return LeaseUpdate(row.rank, row.num_batches + 1, row.finished, row.digest)
    return row


def blind(judge):
    """Return a `decide_commit` that does not see lineages."""

    def judge_blindly(table, rank, mine):
        at = 0
        for name, num_limbs in commit_decision._LIMBS.items():
            if name == "lineage":
                table[:, at : at + num_limbs] = 0
            at += num_limbs
        return judge(table, rank, replace(mine, lineage=0))

    return judge_blindly


def _look_away(folder):
    committer.decide_commit = blind(commit_decision.decide_commit)


def _fork(folder):
    """Let the sum fail for all but rank 0, which then comes too late to repeat it with them.

    When the others have made the step again without it, all meet: at the same number of commits,
    with different histories.
    """
    enter, commit = ElasticCommitter.enter, ElasticCommitter.commit
    begin, add_up = Quorum.begin, Quorum.sum
    mine = {"forks": False, "fork_at": None, "met": False}

    def remember(self, quorum, history, rank, *more):
        mine["rank"] = rank
        enter(self, quorum, history, rank, *more)

    def commit_or_fork(self, batches, progress, *, stop):
        leases = [(lease.next_batch, lease.stop) for lease in progress.ledger.leased.values()]
        mine["forks"] = mine["fork_at"] is None and leases == _FORKED_PIECES
        return commit(self, batches, progress, stop=stop)

    def fail(quorum, buffer):
        summed = add_up(quorum, buffer)
        if mine["forks"]:
            mine["fork_at"] = quorum.num_commits
            return summed and mine["rank"] == 0
        return summed

    def meet(quorum):
        if mine["fork_at"] == quorum.num_commits - 1 and not mine["met"]:
            mine["met"] = True
            (folder / f"met-{mine['rank']}").touch()
            deadline = time.monotonic() + _PATIENCE_S
            while len(list(folder.glob("met-*"))) < len(_FORKED_PIECES):
                if time.monotonic() > deadline:
                    break
                time.sleep(0.005)
            if mine["rank"]:
                # Those of the last quorum would not wait for others: the late one asks first, and
                # is not kept so long that it goes on with some of them.
                time.sleep(_JOIN_TIMEOUT_S * 0.4)
        begin(quorum)

    ElasticCommitter.enter, ElasticCommitter.commit = remember, commit_or_fork
    Quorum.begin, Quorum.sum = meet, fail
    # It is told by the questions who takes part: one for each step.
    Quorum.is_old = True
