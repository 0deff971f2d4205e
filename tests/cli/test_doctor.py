"""`elasticdl doctor` shows the facts of a machine, and hints about what would cause trouble."""

import json
import os
import shutil
import stat

import pytest
from click.testing import CliRunner

import elasticdl
from elasticdl.cli import doctor
from elasticdl.cli.main import cli


def run(*options):
    result = CliRunner().invoke(cli, ["doctor", *options], catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


@pytest.fixture
def nvidia_smi(tmp_path, monkeypatch):
    def install(script):
        command = tmp_path / "nvidia-smi"
        command.write_text(f"#!/bin/sh\n{script}\n")
        command.chmod(command.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")

    return install


def test_text_and_json_have_the_same_facts():
    text, found = run(), json.loads(run("--json"))

    assert found["versions"]["elasticdl"] == elasticdl.__version__
    for title in ("versions", "extras"):
        for name, value in found[title].items():
            assert f"  {name:<18} {value}\n" in text
    assert "working folder" in found["machine"]


def test_a_missing_extra_is_shown_with_its_command(monkeypatch):
    lines = [
        "click>=8", 'gcsfs>=1 ; extra == "gcs"', 'sqlglot>=27 ; extra == "sql"',
        "a-b ; sys_platform == 'linux' and extra == 'tensorflow'",
        "a-c ; sys_platform != 'linux' and extra == 'tensorflow'", 'x ; extra == "dev"',
    ]  # fmt: skip
    monkeypatch.setattr(doctor, "requires", lambda _: lines)
    monkeypatch.setattr(doctor, "_version", {"sqlglot": "27", "a-c": "1"}.get)

    assert json.loads(run("--json"))["extras"] == {
        "gcs": "missing gcsfs: pip install 'elasticdl[gcs]'",
        "sql": "installed",
        "tensorflow": "installed",
    }


def test_an_extra_in_place_of_an_installed_one_is_not_missing(monkeypatch):
    lines = ['tensorflow-cpu; extra == "tensorflow"', 'tensorflow; extra == "tensorflow-gpu"']
    monkeypatch.setattr(doctor, "requires", lambda _: lines)
    monkeypatch.setattr(doctor, "_version", {"tensorflow-cpu": "2.21"}.get)

    assert json.loads(run("--json"))["extras"]["tensorflow-gpu"] == (
        "not installed; for GPUs, in an environment without tensorflow: "
        "pip install 'elasticdl[tensorflow-gpu]'"
    )


def test_a_full_disk_a_small_shared_memory_and_a_quota_are_hints(monkeypatch):
    usage = shutil.disk_usage("/")._replace(total=64 << 20, free=1 << 20)
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(doctor, "_cpu_quota", lambda: 0.5)

    text = run()

    assert "Only 1 MiB are free in the working folder" in text
    assert "/dev/shm has only 64 MiB. Workers" in text
    assert "Only 0.5 of " in text
    assert "CPUs may be used (cgroup limit)" in text
    assert "set OMP_NUM_THREADS=1." in text


def test_gpus_are_shown_with_the_setting_that_hides_them(nvidia_smi, monkeypatch):
    nvidia_smi("echo 'H100, 81559 MiB, 570.1'")
    monkeypatch.setattr(
        doctor, "_version", lambda name: "2.21" if name == "tensorflow-cpu" else None
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    found = json.loads(run("--json"))

    assert found["devices"] == {"GPU 0": "H100, 81559 MiB, 570.1"}
    assert [hint.split()[0] for hint in found["hints"]][-2:] == [
        "tensorflow-cpu",
        "CUDA_VISIBLE_DEVICES",
    ]


def test_a_driver_that_does_not_answer_is_a_hint(nvidia_smi):
    nvidia_smi("echo broken >&2; exit 9")

    assert "nvidia-smi failed, so no GPU can be used" in run()


def test_no_environment_variable_is_shown(monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "never-shown")

    assert "never-shown" not in run() + run("--json")
