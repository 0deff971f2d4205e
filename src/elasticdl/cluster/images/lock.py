"""Package lock of an image: pins ElasticDL's dependencies to the versions on this machine.

So the cluster runs the same versions as this machine. Requirements are evaluated for the
image's platform; packages that only that platform needs are left to pip, and reported.

Callers: `build.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution, version

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from elasticdl.errors import MissingExtraError, UsageError

PACKAGE = "elasticdl"
# The first is needed for training on workers; a job may need the others: stores, specs, PyTorch
# models, MLflow.
_NEEDED, _USEFUL = "elastic", ("gcs", "http", "s3", "specs", "torch", "tracking")
# The first that is installed is used: they contain the same modules.
_TENSORFLOW = ("tensorflow", "tensorflow-gpu")
# Index of builds with a local version, such as 2.13.0+cpu.
_BUILDS_OF_TORCH = "https://download.pytorch.org/whl/"
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True)
class DependencyLock:
    """The packages to install in an image besides ElasticDL, with pinned versions.

    Attributes:
        requirements: Direct dependencies of ElasticDL, each as a line of a requirements file.
        constraints: Version of each package, as a line of a constraints file: `numpy==2.3.1`.
        unknown: Names of required packages that are not installed here, such as those that only the
            image's platform needs; their versions are not pinned.
        extra_indexes: URLs of additional package indexes, for versions that pip's own index lacks.
    """

    requirements: tuple[str, ...]
    constraints: tuple[str, ...]
    unknown: tuple[str, ...] = ()
    extra_indexes: tuple[str, ...] = ()


def own() -> Distribution:
    """Return the installed distribution of ElasticDL, whose code and dependencies go into an image.

    Raises:
        UsageError: ElasticDL runs from a folder and is not installed.
    """
    try:
        return distribution(PACKAGE)
    except PackageNotFoundError:
        raise UsageError(
            "ElasticDL is not installed here, so its dependencies are unknown. Install it: pip "
            "install elasticdl, or pip install --editable FOLDER for a source tree."
        ) from None


def lock(platform: str, found: Distribution | None = None) -> DependencyLock:
    """Return the packages to install in an image, pinned to the versions installed here.

    Args:
        platform: Platform of the image, such as `linux/amd64`.
        found: The installed ElasticDL. None: look it up.

    Raises:
        UsageError: ElasticDL is not installed.
        MissingExtraError: Packages for training on workers are not installed.

    Example:
        >>> "numpy" in " ".join(lock("linux/amd64").constraints)
        True
    """
    found = found or own()
    environment = _environment(platform)
    extras = [_NEEDED, *(each for each in _USEFUL if _is_installed(found, each, environment))]
    # TensorFlow's package has another name on another platform, so this machine's is looked for.
    extras += [each for each in _TENSORFLOW if _is_installed(found, each, {})][:1]
    if not _is_installed(found, _NEEDED, environment):
        raise MissingExtraError("ray", _NEEDED, "The image of a job on a cluster")
    direct = [each for extra in ("", *extras) for each in _needs(found, extra, environment)]
    pins, unknown = _closure(direct, environment)
    labels = {
        Version(pin).local for name, pin in pins.items() if name == "torch" and Version(pin).local
    }
    return DependencyLock(
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
    packages: dict[str, Distribution] = {}
    seen: set[tuple[str, str]] = set()
    todo = [(each.name, extra) for each in direct for extra in ("", *each.extras)]
    while todo:
        name, extra = todo.pop()
        name = canonicalize_name(name)
        if (name, extra) in seen or name == PACKAGE:
            continue
        seen.add((name, extra))
        if name not in packages:
            try:
                packages[name] = distribution(name)
            except PackageNotFoundError:
                unknown.add(name)
                continue
            pins[name] = packages[name].version
        todo += [
            (each.name, inner)
            for each in _needs(packages[name], extra, environment)
            for inner in ("", *each.extras)
        ]
    return pins, unknown


def _needs(package: Distribution, extra: str, environment: dict[str, str]) -> Iterator[Requirement]:
    """Yield the requirements that an extra adds to a package's own requirements.

    Args:
        package: The distribution that declares them.
        extra: Name of the extra. Empty: yield the package's own requirements instead.
        environment: Environment markers (PEP 508) of the image's platform.
    """
    for each in _requirements(package):
        bare = each.marker is None or each.marker.evaluate({**environment, "extra": ""})
        if bare if not extra else not bare and _with(each, extra, environment):
            if each.extras and canonicalize_name(each.name) == canonicalize_name(package.name):
                for inner in sorted(each.extras):
                    yield from _needs(package, inner, environment)
            else:
                yield each


@functools.cache
def _requirements(package: Distribution) -> tuple[Requirement, ...]:
    # Parsed once for all extras: parsing took half of the time of a lock.
    return tuple(map(Requirement, package.requires or ()))


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
