"""KubeRay's operator and the kubelet of one node, as far as a client of the API server can tell.

    ""  ->  Initializing  ->  Running  ->  Complete | Failed
     |         |               |
     |         +-> Suspending <+   ->  Suspended  ->  ""
     +-> ValidationFailed

It makes pods that run nothing, and runs the entrypoint once the submitter's pod is there: a real
process of this machine, whose output is that pod's log, and whose exit code is the job's. With
`PodContainers` the pods of Ray are containers of their images, and the entrypoint runs in the
head's. It works on the server's store, so that faults of the server are those of the client under
test only.
"""

from __future__ import annotations

import copy
import random
import threading
from base64 import b64decode
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from tests.cluster.api_server.replies import Refusal
from tests.cluster.api_server.resources import (
    EVENTS,
    JOBS,
    PODS,
    RAYCLUSTERS,
    RAYJOBS,
    SECRETS,
    SERVICES,
)
from tests.cluster.api_server.store import now, owned_by
from tests.cluster.entrypoint import Entrypoint
from tests.cluster.pod_states import RUNNING, PodState, exited

if TYPE_CHECKING:
    from tests.cluster.api_server.resources import Object
    from tests.cluster.api_server.server import ApiServer
    from tests.cluster.pod_containers import ContainerEntrypoint, PodContainers

_POLL_S = 0.05
_ROLES = {"head", "worker", "submitter"}
_UNDERWAY = {"Initializing", "Running"}


