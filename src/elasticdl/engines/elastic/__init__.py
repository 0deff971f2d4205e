"""Training on workers that die, come back and are added; Ray places, torchft agrees, we train.

decisions.py   whom to start, stop and replace             (pure)
agreement.py   what a step's rows mean: commit, heal, exit  (pure)
controller.py  the driver: starts workers, watches them, writes what they tell
worker.py      one worker: prepares itself, runs the loop, answers the controller
committer.py   a step of the loop, agreed upon by all workers
quorum.py      all that touches torchft
transport.py   a state on its way from one worker to another
"""

import os

# Before Ray is imported. Without the first, a local start writes a token that keeps clusters
# of later starts from forming; without the second it would send usage statistics.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
# Ray hides accelerators from actors that ask for none, and warns that it will stop to.
os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
