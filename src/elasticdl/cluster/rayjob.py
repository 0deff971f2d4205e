"""A job as a RayJob, the object that KubeRay runs.

    RayJob
      submitter pod   submits the command, and again if the head was lost
      RayCluster
        head pod      Ray's control store, and the driver; no worker
        worker pods   min..max, one ElasticDL worker each

Pure: values in, a manifest out. KubeRay replaces a worker pod that has died, and the elastic engine
goes on without it meanwhile. If the head is lost, KubeRay makes another and submits the command
again: it resumes from the last checkpoint, which is why `--output` must outlive the pods.

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
# Labels of everything that a job of ours is made of.
JOB_LABEL = "elasticdl.org/job"
WORKERS_GROUP = "workers"
# Container of the pod that submits the command and prints what it prints.
SUBMITTER = "ray-job-submitter"
# In the head's pod, on its loopback; Ray's dashboard has 8265.
PAGE_PORT = 8268
_USER = 1000
# Both together are the pod security level "restricted".
_POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": _USER,
    "runAsGroup": _USER,
    "fsGroup": _USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_CONTAINER_SECURITY = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
# A driver that was told to end writes a checkpoint first.
_ENDING_S = 60
# After the loss of a machine Ray waits for period + timeout, four times: about 12 s. Its defaults
# take a minute; less would take a machine that imports TensorFlow for dead.
_HEALTH = {
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "4",
}
# Of nodes that may be taken away, as clouds mark them.
_SPOT = (
    ("cloud.google.com/gke-spot", "true"),
    ("kubernetes.azure.com/scalesetpriority", "spot"),
)


def manifest(job: Job, options: ClusterOptions, patch: Mapping[str, Any] | None = None) -> Manifest:
    """Return the RayJob that does a job.

    Args:
        job: What to do; its data and output must be reachable from the pods.
        options: Where and with what.
        patch: Changes of the cluster's owner, a JSON merge patch (RFC 7396); the last word.

    Raises:
        UsageError: The job does not say how many workers, or is about files that pods do not see.
    """
    if job.workers is None:
        raise UsageError(
            "A job on a cluster trains on workers. Say how many: --num_workers=4, or 2..4 for at "
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
    """Return a JSON value with a merge patch applied (RFC 7396): null removes, lists are replaced.

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
        labels["kueue.x-k8s.io/queue-name"] = options.queue
        if options.priority_class is not None:
            labels["kueue.x-k8s.io/priority-class"] = options.priority_class
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
        # Another RayCluster would have nothing that another head has not.
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
        # Kueue starts it when there is room.
        made["suspend"] = True
    return made


def _cluster(job: Job, options: ClusterOptions) -> Manifest:
    assert job.workers is not None  # noqa: S101 - checked by `manifest`
    most = job.workers.max + job.workers.spare
    made: Manifest = {
        "rayVersion": options.ray_version,
        "authOptions": {"mode": "token"},
        "headGroupSpec": {
            # No worker is placed beside the driver.
            "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0"},  # noqa: S104 - in its pod
            "template": _template(job, options, "ray-head", options.head),
        },
        "workerGroupSpecs": [
            {
                "groupName": WORKERS_GROUP,
                "replicas": job.workers.min if options.autoscaling else most,
                "minReplicas": job.workers.min,
                "maxReplicas": most,
                # A worker asks Ray for one core, however many the pod has: one worker a pod.
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
    """Return the pod that submits the command: KubeRay's own, but for its rights.

    KubeRay would leave these open, and a namespace that is "restricted" would refuse the pod.
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
        # The trained model remembers it.
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
    """Return the variables that let the driver serve its page in the head's pod.

    The token is the pod's uid: random, known to those who may read the pod, and in no manifest.
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
    # Equal, so that a pod is among the last to be evicted.
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
    """Raise if a path of the job is neither a URI nor below a volume that is mounted."""
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
                f"--{name}={place} is a path of this machine, which the pods of a cluster do not "
                "see. Name an address of an object store, such as s3://bucket/folder, or mount "
                f"what holds it: --volume=pvc:CLAIM:{'/'.join(path.split('/')[:2]) or '/data'}."
            )
