"""`elasticdl doctor`: information for issue reports, and likely problems of this machine.

Reads metadata of packages and files of the system. Loads no framework, so it is fast, and starts no
process.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

import click

from elasticdl import __version__
from elasticdl.cli.printable import echo

_MIB = 1 << 20
_GIB = 1 << 30
# Ray keeps shared objects in it, and falls back to a disk below this.
_SMALLEST_SHM_BYTES = 1 * _GIB
_SMALLEST_DISK_BYTES = 2 * _GIB
_NOT_FOR_USERS = {"all", "dev"}
# Extra -> the one that takes its place.
_INSTEAD_OF = {"tensorflow-gpu": "tensorflow"}
_SHOWN = (
    "keras", "tensorflow", "tensorflow-cpu", "torch", "ray", "torchft", "flwr", "mlflow-skinny",
    "numpy", "pyarrow",
)  # fmt: skip
_NAME = re.compile(r"^[\w.-]+")
_EXTRA = re.compile(r"extra\s*==\s*['\"]([\w-]+)['\"]")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(*, as_json: bool) -> None:
    """Show versions, extras, devices and limits of this machine, with hints.

    Include its output when you report an issue. It contains no environment variables and no
    credentials.
    """
    found = facts()
    if as_json:
        echo(json.dumps(found, indent=2))
        return
    for title, values in found.items():
        if title == "hints":
            continue
        click.secho(title, bold=True)
        for name, value in values.items():
            echo(f"  {name:<18} {value}")
    click.secho("hints", bold=True)
    for hint in found["hints"] or ["none: nothing unusual was found"]:
        echo(f"  {hint}")


def facts() -> dict[str, Any]:
    """Collect what `elasticdl doctor` shows about this machine.

    Returns:
        `versions`, `extras`, `machine`, `devices`: name -> value; `hints`: sentences about likely
        problems.
    """
    hints: list[str] = []
    return {
        "versions": {"elasticdl": __version__, "python": sys.version.split()[0], **_packages()},
        "extras": _extras(),
        "machine": _machine(hints),
        "devices": _devices(hints),
        "hints": hints,
    }


def _packages() -> dict[str, str]:
    return {name: found for name in _SHOWN if (found := _version(name)) is not None}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _extras() -> dict[str, str]:
    """Return which extras of ElasticDL (`pip install elasticdl[NAME]`) are installed.

    Returns:
        Name of the extra -> `installed`, or what is missing, with the command to install it.
    """
    needed: dict[str, list[tuple[str, bool]]] = defaultdict(list)
    for line in requires("elasticdl") or ():
        extra, package = _EXTRA.search(line), _NAME.match(line)
        if extra is not None and package is not None and extra[1] not in _NOT_FOR_USERS:
            needed[extra[1]].append((package[0], "platform" in line))
    found: dict[str, str] = {}
    for name, packages in sorted(needed.items()):
        missing = [
            each for each, is_for_some in packages if _version(each) is None and not is_for_some
        ]
        # One of several packages for different platforms is enough.
        of_platforms = [each for each, is_for_some in packages if is_for_some]
        if of_platforms and not any(_version(each) is not None for each in of_platforms):
            missing.append(of_platforms[0])
        command = f"pip install 'elasticdl[{name}]'"
        found[name] = f"missing {', '.join(missing)}: {command}" if missing else "installed"
    for name, other in _INSTEAD_OF.items():
        if found.get(name, "installed") != "installed" and found.get(other) == "installed":
            found[name] = (
                f"not installed; for GPUs, in an environment without {other}: "
                f"pip install 'elasticdl[{name}]'"
            )
    return found


def _machine(hints: list[str]) -> dict[str, str]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    values = {"system": platform.platform(), "processors": f"{cores} available"}
    quota = _cpu_quota()
    if quota is not None and cores is not None and quota < cores:
        values["processors"] += f", limited to {quota:g} by its control group"
        hints.append(
            f"Only {quota:g} of {cores} CPUs may be used (cgroup limit). Frameworks start "
            f"{cores} threads; set OMP_NUM_THREADS={max(1, int(quota))}."
        )
    memory = _memory_bytes()
    if memory is not None:
        values["memory"] = f"{memory / _GIB:.1f} GiB"
    for name, folder in (
        ("working folder", Path.cwd()),
        ("temporary folder", Path(tempfile.gettempdir())),
    ):
        free = shutil.disk_usage(folder).free
        values[name] = f"{folder}, {free / _GIB:.1f} GiB free"
        if free < _SMALLEST_DISK_BYTES:
            hints.append(f"Only {free / _MIB:,.0f} MiB are free in the {name} {folder}.")
        if not os.access(folder, os.W_OK):
            hints.append(
                f"The {name} {folder} is not writable. Choose another folder for --output."
            )
    shared = Path("/dev/shm")  # noqa: S108 - its size is shown; nothing is written
    if shared.is_dir():
        size = shutil.disk_usage(shared).total
        values["shared memory"] = f"{shared}, {size / _GIB:.1f} GiB"
        if size < _SMALLEST_SHM_BYTES:
            hints.append(
                f"{shared} has only {size / _MIB:,.0f} MiB. Workers (--num_workers) exchange data "
                "there; in a container, raise it: docker run --shm-size=2g."
            )
    return values


def _cpu_quota() -> float | None:
    """Return how many processors the container (cgroup) may use; None without a limit."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _memory_bytes() -> int | None:
    sizes = []
    for path, pattern, unit in (
        ("/proc/meminfo", r"MemTotal:\s+(\d+) kB", 1024),
        ("/sys/fs/cgroup/memory.max", r"^(\d+)$", 1),
    ):
        try:
            found = re.search(pattern, Path(path).read_text())
        except OSError:
            continue
        if found is not None:
            sizes.append(int(found[1]) * unit)
    return min(sizes, default=None)


def _devices(hints: list[str]) -> dict[str, str]:
    command = shutil.which("nvidia-smi")
    if command is None:
        return {"GPUs": "none (no nvidia-smi)"}
    query = [command, "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(  # noqa: S603 - a fixed command
            query, check=True, capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.SubprocessError) as error:
        hints.append(f"nvidia-smi failed, so no GPU can be used: {error}.")
        return {"GPUs": "none (nvidia-smi failed)"}
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if lines and _version("tensorflow-cpu") is not None:
        hints.append(
            "tensorflow-cpu does not use the GPU. For Keras models on it, install "
            "'elasticdl[tensorflow-gpu]' in an environment without tensorflow-cpu."
        )
    if lines and os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        hints.append("CUDA_VISIBLE_DEVICES is empty, which hides all GPUs.")
    return {f"GPU {number}": line for number, line in enumerate(lines)} or {"GPUs": "none"}
