"""`elasticdl job audit`: a training, and what is done to its log afterwards."""

from __future__ import annotations

import json

import pytest
from tests.engines.conftest import MODEL, write_records

import elasticdl
from elasticdl.cli.main import _run
from elasticdl.engines.progress_bar import Silent

pytestmark = pytest.mark.usefixtures("weights_only")

# The same records through a pipeline, which makes batches of its own.
PIPELINE = (
    MODEL.replace("def input_fn", "def unused").replace("labels.flatten()", "labels[:, 0]")
    + """

def feed(dataset, mode, metadata=None):
    import tensorflow as tf

    spec = {
        "x": tf.io.FixedLenFeature([4], tf.float32), "label": tf.io.FixedLenFeature([1], tf.int64)
    }

    def parse(record):
        example = tf.io.parse_single_example(record, spec)
        return example["x"], example["label"]

    return dataset.map(parse)
"""
)


LOADER = """
import torch

def train_dataloader(data):
    items = [(torch.ones(2), torch.ones(1))] * 30
    return torch.utils.data.DataLoader(items, 4)

def custom_model(): return torch.nn.Linear(2, 1)
def optimizer(parameters): return torch.optim.SGD(parameters, lr=0.1)
loss = torch.nn.MSELoss()
"""


def train(folder, model=MODEL, **options):
    """Train on 100 records in two files, 15 of them in the first one."""
    (folder / "zoo").mkdir(exist_ok=True)
    (folder / "zoo" / "small.py").write_text(model)
    (folder / "data").mkdir(exist_ok=True)
    write_records(folder / "data" / "a.recordio", 15)
    write_records(folder / "data" / "b.recordio", 85, seed=1)
    elasticdl.train(
        **{
            "model_zoo": str(folder / "zoo"),
            "model_def": "small",
            "data": str(folder / "data"),
            "output": str(folder / "out"),
            "minibatch_size": 10,
            "shuffle": False,
            "checkpoint_steps": 4,
            "reporter": Silent(),
            **options,
        }
    )


@pytest.fixture
def audit(tmp_path, capsys):
    """Run `elasticdl job audit`; returns its exit code and what it said."""

    def run(*flags):
        capsys.readouterr()
        code = _run(["job", "audit", str(tmp_path / "out"), *flags], debug=False)
        said = capsys.readouterr()
        return code, said.out + said.err

    return run


def change_log(folder, change):
    """Write the log anew, with what `change` makes of its events."""
    path = folder / "out" / "events.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps(event) + "\n" for event in change(events)))


def without_steps(first, last):
    """Leave out what tells of steps; a slow machine tells of them in more than one event."""
    return lambda events: [
        event
        for event in events
        if event["event"] != "step_committed" or not first <= event["step"] <= last
    ]


def test_the_audit_of_a_training_finds_no_errors(tmp_path, audit) -> None:
    train(tmp_path, num_epochs=2)

    code, said = audit()

    assert code == 0
    rows = [line.split() for line in said.splitlines() if "each once" in line]
    assert rows == [[epoch, "100", "of", "100", "1", "0", "each", "once"] for epoch in ("1", "2")]


def test_the_audit_accepts_stopped_and_resumed_trainings(tmp_path, audit) -> None:
    train(tmp_path, num_epochs=2, max_steps=13)
    stopped = audit()
    train(tmp_path, num_epochs=2)
    ended = audit("--json")

    assert stopped[0] == 0
    assert "30 of 100" in stopped[1]
    assert "so far each once; not finished" in stopped[1]
    assert ended[0] == 0
    assert [epoch["trained_records"] for epoch in json.loads(ended[1])["epochs"]] == [100, 100]


def test_records_of_a_lost_event_are_named_with_their_file(tmp_path, audit) -> None:
    train(tmp_path)
    change_log(tmp_path, without_steps(1, 4))

    code, said = audit()
    as_json = json.loads(audit("--json")[1])

    assert code == 1
    assert "NOT CLEAN" in said
    assert "... and more" in said
    assert f"record 0 ({tmp_path}/data/a.recordio, number 0) was not trained on." in said
    assert f"record 16 ({tmp_path}/data/b.recordio, number 1) was not trained on." in said
    named = [record["record"] for wrong in as_json["wrong"] for record in wrong["records"]]
    assert named == list(range(40))
    assert not as_json["clean"]


