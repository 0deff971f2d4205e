"""`elasticdl data`: what a person types and reads."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

from elasticdl.cli import data_show
from elasticdl.cli.data import data, parse_schema
from elasticdl.data import overview
from elasticdl.data.data_index import index_of
from elasticdl.data.find_files import find_files
from elasticdl.data.index_file import INDEX_FILE, find_index
from elasticdl.data.overview import summarize_files
from elasticdl.data.recordio import Writer
from elasticdl.data.samples import SAMPLES, write_sample
from elasticdl.data.schema import Schema
from elasticdl.data.sources import open_source
from elasticdl.errors import (
    DefinitionError,
    MissingExtraError,
    NoDataError,
    SchemaError,
    UsageError,
    UserCodeError,
)

MODEL_FILE = """
import numpy as np


def data_schema():
    return [
        {"name": "size", "shape": [1], "dtype": "int64"},
        {"name": "text", "shape": [1], "dtype": "string"},
    ]


def prepare_data_for_a_single_file(filename):
    with open(filename) as file:
        text = file.read()
    if "bad" in text:
        raise ValueError("This text is bad.")
    return np.array([len(text)]), text
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Return a working folder with a zoo and some text files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "texts.py").write_text(MODEL_FILE)
    (tmp_path / "in").mkdir()
    for i in range(20):
        (tmp_path / "in" / f"{i:02}.txt").write_text("a" * i)
    yield tmp_path
    sys.modules.pop("texts", None)


