"""`elasticdl cluster check` says what a cluster lacks for a job, and changes nothing there."""

from __future__ import annotations

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import yaml
from tests.cluster.api_server import Fault
from tests.cluster.api_server.kubeconfig import write_kubeconfig
from tests.cluster.api_server.resources import (
    DEPLOYMENTS,
    LIMIT_RANGES,
    LOCAL_QUEUES,
    NAMESPACES,
    NODES,
    PRIORITY_CLASSES,
    QUOTAS,
    RAYJOBS,
    SECRETS,
    SERVICE_ACCOUNTS,
    STORAGE_CLASSES,
)
from tests.cluster.api_server.server import ApiServer

from elasticdl.cli.main import main
from elasticdl.cluster.inventory import Inventory
from elasticdl.cluster.kubernetes_client import Kubernetes

OPERATOR = {
    "metadata": {"name": "kuberay-operator"},
    "spec": {"template": {"spec": {"containers": [
        {"name": "kuberay-operator", "image": "quay.example/kuberay/operator:v1.5.1"}]}}},
    "status": {"availableReplicas": 1},
}  # fmt: skip
NODE = {
    "metadata": {"name": "node-1"},
    "status": {"allocatable": {"cpu": "4", "memory": "16Gi", "pods": "110"},
               "conditions": [{"type": "Ready", "status": "True"}]},
}  # fmt: skip
DEFAULT_CLASS = {"storageclass.kubernetes.io/is-default-class": "true"}


@pytest.fixture
def cluster(api_server, kubeconfig, monkeypatch):
    """Return the store of a server that has all that a job needs."""
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    store = api_server.store
    store.create(NAMESPACES, "", {"metadata": {"name": "kuberay-system"}})
    store.create(DEPLOYMENTS, "kuberay-system", OPERATOR)
    store.create(NODES, "", NODE)
    store.create(
        STORAGE_CLASSES, "", {"metadata": {"name": "standard", "annotations": DEFAULT_CLASS}}
    )
    return store


@pytest.fixture
def check(capsys):
    """Return a function that runs the command; it returns the exit code and findings."""

    def run(*flags):
        with pytest.raises(SystemExit) as ended:
            main(["cluster", "check", "--json", *flags])
        report = json.loads(capsys.readouterr().out)
        assert report["exit_code"] == ended.value.code
        assert report["can_submit"] == (ended.value.code == 0)
        found = {}
        for each in report["findings"]:
            said = f"{each['verdict']}: {each['message']} {each['advice']}"
            # The last one of a subject, in its place.
            found.pop(each["subject"], None)
            found[each["subject"]] = said
        return ended.value.code, found

    return run


def test_a_complete_cluster_passes_and_is_left_unchanged(cluster, check, api_server):
    version = cluster.version

    code, found = check()

    assert code == 0
    assert {said.partition(":")[0] for said in found.values()} == {"ok"}
    assert list(found) == [
        "kubeconfig", "server", "credentials", "pod security", "RayJobs", "operator", "rights",
        "quota", "limits", "nodes", "storage", "dry run",
    ]  # fmt: skip
    assert "Kubernetes 1.36.0" in found["server"]
    assert "KubeRay 1.5.1 runs in the namespace kuberay-system" in found["operator"]
    assert cluster.version == version


def test_text_output_has_one_line_per_check(cluster, capsys):
    cluster.delete(DEPLOYMENTS, "kuberay-system", "kuberay-operator")

    with pytest.raises(SystemExit) as ended:
        main(["cluster", "check", "--namespace=team"])

    lines = capsys.readouterr().out.splitlines()
    assert ended.value.code == 75
    assert "ok       kubeconfig    context good, namespace team" in lines
    [operator] = [line for line in lines if "operator  " in line]
    assert operator.startswith("missing  operator      KubeRay's operator is not running")
    assert operator.endswith("Install it: helm install kuberay-operator kuberay/kuberay-operator")
    assert lines[-1] == "A job cannot run there now: one requirement is missing."


@pytest.mark.parametrize(
    ("context", "code", "subject", "words"),
    [
        ("wrong-token", 2, "credentials", "rejected the credentials"),
        ("unreachable", 75, "server", "does not answer"),
        ("untrusted", 2, "server", "is not trusted by the kubeconfig"),
        ("goood", 2, "kubeconfig", "did you mean 'good'?"),
    ],
)
def test_a_failed_connection_ends_the_checks(cluster, check, context, code, subject, words):
    ended, found = check(f"--context={context}")

    assert (ended, list(found)[-1]) == (code, subject)
    assert found[subject].startswith("missing: ")
    assert words in found[subject]


