"""Workers open the data by the index that the driver made, and by nothing else."""

import os

import pytest
from tests.engines.elastic.training import (
    MINIBATCH_SIZE,
    NUM_RECORDS,
    Training,
    counting_and,
    write_numbers,
)

from elasticdl.data.data_index import DataIndex, FileEntry
from elasticdl.engines.elastic import index_transfer
from elasticdl.engines.elastic.index_transfer import receive, send

INDEX = DataIndex("recordio", (FileEntry("a", 7, "1", 3, os.urandom(100)),))


@pytest.mark.parametrize("same_machine", [True, False])
@pytest.mark.parametrize("large_bytes", [0, 1000])
def test_indexes_arrive_unchanged(same_machine, large_bytes, monkeypatch):
    monkeypatch.setattr(index_transfer, "_LARGE_BYTES", large_bytes)

    sent = send({"data": INDEX, "more/*": INDEX}, same_machine=same_machine)

    assert receive(sent) == {"data": INDEX, "more/*": INDEX}


def test_a_large_index_is_not_sent_on_one_machine(monkeypatch):
    monkeypatch.setattr(index_transfer, "_LARGE_BYTES", 50)

    assert isinstance(send({"data": INDEX}, same_machine=False)["data"], bytes)
    assert not isinstance(send({"data": INDEX}, same_machine=True)["data"], bytes)


# --- whole trainings ----------------------------------------------------------------------------

# A worker imports its copy of the file before it opens the data.
IN_A_WORKER = """
import os
from pathlib import Path

driver = Path(os.environ["TOLD"])
if not driver.exists():
    driver.write_text(str(os.getpid()))
elif driver.read_text() != str(os.getpid()):
    {action}
"""

LISTS_NOTHING = """
    from elasticdl.data import recordio, sources
    sources.find_files = recordio._open = None
"""

INFERS_NOTHING = """
    from elasticdl.data import csv
    csv._inferred_types = None
del data_schema
"""

CHANGES_A_FILE = """
    from elasticdl.data import recordio
    from elasticdl.data.example import encode
    with recordio.Writer(os.environ["CHANGED"]) as writer:
        for number in range(100):
            writer.write(encode({"number": np.int64([5000 + number])}))
"""


def start(tmp_path, action, data=None, **environment):
    (tmp_path / "data").mkdir()
    write_numbers(tmp_path / "data" / "numbers.recordio")
    model = counting_and(tmp_path, IN_A_WORKER.replace("{action}", action.strip()))
    run = [
        f"--data={data or tmp_path / 'data'}",
        f"--minibatch_size={MINIBATCH_SIZE}",
        "--num_workers=2",
    ]
    environment = {"TOLD": str(tmp_path / "driver"), **environment}
    return Training(tmp_path / "out", run, model=model, environment=environment)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workers_neither_list_nor_inspect_data(tmp_path):
    with start(tmp_path, LISTS_NOTHING) as training:
        training.wait_for_the_end()

    training.assert_each_record_counts(1)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_workers_receive_the_column_types(tmp_path):
    numbers = "".join(f"{number}\n" for number in range(NUM_RECORDS))
    (tmp_path / "numbers.csv").write_text(f"number\n{numbers}")

    with start(tmp_path, INFERS_NOTHING, data=tmp_path / "numbers.csv") as training:
        training.wait_for_the_end()

    training.assert_each_record_counts(1)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_file_changed_before_a_worker_reads_it_ends_the_job(tmp_path):
    changed = str(tmp_path / "data" / "numbers.recordio")

    with start(tmp_path, CHANGES_A_FILE, CHANGED=changed) as training:
        training.wait_for_the_end(expected=4)

    assert f"{changed} has changed since its records were counted" in training.log()