def run(*words):
    """Run `elasticdl data ...` and return what it printed; its errors are raised."""
    result = CliRunner().invoke(data, [*map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_help_shows_examples_and_loads_nothing_heavy(run_python):
    code = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "from elasticdl.cli.data import data\n"
        "for words in [], ['sample'], ['split'], ['prepare'], ['index'], ['show']:\n"
        "    result = CliRunner().invoke(data, [*words, '--help'])\n"
        "    assert 'elasticdl data ' in result.output, result.output\n"
        "heavy = {'tensorflow', 'keras', 'pyarrow', 'sklearn', 'numpy', 'rich', 'fsspec'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )

    run_python(code)


# --- sample --------------------------------------------------------------------------------------


def test_sample_writes_data_and_suggests_a_command(folder):
    printed = run("sample", "iris", "--output=my iris")

    assert open_source("my iris/train").num_records == 120
    assert "my iris/train  120 records in 4 files" in printed
    assert "label: int64[1]" in printed
    assert "elasticdl data show 'my iris/test'" in printed
    assert re.search(r"--data='my iris/train/\*' --validation_data='my iris/test/\*'", printed)


@pytest.mark.parametrize("file_format", ["recordio", "tfrecord", "csv", "parquet"])
def test_sample_writes_the_requested_format(folder, file_format):
    run("sample", "wine", "--output=wine", f"--format={file_format}")

    assert {path.suffix for path in Path("wine").glob("*/*")} == {f".{file_format}"}


def test_help_of_sample_names_all_samples():
    printed = run("sample", "--help")

    assert [name for name in SAMPLES if f"  {name} " not in printed] == []


def test_every_sample_names_an_existing_prebuilt_model():
    from elasticdl.zoo import catalogue

    models = {entry.name for entry in catalogue.entries()}
    for sample in SAMPLES.values():
        named = re.match(r"--model_def=(\S+)", sample.trains)
        assert named is not None
        assert named[1] in models


def test_an_unknown_sample_is_refused(folder):
    with pytest.raises(UsageError, match="did you mean 'digits'"):
        run("sample", "digit", "--output=x")


def test_sample_without_its_extra_says_how_to_install_it(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'elasticdl\[samples\]'"):
        run("sample", "iris", "--output=x")


# --- split ---------------------------------------------------------------------------------------


def test_split_reports_record_counts_and_the_next_command(folder):
    write_sample("iris", "iris", "csv", 0)

    printed = run("split", "iris/train", "--output=my parts", "--stratify=label", "--quiet")

    assert "my parts/train  96 records in 4 files" in printed
    assert "my parts/test   24 records in 4 files" in printed
    assert "--data='my parts/train' --validation_data='my parts/test' --output=my_m" in printed


def test_split_shows_the_part_for_validation_in_the_next_command(folder):
    write_sample("iris", "iris", "csv", 0)

    printed = run("split", "iris/train", "--output=p", "--parts=test=0.5,val=0.25,train=0.25")

    assert "--data=p/train --validation_data=p/val " in printed


# --- prepare -------------------------------------------------------------------------------------

PREPARE = ("prepare", "--model_zoo=zoo", "--model_def=texts", "--input=in/*.txt", "--output=out")


@pytest.mark.parametrize("num_processes", [1, 2])
def test_prepare_applies_the_function_of_a_model_file_to_files(folder, num_processes):
    printed = run(*PREPARE, f"--num_processes={num_processes}")

    source = open_source("out")
    schema = parse_schema("size: int64[1], text: string[1]")
    records = source.read_records(0, 20, schema)
    assert sorted(record["size"].item() for record in records) == list(range(20))
    assert all(len(r["text"].item()) == r["size"].item() for r in records)
    assert re.search(r"20 records in 10 files in out", printed)


def test_preparing_again_reports_kept_files(folder):
    run(*PREPARE)
    (folder / "in" / "00.txt").write_text("changed")

    assert "9 of 10 parts exist already" in run(*PREPARE)


def test_prepare_reports_kept_files_of_another_code_version(folder):
    run(*PREPARE)
    (folder / "zoo" / "texts.py").write_text(MODEL_FILE + "\n# Other.\n")

    printed = run(*PREPARE)
    assert (
        "texts has changed since 10 of them were written; they were kept. Use --overwrite"
        in printed
    )

    assert "kept" not in run(*PREPARE, "--overwrite")


@pytest.mark.parametrize("num_processes", [1, 2])
def test_a_function_that_raises_is_quoted_with_its_own_file_and_line(folder, num_processes):
    (folder / "in" / "07.txt").write_text("bad")
    message = (
        r"(?s)zoo/texts\.py:16: prepare_data_for_a_single_file\(\) raised for the file in/07\.txt:"
        r'\n  .*texts\.py", line 16.*ValueError: This text is bad\.'
    )

    with pytest.raises(UserCodeError, match=message):
        run(*PREPARE, f"--num_processes={num_processes}")


@pytest.mark.parametrize(
    ("lacks", "message"),
    [
        (
            "prepare_data_for_a_single_file",
            r"there is no prepare_data_for_a_single_file\(filename\)",
        ),
        ("data_schema", r"there is no data_schema\(\) in the file"),
    ],
)
def test_prepare_refuses_a_model_file_without_its_functions(folder, lacks, message):
    path = folder / "zoo" / "texts.py"
    path.write_text(MODEL_FILE.replace(lacks, "something_else"))

    with pytest.raises(DefinitionError, match=rf"zoo/texts\.py:1: {message}.*--help"):
        run(*PREPARE)
    assert not (folder / "out").exists()


def test_a_wrong_schema_is_named_with_its_line(folder):
    path = folder / "zoo" / "texts.py"
    path.write_text(MODEL_FILE.replace('"int64"', '"int65"'))

    with pytest.raises(
        DefinitionError, match=r"zoo/texts\.py:5: data_schema\(\), entry 0 \('size'\)"
    ):
        run(*PREPARE)


# --- index ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("file_format", ["recordio", "tfrecord", "csv", "parquet"])
def test_index_is_written_beside_the_files_and_reports_their_number(folder, file_format):
    write_sample("iris", "iris", file_format)

    printed = run("index", "iris/train", "iris/test", "--quiet")

    assert printed.startswith("150 records in 6 files\n")
    assert printed.splitlines()[1:] == [
        f"  iris/test/{INDEX_FILE}",
        f"  iris/train/{INDEX_FILE}",
    ]
    assert index_of(open_source("iris/train")) == find_index(find_files("iris/train"))


def test_index_of_many_folders_names_some(folder):
    for number in range(8):
        Path("in", str(number)).mkdir()
        with Writer(f"in/{number}/a.recordio") as writer:
            writer.write(b"")

    printed = run("index", "in/*/*.recordio")

    assert "8 records in 8 files" in printed
    assert len(re.findall(INDEX_FILE, printed)) == 5
    assert "and 3 more" in printed


def test_indexing_nothing_is_refused(folder):
    with pytest.raises(NoDataError, match="No file matches"):
        run("index", "nowhere")


def test_show_takes_the_count_of_a_huge_file_from_its_index(folder, monkeypatch):
    write_sample("iris", "iris", "csv")
    run("index", "iris/train")
    monkeypatch.setattr(overview, "_WHOLE_BYTES", 1)

    found = summarize_files("iris/train", 3)

    assert (found.num_records, found.is_estimate) == (120, False)


# --- show ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("file_format", ["recordio", "tfrecord", "csv", "parquet"])
def test_show_prints_format_count_fields_and_records(folder, file_format):
    write_sample("iris", "iris", file_format)

    printed = run("show", "iris/test", "--limit=2")

    assert printed.startswith(f"{file_format}: 2 files, 30 records, ")
    assert re.search(r"label +int64 +\[1\] +0 \.\. 2", printed)
    assert re.search(r"sepal_length_cm +float32 +\[1\] +\d\.\d", printed)
    assert printed.count("\n  0 ") == printed.count("\n  1 ") == 1
    assert "\n  2 " not in printed


def test_show_prints_chunks_and_row_groups(folder):
    write_sample("iris", "a", "recordio")
    write_sample("iris", "b", "parquet")

    assert "2 chunks, compressor: snappy" in run("show", "a/test")
    assert "4 row groups, compression: snappy" in run("show", "b/train")


def test_show_accepts_files_expanded_by_a_shell(folder):
    write_sample("iris", "iris")

    assert "2 files, 30 records" in run("show", *sorted(Path("iris/test").iterdir()))


def test_show_has_a_line_for_each_of_many_fields(folder):
    write_sample("wine", "wine")

    printed = run("show", "wine/test", "--limit=3")

    assert re.search(r"\n  proline +\d+ +\d+ +\d+", printed)


def test_show_has_columns_whose_values_are_all_missing(folder):
    Path("gaps.csv").write_text("a,b,c\n" + "1,,\n" * 9 + "1,,7\n")

    printed = run("show", "gaps.csv")

    assert re.search("b +null +not usable: all missing", printed)
    assert re.search("\n +a +b +c *\n", printed)
    assert re.search("\n +0 +1 +- +- *\n", printed)


def test_show_with_limit_0_shows_no_record(folder):
    write_sample("iris", "iris")

    assert "Records" not in run("show", "iris/test", "--limit=0")


@pytest.mark.parametrize(
    "options",
    [
        ["--schema=image: float32[28, 28], label: int64[1]"],
        ["--model_zoo=zoo", "--model_def=mnist"],
    ],
)
def test_show_reads_shapes_from_a_schema(folder, options):
    write_sample("digits", "digits")
    (folder / "zoo" / "mnist.py").write_text(
        "def data_schema():\n"
        "    return [dict(name='image', shape=[28, 28], dtype='float32'),\n"
        "            dict(name='label', shape=[1], dtype='int64')]\n"
    )

    assert re.search(
        r"image +float32 +\[28, 28\] +0 \.\. 255", run("show", "digits/test", *options)
    )


def test_show_finds_records_that_violate_the_schema(folder):
    write_sample("digits", "digits")

    with pytest.raises(SchemaError, match=r"record 0: field 'image' has 784 values"):
        run("show", "digits/test", "--schema=image: float32[32, 32]")


def test_show_draws_pictures(folder):
    write_sample("digits", "digits")

    printed = run("show", "digits/test", "--limit=1")

    assert printed.count("█") > 5
    assert len([line for line in printed.splitlines() if set(line) & set("░▒▓█")]) >= 10


def test_show_has_the_sides_of_images_and_the_names_of_their_classes(folder):
    image = pytest.importorskip("PIL.Image")
    for name, size in (("cat", (20, 10)), ("dog", (30, 12))):
        (folder / "pets" / name).mkdir(parents=True)
        image.new("RGB", size).save(folder / "pets" / name / "1.png")

    printed = run("show", "pets")

    assert re.search(r"\n  image +uint8 +\[10 to 12, 20 to 30, 3\] ", printed)
    assert re.search(r"\n  label +0 \(cat\) +1 \(dog\)", printed)
    named = run("show", "pets", "--schema=x: uint8[8, 8, 3], kind: int64[1]")
    assert re.search(r"\n  kind +0 \(cat\) +1 \(dog\)", named)


def test_show_has_a_note_on_folders_that_are_parts_of_a_data_set(folder):
    image = pytest.importorskip("PIL.Image")
    for name in ("test/cat", "test/dog", "train/cat", "train/dog"):
        (folder / "pics" / name).mkdir(parents=True)
        image.new("RGB", (4, 4)).save(folder / "pics" / name / "1.png")

    assert "'test', 'train' count as classes here" in " ".join(run("show", "pics").split())
    assert "count as classes" not in run("show", "pics/train")


def test_show_prints_records_that_are_not_examples_as_bytes(folder):
    with Writer("a.recordio") as writer:
        writer.write(b"hello, [bold]")
        writer.write(bytes(range(256)) * 2)

    printed = run("show", "a.recordio")

    assert "recordio: 1 file, 2 records" in printed
    assert "which are not tf.Examples" in printed
    assert "b'hello, [bold]'" in printed
    assert "(512 bytes)" in printed


def test_show_wraps_timestamps_at_their_space_and_truncates_nothing(folder):
    rows = "".join(
        f"Person number {i},{day},{day} 12:00:00,{day}T12:30:00.25Z,City {i},x\n"
        for i in range(1, 4)
        for day in [f"2024-12-0{i}"]
    )
    Path("a.csv").write_text("name,born,joined,seen,city,y\n" + rows)

    printed = run("show", "a.csv", "--limit=3")

    assert "…" not in printed
    (first,) = re.findall(r"^  0 .*\n .*", printed, re.MULTILINE)
    for part in ("'2024-12-01'", "12:00:00'", "12:30:00.25Z'", "'City", "'x'"):
        assert part in first


@pytest.mark.parametrize(
    ("value", "shown"),
    [("grün".encode(), r"string .* 1 different, 4 characters"), (b"\xff", "bytes .* 1 byte"),
     (b"\0\1", "bytes .* 2 bytes")],
)  # fmt: skip
def test_show_distinguishes_text_from_other_bytes(folder, value, shown):
    from elasticdl.data import example

    with Writer("a.recordio") as writer:
        writer.write(example.encode({"t": [value]}))

    assert re.search(f"t +{shown}", run("show", "a.recordio"))


def test_show_counts_records_with_missing_fields(folder):
    schema = Schema.from_user([{"name": "[x]", "shape": [1], "dtype": "float32"}])
    from elasticdl.data import example

    with Writer("a.recordio") as writer:
        writer.write(schema.encode((float("nan"),)))
        writer.write(example.encode({"[x]": np.float32([1, 2]), "t": [b"\xff", "ü".encode()]}))
        writer.write(example.encode({"t": [b"word"]}))

    printed = run("show", "a.recordio")

    assert re.search(
        r"\[x\] +float32 +1 to 2 values +1 \.\. 2, 1 not finite, missing in 1 record", printed
    )
    assert re.search(r"t +bytes +1 to 2 values +3 different, 1 to 4 bytes", printed)
    assert "b'\\xff', 'ü'" in printed


@pytest.mark.parametrize("file_format", ["tfrecord", "csv"])
def test_show_of_a_huge_file_reads_its_beginning_and_estimates_the_rest(
    folder, monkeypatch, file_format
):
    write_sample("breast_cancer", "big", file_format)
    (file,) = sorted(Path("big/train").iterdir())[:1]
    monkeypatch.setattr(overview, "_WHOLE_BYTES", 1000)
    monkeypatch.setattr(overview, "_HEAD_BYTES", file.stat().st_size // 3)
    true_count = open_source(str(file)).num_records

    found = summarize_files(str(file), 3)

    assert found.is_estimate
    assert abs(found.num_records - true_count) <= true_count * 0.05
    assert len(found.records) == 3
    assert f"about {found.num_records} records" in run("show", file)


@pytest.mark.parametrize(
    ("words", "error", "message"),
    [
        (["nothing.recordio"], NoDataError, "No file matches 'nothing.recordio'"),
        (["zoo", "--limit=-1"], UsageError, "--limit=-1: expected 0 or more"),
        (
            ["zoo", "--schema=x float32"],
            UsageError,
            "'x float32' is not a field; expected NAME: DTYPE",
        ),
        (["zoo", "--schema=x: float23[1]"], DefinitionError, "dtype is 'float23'"),
        (["zoo", "--schema=x: int8[]", "--model_def=a"], UsageError, "both define a schema"),
        (["zoo", "--model_zoo=zoo"], UsageError, "--model_zoo=zoo needs --model_def"),
    ],
)
def test_show_refuses_invalid_options(folder, words, error, message):
    with pytest.raises(error, match=message):
        run("show", *words)


# --- pictures ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "is_picture"),
    [
        ((28, 28), True),
        ((28, 28, 1), True),
        ((32, 20, 3), True),
        ((256,), True),
        ((768,), True),
        ((64,), False),
        ((300,), False),
        ((4, 4), False),
        ((28, 28, 2), False),
        ((2, 28, 28), False),
    ],
)
def test_an_array_is_a_picture_by_its_shape(shape, is_picture):
    picture = data_show.as_picture(np.ones(shape, np.float32))

    assert (picture is not None) == is_picture


def test_a_list_with_negative_numbers_is_not_a_picture():
    assert data_show.as_picture(np.linspace(-1, 1, 784)) is None


@pytest.mark.parametrize("highest", [1, 255])
def test_brightness_may_range_to_1_or_255(highest):
    array = np.zeros((16, 16), np.float32)
    array[0, 0] = highest

    assert data_show.as_picture(array).max() == 255


def test_a_colour_picture_has_two_pixels_per_character():
    picture = np.zeros((4, 8, 3))
    picture[2, 5] = (255, 0, 0)
    picture[3, 5] = (0, 0, 255)

    text = data_show.draw(picture, in_colour=True)

    assert text.plain == "\n".join(["▀" * 8] * 2)
    style = text.spans[8 + 5].style
    assert (*style.color.triplet, *style.bgcolor.triplet) == (255, 0, 0, 0, 0, 255)


def test_a_large_picture_is_scaled_down():
    text = data_show.draw(np.full((480, 640, 3), 200.0), in_colour=False)

    lines = text.plain.splitlines()
    assert len(lines[0]) <= 32
    assert len(lines) <= 12
    assert set(text.plain) == {"▓", "\n"}


def test_pictures_are_shown_side_by_side_if_there_is_room(folder):
    write_sample("digits", "digits")
    found = summarize_files("digits/test", 3)

    heights = []
    for width in (60, 120):
        console = Console(width=width, record=True, file=open("/dev/null", "w"))  # noqa: PTH123, SIM115
        data_show.show(found, console)
        console.file.close()
        heights.append(len(console.export_text().splitlines()))

    assert heights[1] < heights[0] - 20


def write_columns(path, names):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({name: [1.0] for name in names}), path)


@pytest.mark.parametrize("num_columns", [2, 20])
def test_control_characters_of_a_column_name_are_escaped(tmp_path, num_columns):
    write_columns(tmp_path / "a.parquet", [f"a\x1b[2Jb{i}" for i in range(num_columns)])

    printed = run("show", tmp_path / "a.parquet")

    assert "\x1b" not in printed
    assert r"a\x1b[2Jb0" in printed


def test_only_the_first_of_many_columns_are_shown(tmp_path):
    write_columns(tmp_path / "wide.parquet", [f"c{i:03}" for i in range(503)])

    printed = run("show", tmp_path / "wide.parquet")

    assert "c499" in printed
    assert "c500" not in printed
    assert "... and 3 more fields" in printed