@pytest.mark.parametrize("text", [None, "", "[]", "a: [b", "a: b", "\0", "contexts: 3"])
def test_an_unusable_kubeconfig_is_reported_in_one_line(text, check, monkeypatch, tmp_path):
    path = tmp_path / "config"
    monkeypatch.setenv("KUBECONFIG", str(path))
    if text is not None:
        path.write_text(text)

    code, found = check()

    assert (code, list(found)) == (2, ["kubeconfig"])
    assert f"There is no usable kubeconfig at {path}" in found["kubeconfig"]


def test_a_context_without_credentials_is_reported(cluster, check, kubeconfig):
    config = yaml.safe_load(kubeconfig.read_text())
    config["users"][0]["user"] = {}
    kubeconfig.write_text(yaml.safe_dump(config))

    code, found = check()

    assert (code, list(found)[-1]) == (2, "credentials")
    assert "the server identifies this user as system:anonymous Log in" in found["credentials"]


@pytest.mark.parametrize("status", [200, 404])
def test_a_server_other_than_kubernetes_is_reported(check, kubeconfig, monkeypatch, status):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"<html>Welcome</html>")

        def log_message(self, *_):
            """Be quiet."""

    monkeypatch.setenv("KUBECONFIG", str(kubeconfig))
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        config = yaml.safe_load(kubeconfig.read_text())
        config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{server.server_port}"}
        kubeconfig.write_text(yaml.safe_dump(config))
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        code, found = check()
        thread.join()

    assert (code, list(found)[-1]) == (2, "server")
    assert "does not reply like a Kubernetes API server" in found["server"]


def test_a_silent_server_is_reported_within_seconds(cluster, check, api_server, monkeypatch):
    monkeypatch.setattr("elasticdl.cluster.inventory._TIMEOUT_S", (0.3, 0.3))
    api_server.faults.append(Fault("list", "resourcequotas", delay_s=2))

    begun_s = time.monotonic()
    code, found = check()

    assert time.monotonic() - begun_s < 2
    assert (code, list(found)[-1]) == (75, "server")
    assert "does not answer" in found["server"]


def test_a_cluster_without_kuberay_gets_installation_instructions(check, monkeypatch, tmp_path):
    with ApiServer(None) as server:
        monkeypatch.setenv("KUBECONFIG", str(write_kubeconfig(tmp_path / "config", server)))
        code, found = check()

    assert code == 2
    assert "KubeRay is not installed Install it (helm install" in found["RayJobs"]
    assert "operator" not in found


def operator(image="quay.example/kuberay/operator:v1.5.1", args=(), available=1, **metadata):
    [container] = OPERATOR["spec"]["template"]["spec"]["containers"]
    containers = [{**container, "image": image, "args": list(args)}]
    return {
        "metadata": {**OPERATOR["metadata"], **metadata},
        "spec": {"template": {"spec": {"containers": containers}}},
        "status": {"availableReplicas": available},
    }


@pytest.mark.parametrize(
    ("changed", "code", "words"),
    [
        (operator("quay.example/kuberay/operator:v1.4.2"), 2, "KubeRay 1.4.2 runs in"),
        (operator("quay.example/kuberay/operator@sha256:" + "1" * 64), 0, "unknown: KubeRay runs"),
        (operator("mirror.example/kuberay:main", labels={"helm.sh/chart": "operator-1.7.0"}),
         0, "ok: KubeRay 1.7.0"),
        (operator(available=0), 75, "is not ready"),
        (operator(args=["--watch-namespace", "a,b"]), 2, "but a, b"),
        (operator(args=["--watch-namespace=a,default"]), 0, "ok: KubeRay 1.5.1"),
    ],
)  # fmt: skip
def test_the_operator_must_run_be_recent_and_watch_the_namespace(
    cluster, check, changed, code, words
):
    cluster.delete(DEPLOYMENTS, "kuberay-system", "kuberay-operator")
    cluster.create(DEPLOYMENTS, "kuberay-system", changed)

    ended, found = check()

    assert ended == code
    assert words in found["operator"]


@pytest.mark.parametrize(("where", "words"), [("team", "unknown: "), ("kuberay-system", "ok: ")])
def test_without_cluster_wide_rights_common_namespaces_are_searched(
    cluster, check, api_server, where, words
):
    api_server.access.forbid("list", "deployments.apps", "")
    cluster.delete(DEPLOYMENTS, "kuberay-system", "kuberay-operator")
    cluster.create(DEPLOYMENTS, where, OPERATOR)

    code, found = check()

    assert code == 0
    assert found["operator"].startswith(words)


