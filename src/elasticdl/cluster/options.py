"""What a job asks of a Kubernetes cluster, as a value.

It says where a job runs and with which machines, and nothing about its result: the same job may be
submitted again with other options and resumes.

Callers: `rayjob.py`, `submit.py`, and the command line, which makes it of flags.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from elasticdl.errors import UsageError

VolumeKind = Literal["pvc", "host", "secret"]
Scheduler = Literal["kueue", "volcano"]


# As Kubernetes writes quantities: https://kubernetes.io/docs/reference/kubernetes-api/common-definitions/quantity/
_QUANTITY = re.compile(r"\d+(\.\d+)?(m|[kKMGTPE]i?)?")


@dataclass(frozen=True)
class Volume:
    """Something that is mounted into every pod of a job.

    Attributes:
        kind: `pvc` (a PersistentVolumeClaim), `host` (a folder of the node) or `secret`.
        name: Of the claim or the secret; path of the folder on the node.
        path: Where it is in the pods.
        read_only: Whether pods may not write to it.
    """

    kind: VolumeKind
    name: str
    path: str
    read_only: bool = False


@dataclass(frozen=True)
class Resources:
    """What a pod asks for, as both its request and its limit.

    Attributes:
        cpus: Cores, as Kubernetes writes them: `2` or `500m`.
        memory: `4Gi`, `512Mi`.
    """

    cpus: str = "1"
    memory: str = "4Gi"


@dataclass(frozen=True)
class ClusterOptions:
    """How a job runs on a cluster.

    Attributes:
        image: The image that all pods run, with its digest.
        ray_version: Version of Ray in the image.
        namespace: Namespace of the RayJob; None leaves it to the context.
        worker: What each worker's pod asks for, beside the GPUs of the job.
        head: What the pod of Ray's head, where the driver runs, asks for.
        priority_class: Name of a PriorityClass for all pods.
        spot: Whether workers may run on nodes that can be taken away at any time.
        node_selector: Labels that nodes of workers must have.
        volumes: What is mounted into every pod.
        env: Environment variables of every pod.
        env_from_secrets: Secrets whose keys become environment variables of every pod.
        image_pull_secrets: Secrets with the credentials of the image's registry.
        service_account: Account of the pods; None is the namespace's default.
        ttl_s: Seconds after its end until the pods are removed.
        deadline_s: Seconds after which a job that still runs is ended; None for never.
        max_resubmissions: How often the driver is started again when its pod was lost.
        queue: Queue of Kueue or Volcano; None for none.
        scheduler: The scheduler that owns the queue.
        autoscaling: Whether Ray asks for worker pods as it needs them, between the least and the
            most workers; else the pods of the most are asked for at once.
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
    """Return what `pvc:data:/data:ro` says.

    Raises:
        UsageError: It is something else.

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
    # A secret cannot be written to.
    return Volume(kinds[kind], name, path.rstrip("/") or "/", read_only or kind == "secret")


def parse_pairs(flag: str, texts: Iterable[str]) -> dict[str, str]:
    """Return what several `NAME=VALUE` say.

    Raises:
        UsageError: One has no name, or no `=`.
    """
    pairs = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise UsageError(f"--{flag}={text}: expected NAME=VALUE.")
        pairs[name] = value
    return pairs


def parse_quantity(flag: str, text: str) -> str:
    """Return an amount of cores or memory as Kubernetes takes it.

    Raises:
        UsageError: It is none.
    """
    if not _QUANTITY.fullmatch(text) or not float(re.sub(r"[a-zA-Z]+$", "", text)):
        raise UsageError(
            f"--{flag}={text}: expected an amount as Kubernetes writes it, such as 2, 500m, 512Mi "
            "or 8Gi."
        )
    return text
