"""A SQL server and its client: the same statements from another program.

    mkdir -p demo
    elasticdl sql --database=duckdb:///demo/shop.db --models=demo/models -f examples/employees.sql
    python examples/sql_client.py

The first command makes the table and the model; here, a client predicts with it.
"""

import socket
import subprocess
import time

import elasticdl.sql.client as sql

PROGRAM = """
CREATE OR REPLACE TABLE candidate (name TEXT, role TEXT, years INT, remote BOOLEAN);
INSERT INTO candidate VALUES ('Di', 'engineer', 2, false), ('Ed', 'manager', 12, true);
SELECT * FROM candidate PREDICT candidate.expected USING salaries;
SELECT name, round(expected) AS expected FROM candidate ORDER BY name;
"""


def free_port():
    """Return a port that nothing listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def wait_for(address, server):
    """Return once something listens there."""
    host, port = address.split(":")
    while server.poll() is None:
        try:
            socket.create_connection((host, int(port))).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit("The server ended.")


if __name__ == "__main__":
    address = f"127.0.0.1:{free_port()}"
    server = subprocess.Popen(
        [
            *("elasticdl", "sql-server", f"--listen={address}"),
            *("--database=duckdb:///demo/shop.db", "--models=demo/models"),
        ]
    )
    try:
        wait_for(address, server)
        with sql.Client(address) as client:
            print(client.execute(PROGRAM).to_dataframe())
    finally:
        server.terminate()
        server.wait()