def test_rights_in_one_namespace_are_enough_for_a_job(cluster, check, api_server):
    api_server.access.forbid()
    for resource in ("rayjobs.ray.io", "pods", "events", "pods/log"):
        api_server.access.allow("*", resource, "default")
    api_server.access.allow("create", "selfsubjectaccessreviews.authorization.k8s.io")

    code, found = check()

    assert code == 0
    unknown = {subject for subject, said in found.items() if said.startswith("unknown")}
    assert unknown == {"pod security", "operator", "quota", "limits", "nodes", "storage"}


@pytest.mark.parametrize(
    ("verb", "resource", "code", "words"),
    [
        ("create", "rayjobs.ray.io", 2, "missing: you may not: create rayjobs "),
        ("get", "pods/log", 0, "warning: you may not: get pods/log A job can be submitted"),
    ],
)
def test_a_missing_permission_is_named(cluster, check, api_server, verb, resource, code, words):
    api_server.access.forbid(verb, resource)

    ended, found = check()

    assert ended == code
    assert found["rights"].startswith(words)


def quota(hard, used, name="compute"):
    return {"metadata": {"name": name}, "spec": {"hard": hard}, "status": {"used": used}}


# By default a job asks for two workers and a head with 1 core and 4Gi each, and a submitter.
@pytest.mark.parametrize(
    ("hard", "used", "code", "words"),
    [
        ({"pods": "4"}, {"pods": "0"}, 0, "ok: room for 1 to 2 workers in compute"),
        ({"pods": "4"}, {"pods": "1"}, 0, "warning: room for 1 worker, not for 2: pods: 4 need"),
        ({"pods": "4"}, {"pods": "2"}, 75, "no room for 1 worker: pods: 3 needed, 2 of 4 free"),
        ({"pods": "2"}, {"pods": "0"}, 2, "pods: 3 needed, 2 allowed (compute)"),
        ({"requests.memory": "8Gi"}, {}, 2, "requests.memory: 8.195Gi needed, 8Gi allowed"),
        ({"limits.cpu": "4"}, {}, 0, "ok: "),
        ({"requests.cpu": "2500m"}, {"requests.cpu": "100m"}, 75, "2.5 needed, 2.4 of 2.5 free"),
        ({"count/rayjobs.ray.io": "2"}, {"count/rayjobs.ray.io": "2"}, 75, "1 needed, 0 of 2 free"),
        ({"persistentvolumeclaims": "0"}, {}, 0, "ok: "),
    ],
)
def test_a_quota_must_have_room(cluster, check, hard, used, code, words):
    cluster.create(QUOTAS, "default", quota(hard, used))
    # Another namespace's does not count.
    cluster.create(QUOTAS, "team", quota({"pods": "0"}, {}))

    ended, found = check("--num_workers=1..2")

    assert ended == code
    assert words in found["quota"]


@pytest.mark.parametrize(
    ("scope", "flags", "code"),
    [
        ({"scopes": ["BestEffort"]}, [], 0),
        ({"scopes": ["NotTerminating"]}, [], 2),
        ({"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": ["low"]}]}}, [], 0),
        ({"scopeSelector": {"matchExpressions": [
            {"scopeName": "PriorityClass", "operator": "In", "values": ["low"]}]}},
         ["--priority_class=low"], 2),
    ],
)  # fmt: skip
def test_a_quota_for_other_pods_does_not_count(cluster, check, scope, flags, code):
    cluster.create(PRIORITY_CLASSES, "", {"metadata": {"name": "low"}})
    body = quota({"pods": "0"}, {})
    cluster.create(QUOTAS, "default", {**body, "spec": {**body["spec"], **scope}})

    assert check(*flags)[0] == code


@pytest.mark.parametrize(
    ("limit", "code", "words"),
    [
        ({"type": "Container", "max": {"memory": "4Gi"}}, 0, "ok: the LimitRange allows its pods"),
        ({"type": "Container", "max": {"memory": "3Gi"}}, 2,
         "worker requests memory 4Gi; at most 3Gi is allowed"),
        ({"type": "Pod", "min": {"cpu": "600m"}}, 2,
         "submitter requests cpu 0.5; at least 0.6 is allowed"),
        ({"type": "PersistentVolumeClaim", "max": {"storage": "1Gi"}}, 0, "ok: "),
    ],
)  # fmt: skip
def test_a_limit_range_must_allow_each_pod(cluster, check, limit, code, words):
    body = {"metadata": {"name": "bounds"}, "spec": {"limits": [limit]}}
    cluster.create(LIMIT_RANGES, "default", body)

    ended, found = check()

    assert ended == code
    assert words in found["limits"]


