"""Training on workers that die, come back and are added; Ray places, torchft agrees, we train.

decisions.py   whom to start, stop and replace             (pure)
agreement.py   what a step's rows mean: commit, heal, exit  (pure)
tasks.py       evaluating and predicting: a range of records is a task
ranges.py      who does which range, and when to give up     (pure)
open_model.py  a trained model kept open in a worker, range after range
board.py       what the jobs of a cluster wait for
controller.py  the driver: starts workers, watches them, writes what they tell
placement.py   where the processes are: Ray here, or a cluster
ray_cluster.py starts Ray with a token of its own, or joins a cluster with the user's
ray_watch.py   sees that Ray's processes here are dead, and kills those that stay stopped
fork_server.py processes that need not import the frameworks
worker_process.py  a worker in such a process, called from Ray's
worker.py      one worker: prepares itself, runs the loop, answers the controller
committer.py   a step of the loop, agreed upon by all workers
quorum.py      who takes part in a step, and the sum: all that touches torchft, with
gloo.py        the connections between workers
peer_watch.py  gives up waiting for a worker that is frozen
lighthouse.py  the Lighthouse's process, replaced when it dies
transport.py   a state on its way from one worker to another
sealing.py     its encryption
crash_note.py  which batches a process was working on when it died
deaths.py      deaths that would happen again and again        (pure)
journal.py     what the driver writes down
reports.py     what a worker has to tell, kept until the driver has it
pace.py        how soon silence is taken for death
"""

import os

# Before Ray is imported. It would send usage statistics.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Nobody looks at these; they would take time from the workers of the same machine.
os.environ.setdefault("RAY_task_events_report_interval_ms", "0")
os.environ.setdefault("RAY_enable_metrics_collection", "0")
# Ray makes workers nicer than all other programs, its own among them.
os.environ.setdefault("RAY_worker_niceness", "0")
# Ray hides accelerators from actors that ask for none, and warns that it will stop to.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