def test_a_batch_logged_twice_is_named_with_its_rows(tmp_path, audit) -> None:
    train(tmp_path)

    def doubled(events):
        for event in events:
            if event["event"] == "step_committed" and event["step"] == 8:
                event["rows"].append([0, 3, 0, 1, 2])
        return events

    change_log(tmp_path, doubled)
    code, said = audit()

    assert code == 1
    line = next(line for line in said.splitlines() if "record 19 " in line)
    assert f"record 19 ({tmp_path}/data/b.recordio, number 4) was trained on 2 times" in line
    assert "epoch 1, worker 0, shard 0, batch" in line
    assert "epoch 1, worker 3, shard 0, batch 1" in line
    assert said.count("2 times") == 10


def test_batches_beyond_the_data_are_named(tmp_path, audit) -> None:
    train(tmp_path)

    def added(events):
        events[1]["rows"].append([0, 0, 7, 0, 2])
        return events

    change_log(tmp_path, added)
    code, said = audit()

    assert code == 1
    assert (
        "The log has batches that the data do not have: epoch 1, worker 0, shard 7, batches 0 to 1."
        in said
    )


def test_lost_workers_are_counted_in_their_epoch(tmp_path, audit) -> None:
    train(tmp_path, num_epochs=2)

    def with_loss(events):
        at = next(i for i, event in enumerate(events) if event["event"] == "epoch_finished")
        left = {"event": "worker_left", "time": 0.0, "step": 10, "rank": 0, "incarnation": 1}
        return [*events[: at + 1], left, *events[at + 1 :]]

    change_log(tmp_path, with_loss)

    epochs = json.loads(audit("--json")[1])["epochs"]
    assert [epoch["lost_workers"] for epoch in epochs] == [0, 1]


def test_workers_lost_in_repeated_steps_are_counted(tmp_path, audit) -> None:
    train(tmp_path, num_epochs=2)

    def with_loss_of_all(events):
        """All workers died at step 13, in epoch 2; training resumed from step 8, in epoch 1."""
        begun = next(event for event in events if event["event"] == "job_started")
        at = next(
            i for i, e in enumerate(events) if e["event"] == "step_committed" and e["step"] > 8
        )
        first, later = events[:at], events[at:]
        before = [e for e in later if e["step"] <= 13 and e["event"] != "checkpointed"]
        left = [
            {"event": "worker_left", "time": 0.0, "step": 13, "rank": rank, "incarnation": rank + 1}
            for rank in range(2)
        ]
        again = {**begun, "resumed_from_step": 8}
        late = {"event": "worker_left", "time": 0.0, "step": 9, "rank": 1, "incarnation": 4}
        return [*first, *before, *left, again, late, *later]

    change_log(tmp_path, with_loss_of_all)

    epochs = json.loads(audit("--json")[1])["epochs"]
    assert [epoch["lost_workers"] for epoch in epochs] == [1, 2]


def test_a_pipeline_is_audited_by_batches_with_a_note(tmp_path, audit) -> None:
    train(tmp_path, model=PIPELINE, num_epochs=2)

    code, said = audit()

    assert code == 0
    assert said.count("each batch once") == 2
    assert "Only the pipeline knows" in said


def test_batches_of_a_loader_are_called_batches(tmp_path, audit) -> None:
    train(tmp_path, model=LOADER, shuffle=True, num_epochs=2)
    clean = audit()
    change_log(tmp_path, without_steps(3, 4))
    damaged, as_json = audit(), json.loads(audit("--json")[1])

    assert clean[0] == 0
    assert clean[1].count("8 of 8") == 2
    assert damaged[0] == 1
    assert "Epoch 1: batch 3 of the epoch was not trained on." in damaged[1]
    assert "record" not in clean[1] + damaged[1]
    assert (as_json["counted"], as_json["num_records"]) == ("batches", None)
    assert [epoch["trained_records"] for epoch in as_json["epochs"]] == [None, None]


