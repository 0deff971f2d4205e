"""The server as its clients meet it: who is let in, what they get, and what it survives."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import grpc
import psutil
import pytest

from elasticdl.sql.client import Client, End, Head, Message, RemoteError, Row
from elasticdl.sql.serving import sqlflow_pb2
from elasticdl.sql.serving.wire import FETCH, RUN

TOKEN = "a token of these tests"
SHORT = (
    "SELECT name, role, salary FROM employee TO TRAIN regressor.DNN "
    "WITH hidden_units=[4], train.num_epochs=2 INTO m;"
)
LONG = SHORT.replace("epochs=2", "epochs=100000").replace("INTO m", "INTO long")


def submitters_of(server) -> list[psutil.Process]:
    return [each for each in psutil.Process(server.process.pid).children() if _is_alive(each)]


def _is_alive(process):
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.status() != psutil.STATUS_ZOMBIE
    return False


def until(condition, timeout_s: float = 40.0):
    """Wait for a condition and return what it is."""
    deadline_s = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline_s, "It did not come true in time."
        time.sleep(0.1)
    return found


def first_step(results) -> None:
    """Read messages until the training has begun."""
    for item in results:
        if isinstance(item, Message) and item.text.startswith("Training:"):
            return
    pytest.fail("The training did not begin.")


def test_rows_arrive_with_their_types_over_tls(serve, certificates, token_file) -> None:
    tls = [f"--tls_cert={certificates}/server.pem", f"--tls_key={certificates}/server.key"]
    server = serve(*tls, f"--token_file={token_file}")

    with Client(server.address, token=TOKEN, ca=certificates / "ca.pem") as client:
        items = list(
            client.execute(
                "SELECT 1 AS a, 'x' AS b, NULL AS c, 1.5::DOUBLE AS d, true AS e, 'y'::BLOB AS f, "
                "TIMESTAMP '2026-01-02 03:04:05' AS g, 0.1::DECIMAL(9, 2) AS h, [1, 2] AS i; "
                "CREATE TABLE made AS SELECT 1 AS a; SELECT * FROM made"
            )
        )
        frame = client.execute("SELECT role, salary FROM employee").to_dataframe()
    assert items[0] == Head(tuple("abcdefghi"))
    values = items[1].values
    assert values[:6] == (1, "x", None, 1.5, True, b"y")
    assert values[6].isoformat() == "2026-01-02T03:04:05"
    assert values[7:] == ("0.10", "[1, 2]")
    assert isinstance(items[2], End)
    assert items[2].statement.startswith("SELECT 1 AS a")
    assert items[-2:] == [Row((1,)), End("SELECT * FROM made", 0)]
    assert frame.shape == (200, 2)


def test_a_wrong_token_or_certificate_is_refused(serve, certificates, token_file) -> None:
    tls = [f"--tls_cert={certificates}/server.pem", f"--tls_key={certificates}/server.key"]
    server = serve(*tls, f"--tls_ca={certificates}/ca.pem", f"--token_file={token_file}")
    ours = {"certificate": certificates / "client.pem", "key": certificates / "client.key"}
    ca = certificates / "ca.pem"

    for token in ("", "wrong", TOKEN + "x"):
        with (
            Client(server.address, token=token, ca=ca, **ours) as client,
            pytest.raises(RemoteError, match="token") as caught,
        ):
            list(client.execute("SELECT 1"))
        assert caught.value.status == "UNAUTHENTICATED"
    # No certificate of the client, and no TLS.
    for options in ({"ca": ca}, {}):
        with (
            Client(server.address, token=TOKEN, **options) as client,
            pytest.raises(RemoteError) as caught,
        ):
            list(client.execute("SELECT 1"))
        assert caught.value.status == "UNAVAILABLE"
    with Client(server.address, token=TOKEN, ca=ca, **ours) as client:
        assert list(client.execute("SELECT 1 AS a"))[1] == Row((1,))


STRANGER = """
import os, sys
from elasticdl.sql.client import Client
client = Client(sys.argv[1], token=sys.argv[2])
if int(sys.argv[3]):
    os.setgroups([])
    os.setresuid(65534, 65534, 65534)
try:
    print(list(client.execute("SELECT 1 AS a"))[1])
except Exception as error:
    print(getattr(error, "status", error))
