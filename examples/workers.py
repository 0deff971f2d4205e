"""Two workers; one of them is killed. The other one continues, and each record counts once.

elasticdl data sample digits --output=demo/data
python examples/workers.py
elasticdl job audit demo/workers_model
"""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

OUTPUT = Path("demo/workers_model")
COMMAND = [
    *("elasticdl", "train", "--model_def=mnist", "--data=demo/data/train"),
    *("--num_epochs=8", "--num_workers=1..2", f"--output={OUTPUT}"),
]


def events(kind):
    """Return the job's events of a kind, such as `worker_joined`."""
    log = OUTPUT / "events.jsonl"
    lines = log.read_text().splitlines() if log.exists() else []
    return [event for event in map(json.loads, lines) if event["event"] == kind]


if __name__ == "__main__":
    job = subprocess.Popen(COMMAND)
    while not events("step_committed") and job.poll() is None:
        time.sleep(0.1)
    if job.poll() is None:
        worker = events("worker_joined")[-1]
        print(f"Killing worker {worker['rank']}, process {worker['pid']}.")
        os.kill(worker["pid"], signal.SIGKILL)
    raise SystemExit(job.wait())
