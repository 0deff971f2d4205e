"""A job as a RayJob: what KubeRay's schema takes, and what a person asked for."""

from __future__ import annotations

import copy
import shlex

import jsonschema
import pytest
from tests.cluster.crd import rayjob_schema

from elasticdl import job_options
from elasticdl.cluster.options import ClusterOptions, Resources, Volume
from elasticdl.cluster.rayjob import manifest, merged
from elasticdl.errors import UsageError

IMAGE = "registry.example/team/app@sha256:" + "4b" * 32


def job_of(**options):
    return job_options.training_job(
        **{
            "model_zoo": "/home/me/work",
            "model_def": "fintech.MyKerasModel",
            "data": "s3://bucket/train/*.recordio",
            "output": "s3://bucket/my_model",
            "num_workers": "2..4",
            **options,
        }
    )


def options_of(**options):
    return ClusterOptions(image=IMAGE, ray_version="2.60.0", **options)


def check(made):
    """Check a manifest as a server does that knows KubeRay's CRD."""
    # An object of the server's own, which the CRD leaves open.
    body = {**made, "metadata": {}}
    jsonschema.Draft202012Validator(rayjob_schema()).validate(body)


EVERYTHING = {
    "namespace": "team",
    "worker": Resources("4", "8Gi"),
    "priority_class": "batch-low",
    "spot": True,
    "node_selector": {"pool": "training"},
    "volumes": [
        Volume("pvc", "data", "/data", read_only=True),
        Volume("host", "/mnt/disks", "/scratch"),
        Volume("secret", "key", "/key", read_only=True),
    ],
    "env": {"AWS_ENDPOINT_URL": "http://minio:9000"},
    "env_from_secrets": ["s3"],
    "image_pull_secrets": ["registry"],
    "service_account": "trainer",
    "deadline_s": 3600,
    "queue": "team-queue",
    "autoscaling": True,
}


@pytest.mark.parametrize("options", [{}, EVERYTHING, {**EVERYTHING, "scheduler": "volcano"}])
def test_a_manifest_is_valid_for_kuberay(options):
    check(manifest(job_of(), options_of(**options)))


def test_the_schema_refuses_the_same_errors_as_a_server():
    made = manifest(job_of(), options_of())
    for change in (
        lambda spec: spec.update(entrypoints="x"),
        lambda spec: spec.update(backoffLimit="3"),
        lambda spec: spec["rayClusterSpec"]["headGroupSpec"]["rayStartParams"].update(a=1),
        lambda spec: spec["rayClusterSpec"]["workerGroupSpecs"][0]["template"]["spec"].update(
            toleration=[]
        ),
    ):
        wrong = copy.deepcopy(made)
        change(wrong["spec"])
        with pytest.raises(jsonschema.ValidationError):
            check(wrong)


def test_pods_run_the_typed_command_with_the_zoo_of_the_image():
    made = manifest(
        job_of(
            params="hidden_units=[10, 100, 20, 5], learning_rate=0.01, name='a b'",
            input_fn="fintech.credit_data_processor",
            num_epochs=3,
            shuffle=False,
        ),
        options_of(),
    )

    assert shlex.split(made["spec"]["entrypoint"]) == [
        "elasticdl",
        "train",
        "--model_zoo=/model_zoo/custom",
        "--model_def=fintech.MyKerasModel",
        "--params=hidden_units=[10, 100, 20, 5], learning_rate=0.01, name='a b'",
        "--input_fn=fintech.credit_data_processor",
        "--data=s3://bucket/train/*.recordio",
        "--output=s3://bucket/my_model",
        "--num_epochs=3",
        "--no-shuffle",
        "--num_workers=2..4",
        "--ray_address=auto",
    ]