class Operator:
    """Does the RayJobs of a server, in a thread, while it is entered.

    Args:
        server: Where the RayJobs are.
        env: Environment variables of entrypoints, over those of the head's pod.
        rewrite: Makes of an entrypoint the command to run instead, since no image is there.
        containers: What runs the pods of Ray, and entrypoints; None lets pods run nothing.
    """

    def __init__(
        self,
        server: ApiServer,
        env: Mapping[str, str] | None = None,
        rewrite: Callable[[str], str] = str,
        containers: PodContainers | None = None,
    ) -> None:
        self._server, self._store = server, server.store
        self._env, self._rewrite, self._containers = dict(env or {}), rewrite, containers
        self._held: dict[str, PodState] = {}
        self._refused: dict[str, str] = {}
        self._drivers: dict[str, Entrypoint | ContainerEntrypoint] = {}
        self._is_stopping = False
        self._thread = threading.Thread(target=self._work, name="operator", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopping = True
        self._thread.join()
        for driver in self._drivers.values():
            driver.kill()

    def hold(self, role: str, state: PodState) -> None:
        """Keep pods that do not run yet in a state; `role` is head, worker or submitter."""
        assert role in _ROLES
        self._held[role] = state

    def release(self, role: str) -> None:
        del self._held[role]

    def refuse_pods(self, role: str, why: str) -> None:
        """Let pods not be created, as under a quota; an event says so each time."""
        self._refused[role] = why

    def lose(self, role: str, state: PodState) -> None:
        """Let a running pod fail; without its head's pod an entrypoint is killed."""
        with self._store.changed:
            pod = next(each for each in self._store.list(PODS)
                       if _role(each) == role and _is_running(each))  # fmt: skip
            if self._containers is not None:
                self._containers.kill(pod["metadata"]["name"])
            self._set_state(pod, state)
        for driver in list(self._drivers.values()):
            if driver.head == pod["metadata"]["name"]:
                driver.kill()

    def _work(self) -> None:
        while not self._is_stopping:
            version = self._store.version
            for rayjob in self._store.list(RAYJOBS):
                # Somebody else may have deleted what it works on; the next turn sees that.
                with suppress(Refusal):
                    self._reconcile(rayjob)
            for pod in self._store.list(PODS):
                with suppress(Refusal):
                    self._run(pod)
            self._store.changes(PODS, version, _POLL_S)

    def _reconcile(self, rayjob: Object) -> None:
        """Do the next step of a RayJob."""
        spec, status = rayjob["spec"], rayjob.get("status", {})
        if "deletionTimestamp" in rayjob["metadata"]:
            return
        state = status.get("jobDeploymentStatus", "")
        if state in _UNDERWAY and spec.get("suspend"):
            self._report(rayjob, jobDeploymentStatus="Suspending")
        elif state in _UNDERWAY and _is_overdue(spec, status):
            self._give_up(rayjob)
        else:
            step = {"": self._begin, "Initializing": self._bring_up, "Running": self._follow,
                    "Suspending": self._tear_down, "Suspended": self._resume,
                    "Complete": self._clean_up, "Failed": self._clean_up}.get(state)  # fmt: skip
            if step is not None:
                step(rayjob)

    def _begin(self, rayjob: Object) -> None:
        name = rayjob["metadata"]["name"]
        if wrong := _broken_rule(rayjob):
            self._report(rayjob, jobDeploymentStatus="ValidationFailed",
                         reason="ValidationFailed", message=wrong)  # fmt: skip
        elif rayjob["spec"].get("suspend"):
            self._report(rayjob, jobDeploymentStatus="Suspended")
        else:
            job_id = rayjob["spec"].get("jobId") or f"{name}-{_letters()}"
            self._report(rayjob, jobDeploymentStatus="Initializing", jobId=job_id,
                         rayClusterName=f"{name}-{_letters()}", startTime=now())  # fmt: skip

    def _bring_up(self, rayjob: Object) -> None:
        """Create the RayCluster and its pods; once they run, the Job that submits."""
        pods = self._keep_pods(rayjob)
        if not pods or not all(_is_running(each) for each in pods):
            return
        metadata = rayjob["metadata"]
        self._create(JOBS, rayjob, {"metadata": {"name": metadata["name"]}, "spec": {}})
        self._create_submitter(rayjob)
        host = f"{rayjob['status']['rayClusterName']}-head-svc.{metadata['namespace']}"
        self._report(rayjob, jobDeploymentStatus="Running", jobStatus="PENDING",
                     dashboardURL=f"{host}.svc.cluster.local:8265")  # fmt: skip

    def _follow(self, rayjob: Object) -> None:
        """Submit the entrypoint, and report how it ends."""
        status, uid = rayjob["status"], rayjob["metadata"]["uid"]
        if status["jobStatus"] in {"SUCCEEDED", "FAILED"}:
            ended = status["jobStatus"] == "SUCCEEDED"
            how = {"succeeded": 1} if ended else {"failed": 1, "reason": "AppFailed"}
            self._report(rayjob, jobDeploymentStatus="Complete" if ended else "Failed",
                         endTime=now(), **how)  # fmt: skip
            return
        pods = self._keep_pods(rayjob)
        driver = self._drivers.get(uid)
        if driver is None:
            running = {_role(each): each for each in self._pods(rayjob) if _is_running(each)}
            if pods and running.keys() >= {"head", "submitter"}:
                self._drivers[uid] = self._start(rayjob, running["head"], running["submitter"])
                self._report(rayjob, jobStatus="RUNNING")
        elif driver.is_over:
            self._end_of(rayjob, driver)

    def _give_up(self, rayjob: Object) -> None:
        self._delete_cluster(rayjob)
        said = (
            f"The RayJob has passed the activeDeadlineSeconds. "
            f"StartTime: {rayjob['status']['startTime']}. "
            f"ActiveDeadlineSeconds: {rayjob['spec']['activeDeadlineSeconds']}"
        )
        self._report(rayjob, jobDeploymentStatus="Failed", reason="DeadlineExceeded",
                     message=said, endTime=now(), failed=1)  # fmt: skip

    def _tear_down(self, rayjob: Object) -> None:
        self._delete_cluster(rayjob)
        if not self._pods(rayjob):
            self._drivers.pop(rayjob["metadata"]["uid"], None)
            self._report(rayjob, jobDeploymentStatus="Suspended", jobStatus="", jobId="",
                         rayClusterName="", dashboardURL="")  # fmt: skip

    def _resume(self, rayjob: Object) -> None:
        if not rayjob["spec"].get("suspend"):
            self._report(rayjob, jobDeploymentStatus="")

    def _clean_up(self, rayjob: Object) -> None:
        """Remove the RayCluster after the time to live; the submitter's pod stays for its log."""
        spec = rayjob["spec"]
        age_s = _age_s(rayjob["status"]["endTime"])
        if spec.get("shutdownAfterJobFinishes") and age_s >= spec.get("ttlSecondsAfterFinished", 0):
            self._delete_cluster(rayjob, with_submitter=False)

    def _end_of(self, rayjob: Object, driver: Entrypoint | ContainerEntrypoint) -> None:
        del self._drivers[rayjob["metadata"]["uid"]]
        code = driver.exit_code
        pods = {each["metadata"]["name"]: each for each in self._pods(rayjob)}
        is_lost = driver.head not in pods or not _is_running(pods[driver.head])
        if driver.submitter in pods:
            self._set_state(pods[driver.submitter], exited(1 if code else 0))
        most = rayjob["spec"].get("submitterConfig", {}).get("backoffLimit", 2)
        if is_lost and sum(_role(each) == "submitter" for each in pods.values()) <= most:
            # The Job's next pod submits the same entrypoint to the next head.
            self._create_submitter(rayjob)
            return
        said = (
            f"Job entrypoint command failed with exit code {code}, last available logs (truncated "
            f"to 20,000 chars):\n{driver.last_lines()}"
        )
        self._report(rayjob, jobStatus="FAILED" if code else "SUCCEEDED",
                     message=said if code else "Job finished successfully.")  # fmt: skip

    def _start(
        self, rayjob: Object, head: Object, submitter: Object
    ) -> Entrypoint | ContainerEntrypoint:
        """Run the entrypoint with the environment of the head's container."""
        name, head_name = submitter["metadata"]["name"], head["metadata"]["name"]
        command = self._rewrite(rayjob["spec"]["entrypoint"])
        log = self._server.log(rayjob["metadata"]["namespace"], name)
        if self._containers is not None:
            return self._containers.run(command, head_name, name, log)
        return Entrypoint(command, self._environment(head), head_name, name, log)

    def _environment(self, pod: Object) -> dict[str, str]:
        """Return the variables of a pod's container."""
        [container, *_] = pod["spec"]["containers"]
        env: dict[str, str] = {}
        for source in container.get("envFrom", []):
            secret = self._store.get(SECRETS, pod["metadata"]["namespace"],
                                     source["secretRef"]["name"])  # fmt: skip
            env |= {key: b64decode(value).decode() for key, value in secret["data"].items()}
        for each in container.get("env", []):
            env[each["name"]] = each["value"] if "value" in each else _field(pod, each)
        return {**env, **self._env}

    def _keep_pods(self, rayjob: Object) -> list[Object]:
        """Create what is missing of a RayCluster, replace failed pods, return those of Ray."""
        name, spec = rayjob["status"]["rayClusterName"], rayjob["spec"]["rayClusterSpec"]
        cluster = self._create(RAYCLUSTERS, rayjob, {"metadata": {"name": name}, "spec": spec})
        self._create(SERVICES, cluster, {"metadata": {"name": f"{name}-head-svc"}, "spec": {
            "ports": [{"name": "dashboard", "port": 8265}]}})  # fmt: skip
        pods = []
        for each in self._pods(rayjob):
            if _role(each) == "submitter":
                continue
            if each["status"]["phase"] == "Failed":
                self._store.delete(PODS, each["metadata"]["namespace"], each["metadata"]["name"])
            else:
                pods.append(each)
        groups = [("head", "headgroup", 1, spec["headGroupSpec"])]
        groups += [("worker", each["groupName"], each.get("replicas", 0), each)
                   for each in spec.get("workerGroupSpecs", [])]  # fmt: skip
        for role, group, wanted, found in groups:
            labels = {"ray.io/cluster": name, "ray.io/node-type": role, "ray.io/group": group,
                      "ray.io/is-ray-node": "yes", "ray.io/originated-from-cr-name": name,
                      "ray.io/originated-from-crd": "RayCluster"}  # fmt: skip
            missing = wanted - sum(_labels(each)["ray.io/group"] == group for each in pods)
            prefix = f"{name}-head-" if role == "head" else f"{name}-{group}-worker-"
            for _ in range(missing):
                self._create_pod(cluster, role, prefix, labels, _with_command(found))
        return pods if len(pods) == sum(wanted for *_, wanted, _ in groups) else []

    def _create_submitter(self, rayjob: Object) -> None:
        name, namespace = rayjob["metadata"]["name"], rayjob["metadata"]["namespace"]
        job = self._store.get(JOBS, namespace, name)
        labels = {"job-name": name, "batch.kubernetes.io/job-name": name,
                  "ray.io/originated-from-cr-name": name,
                  "ray.io/originated-from-crd": "RayJob"}  # fmt: skip
        head = rayjob["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]
        image = head["containers"][0]["image"]
        template = {"spec": {"containers": [{"name": "ray-job-submitter", "image": image}]}}
        self._create_pod(job, "submitter", f"{name}-", labels, template)

    def _create_pod(self, owner: Object, role: str, prefix: str, labels: Mapping[str, str],
                    template: Object) -> None:  # fmt: skip
        namespace = owner["metadata"]["namespace"]
        if why := self._refused.get(role):
            name = prefix + _letters()
            said = (
                f'Failed to create {role} Pod {namespace}/{name}, pods "{name}" is forbidden: {why}'
            )
            self._record(owner, f"FailedToCreate{role.title()}Pod", said)
            return
        pod = copy.deepcopy(template)
        metadata = pod.setdefault("metadata", {})
        metadata["generateName"] = prefix
        metadata["labels"] = {**metadata.get("labels", {}), **labels}
        metadata["ownerReferences"] = [owned_by(owner)]
        self._store.create(PODS, namespace, pod)

    def _create(self, resource: Any, owner: Object, body: Object) -> Object:
        """Return an object that an owner has, created if it is not there."""
        namespace = owner["metadata"]["namespace"]
        with suppress(Refusal):
            return self._store.get(resource, namespace, body["metadata"]["name"])
        metadata = {**body["metadata"], "ownerReferences": [owned_by(owner)]}
        return self._store.create(resource, namespace, {**body, "metadata": metadata})

    def _delete_cluster(self, rayjob: Object, *, with_submitter: bool = True) -> None:
        namespace = rayjob["metadata"]["namespace"]
        with suppress(Refusal):
            self._store.delete(RAYCLUSTERS, namespace, rayjob["status"]["rayClusterName"])
        if with_submitter:
            with suppress(Refusal):
                self._store.delete(JOBS, namespace, rayjob["metadata"]["name"])

    def _run(self, pod: Object) -> None:
        """Be the kubelet of a pod: let it run, or end."""
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        if "deletionTimestamp" in pod["metadata"]:
            if self._has_ended(name, pod["metadata"]["deletionGracePeriodSeconds"]):
                self._server.log(namespace, name).close()
                self._store.delete(PODS, namespace, name, grace_s=0)
        elif pod["status"]["phase"] == "Pending":
            state = self._held.get(_role(pod)) or self._begun(pod)
            if state is not None:
                self._set_state(pod, state)
        elif pod["status"]["phase"] == "Running" and self._containers is not None:
            state = self._containers.ended(name)
            if state is not None:
                self._set_state(pod, state)

    def _begun(self, pod: Object) -> PodState | None:
        """Let a pod begin to run; None if it has to wait for something."""
        if self._containers is None or _role(pod) == "submitter":
            return RUNNING
        return self._containers.start(pod, self._environment(pod))

    def _has_ended(self, pod: str, grace_s: int) -> bool:
        """End the container of a pod, and the driver that a head's has; first politely."""
        is_gone = self._containers is None or self._containers.remove(pod, grace_s)
        drivers = [each for each in self._drivers.values() if each.head == pod and not each.is_over]
        for each in drivers:
            each.end(grace_s)
        return is_gone and not drivers

    def _set_state(self, pod: Object, state: PodState) -> None:
        """Report a state of a pod, once, with its event."""
        container, old = pod["spec"]["containers"][0], pod["status"]
        new = state.of(container)
        if new == old:
            return

        def change(found: Object) -> Object:
            if state.status is None or "conditions" not in state.status:
                found["spec"]["nodeName"] = "node-1"
            return found

        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        self._store.update(PODS, namespace, name, change)
        self._store.update(PODS, namespace, name, lambda found: {**found, "status": new},
                           subresource="status")  # fmt: skip
        if state.phase in {"Succeeded", "Failed"}:
            self._server.log(namespace, name).close()
        if state.event is not None:
            self._record(pod, *state.event)

    def _record(self, about: Object, reason: str, message: str) -> None:
        """Create an event, unless it has been created before."""
        metadata = about["metadata"]
        involved = {"kind": about["kind"], "name": metadata["name"], "uid": metadata["uid"],
                    "namespace": metadata["namespace"]}  # fmt: skip
        for each in self._store.list(EVENTS, metadata["namespace"]):
            if (each["involvedObject"], each["reason"]) == (involved, reason):
                return
        self._store.create(EVENTS, metadata["namespace"], {
            "metadata": {"generateName": f"{metadata['name']}."}, "involvedObject": involved,
            "reason": reason, "message": message, "type": "Warning", "count": 1,
            "firstTimestamp": now(), "lastTimestamp": now(),
        })  # fmt: skip

    def _report(self, rayjob: Object, **fields: Any) -> None:
        def change(found: Object) -> Object:
            return {**found, "status": {**found.get("status", {}), **fields}}

        metadata = rayjob["metadata"]
        self._store.update(RAYJOBS, metadata["namespace"], metadata["name"], change,
                           subresource="status")  # fmt: skip

    def _pods(self, rayjob: Object) -> list[Object]:
        """Return the pods of a RayJob."""
        mine = {rayjob["metadata"]["name"], rayjob["status"]["rayClusterName"]}
        return [each for each in self._store.list(PODS, rayjob["metadata"]["namespace"])
                if _labels(each).get("ray.io/originated-from-cr-name") in mine]  # fmt: skip


def _with_command(group: Object) -> Object:
    """Return the template of a group's pods with the command that KubeRay gives them."""
    template: Object = copy.deepcopy(group["template"])
    params = "".join(
        f" --{name}={value}" for name, value in group.get("rayStartParams", {}).items()
    )
    template["spec"]["containers"][0] |= {
        "command": ["/bin/bash", "-lc", "--"],
        "args": [f"ulimit -n 65536; ray start --block{params}"],
    }
    return template


def _labels(pod: Object) -> dict[str, str]:
    return pod["metadata"].get("labels", {})


def _role(pod: Object) -> str | None:
    return _labels(pod).get("ray.io/node-type", "submitter" if "job-name" in _labels(pod) else None)


def _is_running(pod: Object) -> bool:
    return pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]


def _field(pod: Object, variable: Object) -> str:
    """Return the value of a variable that is a field of its pod."""
    value: Any = pod
    for name in variable["valueFrom"]["fieldRef"]["fieldPath"].split("."):
        value = value[name]
    return value


def _letters() -> str:
    return "".join(random.choices("bcdfghjklmnpqrstvwxz2456789", k=5))


def _age_s(moment: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(moment)).total_seconds()


def _is_overdue(spec: Object, status: Object) -> bool:
    return _age_s(status["startTime"]) > spec.get("activeDeadlineSeconds", float("inf"))


def _broken_rule(rayjob: Object) -> str | None:
    """Return why the operator refuses what the server has taken, or None."""
    name, spec = rayjob["metadata"]["name"], rayjob["spec"]
    if len(name) > 47:
        return f"RayJob name should be no more than 47 characters: {name}"
    if spec.get("ttlSecondsAfterFinished") and not spec.get("shutdownAfterJobFinishes"):
        return (
            "a RayJob with shutdownAfterJobFinishes set to false cannot have "
            "TTLSecondsAfterFinished"
        )
    if spec.get("suspend") and not spec.get("shutdownAfterJobFinishes"):
        return "a RayJob with shutdownAfterJobFinishes set to false is not allowed to be suspended"
    if "rayClusterSpec" not in spec:
        return "one of RayClusterSpec or ClusterSelector must be set"
    cluster = spec["rayClusterSpec"]
    if cluster.get("authOptions", {}).get("mode") == "token":
        version = cluster.get("rayVersion", "0.0")
        if tuple(int(part) for part in version.split(".")[:2]) < (2, 52):
            return f"authOptions.mode is 'token' but minimum Ray version is 2.52.0, got {version}"
    return None
