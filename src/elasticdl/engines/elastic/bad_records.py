"""Bad records: skips the records of batches that kill workers, or fails with an error naming them.

    1. driver    five workers have died at a batch: sends it to all workers (`leave_out`)
    2. worker    stops training on the batch, and proposes in its vote to skip it
    3. workers   skip the records of the batch after the commit that contains such a vote

The skipped batches are part of the state, because the ledger contains them: a checkpoint has them,
a joining worker takes them over, and all workers agree on whether a batch is trained on or skipped.

Callers: `controller.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticdl.definition import RecordInput
from elasticdl.engines.train_progress import TrainProgress
from elasticdl.errors import TrainingError, UsageError
from elasticdl.sharding.left_out import BatchId, records_of

if TYPE_CHECKING:
    from elasticdl.artifacts.checkpoint_store import Checkpoint
    from elasticdl.engines.elastic.crash_note import BatchInWork
    from elasticdl.engines.elastic.repeated_failures import RepeatedFailure
    from elasticdl.engines.run import Run

# Limit of the skipped records: the larger of a number of batches and a share of the data. The
# number of batches is capped at another share.
_MAX_BATCHES = 10
_MAX_SHARE = 0.01
_NEVER_MORE = 0.5


class BadRecords:
    """The batches whose records a run skips because workers died on them.

    If they become too many, the job ends. The module docstring describes how batches are skipped.

    Args:
        run: The run.
        skip: Whether to skip bad records (`--skip_bad_records`).

    Attributes:
        batches: All batches that workers must no longer train on.
        at_start: Batches whose records are skipped from the start of this round: those that the
            ledger of its checkpoint already skips, and those of `batches` that the checkpoint's
            model was not trained on.

    Raises:
        UsageError: `skip` is set, but the batches are not built from numbered records.
    """

    def __init__(self, run: Run, *, skip: bool) -> None:
        self._run, self._skip = run, skip
        definition = run.context.definition
        self._by_record = isinstance(definition.input, RecordInput)
        if skip and not self._by_record:
            raise UsageError(
                f"--skip_bad_records: {definition.origin} makes batches in its own data pipeline, "
                "so individual records cannot be left out. Train without the option, or give the "
                "model an input function (`input_fn`)."
            )
        self.batches: tuple[BatchId, ...] = ()
        self.at_start: tuple[BatchId, ...] = ()

    def begin(self, checkpoint: Checkpoint | None) -> None:
        """Set `at_start` for a new round of workers, which starts from a checkpoint.

        Args:
            checkpoint: The checkpoint from which the round resumes. None: it starts at step 0.
        """
        progress = self._run.context.initial_progress()
        if checkpoint is not None:
            progress = TrainProgress.from_json(checkpoint.metadata["progress"])
        self.at_start = progress.ledger.leave_out(self.batches).left_out
        self.batches = tuple(sorted({*self.batches, *self.at_start}))

    def add(self, found: RepeatedFailure) -> BatchId:
        """Add a batch at which too many workers died to `batches`, and notify the user.

        Returns:
            The batch.

        Raises:
            TrainingError: Skipping is not enabled, or too many records would be skipped.
        """
        work = found.batch
        named = self._name(work)
        died = f"{found.num_deaths} workers died while {work}{f', {named}' if named else ''}"
        if not self._skip or work.work == "evaluating":
            others = "".join(f" (and {other})" for other in found.others)
            raise TrainingError(f"{died}{others}. {self._advice(work)}")
        batch = BatchId(work.epoch, work.shard, work.batch)
        batches = tuple(sorted({*self.batches, batch}))
        plan = self._run.context.plan
        num_records = sum(len(records_of(plan, each)) for each in batches)
        most = max(
            _MAX_SHARE * plan.num_records,
            min(_MAX_BATCHES * plan.minibatch_size, _NEVER_MORE * plan.num_records),
        )
        if num_records > most:
            raise TrainingError(
                f"{died}. With this batch, --skip_bad_records would leave out {num_records:,} of "
                f"{plan.num_records:,} records; the limit is {int(most):,}. With this many bad "
                "batches, single records are unlikely to be the cause. Check the output of the "
                "workers and the memory of their machines. The same command resumes from the "
                "newest checkpoint."
            )
        self.batches = batches
        self._run.reporter.note(f"{died}. These records are left out from now on.")
        return batch

    def _name(self, work: BatchInWork) -> str:
        context = self._run.context
        if work.work == "evaluating":
            return context.validation.name(work.shard) if context.validation else ""
        return context.data.name(context.plan, BatchId(work.epoch, work.shard, work.batch))

    def _advice(self, work: BatchInWork) -> str:
        look = (
            "A record may crash the process that reads it, or the batch may need more memory than "
            "is available. Look at these records with `elasticdl data show`"
        )
        if work.work != "evaluating" and self._by_record:
            return (
                f"{look}, use a smaller --minibatch_size, or run the same command with "
                "--skip_bad_records, which leaves them out and resumes from the newest checkpoint."
            )
        return (
            f"{look}, leave them out, or use a smaller --minibatch_size. The same command resumes "
            "from the newest checkpoint."
        )
