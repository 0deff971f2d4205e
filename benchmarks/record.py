"""The machine a figure was measured on, and where figures are kept."""

import importlib.metadata
import json
import os
import platform
import statistics
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results"
_PACKAGES = ("elasticdl", "keras", "tensorflow-cpu", "numpy", "pyarrow")


def machine():
    """Return what a figure depends on beside the code."""
    cpu = platform.processor()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "system": platform.system(),
        "load_before": os.getloadavg()[0],
        "packages": {name: importlib.metadata.version(name) for name in _PACKAGES},
    }


def keep(name, result):
    """Write a result beside the others of its kind and print it."""
    print(json.dumps(result, indent=2))
    RESULTS.mkdir(exist_ok=True)
    text = json.dumps(
        {"measured": time.strftime("%Y-%m-%d"), "machine": machine(), **result}, indent=2
    )
    (RESULTS / f"{name}.json").write_text(text + "\n")


def ratio(ours, peer, bar, *, higher_is_better=True):
    """Return medians, their ratio and whether it meets the bar, unless that is None."""
    mine, theirs = statistics.median(ours), statistics.median(peer)
    value = mine / theirs if higher_is_better else theirs / mine
    return {
        "ours": mine,
        "peer": theirs,
        "ratio": round(value, 3),
        **({} if bar is None else {"bar": bar, "met": value >= bar}),
        "runs": {"ours": list(ours), "peer": list(peer)},
    }
