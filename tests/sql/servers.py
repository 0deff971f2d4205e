"""Real database servers for tests: in a temporary folder, on a free port, as an ordinary user.

    python tests/sql/servers.py postgresql FOLDER PORT      until it is killed

PostgreSQL refuses to run as root, so a server that root starts becomes the user that owns its
package.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Server:
    """A server that runs.

    Attributes:
        url: Of its database `test`, as its owner.
        process: Its process.
    """

    url: str
    process: subprocess.Popen[bytes]

    def query(self, *statements: str) -> list[tuple]:
        """Run statements as another program would; return the rows of the last one."""
        from elasticdl.sql.database_interface import open_database

        rows: list[tuple] = []
        with open_database(self.url) as database:
            for statement in statements:
                with database.run(statement) as found:
                    rows = [] if found is None else [
                        tuple(row.values()) for batch in found.batches for row in batch.to_pylist()
                    ]  # fmt: skip
        return rows


def postgresql_folder() -> Path | None:
    """Return where the programs of the newest PostgreSQL are; None if there is none."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).parent
    versions = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    newest = max(versions, key=lambda path: int(path.parts[-3]), default=None)
    return None if newest is None else newest.parent


def mariadb_program() -> str | None:
    """Return the path of MariaDB's server; None if there is none."""
    return shutil.which("mariadbd") or shutil.which("mariadbd", path="/usr/sbin")


@contextlib.contextmanager
def postgresql(folder: Path) -> Iterator[Server]:
    """Run a PostgreSQL server in an empty folder."""
    programs = postgresql_folder()
    assert programs is not None
    as_user = _as_user("postgres", folder)
    data, port = folder / "data", _free_port()
    _run([*as_user, programs / "initdb", "-D", data, "-U", "tester", "-A", "scram-sha-256",
          "--pwfile", _password(folder, as_user), "-E", "UTF8", "--no-sync"])  # fmt: skip
    command = [*as_user, programs / "postgres", "-D", data, "-p", str(port), "-k", folder,
               "-c", "listen_addresses=127.0.0.1", "-c", "timezone=Asia/Tokyo"]  # fmt: skip
    url = f"postgresql://tester:secret@127.0.0.1:{port}"
    with _started(command, folder) as process:
        _wait(f"{url}/postgres", process, folder)
        Server(f"{url}/postgres", process).query("CREATE DATABASE test")
        yield Server(f"{url}/test", process)


@contextlib.contextmanager
def mariadb(folder: Path) -> Iterator[Server]:
    """Run a MariaDB server in an empty folder."""
    as_user = _as_user("mysql", folder)
    data, port = folder / "data", _free_port()
    _run([*as_user, "mariadb-install-db", "--no-defaults", f"--datadir={data}", "--skip-test-db",
          "--auth-root-authentication-method=normal"])  # fmt: skip
    command = [
        *as_user, mariadb_program(), "--no-defaults", f"--datadir={data}", f"--port={port}",
        f"--socket={folder}/s", "--bind-address=127.0.0.1", f"--pid-file={folder}/pid",
        "--default-time-zone=+09:00",
    ]  # fmt: skip
    root = f"mysql://root@127.0.0.1:{port}/mysql"
    with _started(command, folder) as process:
        _wait(root, process, folder)
        Server(root, process).query(
            "CREATE DATABASE test",
            "CREATE USER tester@'127.0.0.1' IDENTIFIED BY 'secret'",
            "GRANT ALL ON *.* TO tester@'127.0.0.1'",
        )
        yield Server(f"mysql://tester:secret@127.0.0.1:{port}/test", process)


def _as_user(name: str, folder: Path) -> list[str]:
    """Return what runs a command as a user that is not root, who then owns the folder."""
    if os.getuid() != 0:
        return []
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        user = pwd.getpwnam("nobody")
    os.chown(folder, user.pw_uid, user.pw_gid)
    # pytest's folders are for their owner only.
    for parent in folder.parents:
        if parent.owner() == "root" and parent.is_relative_to("/tmp") and parent != Path("/tmp"):
            parent.chmod(0o755)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def _password(folder: Path, as_user: list[str]) -> Path:
    path = folder / "password"
    path.write_text("secret\n")
    if as_user:
        os.chown(path, folder.stat().st_uid, folder.stat().st_gid)
    return path


def _run(command: list[str | Path]) -> None:
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@contextlib.contextmanager
def _started(command: list[str | Path | None], folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(list(map(str, command)), stdout=log, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        # PostgreSQL's immediate shutdown; MariaDB ends by it as well.
        process.send_signal(signal.SIGQUIT)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], folder: Path) -> None:
    from elasticdl.errors import UnavailableError
    from elasticdl.sql.database_interface import open_database

    for _ in range(300):
        assert process.poll() is None, (folder / "log").read_text()
        try:
            open_database(url).close()
        except UnavailableError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(url)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