"""


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be another user")
@pytest.mark.parametrize(
    ("options", "foreign"), [((), "PERMISSION_DENIED"), (("--token_file",), "Row(values=(1,))")]
)
def test_without_a_token_other_users_of_the_machine_are_refused(
    serve, token_file, options, foreign
) -> None:
    server = serve(*(f"{each}={token_file}" for each in options))

    def ask(is_foreign: int) -> str:
        done = subprocess.run(
            [sys.executable, "-c", STRANGER, server.address, TOKEN, str(is_foreign)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    assert [ask(0), ask(1)] == ["Row(values=(1,))", foreign]


@pytest.mark.parametrize(
    ("options", "missing"),
    [
        (["--listen=0.0.0.0:0"], "--tls_cert"),
        (["--listen=[::]:0", "--token_file=TOKEN"], "--tls_cert"),
        (["--listen=0.0.0.0:0", "--tls_cert=CERT", "--tls_key=KEY"], "--token_file"),
        (["--listen=nowhere"], "HOST:PORT"),
        (["--database=duckdb:///x", "--tls_cert=CERT"], "must be used together"),
    ],
)
def test_other_machines_need_tls_and_a_token(
    options, missing, certificates, token_file, shop
) -> None:
    from click.testing import CliRunner

    from elasticdl.cli.sql_server import sql_server

    files = {"TOKEN": token_file, "CERT": certificates / "server.pem"}
    files["KEY"] = certificates / "server.key"
    given = []
    for option in options:
        name, _, value = option.partition("=")
        given.append(f"{name}={files.get(value, value)}")

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("ELASTICDL_DATABASE", shop)
        environment.delenv("ELASTICDL_DATABASE_WITHOUT_FILES", raising=False)
        result = CliRunner().invoke(sql_server, given)
        os.environ.pop("ELASTICDL_DATABASE_WITHOUT_FILES", None)

    assert missing in str(result.exception)


def test_clients_can_access_neither_files_nor_other_databases(serve, tmp_path) -> None:
    server = serve()
    (tmp_path / "secret.csv").write_text("a\n1\n")

    with Client(server.address) as client:
        for statement in (
            f"SELECT * FROM '{tmp_path}/secret.csv'",
            f"COPY (SELECT 1) TO '{tmp_path}/written.csv'",
            f"ATTACH '{tmp_path}/other.db'",
            "SET enable_external_access=true",
        ):
            with pytest.raises(RemoteError) as caught:
                list(client.execute(statement))
            assert caught.value.exit_code == 4, statement
    assert not (tmp_path / "written.csv").exists()
    with (
        Client(server.address, database=f"duckdb:///{tmp_path}/other.db") as client,
        pytest.raises(RemoteError, match="allow_any_database") as caught,
    ):
        list(client.execute("SELECT 1"))
    assert caught.value.status == "PERMISSION_DENIED"


def test_the_server_survives_invalid_requests(serve) -> None:
    server = serve()
    with grpc.insecure_channel(
        server.address, options=[("grpc.max_send_message_length", -1)]
    ) as channel:
        raw = channel.unary_stream(RUN)
        # A field of text that is not UTF-8, and bytes that are no message.
        for content in (b"\n\x02\xff\xfe", b"\xff" * 10):
            with pytest.raises(grpc.RpcError) as caught:
                list(raw(content))
            assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        with pytest.raises(grpc.RpcError) as caught:
            channel.unary_unary(FETCH)(b"\n\x02\xff\xfe")
        assert caught.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        for size, code in ((10 << 20, "RESOURCE_EXHAUSTED"), (2 << 20, "INVALID_ARGUMENT")):
            request = sqlflow_pb2.Request(stmts="SELECT " + "'" * size)
            with pytest.raises(grpc.RpcError) as caught:
                list(raw(request.SerializeToString()))
            assert caught.value.code().name == code

    with Client(server.address) as client:
        with pytest.raises(RemoteError, match="line 2, column 10: There is no model") as caught:
            list(client.execute("SELECT * FROM employee\nTO TRAIN regressor.DMM INTO m"))
        assert caught.value.exit_code == 2
        with pytest.raises(RemoteError, match="No such job"):
            list(client.fetch("guessed"))
        assert list(client.execute("SELECT 1 AS a"))[1] == Row((1,))


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_disconnected_client_ends_its_submitter_which_can_resume(serve) -> None:
    server = serve()
    client = Client(server.address)
    results = client.execute(LONG)
    first_step(results)
    (submitter,) = submitters_of(server)

    client.close()
    _, alive = psutil.wait_procs([submitter], timeout=30)
    assert not alive
    with Client(server.address) as again:
        results = again.execute(LONG)
        resuming = next(
            item.text for item in results if isinstance(item, Message) and "Resum" in item.text
        )
        assert "long" in resuming
        # Another session waits for its turn at the file, and gives up with its client.
        with Client(server.address) as other:
            waiting = other.execute("SELECT 1")
            assert "Waiting for another session" in next(iter(waiting)).text
        results.cancel()
    until(lambda: not submitters_of(server))


@pytest.mark.slow
def test_a_killed_submitter_fails_only_its_statement(serve) -> None:
    server = serve()
    with Client(server.address) as client:
        job = client.submit(LONG)
        (submitter,) = until(lambda: submitters_of(server))
        submitter.kill()
        with pytest.raises(RemoteError, match="Run the same statement to resume") as caught:
            list(client.fetch(job, interval_s=0.1))
        assert caught.value.exit_code == 137
        items = list(client.execute(SHORT + "SELECT count(*) AS n FROM employee"))
    assert any(isinstance(item, Message) for item in items)
    assert Head(("metric", "value")) in items
    assert Row((200,)) in items


@pytest.mark.slow
def test_a_killed_server_ends_its_submitters_and_can_resume(serve) -> None:
    server = serve()
    with Client(server.address) as client:
        first_step(client.execute(LONG))
        (submitter,) = submitters_of(server)
        server.process.kill()
        _, alive = psutil.wait_procs([submitter], timeout=30)
        assert not alive

    server = serve()
    with Client(server.address) as client:
        results = client.execute(LONG)
        assert any("Resuming version 1 of long" in getattr(item, "text", "") for item in results)
        # SIGTERM ends the server and what it runs.
        (submitter,) = submitters_of(server)
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(30) == 143
        assert not submitter.is_running()


def test_a_job_runs_without_its_client(serve) -> None:
    server = serve()
    with Client(server.address) as client:
        job = client.submit("SELECT 1 AS a; SELECT x FROM y;")
    with Client(server.address) as client:
        results = client.fetch(job, interval_s=0.1)
        assert [next(results.__iter__()) for _ in range(2)] == [Head(("a",)), Row((1,))]
        with pytest.raises(RemoteError, match="y does not exist") as caught:
            list(results)
    assert caught.value.exit_code == 2


def test_sessions_beyond_the_limit_are_refused(serve) -> None:
    server = serve("--max_sessions=1")
    endless = "SELECT sum(a.range * b.range) FROM range(10000000) a, range(10000000) b"
    with Client(server.address) as client, Client(server.address) as other:
        calls, ended = [], []

        def read() -> None:
            # The other client may come first, and is quickly done.
            while not ended or ended[-1] == "RESOURCE_EXHAUSTED":
                calls.append(client.execute(endless))
                try:
                    list(calls[-1])
                except RemoteError as error:
                    ended.append(error.status)

        reading = threading.Thread(target=read)
        reading.start()

        def refused():
            try:
                list(other.execute("SELECT 1"))
            except RemoteError as error:
                return error.status == "RESOURCE_EXHAUSTED"

        until(refused)
        # A query is interrupted with its call, and its place is free again.
        calls[-1].cancel()
        reading.join()
        assert ended[-1] == "CANCELLED"

        def served():
            try:
                return list(other.execute("SELECT 1"))
            except RemoteError:
                return None

        until(served, 10)


def test_sessions_of_one_database_are_isolated(serve) -> None:
    server = serve()
    found = []

    def ask(number: int) -> None:
        with Client(server.address) as client:
            for _ in range(5):
                found.extend(
                    item.values[0]
                    for item in client.execute(f"SELECT {number} AS a")
                    if isinstance(item, Row)
                )

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == sorted(list(range(6)) * 5)


def test_a_submitter_that_does_not_end_is_killed(tmp_path) -> None:
    from elasticdl.sql.submitter_process import run_piped

    program = tmp_path / "stubborn.py"
    program.write_text(
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('ready', flush=True)\ntime.sleep(100)\n"
    )
    stop, lines = threading.Event(), []

    def on_line(line: str) -> None:
        lines.append(line)
        stop.set()

    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    assert run_piped(program, environment, on_line, stop, grace_s=0.5) == -signal.SIGKILL
    assert lines == ["ready"]


def test_the_generated_code_matches_the_proto_file(repository, tmp_path) -> None:
    pytest.importorskip("grpc_tools")
    folder = "elasticdl/sql/serving"
    command = [sys.executable, "-m", "grpc_tools.protoc", f"--proto_path={repository}/src"]
    subprocess.run(
        [*command, f"--python_out={tmp_path}", f"{folder}/sqlflow.proto"],
        check=True,
        cwd=repository / "src",
    )
    written = (tmp_path / folder / "sqlflow_pb2.py").read_text()
    assert written == (repository / "src" / folder / "sqlflow_pb2.py").read_text()