@pytest.mark.parametrize(
    ("flags", "changed", "words"),
    [
        ([], {}, "ok: a worker (cpu 1, memory 4Gi) fits on 1 of 1 node"),
        (["--memory_per_worker=32Gi"], {}, "warning: a worker (cpu 1, memory 32Gi) fits on none"),
        (["--gpus_per_worker=1"], {}, "warning: none of 1 node has a GPU"),
        (["--gpus_per_worker=1"], {"nvidia.com/gpu": "8"}, "ok: a worker"),
        (["--gpus_per_worker=9"], {"nvidia.com/gpu": "8"}, "warning: a worker"),
    ],
)
def test_a_worker_should_fit_on_a_node(cluster, check, flags, changed, words):
    def change(old):
        has = {**old["status"]["allocatable"], **changed}
        return {**old, "status": {**old["status"], "allocatable": has}}

    cluster.update(NODES, "", "node-1", change, subresource="status")

    code, found = check(*flags)

    # A cluster may add nodes by itself.
    assert code == 0
    assert words in found["nodes"]


def test_unschedulable_nodes_do_not_count(cluster, check):
    cluster.update(NODES, "", "node-1", lambda old: {**old, "spec": {"unschedulable": True}})

    assert "fits on none of 1 node" in check()[1]["nodes"]


def test_claims_without_a_default_storage_class_get_a_warning(cluster, check):
    def change(old):
        return {**old, "metadata": {**old["metadata"], "annotations": {}}}

    cluster.update(STORAGE_CLASSES, "", "standard", change)

    code, found = check()

    assert code == 0
    assert "warning: no default StorageClass; available: standard" in found["storage"]


@pytest.mark.parametrize(
    ("flag", "resource", "namespace", "subject"),
    [
        ("priority_class", PRIORITY_CLASSES, "", "PriorityClass"),
        ("service_account", SERVICE_ACCOUNTS, "default", "account"),
        ("env_from_secret", SECRETS, "default", "secret"),
        ("image_pull_secret", SECRETS, "default", "secret"),
        ("queue", LOCAL_QUEUES, "default", "queue"),
    ],
)
def test_an_object_named_by_a_flag_must_exist(
    cluster, check, api_server, flag, resource, namespace, subject
):
    api_server.resources.append(LOCAL_QUEUES)

    code, found = check(f"--{flag}=mine")
    assert code == 2
    assert f"missing: 'mine' does not exist Create it, or change --{flag}" in found[subject]

    cluster.create(resource, namespace, {"metadata": {"name": "mine"}})
    code, found = check(f"--{flag}=mine")
    assert code == 0
    assert found[subject].startswith("ok: ")


def test_values_of_secrets_are_not_requested(cluster):
    cluster.create(SECRETS, "default", {"metadata": {"name": "s3"}, "data": {"KEY": "YWJj"}})

    found = Inventory(Kubernetes()).secret("s3")

    assert found["metadata"]["name"] == "s3"
    assert "data" not in found


def test_a_queue_of_a_missing_scheduler_is_missing(cluster, check):
    code, found = check("--queue=team", "--scheduler=volcano")

    assert code == 2
    assert "Volcano is not installed" in found["queue"]


def test_a_missing_namespace_ends_the_checks(cluster, check):
    code, found = check("--namespace=nowhere")

    assert (code, list(found)[-1]) == (2, "namespace")
    assert "kubectl create namespace nowhere" in found["namespace"]


def test_the_strictest_pod_security_passes(cluster, check):
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    cluster.update(NAMESPACES, "", "default", lambda old: {
        **old, "metadata": {**old["metadata"], "labels": labels}})  # fmt: skip

    assert check()[1]["pod security"].startswith("ok: level restricted")


def test_a_dry_run_reports_what_only_the_server_knows(cluster, check, api_server):
    api_server.faults.append(Fault("create", "rayjobs.ray.io", 403, message="a webhook says no"))

    code, found = check()

    assert code == 2
    assert "a webhook says no" in found["dry run"]
    assert cluster.list(RAYJOBS) == []
