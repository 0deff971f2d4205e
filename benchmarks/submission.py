"""From an edited model file to a pushed image, and from the command to the first training step.

**Image.** `elasticdl cluster image` on the examples: once with nothing built before, then each time
after a constant in a model file was changed. Seconds are those of the whole command, the start of
Python included. `processor_s` is its processor time, without the engine's: other programs of the
machine disturb it least. `parts` divides the seconds by when the command prints its lines;
`of_start` measures the steps before the first line in a process of its own, and `of_push_digest_s`
the question to the registry whether it has the digest. The peer is `docker build` and `docker push`
by Docker's command line, with BuildKit where it can, of the same build context, after the same
edit. Ours and the peer take turns. The bar is 10 s.

**First step.** `elasticdl train --cluster=kubernetes` on an edited zoo, two workers: the image is
built and pushed, a stand-in API server and operator (`tests/cluster`) start the pods as containers
of an engine that stands for the node and pulls the image by its digest, Ray trains in them. The
parts follow one another and add up to the total. The first run, in which the image and all its
layers are new, is told apart from the others.

The base image has Python and the metadata of the packages that are installed here; the packages
themselves are mounted into the pods. So the first build and the first pull leave out what takes
longest elsewhere: some gigabytes of packages. The registry is on this machine. The stand-in
operator runs the entrypoint in the head's pod itself, where KubeRay sends it through Ray's job
server, and starts no dashboard.

Needs root, dockerd, docker-registry and KubeRay's CRDs. `BENCHMARK_SHORT=1` makes one edit and one
run after the first.
"""

import contextlib
import itertools
import json
import os
import re
import resource
import shutil
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from unittest import mock

import pytest
from tests.cluster.api_server.resources import PODS
from tests.cluster.containers import BASE, Containers, NoContainersError, import_base
from tests.cluster.pod_containers import PodContainers
from tests.cluster.world import World

from benchmarks.record import ratio

SHORT = bool(os.environ.get("BENCHMARK_SHORT"))
NUM_EDITS = 1 if SHORT else 5
NUM_JOBS = 1 if SHORT else 3
NUM_WORKERS = 2
BAR_S = 10.0
EXAMPLES = Path(__file__).parent.parent / "examples"
COMMAND = str(Path(sys.executable).parent / "elasticdl")
PATIENCE_S = 120
# The command's lines -> the part that begins with each.
_LINES = (("Building an image", "build"), ("Pushing ", "push"))
_EDITED = re.compile(r"learning_rate=0\.01\d*")
_edits = itertools.count(1)


def run():
    # Else the engines would outlive it.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        with tempfile.TemporaryDirectory() as folder:
            work = Path(folder)
            return {**image(work), "submit_to_first_step": first_step(work)}
    except NoContainersError as error:
        sys.exit(f"Images and pods cannot be measured on this machine: {error}")
    except pytest.skip.Exception as error:
        sys.exit(f"Jobs on a cluster cannot be measured on this machine: {error}.")


# --- the image ----------------------------------------------------------------------------------


