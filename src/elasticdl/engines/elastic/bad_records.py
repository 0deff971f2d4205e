"""Records whose batch kills every worker that gets it: named, or left out if the user says so.

    driver    five workers died at a batch --leave_out--> every worker that lives or comes
    workers   none of them touches the batch; one says so in its row of the next step, and with
              that commit all of them leave its records out

So what is left out is part of the state, like the ledger that keeps it: a checkpoint has it, a
worker that joins takes it over, and a batch is either trained on or left out, on whichever worker.

Callers: `controller.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasticdl.definition import RecordInput
from elasticdl.engines.place import Place
from elasticdl.errors import TrainingError, UsageError
from elasticdl.sharding.left_out import BatchId, records_of

if TYPE_CHECKING:
    from elasticdl.artifacts.checkpoint import Checkpoint
    from elasticdl.engines.elastic.crash_note import BatchInWork
    from elasticdl.engines.elastic.deaths import TooMany
    from elasticdl.engines.run import Run

# Whichever is more of them; but never most of the data.
_MOST_BATCHES = 10
_MOST_SHARE = 0.01
_NEVER_MORE = 0.5


class BadRecords:
    """See the module.

    Args:
        run: Whose records they are.
        skip: The user wants them left out.

    Attributes:
        batches: All that workers must not touch any more.
        at_start: Those that a worker of this round begins without.

    Raises:
        UsageError: They are to be left out, but batches are not made of records by number.
    """

    def __init__(self, run: Run, *, skip: bool) -> None:
        self._run, self._skip = run, skip
        definition = run.material.definition
        self._by_record = isinstance(definition.input, RecordInput)
        if skip and not self._by_record:
            raise UsageError(
                f"--skip_bad_records: {definition.origin} makes its batches in a pipeline of its "
                "own, which alone knows the records a batch is made of, so none can be left out of "
                "it. Train without the option, or give the model an input function (`input_fn`)."
            )
        self.batches: tuple[BatchId, ...] = ()
        self.at_start: tuple[BatchId, ...] = ()

    def begin(self, checkpoint: Checkpoint | None) -> None:
        """Note what a round leaves out that begins from a checkpoint, or at the very start."""
        place = self._run.material.first_place()
        if checkpoint is not None:
            place = Place.from_json(checkpoint.metadata["place"])
        self.at_start = place.ledger.leave_out(self.batches).left_out
        self.batches = tuple(sorted({*self.batches, *self.at_start}))

    def add(self, found: TooMany) -> BatchId:
        """Leave out the records of a batch that too many workers died at, and return it.

        Raises:
            TrainingError: They are not to be left out, or would be too many.
        """
        work = found.batch
        named = self._name(work)
        died = f"{found.num_deaths} workers died while {work}{f', {named}' if named else ''}"
        if not self._skip or work.work == "evaluating":
            others = "".join(f" (and {other})" for other in found.others)
            raise TrainingError(f"{died}{others}. {self._advice(work)}")
        batch = BatchId(work.epoch, work.shard, work.batch)
        batches = tuple(sorted({*self.batches, batch}))
        plan = self._run.material.plan
        num_records = sum(len(records_of(plan, each)) for each in batches)
        most = max(
            _MOST_SHARE * plan.num_records,
            min(_MOST_BATCHES * plan.minibatch_size, _NEVER_MORE * plan.num_records),
        )
        if num_records > most:
            raise TrainingError(
                f"{died}. With them, --skip_bad_records would leave out {num_records:,} of "
                f"{plan.num_records:,} records, and at most {int(most):,} are left out: so many "
                "batches that kill workers are hardly the fault of single records. Look at what "
                "the workers printed and at the memory of their machines. The same command "
                "resumes from the newest checkpoint."
            )
        self.batches = batches
        self._run.reporter.note(f"{died}. These records are left out from now on.")
        return batch

    def _name(self, work: BatchInWork) -> str:
        material = self._run.material
        if work.work == "evaluating":
            return material.validation.name(work.shard) if material.validation else ""
        return material.data.name(material.plan, BatchId(work.epoch, work.shard, work.batch))

    def _advice(self, work: BatchInWork) -> str:
        look = (
            "A record may crash the process that reads it, or the batch may need more memory than "
            "there is. Look at these records with `elasticdl data show`"
        )
        if work.work != "evaluating" and self._by_record:
            return (
                f"{look}, take a smaller --minibatch_size, or add --skip_bad_records: the same "
                "command with it leaves them out, and goes on from the newest checkpoint."
            )
        return (
            f"{look}, leave them out, or take a smaller --minibatch_size. The same command resumes "
            "from the newest checkpoint."
        )
