"""Which packages an image gets: the versions that are installed here, of all that ElasticDL needs.

So what runs on the cluster is what runs on this machine. Requirements are read for the image's
platform; what it needs beyond this machine's is left to pip, and said.

Callers: `build.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from elasticdl.errors import MissingExtraError, UsageError

PACKAGE = "elasticdl"
# A training on workers needs the first; the others are for what a job may name: addresses, specs,
# PyTorch models, MLflow.
_NEEDED, _USEFUL = "elastic", ("gcs", "s3", "specs", "torch", "tracking")
# Where builds with a local version, such as 2.13.0+cpu, are published.
_BUILDS_OF_TORCH = "https://download.pytorch.org/whl/"
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True)
class Lock:
    """What is installed beside ElasticDL.

    Attributes:
        requirements: What ElasticDL needs itself, one a line.
        constraints: The version of each package, one a line.
        unknown: Packages whose version is not known here.
        extra_indexes: Where some versions are, beside the index.
    """

    requirements: tuple[str, ...]
    constraints: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    extra_indexes: tuple[str, ...] = ()


def own() -> Distribution:
    """Return the installed ElasticDL.

    Raises:
        UsageError: It runs from a folder without being installed.
    """
    try:
        return distribution(PACKAGE)
    except PackageNotFoundError:
        raise UsageError(
            "ElasticDL is not installed here, so what it depends on is not known. Install it: pip "
            "install elasticdl, or pip install --editable FOLDER for a source tree."
        ) from None


def lock(platform: str, found: Distribution | None = None) -> Lock:
    """Return what an image gets.

    Args:
        platform: Of the image, such as `linux/amd64`.
        found: The installed ElasticDL.

    Raises:
        UsageError: ElasticDL is not installed.
        MissingExtraError: What a training on workers needs is not installed.

    Example:
        >>> "numpy" in " ".join(lock("linux/amd64").constraints)
        True
    """
    found = found or own()
    environment = _environment(platform)
    extras = [_NEEDED, *(each for each in _USEFUL if _is_installed(found, each, environment))]
    if not _is_installed(found, _NEEDED, environment):
        raise MissingExtraError("ray", _NEEDED, "The image of a job on a cluster")
    direct = [each for extra in ("", *extras) for each in _needs(found, extra, environment)]
    pins, unknown = _closure(direct, environment)
    labels = {
        Version(pin).local for name, pin in pins.items() if name == "torch" and Version(pin).local
    }
    return Lock(
        tuple(sorted({_without_marker(each) for each in direct})),
        tuple(f"{name}=={pin}" for name, pin in sorted(pins.items())),
        tuple(sorted(unknown)),
        tuple(f"{_BUILDS_OF_TORCH}{label}" for label in sorted(map(str, labels))),
    )


def _closure(
    direct: list[Requirement], environment: dict[str, str]
) -> tuple[dict[str, str], set[str]]:
    pins: dict[str, str] = {}
    unknown: set[str] = set()
    seen: set[tuple[str, str]] = set()
    todo = [(each.name, extra) for each in direct for extra in ("", *each.extras)]
    while todo:
        name, extra = todo.pop()
        name = canonicalize_name(name)
        if (name, extra) in seen or name == PACKAGE:
            continue
        seen.add((name, extra))
        try:
            package = distribution(name)
        except PackageNotFoundError:
            unknown.add(name)
            continue
        pins[name] = package.version
        todo += [
            (each.name, inner)
            for each in _needs(package, extra, environment)
            for inner in ("", *each.extras)
        ]
    return pins, unknown


def _needs(package: Distribution, extra: str, environment: dict[str, str]) -> Iterator[Requirement]:
    """Yield what a package needs with an extra and not without; all without one for an empty."""
    for line in package.requires or ():
        each = Requirement(line)
        bare = each.marker is None or each.marker.evaluate({**environment, "extra": ""})
        if bare if not extra else not bare and _with(each, extra, environment):
            if each.extras and canonicalize_name(each.name) == canonicalize_name(package.name):
                for inner in sorted(each.extras):
                    yield from _needs(package, inner, environment)
            else:
                yield each


def _with(each: Requirement, extra: str, environment: dict[str, str]) -> bool:
    return each.marker is not None and each.marker.evaluate({**environment, "extra": extra})


def _is_installed(package: Distribution, extra: str, environment: dict[str, str]) -> bool:
    for each in _needs(package, extra, environment):
        try:
            version(each.name)
        except PackageNotFoundError:
            return False
    return True


def _environment(platform: str) -> dict[str, str]:
    _, _, machine = platform.partition("/")
    machine = machine.split("/")[0]
    return {
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": _MACHINES.get(machine, machine),
    }


def _without_marker(each: Requirement) -> str:
    extras = f"[{','.join(sorted(each.extras))}]" if each.extras else ""
    return f"{each.name}{extras}{each.specifier}"