def image(work):
    with Containers() as containers:
        client = containers.client()
        import_base(client)
        config = work / "docker"
        config.mkdir()
        environment = {
            **os.environ,
            "DOCKER_HOST": containers.host,
            "DOCKER_CONFIG": str(config),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        repository = f"{containers.registry()}/team/ours"
        zoo = copy_of_the_zoo(work / "zoo")
        cold = built(zoo, repository, environment)
        print(f"first build: {cold['seconds']:.2f} s", flush=True)
        peer = Peer(zoo, work / "context", f"{containers.registry()}/team/peer", environment)
        peer_cold = peer.start()
        ours, theirs = [], []
        for number in range(NUM_EDITS):
            # By turns, and turned round: what warms up or is disturbed is so for both.
            turns = [lambda: edit(zoo), lambda: ours.append(built(zoo, repository, environment))]
            other = [peer.edit, lambda: theirs.append(peer.built())]
            for turn in [*turns, *other] if number % 2 else [*other, *turns]:
                turn()
            print(f"ours {ours[-1]}\npeer {theirs[-1]}", flush=True)
        version = client.version()["Version"]
        of_start = start_parts(zoo, environment)
        asking_s = digest_s(ours[-1]["image"], environment)
    seconds = [each["seconds"] for each in ours]
    digests = [each["image"] for each in ours]
    assert len(set(digests)) == NUM_EDITS, digests
    return {
        "engine": f"Docker {version}",
        "zoo_edit_to_pushed_image_s": {
            "ours": statistics.median(seconds),
            "bar": BAR_S,
            "met": statistics.median(seconds) <= BAR_S,
            "runs": seconds,
            "processor_s": [each["processor_s"] for each in ours],
            "first_build_s": cold["seconds"],
            "parts": medians([each["parts"] for each in ours]),
            "of_start": of_start,
            "of_push_digest_s": asking_s,
        },
        "beside_docker_s": {
            "peer_is": peer.words,
            **ratio(seconds, [each["seconds"] for each in theirs], None, higher_is_better=False),
            "first_build_s": {"ours": cold["seconds"], "peer": peer_cold["seconds"]},
            "parts_of_peer": medians([each["parts"] for each in theirs]),
        },
    }


def copy_of_the_zoo(folder):
    return shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("__pycache__"))


def edit(zoo):
    """Change a constant of a model file to a value that it has not had yet."""
    file = zoo / "iris.py"
    text, count = _EDITED.subn(f"learning_rate=0.01{next(_edits):03}", file.read_text())
    assert count, file
    file.write_text(text)


def built(zoo, repository, environment):
    """Build and push as a user does; returns the image, the seconds, and their parts."""
    cpu_s, began = processor_s(), time.time()
    lines, ended = lines_of(
        [
            COMMAND, "cluster", "image", f"--model_zoo={zoo}", f"--base_image={BASE}",
            f"--docker_image_repository={repository}", "--build_network=host",
        ],
        environment,
    )  # fmt: skip
    name = lines[-1][1]
    assert name.startswith(f"{repository}@sha256:"), lines
    marks = {"start": began, **when(lines, _LINES), "exit": lines[-1][0], "end": ended}
    return {
        "image": name,
        "seconds": round(ended - began, 3),
        "processor_s": round(processor_s() - cpu_s, 3),
        "parts": between(marks),
    }


