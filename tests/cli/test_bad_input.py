"""Bad input gets one clear message, an exit code, no traceback, and leaves nothing half-written."""

import contextlib
import re
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from tests.engines.conftest import MODEL, write_records

import elasticdl
from elasticdl.artifacts.checkpoint_store import CheckpointStore
from elasticdl.artifacts.folder import OutputFolder
from elasticdl.cli.main import _run
from elasticdl.data import recordio
from elasticdl.data.example import encode
from elasticdl.errors import UsageError


@pytest.fixture
def zoo(tmp_path):
    folder = tmp_path / "zoo"
    folder.mkdir()
    (folder / "small.py").write_text(MODEL)
    return folder


@pytest.fixture
def train(zoo, tmp_path, capsys):
    """Run `elasticdl train`; returns its exit code and what it said."""
    write_records(tmp_path / "train.recordio", 64)

    def run(**options):
        flags = {
            "model_zoo": zoo,
            "model_def": "small",
            "data": tmp_path / "train.recordio",
            "output": tmp_path / "out",
            "minibatch_size": 16,
            **options,
        }
        code = _run(
            ["train", "--quiet", *(f"--{name}={value}" for name, value in flags.items())],
            debug=False,
        )
        said = capsys.readouterr().err
        assert "Traceback" not in said.replace("Traceback of", "")
        return code, said

    return run


def edit(zoo, old, new):
    text = (zoo / "small.py").read_text()
    assert old in text
    (zoo / "small.py").write_text(text.replace(old, new))


def line_of(zoo, text):
    lines = (zoo / "small.py").read_text().splitlines()
    return next(i for i, line in enumerate(lines, 1) if text in line)


def nothing_was_trained(tmp_path):
    return not (tmp_path / "out" / "trained_model.pb").exists()


def test_a_missing_function_is_named_with_its_file(train, zoo, tmp_path):
    edit(zoo, "def loss(", "def lost(")

    code, said = train()

    assert code == 3
    assert "small.py" in said
    assert "loss" in said
    assert nothing_was_trained(tmp_path)


def test_a_wrong_arity_is_named_with_its_line(train, zoo):
    edit(zoo, "def loss(output, labels):", "def loss(output):")

    code, said = train()

    assert code == 3
    assert f"small.py:{line_of(zoo, 'def loss(')}" in said
    assert "ElasticDL module" in said


def test_a_record_that_violates_the_schema_is_named_with_its_field(train, zoo):
    edit(zoo, '"shape": [4]', '"shape": [5]')

    code, said = train()

    assert code == 4
    assert re.search(r"train\.recordio.*record 0", said), said
    assert "'x'" in said or "x:" in said or "x " in said
    assert "5" in said


def test_a_missing_label_is_named(train, tmp_path):
    unlabelled = write_records(tmp_path / "unlabelled.recordio", 20, fields=("x",))

    code, said = train(data=unlabelled)

    assert code == 4
    assert "unlabelled.recordio" in said
    assert "label" in said


def test_a_glob_without_files_is_named(train, tmp_path):
    code, said = train(data=tmp_path / "trian" / "*.recordio")

    assert code == 4
    assert "trian" in said


def test_a_damaged_file_is_named_with_the_place(train, tmp_path):
    path = tmp_path / "train.recordio"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)

    code, said = train()

    assert code == 4
    assert re.search(r"train\.recordio.*byte \d+.*expected.*found", said, re.DOTALL), said


def test_a_truncated_file_is_named_with_the_place(train, tmp_path):
    path = tmp_path / "train.recordio"
    path.write_bytes(path.read_bytes()[:-10])

    code, said = train()

    assert code == 4
    assert re.search(r"train\.recordio.*byte \d+.*expected.*found", said, re.DOTALL), said


def test_a_loss_that_is_not_finite_stops_and_keeps_the_last_checkpoint(train, zoo, tmp_path):
    train(max_steps=2)

    code, said = train(params="learning_rate=1e38", output=tmp_path / "diverged")

    assert code == 5
    assert re.search(r"(loss is (nan|inf)|NaN or infinity).* step \d", said), said
    assert "learning rate" in said


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ("learning_rat=0.1", "learning_rate"),
        ("units='many'", "units"),
        ("units=eight", "eight"),
        ("units=[1, 2", "units=[1, 2"),
    ],
)
def test_a_wrong_param_is_named_with_its_value(train, params, expected, tmp_path):
    code, said = train(params=params)

    assert code == 2
    assert expected in said
    assert nothing_was_trained(tmp_path)


def test_an_output_that_cannot_be_written_is_named(train, tmp_path):
    (tmp_path / "file").write_text("in the way")

    code, said = train(output=tmp_path / "file" / "out")

    assert code == 6
    assert str(tmp_path / "file") in said