@pytest.mark.parametrize(
    ("steps", "said_of_it"), [((1, 4), "batch 0 of shard 0"), ((9, 10), "2 steps")]
)
def test_a_lost_event_of_a_pipeline_is_found_even_at_the_end_of_a_shard(
    tmp_path, audit, steps, said_of_it
) -> None:
    train(tmp_path, model=PIPELINE)
    change_log(tmp_path, without_steps(*steps))

    code, said = audit()

    assert code == 1
    assert said_of_it in said


@pytest.mark.parametrize("row", [[0, 0, 0], [0, 0, 0, 0, "x"], [0, 0, 0, 0, 2**70]])
def test_a_row_that_cannot_be_counted_is_an_error(tmp_path, audit, row) -> None:
    train(tmp_path)

    def broken(events):
        events[1]["rows"] = [row]
        return events

    change_log(tmp_path, broken)
    code, said = audit()

    assert code == 4
    assert "restore it from a copy" in said


def test_unreadable_events_are_counted(tmp_path, audit) -> None:
    train(tmp_path)

    def broken(events):
        del events[1]["loss"]
        return events

    change_log(tmp_path, broken)
    code, said = audit()

    assert code == 1
    assert "1 event of steps cannot be read." in said


def test_a_folder_that_is_not_an_output_is_an_error(audit) -> None:
    code, said = audit()

    assert code == 6
    assert "does not exist: expected" in said


def test_help_explains_the_exit_code(capsys) -> None:
    _run(["job", "audit", "--help"], debug=False)

    assert "Exit code: 0 if no problem was found, 1 otherwise." in capsys.readouterr().out


def test_the_audit_loads_no_framework(run_python, tmp_path) -> None:
    train(tmp_path)

    listing = run_python(
        "import sys; from elasticdl.cli.main import _run\n"
        f"assert _run(['job', 'audit', {str(tmp_path / 'out')!r}], debug=False) == 0\n"
        "print({'keras', 'tensorflow', 'torch', 'ray'} & set(sys.modules))"
    )

    assert listing.stdout.splitlines()[-1] == "set()"


def leaving_out(*skipped, num_left_out):
    """Let the log say that records were left out, of batch 1 in the first epoch."""

    def change(events):
        steps = [event for event in events if event["event"] == "step_committed"]
        of_first = [event for event in steps if event["epoch"] == 0]
        of_first[0]["num_left_out"], steps[-1]["num_left_out"] = num_left_out
        return [events[0], *skipped, *events[1:]]

    return change


SKIPPED = {
    "event": "records_skipped", "time": 0.0, "step": 0, "epoch": 0, "shard": 0, "batch": 1,
    "records": list(range(10, 20)),
}  # fmt: skip


def test_skipped_records_are_named_and_expected(tmp_path, audit) -> None:
    train(tmp_path, num_epochs=2)
    change_log(tmp_path, leaving_out(SKIPPED, num_left_out=(10, 10)))

    code, said = audit()
    left_out = json.loads(audit("--json")[1])["left_out"]

    assert code == 0
    assert said.count("90 of 100") == said.count("each once, 10 left out") == 2
    first, second = (tmp_path / "data" / f"{name}.recordio" for name in "ab")
    assert (
        f"Left out from epoch 1 on, for batch 1 of shard 0 killed workers: {first}, record 10, to "
        f"{second}, record 4." in said
    )
    assert [record["record"] for record in left_out[0]["records"]] == list(range(10, 20))


@pytest.mark.parametrize(
    ("skipped", "num_left_out", "said_of_it"),
    [
        ([], (10, 0), "Epoch 1: 10 records left out, but no event names them."),
        ([SKIPPED], (10, 9), "Epoch 2: 1 record trained on that should have been left out."),
    ],
)
def test_records_skipped_without_a_matching_event_are_an_error(
    tmp_path, audit, skipped, num_left_out, said_of_it
) -> None:
    train(tmp_path, num_epochs=2)
    change_log(tmp_path, leaving_out(*skipped, num_left_out=num_left_out))

    code, said = audit()

    assert code == 1
    assert said_of_it in said
