"""A folder of images is a data set: a file is a record, its folder a class."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from elasticdl.data.data_index import decode, encode, index_of
from elasticdl.data.index_file import write_index_files
from elasticdl.data.overview import summarize_files
from elasticdl.data.schema import MissingFieldError, Schema
from elasticdl.data.sources import find_files, index_data, open_index, open_source
from elasticdl.data.units import decoded_bytes
from elasticdl.errors import CorruptDataError, DataError, NoDataError, SchemaError

IMAGE = {"name": "pixels", "shape": [2, 2], "dtype": "uint8"}
LABEL = {"name": "kind", "shape": [1], "dtype": "int64"}
SCHEMA = Schema.from_user([LABEL, IMAGE])


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def draw(*paths, colour=0):
    for path in paths:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (2, 2), colour).save(path)


def labels(source, schema=SCHEMA):
    return [int(r["kind"][0]) for r in source.read_records(0, source.num_records, schema)]


# --- folders and classes -------------------------------------------------------------------------


def test_classes_are_numbered_by_sorted_folder_names(folder):
    draw("p/dog/1.png", "p/10/2.jpg", "p/9/deep/er/3.webp", "p/cat/4.JPEG")

    source = open_source("p")

    assert source.classes == ("10", "9", "cat", "dog")
    assert [file.uri for file in source.files] == [
        "p/10/2.jpg", "p/9/deep/er/3.webp", "p/cat/4.JPEG", "p/dog/1.png",
    ]  # fmt: skip
    assert labels(source) == [0, 1, 2, 3]


def test_classes_and_pixels_match_keras(folder):
    import keras

    draw("p/b/1.png", colour=10)
    draw("p/a/x/2.png", "p/a/_3.png", "p/.c/4.png", colour=200)
    made = keras.utils.image_dataset_from_directory(
        "p", image_size=(3, 5), shuffle=False, batch_size=None, verbose=False
    )
    schema = Schema.from_user([{"name": "x", "shape": [3, 5, 3], "dtype": "float32"}, LABEL])

    source = open_source("p")

    assert list(source.classes) == made.class_names
    by_file = dict(zip(made.file_paths, made.as_numpy_iterator(), strict=True))
    assert sorted(by_file) == [file.uri for file in source.files]
    for record, (_, (pixels, label)) in zip(
        source.read_records(0, 3, schema), sorted(by_file.items()), strict=True
    ):
        np.testing.assert_array_equal(record["x"], pixels)
        assert record["kind"] == label


@pytest.mark.parametrize("name", ["p/", "./p", "file://{}/p", "{}/p", "*", "p,q"])
def test_classes_do_not_depend_on_how_the_folder_is_named(folder, name):
    draw("p/a/1.png", "p/b/2.png")
    if name == "p,q":
        draw("q/b/3.png")

    assert open_source(name.format(folder)).classes == ("a", "b")


def test_several_folders_share_their_classes(folder):
    draw("p/a/1.png", "p/c/2.png", "q/b/3.png", "q/c/4.png")

    source = open_source("p,q")

    assert labels(source) == [0, 2, 1, 2]


def test_flat_folders_and_files_have_no_classes(folder):
    draw("p/a/1.png", "p/a/2.png", "p/b/3.png")

    assert open_source("p/a").classes == ()
    assert open_source("p/*/*.png").classes == ()
    assert "label" not in open_source("p/a/1.png").read_records(0, 1, None)[0]


def test_data_files_of_a_folder_come_before_its_images(folder):
    draw("p/a/1.png", "p/plot.png")
    (folder / "p/table.csv").write_text("x\n1\n")

    assert find_files("p") == ["p/table.csv"]


def test_hidden_files_and_other_files_are_skipped(folder):
    draw("p/a/1.png", "p/b/_DSC0001.JPG", "p/a/.2.png", "p/.git/3.png", "p/__MACOSX/4.png")
    for name in ("p/.DS_Store", "p/a/Thumbs.db", "p/a/notes.txt", "p/README.md"):
        (folder / name).write_text("x")

    assert find_files("p") == ["p/a/1.png", "p/b/_DSC0001.JPG"]
    assert find_files("p/b/*.JPG") == ["p/b/_DSC0001.JPG"]


def test_images_on_other_file_systems_are_found(folder):
    import fsspec

    draw("p/a/x/1.png", "p/b/2.png")
    system = fsspec.filesystem("memory")
    system.put("p", "/images-of-a-test", recursive=True)
    try:
        source = open_source("memory://images-of-a-test")

        assert source.classes == ("a", "b")
        assert labels(source) == [0, 1]
    finally:
        system.rm("/images-of-a-test", recursive=True)


def test_links_to_folders_are_followed(folder):
    draw("p/a/1.png", "q/2.png")
    (folder / "p/b").symlink_to(folder / "q")

    assert find_files("p") == ["p/a/1.png", "p/b/2.png"]


def test_a_circular_link_is_refused(folder):
    draw("p/a/1.png", "p/b/2.png")
    (folder / "p/a/loop").symlink_to("..")

    with pytest.raises(DataError, match=r"^p/a/loop is a link to a folder that contains it"):
        open_source("p")


def test_an_empty_class_folder_is_refused(folder):
    draw("p/a/1.png", "p/b/2.png")
    (folder / "p/c").mkdir()

    with pytest.raises(DataError, match=r"^The folder p contains .* \(a, b\).* no image is in c\."):
        open_source("p")


def test_images_beside_class_folders_are_refused(folder):
    draw("p/a/1.png", "p/2.png")

    with pytest.raises(DataError, match=r"so the class of 2\.png is unknown.*'p/\*\.png'"):
        open_source("p")
    assert open_source("p/*.png").num_records == 1


@pytest.mark.parametrize("place", ["p", "p/a"])
def test_images_in_an_unsupported_format_are_not_skipped_silently(folder, place):
    draw("p/a/1.png", "p/b/2.png")
    (folder / "p/a/3.HEIC").write_text("x")

    with pytest.raises(DataError, match=rf"^The folder {place} contains 1 image in .* \(3\.HEIC\)"):
        open_source(place)


@pytest.mark.parametrize("place", ["p", "p/yes"])
def test_the_error_on_other_files_suggests_preparing_records(folder, place):
    for name in ("p/yes/1.wav", "p/no/2.wav"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text("x")

    with pytest.raises(NoDataError, match=r"such as p/.*wav into records, write a function prep"):
        open_source(place)


# --- records -------------------------------------------------------------------------------------


def test_without_a_schema_a_record_has_an_image_and_a_label(folder):
    draw("p/a/1.png", "p/b/2.png", colour=9)

    record = open_source("p").read_records(1, 2, None)[0]

    np.testing.assert_array_equal(record["image"], np.full((2, 2, 3), 9, np.uint8))
    np.testing.assert_array_equal(record["label"], [1])


@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_a_label_has_the_shape_and_dtype_of_its_field(folder, dtype):
    draw("p/a/1.png", "p/b/2.png")
    schema = Schema.from_user([IMAGE, {"name": "kind", "shape": [], "dtype": dtype}])

    found = open_source("p").read_records(1, 2, schema)[0]["kind"]

    assert (found.shape, found.dtype, found.tolist()) == ((), np.dtype(dtype), 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ([IMAGE, {**IMAGE, "name": "other"}], "2 fields are an image .*'pixels', 'other'"),
        ([LABEL, {**LABEL, "name": "other"}], "2 fields are a whole number: 'kind', 'other'"),
        ([IMAGE, {"name": "t", "shape": [], "dtype": "string"}], "t: .* is neither an image nor"),
    ],
)
def test_ambiguous_fields_are_refused(folder, fields, message):
    draw("p/a/1.png")

    with pytest.raises(SchemaError, match=message):
        open_source("p").read_records(0, 1, Schema.from_user(fields))


def test_a_label_is_missing_without_classes(folder):
    draw("p/1.png")

    with pytest.raises(MissingFieldError, match=r"^p/1\.png is in no class folder, so .*'kind'"):
        open_source("p").read_records(0, 1, SCHEMA)


@pytest.mark.parametrize("data", ["p/*/*.png", "p/china", "p/china/1.png,p/india/b"])
def test_images_of_class_folders_without_the_folder_above_are_refused_with_it(folder, data):
    draw("p/china/1.png", "p/india/2.png", "p/india/b/3.png")

    with pytest.raises(
        MissingFieldError,
        match=r"^p/china/1\.png has no class, so the field 'kind' is missing: .*\. If 'china' is a "
        "class, pass the folder above it, which contains all class folders: --data=p$",
    ):
        open_source(data).check_labels(SCHEMA)


def test_a_damaged_image_is_named(folder):
    draw("p/a/1.png", "p/a/2.png")
    (folder / "p/a/2.png").write_bytes(b"")
    source = open_source("p")

    assert len(source.read_records(0, 1, SCHEMA)) == 1
    with pytest.raises(CorruptDataError, match=r"^p/a/2\.png: .* an empty file"):
        source.read_records(0, 2, SCHEMA)


@pytest.mark.parametrize("name", ["1.jpg", "1.png", "1.webp", "1.gif"])
@pytest.mark.parametrize("share", [0.04, 0.7])
def test_a_truncated_image_is_not_mistaken_for_another_format(folder, name, share):
    draw(f"p/a/{name}")
    content = (folder / "p/a" / name).read_bytes()
    (folder / "p/a" / name).write_bytes(content[: max(16, int(share * len(content)))])

    with pytest.raises(CorruptDataError) as caught:
        open_source("p").read_records(0, 1, SCHEMA)

    assert f"p/a/{name}: damaged or cut off: it cannot be decoded" in str(caught.value)
    assert "byte 0" not in str(caught.value)


def test_opening_a_folder_reads_no_file(folder):
    draw("p/a/1.png", "p/b/2.png")
    source = open_source("p")
    (folder / "p/a/1.png").write_bytes(b"")

    assert source.num_records == 2
    with pytest.raises(DataError, match=r"^p/a/1\.png has changed while it was read"):
        source.read_bytes(0, 1)


def test_memory_of_decoded_images_is_known_before_decoding(folder):
    draw("p/a/1.png", "p/b/2.png")
    source = open_source("p")

    assert decoded_bytes(source, None) == 2 * 2 * 3
    assert decoded_bytes(source, SCHEMA) == 2 * 2 + 8


# --- numbers of classes --------------------------------------------------------------------------


def test_other_data_use_the_class_numbers_of_a_model(folder):
    draw("p/b/1.png", "p/d/2.png")

    source = open_source("p").numbered_by(["a", "b", "c", "d"])

    assert labels(source) == [1, 3]
    assert labels(open_index(index_of(source)).numbered_by(source.classes)) == [1, 3]
    with pytest.raises(
        DataError,
        match=r"^p/d/2\.png is in the class folder 'd', which is not one of the model's 2 classes "
        r"'a', 'b' \(there are 2 class folders\)\. Rename",
    ):
        source.numbered_by(["a", "b"])


def test_display_names_do_not_change_class_numbers(folder):
    draw("p/0/1.png", "p/1/2.png")

    assert labels(open_source("p").numbered_by(["zero", "one"])) == [0, 1]


def test_names_of_other_folders_in_other_case_do_not_rename_folders(folder):
    draw("p/ant/1.png", "p/bee/2.png")

    assert labels(open_source("p").numbered_by(["Ant", "Bee"])) == [0, 1]
    with pytest.raises(DataError, match="in sorted order, 'ant' to 'Bee'"):
        open_source("p").numbered_by(["Bee", "Ant"])


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        (["p/1.png"], "is in no class folder"),
        (["p/all/a/1.png", "p/all/b/2.png"], "are in one class folder, 'all', so there is noth"),
        (["p/train/a/1.png", "p/val/a/2.png"], "'train', 'val' would be classes, but are named"),
        (["p/train/a/1.png", "p/test/a/2.png", "p/new/3.png"], "'new', 'test', 'train' would be"),
    ],
)
def test_folders_unfit_as_labels_are_refused(folder, paths, message):
    draw(*paths)

    with pytest.raises(DataError, match=message):
        open_source("p").check_labels(SCHEMA)
    open_source("p").check_labels(Schema.from_user([IMAGE]))


def test_classes_may_have_names_of_parts(folder):
    draw("p/train/1.png", "p/test/2.png", "p/dog/3.png")

    open_source("p").check_labels(SCHEMA)


# --- index ---------------------------------------------------------------------------------------


def test_an_index_has_the_classes(folder):
    draw("p/a/1.png", "p/b/c/2.png")
    index = index_of(open_source("p"))

    source = open_index(decode(encode(index), "the index"))

    assert source.classes == ("a", "b")
    assert labels(source) == [0, 1]


def test_with_an_index_the_named_folder_determines_the_classes(folder):
    draw("p/a/1.png", "p/b/x/2.png", "p/b/y/3.png")
    write_index_files(index_data("p", lambda *_: None))

    assert open_source("p").classes == ("a", "b")
    assert open_source("p/b").classes == ("x", "y")


def test_an_overview_counts_the_classes(folder):
    draw("p/a/1.png", "p/b/2.png", "p/b/3.png")

    overview = summarize_files("p", limit=1)

    assert (overview.format, overview.layout) == ("images", "classes: a (1), b (2)")
    assert [field.shape for field in overview.fields] == ["[2, 2, 3]", "[1]"]