@contextlib.contextmanager
def full_disk():
    """Limit the size of files, which looks like a full disk: writing fails part-way."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_keeps_complete_files(train, tmp_path):
    train(max_steps=2)
    before = CheckpointStore(OutputFolder(tmp_path / "out")).steps()
    with full_disk():
        code, said = train(checkpoint_steps=1)

    assert code == 6
    assert "no space" in said
    assert CheckpointStore(OutputFolder(tmp_path / "out")).steps() == before
    assert train()[0] == 0


def test_the_same_command_starts_after_a_full_disk_at_the_first_checkpoint(train):
    with full_disk():
        code, said = train(checkpoint_steps=1)
    assert (code, "no space" in said) == (6, True)

    code, said = train(checkpoint_steps=1)

    assert code == 0, said


def test_an_output_of_another_job_is_named_with_the_differences(train):
    train()

    code, said = train(seed=5)

    assert code == 6
    assert "seed" in said
    assert "--output" in said


def test_an_unrelated_folder_is_left_alone(train, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")

    code, _ = train()

    assert code == 6
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["thesis.txt"]


@pytest.mark.parametrize("number", [1, 2])
def test_a_refused_training_leaves_nothing_behind(train, zoo, tmp_path, number):
    for _ in range(number):
        code, said = train(params="x=1")

        assert code == 2, said
        assert not (tmp_path / "out").exists()


def test_a_refused_training_on_data_in_memory_leaves_nothing_behind(tmp_path):
    data = {"a": np.arange(8.0), "label": np.arange(8) % 2}

    with pytest.raises(UsageError):
        elasticdl.train(
            model_def="classifier.DNN", params="label='labl'", data=data, output=tmp_path / "out"
        )

    assert not (tmp_path / "out").exists()


def test_a_second_process_on_one_output_is_refused_naming_the_first(train, zoo, tmp_path):
    arguments = [
        sys.executable, "-m", "elasticdl.cli.main", "train", f"--model_zoo={zoo}",
        "--model_def=small", f"--data={tmp_path / 'train.recordio'}", "--num_epochs=100000",
        f"--output={tmp_path / 'out'}", "--minibatch_size=16",
    ]  # fmt: skip
    first = subprocess.Popen(arguments, stderr=subprocess.DEVNULL)
    try:
        while not (tmp_path / "out" / "events.jsonl").exists():
            assert first.poll() is None
            time.sleep(0.05)
        code, said = train()
    finally:
        first.kill()
        first.wait()

    assert code == 6
    assert str(first.pid) in said


def test_an_unknown_flag_and_an_unknown_command_get_a_suggestion(capsys):
    assert _run(["train", "--model_deff=x"], debug=False) == 2
    assert "--model_def" in capsys.readouterr().err
    assert _run(["evalute"], debug=False) == 2
    assert "'evaluate'" in capsys.readouterr().err


def test_all_missing_options_are_named_at_once(capsys):
    assert _run(["predict", "--data=a"], debug=False) == 2
    assert "Missing: '--trained_model', '--output'." in capsys.readouterr().err
    assert _run(["predict", "--data=a", "--output=b"], debug=False) == 2
    assert "Missing option '--trained_model'." in capsys.readouterr().err


def test_one_step_is_reported_in_the_singular(train, tmp_path, capsys):
    code = _run(
        [
            "train",
            "--max_steps=1",
            "--model_def=small",
            f"--model_zoo={tmp_path / 'zoo'}",
            f"--data={tmp_path / 'train.recordio'}",
            f"--output={tmp_path / 'out'}",
        ],
        debug=False,
    )

    assert code == 0
    assert "Trained 1 step: " in capsys.readouterr().out


def test_metrics_of_the_training_data_are_marked_as_such(zoo, tmp_path, capsys):
    data = tmp_path / "train.recordio"
    write_records(data, 64)
    job = [f"--model_zoo={zoo}", "--model_def=small", f"--data={data}", "--quiet"]

    for name, more in {"a": [], "b": ["--validation_split=0.5"]}.items():
        assert _run(["train", *job, *more, f"--output={tmp_path / name}"], debug=False) == 0
        said = capsys.readouterr().out
        assert ("(training data)" in said) is not bool(more)


def test_an_output_that_is_the_data_is_named_once_and_kept(train, tmp_path):
    data = tmp_path / "train.recordio"

    code, said = train(output=data)

    assert code != 0
    # Advice to move it away would be about the data.
    assert said == f"error: {data}: found a file where a folder is needed. Use another --output.\n"


def test_a_suggestion_is_punctuated_once(capsys):
    assert _run(["data", "sample", "digit", "--output=a"], debug=False) == 2
    assert "did you mean 'digits'? There are" in capsys.readouterr().err


def test_ctrl_c_keeps_the_progress(zoo, tmp_path):
    write_records(tmp_path / "train.recordio", 64)
    arguments = [
        sys.executable, "-m", "elasticdl.cli.main", "train", f"--model_zoo={zoo}",
        "--model_def=small", f"--data={tmp_path / 'train.recordio'}", "--num_epochs=100000",
        f"--output={tmp_path / 'out'}", "--minibatch_size=16",
    ]  # fmt: skip
    process = subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True)
    events = tmp_path / "out" / "events.jsonl"
    while not (events.exists() and "step_committed" in events.read_text()):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)

    assert process.returncode == 130
    assert "run the same command to resume" in said
    assert CheckpointStore(OutputFolder(tmp_path / "out")).latest().checkpoint.step > 0


def test_a_traceback_is_shown_only_with_debug(tmp_path, capsys):
    arguments = ["evaluate", "--trained_model=nowhere", "--data=nothing"]

    assert _run(arguments, debug=False) == 6
    assert "Traceback" not in capsys.readouterr().err
    _run(arguments, debug=True)
    assert "Traceback" in capsys.readouterr().err


def test_empty_files_are_refused(train, tmp_path):
    with recordio.Writer(str(tmp_path / "empty.recordio")):
        pass

    code, said = train(data=tmp_path / "empty.recordio")

    assert code == 4
    assert "empty.recordio" in said


def test_a_mismatched_dtype_is_named(train, tmp_path):
    with recordio.Writer(str(tmp_path / "texts.recordio")) as writer:
        for _ in range(4):
            text = np.array([b"a", b"b", b"c", b"d"], dtype=object)
            writer.write(encode({"x": text, "label": np.int64([0])}))

    code, said = train(data=tmp_path / "texts.recordio")

    assert code == 4
    assert "texts.recordio" in said
    assert "float32" in said


def test_a_label_beyond_the_models_outputs_is_named_with_its_place(train, tmp_path):
    with recordio.Writer(str(tmp_path / "ten.recordio")) as writer:
        for i in range(32):
            writer.write(encode({"x": np.zeros(4, "float32"), "label": np.int64([i % 11])}))

    code, said = train(data=tmp_path / "ten.recordio")

    assert code == 4, said
    assert (
        "labels 3, 4, 5, 6, 7 and 3 more, but the model has 3 outputs, for labels 0 to 2." in said
    )
    assert "ten.recordio, records " in said


def test_an_error_in_the_loss_is_shown_with_the_users_line(train, zoo):
    edit(zoo, "labels.flatten(), output,", "labels.flatten()[:3], output,")

    code, said = train()

    assert code == 3
    assert f'small.py", line {line_of(zoo, "keras.losses")}' in said
    assert "labels int64[16, 1]" in said, said


@pytest.mark.parametrize("text", ["root:*:20228:0:::\n", "secret: files dns\n", "a: [secret\n"])
@pytest.mark.parametrize(
    "command",
    [
        ["federated", "simulate"],
        ["federated", "party"],
        ["train", "--data=x", "--output=o", "--spec"],
    ],
)
def test_the_content_of_an_invalid_config_is_not_shown(
    text, command, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.yml").write_text(text)

    code = _run([*command, "file.yml"], debug=False)

    said = capsys.readouterr().err
    assert code in {2, 3, 4}
    assert "secret" not in said, said
    assert "root" not in said, said


def test_control_characters_of_a_name_do_not_reach_the_terminal(train, tmp_path, capsys):
    name = "\x1b[2J\x1b]0;owned\x07\u202e\r\x9b"

    _, missing = train(data=tmp_path / f"{name}.recordio")
    _, unknown = train(model_def=name)
    code = train(output=tmp_path / name, max_steps=1)[0]
    _run([f"{name}train"], debug=False)
    click_error = capsys.readouterr().err

    assert code == 0
    for shown in (missing, unknown, click_error):
        assert "\\x1b[2J" in shown
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202e]", shown), repr(shown)


def test_control_characters_of_an_output_do_not_reach_the_terminal(zoo, tmp_path, capsys):
    write_records(tmp_path / "train.recordio", 64)
    given = ["--model_def=small", f"--model_zoo={zoo}", f"--data={tmp_path / 'train.recordio'}"]

    code = _run(["train", *given, "--max_steps=1", f"--output={tmp_path}/\x1b[2J"], debug=False)

    shown = capsys.readouterr()
    assert code == 0
    assert "\\x1b[2J" in shown.out
    assert "\x1b" not in shown.out + shown.err


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("import sys; sys.exit(0)", "this code ended the command with SystemExit(0)"),
        ("raise GeneratorExit", "this code ended the command with GeneratorExit()"),
    ],
)
def test_code_that_exits_is_reported_with_its_line(zoo, train, code, said):
    edit(zoo, "def input_fn(records):\n", f"def input_fn(records):\n    {code}\n")

    exit_code, message = train()

    assert (exit_code, said in message) == (3, True), message
    assert "small.py:" in message


def test_running_out_of_memory_is_not_an_internal_error(zoo, train):
    edit(
        zoo,
        "def input_fn(records):\n",
        "def input_fn(records):\n    bytearray(1 << 60)\n",
    )

    code, message = train()

    assert (code, "MemoryError" in message or "not enough memory" in message) in {
        (3, True), (5, True),
    }, message  # fmt: skip