@pytest.mark.parametrize(
    "job",
    [
        job_of(),
        job_of(
            num_epochs=7, minibatch_size=32, global_batch_size=64, seed=3,
            best_metric="val_accuracy", best_mode="max", restore_best_weights=True,
            deterministic=False, num_spare_workers=1,
            heartbeat_timeout=2.5, priority="high", gpus_per_worker=1, skip_bad_records=True, validation_data="s3://b/v",
            tracking_uri="http://mlflow:5000", experiment="e", run_name="r", tensorboard=True,
            dialect="keras_class", loss="fintech.own_loss", params="a={'b': (1, None)}",
        ),
    ],
)  # fmt: skip
def test_the_command_recreates_the_same_job(job):
    from dataclasses import replace

    from elasticdl.cli.cluster_options import take_cluster_options
    from elasticdl.cli.train import train
    from elasticdl.cluster.command import command

    _, _, *arguments = command(job)
    given = train.make_context("train", arguments).params
    take_cluster_options(given)
    del given["dry_run"], given["quiet"], given["with_page"]

    # But for where the image has the code, and Ray.
    assert job_options.training_job(**given) == replace(
        job,
        model=replace(job.model, zoo="/model_zoo/custom"),
        workers=replace(job.workers, ray_address="auto"),
    )


def test_the_command_of_a_prediction_has_its_columns():
    from elasticdl.cluster.command import command

    job = job_options.prediction_job(
        trained_model="s3://b/m", data="s3://b/d", output="s3://b/p.csv", columns=["id", "name"]
    )

    assert "--columns=id,name" in command(job)


def test_only_worker_pods_request_gpus():
    made = manifest(
        job_of(num_spare_workers=1, gpus_per_worker=2), options_of(worker=Resources("4", "8Gi"))
    )

    cluster = made["spec"]["rayClusterSpec"]
    group = cluster["workerGroupSpecs"][0]
    assert (group["minReplicas"], group["replicas"], group["maxReplicas"]) == (2, 5, 5)
    [worker] = group["template"]["spec"]["containers"]
    [head] = cluster["headGroupSpec"]["template"]["spec"]["containers"]
    assert worker["resources"]["limits"] == {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": 2}
    assert "nvidia.com/gpu" not in head["resources"]["limits"]


def test_a_patch_overrides_everything():
    made = manifest(
        job_of(),
        options_of(),
        {"spec": {"ttlSecondsAfterFinished": None, "activeDeadlineSeconds": 60}},
    )

    assert "ttlSecondsAfterFinished" not in made["spec"]
    assert made["spec"]["activeDeadlineSeconds"] == 60
    check(made)


def test_a_list_in_a_patch_replaces_the_list():
    assert merged({"a": [1, 2]}, {"a": [3]}) == {"a": [3]}


@pytest.mark.parametrize("name", ["data", "output", "validation_data"])
def test_a_local_path_is_refused_unless_it_is_mounted(name):
    job = job_of(**{name: "/data/here"})

    with pytest.raises(UsageError, match=rf"--{name}=/data/here is a path on this machine"):
        manifest(job, options_of())
    manifest(job, options_of(volumes=[Volume("pvc", "claim", "/data")]))


def test_a_job_without_workers_is_refused():
    with pytest.raises(UsageError, match="--num_workers=4"):
        manifest(job_of(num_workers=None), options_of())


def test_all_pods_meet_the_strictest_pod_security():
    volumes = [each for each in EVERYTHING["volumes"] if each.kind != "host"]
    options = options_of(**{**EVERYTHING, "volumes": volumes, "autoscaling": True})
    spec = manifest(job_of(), options)["spec"]
    cluster = spec["rayClusterSpec"]
    pods = [
        each["template"]["spec"]
        for each in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
    ]
    pods.append(spec["submitterPodTemplate"]["spec"])

    # https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not [volume for volume in pod.get("volumes", ()) if "hostPath" in volume]
    containers = [container for pod in pods for container in pod["containers"]]
    for each in (*containers, cluster["autoscalerOptions"]):
        assert each["securityContext"]["allowPrivilegeEscalation"] is False
        assert each["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_kueue_uses_the_priority_of_the_pods():
    # Its own label names a WorkloadPriorityClass, which is another kind of object.
    made = manifest(job_of(), options_of(queue="team", priority_class="batch-low"))
    spec = made["spec"]

    assert not [label for label in made["metadata"]["labels"] if "priority" in label]
    assert {
        pod["spec"]["priorityClassName"]
        for pod in (
            spec["submitterPodTemplate"],
            spec["rayClusterSpec"]["headGroupSpec"]["template"],
            spec["rayClusterSpec"]["workerGroupSpecs"][0]["template"],
        )
    } == {"batch-low"}


def test_the_submitter_uses_the_given_service_account():
    made = manifest(job_of(), options_of(service_account="trainer"))

    assert made["spec"]["submitterPodTemplate"]["spec"]["serviceAccountName"] == "trainer"
