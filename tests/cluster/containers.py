"""A container engine and a registry of a test's own, and a base image made of this machine's files.

The engine is Debian's dockerd, or podman, reached through its socket as a user's is. The base image
has this Python at its own place, which no login shell knows, and of the packages of its virtual
environment only what pip asks for: their names, versions and requirements. So pip finds that
ElasticDL has all it needs, at once; a container that is to train gets the packages themselves
mounted.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
from pathlib import Path

PACKAGES = "/packages"
BASE = "elasticdl-test/base:1"
_PROFILE = "PATH=/usr/local/bin:/usr/bin:/bin\nexport PATH\n"
_COMMANDS = ("/bin/sh", "/bin/bash", "/bin/mkdir", "/bin/chmod", "/usr/bin/env", "/bin/cat")
_LIBRARIES = ("libstdc++.so.6", "libgcc_s.so.1", "librt.so.1", "libdl.so.2", "libpthread.so.0")
_READY_WITHIN_S = 20


class NoContainersError(Exception):
    """This machine runs none, and why."""


class Containers:
    """An engine with an empty store, and registries; all gone at its end."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="edl-containers-"))
        self._processes: list[subprocess.Popen] = []
        self._closing = contextlib.ExitStack()
        self.host = f"unix://{self._folder}/docker.sock"

    def __enter__(self):
        try:
            self._start_engine()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error) -> None:
        self._closing.close()
        for process in reversed(self._processes):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self._processes):
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            if line.split()[1].startswith(str(self._folder)):
                subprocess.run(["umount", "-l", line.split()[1]], check=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def client(self):
        """Return a client of the engine."""
        import docker

        client = docker.DockerClient(base_url=self.host, timeout=60)
        self._closing.callback(client.close)
        return client

    def registry(self, **more) -> str:
        """Start a registry; returns its address.

        Args:
            more: Parts of its configuration.
        """
        import yaml

        number, port = len(self._processes), _free_port()
        config = self._folder / f"registry-{number}.yml"
        settings = {
            "version": 0.1,
            "log": {"level": "error"},
            "storage": {
                "filesystem": {"rootdirectory": str(self._folder / f"registry-{number}")},
                "delete": {"enabled": True},
            },
            "http": {"addr": f"127.0.0.1:{port}"},
            **more,
        }
        config.write_text(yaml.safe_dump(settings))
        self._start(f"registry-{number}", "docker-registry", "serve", str(config))
        self._wait(lambda: socket.create_connection(("127.0.0.1", port), 1).close())
        return f"127.0.0.1:{port}"

    def _start_engine(self) -> None:
        dockerd = shutil.which("dockerd", path=f"{os.environ['PATH']}:/usr/sbin")
        if dockerd is None or shutil.which("docker-registry") is None or os.getuid() != 0:
            raise NoContainersError(
                "needs root, and dockerd and a registry: apt-get install docker.io docker-registry"
            )
        place = self._folder
        self._start(
            "dockerd",
            dockerd,
            f"--data-root={place}/data",
            f"--exec-root={place}/exec",
            f"--pidfile={place}/pid",
            f"--host={self.host}",
            "--iptables=false",
            "--ip6tables=false",
            "--bridge=none",
        )
        self._wait(self._look)

    def _look(self) -> None:
        with socket.socket(socket.AF_UNIX) as looking:
            looking.connect(self.host.removeprefix("unix://"))

    def _start(self, name: str, *command: str, env=None) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            self._processes.append(
                subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
            )

    def _wait(self, look) -> None:
        until = time.monotonic() + _READY_WITHIN_S
        while True:
            try:
                look()
            except Exception as error:
                ended = self._processes[-1].poll()
                if ended is not None or time.monotonic() > until:
                    [*_, log] = sorted(self._folder.glob("*.log"), key=lambda p: p.stat().st_mtime)
                    said = log.read_text()[-500:]
                    raise NoContainersError(f"no container engine starts: {said}") from error
                time.sleep(0.05)
            else:
                return


class PodmanContainers(Containers):
    """Podman in place of dockerd, and one registry.

    Attributes:
        address: Of the registry: podman has to know one without TLS from its start.
    """

    def _start_engine(self) -> None:
        missing = [name for name in ("podman", "docker-registry") if shutil.which(name) is None]
        if missing or os.getuid() != 0:
            raise NoContainersError(
                "needs root, podman and a registry: apt-get install podman docker-registry"
            )
        self.address = self.registry()
        place = self._folder
        settings = {
            "STORAGE": f'[storage]\ndriver = "overlay"\ngraphroot = "{place}/root"\n'
            f'runroot = "{place}/run"\n',
            "REGISTRIES": f'[[registry]]\nlocation = "{self.address}"\ninsecure = true\n',
            # As dockerd has it: crun refuses cgroups of two versions, and root may not be allowed
            # to raise limits.
            "": '[containers]\nnetns = "host"\ndefault_ulimits = ["nofile=1024:1024"]\n'
            '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n'
            + ('runtime = "runc"\n' if shutil.which("runc") else ""),
        }
        environment = dict(os.environ)
        for name, text in settings.items():
            variable = "_".join(filter(None, ("CONTAINERS", name, "CONF")))
            environment[variable] = str(place / f"{variable}.conf")
            Path(environment[variable]).write_text(text)
        self._start("podman", "podman", "system", "service", "--time=0", self.host, env=environment)
        self._wait(self._look)


def import_base(client) -> None:
    """Give an engine the base image."""
    python = Path(sys.executable).resolve().parent
    client.api.import_image_from_data(
        base_tar(),
        repository=BASE.partition(":")[0],
        tag=BASE.partition(":")[2],
        changes=[f"ENV PATH={python}:/usr/local/bin:/usr/bin:/bin"],
    )
    # Podman 4 forgets the tag.
    name, _, tag = BASE.partition(":")
    for image in client.images.list():
        if any(each.endswith(f"{name}:latest") for each in image.tags):
            image.tag(f"docker.io/{name}", tag)


def base_tar() -> bytes:
    """Return the files of the base image."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, mode in (("tmp", 0o1777), ("usr/local/bin", 0o755), ("root", 0o755)):
            folder = tarfile.TarInfo(path)
            folder.type, folder.mode = tarfile.DIRTYPE, mode
            tar.addfile(folder)
        _add_text(tar, "etc/passwd", "root:x:0:0:root:/root:/bin/sh\n")
        # BuildKit looks up the groups of a user.
        _add_text(tar, "etc/group", "root:x:0:\n")
        _add_text(tar, "etc/profile", _PROFILE)
        _add_python(tar)
    return packed.getvalue()


def _add_python(tar) -> None:
    python = Path(sys.executable).resolve()
    standard = Path(sysconfig.get_path("stdlib"))
    modules = [path for path in standard.glob("lib-dynload/*.so") if "tkinter" not in path.name]
    needed = [*map(Path, _COMMANDS), python, *modules]
    for path in sorted({*needed[: len(_COMMANDS) + 1], *_libraries(needed)}):
        _add(tar, path.resolve(), str(path))
    _add_text(tar, str(python.parent / "python3"), f'#!/bin/sh\nexec {python} "$@"\n', 0o755)

    def chosen(member):
        left_out = {
            *("test", "tests", "idlelib", "lib2to3", "tkinter", "site-packages", "turtledemo"),
            *("ensurepip", "pydoc_data"),
        }
        parts = Path(member.name).parts
        if left_out & set(parts) or member.name.endswith((".a", ".opt-1.pyc", ".opt-2.pyc")):
            return None
        return _owned_by_root(member)

    tar.add(standard, str(standard), filter=chosen)
    packages = Path(sysconfig.get_path("purelib"))
    there = _packages_of(python)
    tar.add(packages / "pip", f"{there}/pip", filter=_owned_by_root)
    for words in packages.glob("*.dist-info"):
        if not words.name.startswith("elasticdl-"):
            _add(tar, words / "METADATA", f"{there}/{words.name}/METADATA")
    script = (Path(sys.executable).parent / "ray").read_text()
    _, _, rest = script.partition("\n")
    _add_text(tar, str(python.parent / "ray"), f"#!{python}\n{rest}", 0o755)


def _packages_of(python: Path) -> str:
    found = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return found.stdout.strip()


def _libraries(files) -> set[Path]:
    """Return the shared libraries that files need, at the places where they are looked for."""
    listed = subprocess.run(["ldd", *files], check=False, capture_output=True, text=True).stdout
    found = {Path(word) for word in listed.split() if word.startswith("/") and ".so" in word}
    known = subprocess.run(
        ["ldconfig", "-p"], check=True, capture_output=True, text=True,
        env={"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"},
    ).stdout  # fmt: skip
    for line in known.splitlines():
        name, _, place = line.strip().partition(" => ")
        if name.split(" ")[0] in _LIBRARIES and "x32" not in name and "i386" not in place:
            found.add(Path(place))
    return {path for path in found if path.is_file()}


def _add(tar, source: Path, name: str) -> None:
    tar.add(source, name, filter=_owned_by_root)


def _add_text(tar, name: str, text: str, mode: int = 0o644) -> None:
    member = tarfile.TarInfo(name)
    member.size, member.mode = len(text.encode()), mode
    tar.addfile(member, io.BytesIO(text.encode()))


def _owned_by_root(member):
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    member.mode |= 0o444 | (0o111 if member.isdir() else 0)
    return member


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]
