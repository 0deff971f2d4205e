"""How long training stands still for checkpoints of 100 MB, at the default interval.

The bar is 1 % of the time. The last checkpoint is not counted: it is made because the run is ended,
and who ends it waits for it.
"""

import json
import tempfile
from pathlib import Path

from benchmarks.training import train, write_data

SECONDS = 110


def run():
    with tempfile.TemporaryDirectory() as work:
        data = write_data(Path(work), "large", 65536)
        output = Path(work, "out")
        train("large", data, output, 64, 1000, stop_after_s=SECONDS)
        lines = (output / "events.jsonl").read_text().splitlines()
    events = [json.loads(line) for line in lines]
    steps = [event["time"] for event in events if event["event"] == "step_committed"]
    saved = [event for event in events if event["event"] == "checkpointed"][:-1]
    wall_s = steps[-1] - events[0]["time"]
    blocked_s = sum(event["blocked_s"] for event in saved)
    share = blocked_s / wall_s
    return {
        "blocked_share": {
            "ours": round(share, 5),
            "bar": 0.01,
            "met": share <= 0.01,
            "num_checkpoints": len(saved),
            "blocked_s": [event["blocked_s"] for event in saved],
            "num_bytes": max(event["num_bytes"] for event in saved),
            "wall_s": wall_s,
        }
    }
