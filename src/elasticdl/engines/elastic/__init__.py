"""Elastic engine: trains on workers that die, are replaced and are added during a run.

Ray places the processes, torchft forms the quorums, and the training loop is ElasticDL's own.

scaling_policy.py    which workers to start, assign, replace or abandon         (pure)
commit_decision.py   decides on a step from the workers' votes                  (pure)
inference_ranges.py  assigns ranges of records, and decides when to give up     (pure)
repeated_failures.py    ends a job whose workers keep dying at the same batch      (pure)
controller.py        the driver: starts and watches workers, writes their events
worker.py            a worker: prepares, runs the loop, reports to the controller
worker_process.py    runs a worker in a separate process, for Ray's actor
fork_server.py       forks processes that have the frameworks imported already
committer.py         performs a step that all workers agree on
allreduce.py         participants of a step, and the sum; only it and gloo.py use torchft
gloo.py              connections between workers
peer_watch.py        ends the wait for a frozen worker
lighthouse.py        keeps the Lighthouse's process running
state_transfer.py    sends a state from one worker to another
encryption.py        encrypts that state
crash_note.py        records which batches a process was working on when it died
bad_records.py  skips the records of batches that kill workers
event_buffer.py      a worker's events and checkpoints until the driver has fetched them
event_writer.py      writes them to the log and the output, in the driver
timeouts.py          timeouts of a run
inference.py         evaluates and predicts: one Ray task for each range of records
inference_worker.py  applies a trained model to ranges of records, in a worker
job_registry.py      shows which jobs on a cluster wait for workers
placement.py         places the processes: in Ray on this machine, or in a cluster
ray_cluster.py       starts Ray with a token for this run, or joins the user's cluster
ray_watch.py         detects Ray processes that died, and kills those that stay stopped
index_transfer.py    sends the indexes of the data to the workers
low_priority.py      runs preparations at low priority
worker_warnings.py   repeats the warnings of workers in the driver

Which module decides that a worker is dead or hung, by what the worker does:

its process has died                     controller.py `_handle`
it does not answer the driver, or is     scaling_policy.py `_to_end`: hung, so it is killed
on one batch for too long
it is silent while others commit         controller.py `keeps_up`: it counts as a worker that is
                                         still joining, until it answers
it does not respond in a sum, or while   peer_watch.py: its peers give up the step or the transfer
it sends a state
it sends no heartbeats                   torchft's Lighthouse (allreduce.py): a quorum without it
its rank misses many steps               engines/loop.py: its lease is released
"""

import logging
import os
import warnings

# Set before Ray is imported, which would otherwise send usage statistics.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# These are not used, and would take CPU time from the workers of the same machine.
os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
os.environ.setdefault("RAY_enable_metrics_collection", "0")
# Ray runs workers at a lower priority than all other programs, including its own.
os.environ.setdefault("RAY_worker_niceness", "0")
# Ray hides accelerators from actors that request none, and warns that this will change.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
# In a notebook, Ray warns that widgets are missing, which ElasticDL does not use.
warnings.filterwarnings("ignore", message="IProgress not found")
logging.getLogger("ray.widgets.util").setLevel(logging.WARNING)
