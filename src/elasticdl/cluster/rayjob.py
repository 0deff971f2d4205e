"""RayJob manifest: describes a job as the Kubernetes object that KubeRay runs.

    RayJob
      submitter pod   submits the command, and resubmits it if the head was lost
      RayCluster
        head pod      Ray's control store and the driver; no worker
        worker pods   min..max, one ElasticDL worker each

Pure: values in, a manifest out. KubeRay replaces a dead worker pod, while the elastic engine
continues without it. If the head is lost, KubeRay creates another one and resubmits the command,
which resumes from the last checkpoint. For this, `--output` must outlive the pods.

The fields are those of `ray.io/v1` (KubeRay 1.7,
https://ray-project.github.io/kuberay/reference/api/).

Callers: `submit.py`, and the command line for `--manifest`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

from elasticdl import __version__
from elasticdl.cluster.command import command
from elasticdl.errors import UsageError
from elasticdl.job import (
    IMAGE_VARIABLE,
    PAGE_PORT_VARIABLE,
    PAGE_TOKEN_VARIABLE,
    RAYJOB_VARIABLE,
)

if TYPE_CHECKING:
    from elasticdl.cluster.options import ClusterOptions, Resources, Volume
    from elasticdl.job import Job

    Manifest: TypeAlias = dict[str, Any]

GROUP, VERSION, KIND = "ray.io", "v1", "RayJob"
# Label of all objects that belong to a job.
JOB_LABEL = "elasticdl.org/job"
WORKERS_GROUP = "workers"
# Name of the container that submits the command and prints its output.
SUBMITTER = "ray-job-submitter"
# On the loopback of the head pod; Ray's dashboard uses 8265.
PAGE_PORT = 8268
_USER = 1000
# Both together comply with the pod security level "restricted".
_POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": _USER,
    "runAsGroup": _USER,
    "fsGroup": _USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_CONTAINER_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
# A driver that is being stopped writes a checkpoint first.
_ENDING_S = 60
# Ray detects a lost machine after four times period + timeout: about 12 s. The default takes a
# minute; a shorter time would declare a machine dead that is importing TensorFlow.
_HEALTH = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "4",
}
# Labels by which clouds mark nodes that can be reclaimed.
_SPOT = (
    ("cloud.google.com/gke-spot", "true"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
)


def manifest(job: Job, options: ClusterOptions, patch: Mapping[str, Any] | None = None) -> Manifest:
    """Build the RayJob manifest for a job.

    Args:
        job: The job; its data and output must be reachable from the pods.
        options: Cluster options of the job.
        patch: Site-specific changes, as a JSON merge patch (RFC 7396); applied last.

    Raises:
        UsageError: The job has no number of workers, or uses files that pods cannot read.
    """
    if job.workers is None:
        raise UsageError(
            "A job on a cluster needs workers. Set their number: --num_workers=4, or 2..4 for at "
            "least two."
        )
    _check_reachable(job, options)
    made = {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": KIND,
        "metadata": _metadata(job, options),
        "spec": _spec(job, options),
    }
    return made if patch is None else merged(made, patch)


def merged(value: Any, patch: Any) -> Any:
    """Apply a JSON merge patch (RFC 7396) to a JSON value, and return the result.

    A null in the patch removes the key; lists are replaced as a whole.

    Example:
        >>> merged({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"c": None, "e": 4}})
        {'a': 1, 'b': {'d': 3, 'e': 4}}
    """
    if not isinstance(patch, Mapping):
        return patch
    result = dict(value) if isinstance(value, Mapping) else {}
    for name, change in patch.items():
        if change is None:
            result.pop(name, None)
        else:
            result[name] = merged(result.get(name), change)
    return result


def _metadata(job: Job, options: ClusterOptions) -> Manifest:
    labels = _labels(job)
    if options.queue is not None and options.scheduler == "kueue":
        # Its label for a priority names a WorkloadPriorityClass; without it, Kueue takes the
        # PriorityClass of the pods.
        labels["kueue.x-k8s.io/queue-name"] = options.queue
    if options.queue is not None and options.scheduler == "volcano":
        labels["volcano.sh/queue-name"] = options.queue
        if options.priority_class is not None:
            labels["ray.io/priority-class-name"] = options.priority_class
    annotations = {"elasticdl.org/version": __version__, "elasticdl.org/output": str(job.output)}
    if options.autoscaling and options.queue is not None and options.scheduler == "kueue":
        annotations["kueue.x-k8s.io/elastic-job"] = "true"
    made: Manifest = {"name": job.id, "labels": labels, "annotations": annotations}
    if options.namespace is not None:
        made["namespace"] = options.namespace
    return made


def _labels(job: Job) -> dict[str, str]:
    return {
        "app.kubernetes.io/name": "elasticdl",
        "app.kubernetes.io/managed-by": "elasticdl",
        JOB_LABEL: job.id,
    }


def _spec(job: Job, options: ClusterOptions) -> Manifest:
    made: Manifest = {
        "entrypoint": shlex.join(command(job)),
        "submissionMode": "K8sJobMode",
        # A new RayCluster would not help more than a new head does.
        "backoffLimit": 0,
        "submitterConfig": {"backoffLimit": options.max_resubmissions},
        "submitterPodTemplate": _submitter(options),
        "shutdownAfterJobFinishes": True,
        "ttlSecondsAfterFinished": options.ttl_s,
        "rayClusterSpec": _cluster(job, options),
    }
    if options.deadline_s is not None:
        made["activeDeadlineSeconds"] = options.deadline_s
    if options.queue is not None and options.scheduler == "kueue":
        # Kueue unsuspends it when there is room.
        made["suspend"] = True
    return made


def _cluster(job: Job, options: ClusterOptions) -> Manifest:
    assert job.workers is not None  # noqa: S101 - checked by `manifest`
    most = job.workers.max + job.workers.spare
    made: Manifest = {
        "rayVersion": options.ray_version,
        "authOptions": {"mode": "token"},
        "headGroupSpec": {
            # No CPUs, so that no worker is placed on the driver's node.
            "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},  # noqa: S104 - in its pod
            "template": _template(job, options, "ray-head", options.head),
        },
        "workerGroupSpecs": [
            {
                "groupName": WORKERS_GROUP,
                "replicas": job.workers.min if options.autoscaling else most,
                "minReplicas": job.workers.min,
                "maxReplicas": most,
                # A worker requests one core from Ray. Declaring one core gives one worker per pod.
                "rayStartParams": {"num-cpus": "1"},
                "template": _template(job, options, "ray-worker", options.worker, is_worker=True),
            }
        ],
    }
    if options.autoscaling:
        made["enableInTreeAutoscaling"] = True
        made["autoscalerOptions"] = {
            "version": "v2",
            "idleTimeoutSeconds": 120,
            "securityContext": _CONTAINER_SECURITY,
        }
    return made


def _submitter(options: ClusterOptions) -> Manifest:
    """Build the template of the submitter, the pod that runs the job's command.

    It is KubeRay's default pod with a security context, because a namespace of pod security level
    "restricted" would reject the default.
    """
    pod: Manifest = {
        "restartPolicy": "Never",
        "securityContext": _POD_SECURITY,
        "containers": [
            {
                "name": SUBMITTER,
                "image": options.image,
                "env": [{"name": "HOME", "value": "/tmp"}],  # noqa: S108 - its own
                "resources": {
                    "requests": {"cpu": "500m", "memory": "200Mi"},
                    "limits": {"cpu": "1", "memory": "1Gi"},
                },
                "securityContext": _CONTAINER_SECURITY,
            }
        ],
    }
    if options.priority_class is not None:
        pod["priorityClassName"] = options.priority_class
    if options.service_account is not None:
        pod["serviceAccountName"] = options.service_account
    if options.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": each} for each in options.image_pull_secrets]
    return {"spec": pod}


def _template(
    job: Job,
    options: ClusterOptions,
    name: str,
    resources: Resources,
    *,
    is_worker: bool = False,
) -> Manifest:
    num_gpus = job.workers.gpus if is_worker and job.workers is not None else 0
    env = {
        **_HEALTH,
        "HOME": "/tmp",  # noqa: S108 - its own
        RAYJOB_VARIABLE: job.id,
        # Recorded in the trained model.
        IMAGE_VARIABLE: options.image,
        **options.env,
    }
    container: Manifest = {
        "name": name,
        "image": options.image,
        "env": [
            *({"name": key, "value": value} for key, value in env.items()),
            *(() if is_worker or job.command != "train" else _page_env(options)),
        ],
        "resources": _resources(resources, num_gpus),
        "securityContext": {**_CONTAINER_SECURITY, "readOnlyRootFilesystem": True},
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
            {"name": "shared-memory", "mountPath": "/dev/shm"},  # noqa: S108 - as well
            *(_mount(number, volume) for number, volume in enumerate(options.volumes)),
        ],
    }
    if options.env_from_secrets:
        container["envFrom"] = [{"secretRef": {"name": each}} for each in options.env_from_secrets]
    pod: Manifest = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": _ENDING_S,
        "securityContext": _POD_SECURITY,
        "containers": [container],
        "volumes": [
            {"name": "tmp", "emptyDir": {}},
            {"name": "shared-memory", "emptyDir": {"medium": "Memory"}},
            *(_volume(number, volume) for number, volume in enumerate(options.volumes)),
        ],
    }
    if options.priority_class is not None:
        pod["priorityClassName"] = options.priority_class
    if options.service_account is not None:
        pod["serviceAccountName"] = options.service_account
    if options.image_pull_secrets:
        pod["imagePullSecrets"] = [{"name": each} for each in options.image_pull_secrets]
    if is_worker and options.node_selector:
        pod["nodeSelector"] = dict(options.node_selector)
    if is_worker and options.spot:
        pod["tolerations"] = [
            {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}
            for key, value in _SPOT
        ]
    return {"metadata": {"labels": _labels(job)}, "spec": pod}


def _page_env(options: ClusterOptions) -> list[Manifest]:
    """Return the environment variables that make the driver serve its page in the head pod.

    The token is the pod's uid: it is random, readable for users who may read the pod, and not part
    of any manifest.
    """
    uid = {"fieldRef": {"fieldPath": "metadata.uid"}}
    made = [{"name": PAGE_TOKEN_VARIABLE, "valueFrom": uid}]
    if PAGE_PORT_VARIABLE not in options.env:
        made.append({"name": PAGE_PORT_VARIABLE, "value": str(PAGE_PORT)})
    return made


def _resources(resources: Resources, num_gpus: int) -> Manifest:
    asked: dict[str, Any] = {"cpu": resources.cpus, "memory": resources.memory}
    if num_gpus:
        asked["nvidia.com/gpu"] = num_gpus
    # Requests equal limits, so that the pod is among the last to be evicted.
    return {"requests": asked, "limits": dict(asked)}


def _mount(number: int, volume: Volume) -> Manifest:
    made: Manifest = {"name": f"volume-{number}", "mountPath": volume.path}
    if volume.read_only:
        made["readOnly"] = True
    return made


def _volume(number: int, volume: Volume) -> Manifest:
    source: Manifest
    if volume.kind == "pvc":
        source = {"persistentVolumeClaim": {"claimName": volume.name}}
    elif volume.kind == "host":
        source = {"hostPath": {"path": volume.name, "type": "Directory"}}
    else:
        source = {"secret": {"secretName": volume.name}}
    return {"name": f"volume-{number}", **source}


def _check_reachable(job: Job, options: ClusterOptions) -> None:
    """Raise `UsageError` if a path of the job is neither a URI nor below a mounted volume."""
    mounted = [volume.path.rstrip("/") for volume in options.volumes]
    wanted = {
        "data": job.data,
        "validation_data": job.validation_data,
        "output": job.output,
        "trained_model": job.trained_model,
    }
    for name, place in wanted.items():
        if place is None or ("://" in place and not place.startswith("file://")):
            continue
        path = place.removeprefix("file://")
        if not any(path == root or path.startswith(f"{root}/") for root in mounted):
            raise UsageError(
                f"--{name}={place} is a path on this machine, which the pods of a cluster cannot "
                "access. Use an address on an object store, such as s3://bucket/folder, or mount a "
                "volume that contains it: "
                f"--volume=pvc:CLAIM:{'/'.join(path.split('/')[:2]) or '/data'}."
            )
