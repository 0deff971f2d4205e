"""What a job asks of a Kubernetes cluster, as a value.

It says where a job runs and with which machines, and nothing about its result: the same job may be
submitted again with other options and resumes.

Callers: `rayjob.py`, `submit.py`, and the command line, which makes it of flags.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

VolumeKind = Literal["pvc", "host", "secret"]


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
        gpus: Whole GPUs.
    """

    cpus: str = "1"
    memory: str = "4Gi"
    gpus: int = 0


@dataclass(frozen=True)
class ClusterOptions:
    """How a job runs on a cluster.

    Attributes:
        image: The image that all pods run, with its digest.
        ray_version: Version of Ray in the image.
        namespace: Namespace of the RayJob; None leaves it to the context.
        worker: What each worker's pod asks for.
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
        scheduler: Whose queue it is.
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
    scheduler: Literal["kueue", "volcano"] = "kueue"
    autoscaling: bool = False
