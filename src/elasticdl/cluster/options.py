"""Options of a job on a Kubernetes cluster: image, resources, volumes, scheduling.

They determine where a job runs and on which machines, but not its result: the same job can be
resubmitted with other options, and resumes.

Callers: `rayjob.py`, `submit.py`, and the command line, which creates `ClusterOptions` from flags.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from elasticdl.errors import UsageError

VolumeKind = Literal["pvc", "host", "secret"]
Scheduler = Literal["kueue", "volcano"]


# Syntax of Kubernetes quantities: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kKMGTPE]i?)?")


@dataclass(frozen=True)
class Volume:
    """A volume that is mounted into every pod of a job.

    Attributes:
        kind: `pvc` (a PersistentVolumeClaim), `host` (a folder of the node) or `secret`.
        name: Name of the claim or the secret; for `host`, path of the folder on the node.
        path: Mount path in the pods.
        read_only: Whether the volume is read-only in the pods.
    """

    kind: VolumeKind
    name: str
    path: str
    read_only: bool = False


@dataclass(frozen=True)
class Resources:
    """Resources of a pod, as both its requests and its limits.

    Attributes:
        cpus: Cores, in Kubernetes notation: `2` or `500m`.
        memory: Memory in Kubernetes notation: `4Gi` or `512Mi`.
    """

    cpus: str = "1"
    memory: str = "4Gi"


@dataclass(frozen=True)
class ClusterOptions:
    """Options of a job on a Kubernetes cluster.

    Attributes:
        image: Image of all pods, with its digest.
        ray_version: Version of Ray in the image.
        namespace: Namespace of the RayJob. None: that of the context.
        worker: Resources of each worker pod, in addition to the GPUs of the job.
        head: Resources of the head pod of Ray, where the driver runs.
        priority_class: Name of a PriorityClass for all pods.
        spot: Whether workers may run on nodes that can be reclaimed at any time.
        node_selector: Labels that nodes of workers must have.
        volumes: Volumes that are mounted into every pod.
        env: Environment variables of every pod.
        env_from_secrets: Secrets whose keys become environment variables of every pod.
        image_pull_secrets: Secrets with the credentials of the image's registry.
        service_account: Account of the pods. None: the default account of the namespace.
        ttl_s: Seconds from the end of the job until the pods are removed.
        deadline_s: Seconds after which a running job is stopped; None means never.
        max_resubmissions: How many times the driver is restarted after its pod was lost.
        queue: Name of the queue in which the job waits for its turn. None: no queue.
        scheduler: The scheduler that owns the queue: `kueue` or `volcano`.
        autoscaling: Whether Ray requests worker pods on demand, between the minimum and the maximum
            number of workers; otherwise all pods of the maximum are requested at once.
    """

    image: str
    ray_version: str
    namespace: str | None = None
    worker: Resources = Resources()
    head: Resources = Resources()
    priority_class: str | None = None
    spot: bool = False
    node_selector: Mapping[str, str] = field(default_factory=dict)
    volumes: Sequence[Volume] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    env_from_secrets: Sequence[str] = ()
    image_pull_secrets: Sequence[str] = ()
    service_account: str | None = None
    ttl_s: int = 600
    deadline_s: int | None = None
    max_resubmissions: int = 3
    queue: str | None = None
    scheduler: Scheduler = "kueue"
    autoscaling: bool = False


def parse_volume(text: str) -> Volume:
    """Parse a volume such as `pvc:data:/data:ro`.

    Raises:
        UsageError: The string has another form.

    Example:
        >>> parse_volume("pvc:data:/data:ro")
        Volume(kind='pvc', name='data', path='/data', read_only=True)
    """
    kinds: dict[str, VolumeKind] = {kind: kind for kind in get_args(VolumeKind)}
    kind, *rest = text.split(":")
    read_only = len(rest) == 3 and rest[-1] == "ro"  # noqa: PLR2004 - KIND:NAME:PATH:ro
    name, path = rest[:2] if len(rest) == 2 or read_only else ("", "")  # noqa: PLR2004 - as above
    if kind not in kinds or not name or not path.startswith("/"):
        raise UsageError(
            f"--volume={text}: expected KIND:NAME:PATH or KIND:NAME:PATH:ro, where KIND is "
            f"{', '.join(kinds)} and PATH begins with a slash; such as pvc:data:/data."
        )
    # A secret is always read-only.
    return Volume(kinds[kind], name, path.rstrip("/") or "/", read_only or kind == "secret")


def parse_pairs(flag: str, texts: Iterable[str]) -> dict[str, str]:
    """Parse strings of the form `NAME=VALUE` into a dict.

    Args:
        flag: Name of the flag that has the strings as values, without dashes, for the error.
        texts: The strings.

    Raises:
        UsageError: A string has no name, or no `=`.
    """
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"--{flag}={text}: expected NAME=VALUE.")
        pairs[name] = value
    return pairs


def parse_quantity(flag: str, text: str) -> str:
    """Check that an amount of cores or memory is a Kubernetes quantity, and return it.

    Args:
        flag: Name of the flag that has the amount as its value, without dashes, for the error.
        text: The amount, such as `500m` or `4Gi`.

    Raises:
        UsageError: The string is not a quantity, or the amount is zero.
    """
    if not _QUANTITY.fullmatch(text) or not float(re.sub(r"[a-zA-Z]+$", "", text)):
        raise UsageError(
            f"--{flag}={text}: expected a Kubernetes quantity, such as 2, 500m, 512Mi or 8Gi."
        )
    return text
