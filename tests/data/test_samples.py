"""Sample data are real, the same each time, split cleanly, and readable in every format."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from elasticdl.data.samples import FORMATS, SAMPLES, write_sample
from elasticdl.data.sources import open_source
from elasticdl.errors import MissingExtraError, OutputTakenError, UsageError


def read(folder, schema=None):
    source = open_source(str(folder))
    return source.read_records(0, source.num_records, schema)


@pytest.mark.parametrize(
    ("name", "num_train", "num_test", "classes"),
    [
        ("digits", 1438, 359, 10),
        ("patches", 1575, 425, 10),
        ("iris", 120, 30, 3),
        ("wine", 142, 36, 3),
        ("breast_cancer", 455, 114, 2),
        ("diabetes", 354, 88, None),
    ],
)
def test_both_parts_of_a_sample_have_every_label(tmp_path, name, num_train, num_test, classes):
    written = write_sample(name, str(tmp_path))

    train = read(tmp_path / "train", written.schema)
    test = read(tmp_path / "test", written.schema)
    assert written.num_records == {"train": num_train, "test": num_test}
    assert (len(train), len(test)) == (num_train, num_test)
    if classes is not None:
        for records in (train, test):
            assert {record["label"].item() for record in records} == set(range(classes))
    assert [Path(file).exists() for file in written.files] == [True] * 6


def test_every_sample_is_tested():
    assert sorted(SAMPLES) == sorted(
        ["digits", "patches", "iris", "wine", "breast_cancer", "diabetes"]
    )


def test_digits_have_the_shape_and_range_of_mnist(tmp_path):
    schema = write_sample("digits", str(tmp_path)).schema

    images = np.array([record["image"] for record in read(tmp_path / "test", schema)])

    assert [str(field) for field in schema.fields] == ["image: float32[28, 28]", "label: int64[1]"]
    assert images.shape == (359, 28, 28)
    assert images.min() == 0
    assert 250 < images.max() <= 255
    # Most of a digit is paper, and ink is in the middle.
    assert images[:, :, :2].mean() < 5
    assert images[:, 8:20, 8:20].mean() > 100


def test_test_patches_share_no_pixel_with_training_patches(tmp_path):
    schema = write_sample("patches", str(tmp_path)).schema
    assert str(schema.fields[0]) == "image: float32[32, 32, 3]"

    # A step of 8 pixels: of two patches of one square, one's corner lies in the other.
    def corners(folder):
        images = [record["image"] for record in read(tmp_path / folder, schema)]
        return {
            image[y : y + 8, x : x + 8].tobytes()
            for image in images
            for y in range(0, 32, 8)
            for x in range(0, 32, 8)
        }

    assert not corners("train") & corners("test")


def test_column_names_are_easy_to_type(tmp_path):
    schema = write_sample("wine", str(tmp_path)).schema

    assert schema.names[-2:] == ("proline", "label")
    assert "od280_od315_of_diluted_wines" in schema.names
    assert all(name.isidentifier() for name in schema.names)


@pytest.mark.parametrize("name", ["iris", "digits"])
def test_every_format_holds_the_same_records(tmp_path, name):
    contents = {}
    for file_format in FORMATS:
        if file_format == "csv" and name == "digits":
            continue
        schema = write_sample(name, str(tmp_path / file_format), file_format).schema
        contents[file_format] = read(tmp_path / file_format / "test", schema)

    expected = contents.pop("recordio")
    for file_format, records in contents.items():
        for one, other in zip(expected, records, strict=True):
            for field in schema.names:
                np.testing.assert_array_equal(one[field], other[field], err_msg=file_format)
                assert one[field].dtype == other[field].dtype


def test_files_depend_only_on_the_seed(tmp_path):
    files = {
        key: write_sample("iris", str(tmp_path / key), seed=seed).files
        for key, seed in {"a": 0, "b": 0, "c": 1}.items()
    }

    contents = {key: [Path(file).read_bytes() for file in files[key]] for key in files}
    assert contents["a"] == contents["b"] != contents["c"]


def test_writing_again_replaces_the_files(tmp_path):
    first = write_sample("iris", str(tmp_path))

    assert write_sample("iris", str(tmp_path)).files == first.files


@pytest.mark.parametrize(
    ("name", "seed", "found"), [("wine", 0, "name iris seed 0"), ("iris", 1, "name iris seed 0")]
)
def test_another_sample_or_seed_is_not_overwritten(tmp_path, name, seed, found):
    files = write_sample("iris", str(tmp_path)).files
    before = [Path(file).read_bytes() for file in files]

    with pytest.raises(OutputTakenError, match=rf"contains {found}; part-.* is not overwritten"):
        write_sample(name, str(tmp_path), seed=seed)
    assert [Path(file).read_bytes() for file in files] == before


def test_other_files_with_the_names_of_a_sample_are_not_overwritten(tmp_path):
    files = write_sample("iris", str(tmp_path)).files
    (tmp_path / ".sample.json").unlink()

    with pytest.raises(OutputTakenError, match="files that are not known to be a sample"):
        write_sample("iris", str(tmp_path))
    assert len(files) == 6


def test_a_folder_with_other_files_is_left_alone(tmp_path):
    write_sample("iris", str(tmp_path))

    with pytest.raises(
        OutputTakenError, match=r"test holds other files \(part-00000-of-00002\.rec"
    ):
        write_sample("iris", str(tmp_path), "csv")


def test_pictures_are_not_written_as_csv(tmp_path):
    with pytest.raises(UsageError, match="contain images, .*recordio, tfrecord, parquet"):
        write_sample("digits", str(tmp_path), "csv")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_sample_is_answered_with_the_known_ones(tmp_path):
    with pytest.raises(UsageError, match="no sample 'irises'; did you mean 'iris'.*breast_cancer"):
        write_sample("irises", str(tmp_path))


def test_without_scikit_learn_the_error_has_the_install_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'elasticdl\[samples\]'"):
        write_sample("iris", str(tmp_path))