def processor_s():
    """Return the processor time of the commands that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def lines_of(command, environment, cwd=None):
    """Run a command; returns (when it was printed, line) for each line, and when it ended."""
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=cwd,
    ) as process:
        lines = [(time.time(), line.rstrip("\n")) for line in process.stdout]
        process.wait()
        ended = time.time()
    if process.returncode:
        sys.exit("\n".join(line for _, line in lines))
    return lines, ended


def when(lines, beginnings):
    """Return name -> when the first line was printed that begins so."""
    found = {}
    for beginning, name in beginnings:
        times = [at for at, line in lines if line.startswith(beginning)]
        assert times, (beginning, lines)
        found[name] = times[0]
    return found


def between(marks):
    """Return name -> seconds from its mark to the next one; the last one is an end only."""
    pairs = itertools.pairwise(marks.items())
    return {name: round(after - before, 3) for (name, before), (_, after) in pairs}


def medians(rows):
    """Return the median of each column of rows with the same names."""
    return {name: round(statistics.median(row[name] for row in rows), 3) for name in rows[0]}


def start_parts(zoo, environment):
    """Return what the command does before it asks the engine to build, by part, in seconds."""
    code = (
        "import time; begin = time.time()\n"
        "import json\n"
        "from elasticdl import api\n"
        "from elasticdl.cli import cluster_image\n"
        "from elasticdl.cluster.images import build, docker\n"
        "from elasticdl.zoo import open_zoo\n"
        "marks = {'imports': begin, 'engine': time.time()}\n"
        "engine = docker.DockerEngine()\n"
        "marks['files_of_the_zoo'] = time.time()\n"
        f"build.zoo_files(open_zoo({str(zoo)!r}).folder)\n"
        "marks['versions_of_packages'] = time.time()\n"
        "found = build.own(); build.lock(engine.platform, found)\n"
        "marks['wheel'] = time.time()\n"
        "build.wheel(found)\n"
        "marks['end'] = time.time()\n"
        "print(json.dumps(marks))\n"
    )
    rows = []
    for _ in range(NUM_EDITS):
        began = time.time()
        told = subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, text=True,
            env=environment,
        )  # fmt: skip
        rows.append(between({"python": began, **json.loads(told.stdout)}))
    return medians(rows)


def digest_s(image, environment):
    """Return how long it takes to ask whether the registry has an image, as each push does."""
    from elasticdl.cluster.images.docker import DockerEngine

    seconds = []
    with mock.patch.dict(os.environ, environment), contextlib.closing(DockerEngine()) as engine:
        for _ in range(NUM_EDITS):
            began = time.time()
            engine.check_is_there(image)
            seconds.append(time.time() - began)
    return round(statistics.median(seconds), 3)


class Peer:
    """Docker's command line, with the build context that ElasticDL sends to the engine.

    Attributes:
        words: What it is, for the record.
    """

    def __init__(self, zoo, folder, repository, environment):
        self._folder, self._repository = folder, repository
        self._environment, self._number = environment, 0
        context = _Context(folder)
        from elasticdl.cluster.images.build import ImageOptions, build_image

        options = ImageOptions(repository, base_image=BASE, network="host")
        build_image(str(zoo), options, context, lambda _: None)
        self._arguments = [f"--build-arg={k}={v}" for k, v in context.arguments.items()]

    def start(self):
        """Find a way that works, BuildKit first, and build for the first time with it."""
        folders = os.get_exec_path()
        found = [each for each in (shutil.which("docker", path=path) for path in folders) if each]
        ways = [(each, buildkit) for buildkit in ("1", "0") for each in dict.fromkeys(found)]
        refused = []
        for docker, buildkit in ways:
            self._docker = docker
            self._environment = {**self._environment, "DOCKER_BUILDKIT": buildkit}
            self._number += 1
            try:
                made = self.built()
            except subprocess.CalledProcessError as error:
                refused.append(f"{docker}, DOCKER_BUILDKIT={buildkit}: {error.output[-300:]}")
                continue
            told = subprocess.run([docker, "--version"], check=True, capture_output=True, text=True)
            builder = "BuildKit" if buildkit == "1" else "without BuildKit"
            self.words = f"{told.stdout.strip()}, {builder}"
            print(f"peer: {self.words}; first build {made['seconds']:.2f} s", flush=True)
            for each in refused:
                print(f"  not {each}")
            return made
        sys.exit(f"No command line of Docker can build here: {refused or 'docker is not on PATH'}")

    def edit(self):
        self._number += 1
        edit(self._folder / "zoo")

    def built(self):
        """Build and push; returns the seconds and their parts."""
        name = f"{self._repository}:{self._number}"
        marks = {"build": time.time()}
        self._do("build", "--network=host", *self._arguments, f"--tag={name}", str(self._folder))
        marks["push"] = time.time()
        pushed = self._do("push", name)
        marks["end"] = time.time()
        assert "digest: sha256:" in pushed, pushed
        return {"seconds": round(marks["end"] - marks["build"], 3), "parts": between(marks)}

    def _do(self, *arguments):
        done = subprocess.run(
            [self._docker, *arguments],
            check=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self._environment,
        )
        return done.stdout


class _Context:
    """In place of an engine: unpacks the build context into a folder."""

    platform = "linux/amd64"

    def __init__(self, folder):
        self._folder = folder

    def build(self, context, repository, *, arguments, **_):
        self.arguments = arguments
        with tarfile.open(fileobj=context) as tar:
            tar.extractall(self._folder, filter="data")
        return "none"

    def push(self, repository, tag, tell):
        return "none"


# --- the first step -----------------------------------------------------------------------------


class TimedPods(PodContainers):
    """Pods on a node with an engine of its own, and when they did what.

    Attributes:
        marks: Name -> time; of the workers, that of the last one.
    """

    def __init__(self, undo):
        super().__init__(undo.enter_context(Containers()).client())
        self.marks = {}

    def _pulled(self, image):
        pulled = super()._pulled(image)
        self.marks.setdefault("image_is_there", time.time())
        return pulled

    def _run(self, pod, more, env):
        is_head = pod["metadata"]["labels"]["ray.io/node-type"] == "head"
        if not is_head:
            # It was called because the head's control store answers.
            self.marks.setdefault("head_answers", time.time())
        made = super()._run(pod, more, env)
        # On a busy machine a pod may die later, and another one takes its place.
        if "entrypoint" not in self.marks:
            self.marks["head_runs" if is_head else "workers_run"] = time.time()
        return made

    def run(self, command, head, submitter, log):
        self.marks.setdefault("entrypoint", time.time())
        return super().run(command, head, submitter, log)


class Requests(list):
    """The requests to the API server, and when each came."""

    def __init__(self):
        super().__init__()
        self.times = []

    def append(self, request):
        self.times.append((time.time(), request))
        super().append(request)


def first_step(work):
    with contextlib.ExitStack() as undo:
        folder = work / "world"
        folder.mkdir()
        world = World(folder, undo, lambda _: TimedPods(undo))
        zoo = copy_of_the_zoo(folder / "zoo")
        write_data(world, folder)
        rows = []
        for number in range(NUM_JOBS + 1):
            edit(zoo)
            rows.append(job_parts(world, zoo, number))
            print(f"to the first step: {sum(rows[-1].values()):.1f} s {rows[-1]}", flush=True)
    first, *others = rows
    return {
        "total_s": statistics.median(round(sum(row.values()), 3) for row in others),
        "runs": [round(sum(row.values()), 3) for row in others],
        "parts": medians(others),
        "parts_of_runs": others,
        "first_run": {"total_s": round(sum(first.values()), 3), "parts": first},
    }


def write_data(world, folder):
    from elasticdl.data.samples import write_sample

    write_sample("iris", str(folder / "iris"))
    for file in (folder / "iris" / "train").iterdir():
        world.put(f"train/{file.name}", file.read_bytes())


def job_parts(world, zoo, number):
    """Train on a cluster; returns what lies between the command and the first step, in seconds."""
    world.pods.marks = pods = {}
    world.server.requests = requests = Requests()
    began = time.time()
    lines, _ = lines_of(
        [
            COMMAND, "train", f"--model_zoo={zoo}", "--model_def=iris.Flowers",
            "--minibatch_size=12", "--data=s3://honest/train/*.recordio",
            f"--output=s3://honest/model-{number}", f"--num_workers={NUM_WORKERS}",
            "--cluster=kubernetes", "--env_from_secret=s3", "--ttl=1",
            f"--docker_image_repository={world.registry}/team/app", f"--base_image={BASE}",
            "--build_network=host",
        ],
        world.environment,
        cwd=world.folder,
    )  # fmt: skip
    # The first of them tries it out.
    tried, created = [at for at, name in requests.times if name == "create rayjobs.ray.io"]
    log = world.get(f"model-{number}/events.jsonl").decode()
    events = [json.loads(line) for line in log.splitlines()]
    step = next(each["time"] for each in events if each["event"] == "step_committed")
    driver = next(each["time"] for each in events if each["event"] == "job_started")
    joined = [each["time"] for each in events if each["event"] == "worker_joined"]
    workers = max(at for at in joined if at <= step)
    marks = {
        "command_starts": began,
        **when(lines, [(line, f"image_{name}") for line, name in _LINES]),
        "rayjob": tried,
        "pods_and_image_pull": created,
        "head_container": pods["image_is_there"],
        "ray_head": pods["head_runs"],
        "worker_containers": pods["head_answers"],
        "submitter": pods["workers_run"],
        "driver_imports_and_connects": pods["entrypoint"],
        "workers_import": driver,
        "first_step": workers,
        "end": step,
    }
    assert list(marks.values()) == sorted(marks.values()), marks
    wait_for_the_end_of_pods(world)
    return between(marks)


def wait_for_the_end_of_pods(world):
    """Wait until the pods of Ray are gone, so that they do not slow down the next job."""
    store, deadline = world.server.store, time.monotonic() + PATIENCE_S
    while any("ray.io/cluster" in each["metadata"]["labels"] for each in store.list(PODS)):
        assert time.monotonic() < deadline
        time.sleep(0.5)
