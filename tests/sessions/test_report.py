"""Each example of a split is in its report once, under its own name."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from elasticdl.dialects.abstractions import Components
from elasticdl.errors import DataError, DefinitionError, UserCodeError
from elasticdl.evaluation.report_tables import Report
from elasticdl.sessions import report as reporting
from elasticdl.sessions.project import open_session
from elasticdl.zoo.load_model_code import load

IDS = "class L(Loader):\n    def get_validation_index(self): return {ids}"
TEST = """
class L(Loader):
    def create_test_generator(self):
        return {generator}, {number}
"""
NAMES = tuple("abcdefghij")
OTHER_LOADER = {"data_loader_class": "parts.L"}


class Asked:
    """A model that says the sum of its input, and remembers how much it was asked at once."""

    def __init__(self):
        self.sizes = []

    def predict(self, features):
        self.sizes.append(len(features))
        return features.sum(axis=1)


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(reporting, "_BATCH", 4)


@pytest.fixture
def report(project, notes, small_batches):
    """Return what reports on a project, and gives what is said of it, the folder and the model."""

    def report(more="", **lines):
        session = open_session("first", project_root=project(more, **lines))
        trained = SimpleNamespace(
            session=session,
            model=SimpleNamespace(description=SimpleNamespace(params_sha256="abc", classes=NAMES)),
            components=Components(load(session.job().model)),
            trainer=Asked(),
        )
        found = reporting.report(trained, notes)
        return found["splits"], session.folder / "reports", trained.trainer

    return report


def ids_in(folder, name, rows_of):
    return [row[""] for row in rows_of(folder / f"{name}.csv")]


def test_each_example_is_reported_once_for_any_batch_size(report, rows_of):
    splits, folder, model = report()

    assert splits["validation"]["num_examples"] == splits["test"]["num_examples"] == 10
    assert ids_in(folder, "eval_report", rows_of) == [f"image_{i}.jpg" for i in range(10)]
    assert ids_in(folder, "validation_report", rows_of) == [str(i) for i in range(10)]
    assert model.sizes == [4, 4, 2, 4, 4, 2]


def test_a_mean_is_over_examples_and_not_over_batches(report):
    splits, _, _ = report()

    # 0 + 1 + ... + 9, of ten; the batches' means would give 5.2.
    assert splits["test"]["means"] == {"label": 4.5}


def test_the_manifest_names_the_evaluated_model(report):
    splits, folder, _ = report()

    found = json.loads((folder / "reports.json").read_text())
    assert found == {"params_sha256": "abc", "splits": splits}


@pytest.mark.parametrize(
    ("made", "called"),
    [
        ("f'image_{i}.jpg'", "image_7.jpg"),
        ("f'image_{i}.jpg'.encode()", "image_7.jpg"),
        ("np.str_(f'image_{i}.jpg')", "image_7.jpg"),
        ("np.array(f'image_{i}.jpg', object)", "image_7.jpg"),
        ("i", "7"),
        ("np.int64(i)", "7"),
        ("np.array(i)", "7"),
    ],
)
def test_test_examples_have_the_ids_of_the_loader(report, rows_of, made, called):
    generator = f"((np.zeros((2, 2)), i, {made}) for i in range(10))"
    _, folder, _ = report(TEST.format(generator=generator, number=10), **OTHER_LOADER)

    assert ids_in(folder, "eval_report", rows_of)[7] == called


@pytest.mark.parametrize("made", ["None", "np.zeros(2)", "{'id': 3}"])
def test_invalid_ids_are_refused(report, made):
    generator = f"((np.zeros((2, 2)), i, {made}) for i in range(10))"

    with pytest.raises(
        DefinitionError, match="create_test_generator.*expected its id, a string or"
    ):
        report(TEST.format(generator=generator, number=10), **OTHER_LOADER)


@pytest.mark.parametrize(
    ("ids", "called"),
    [
        ("[f'v{i}' for i in range(10)]", "v7"),
        ("np.array([f'v{i}' for i in range(10)])", "v7"),
        ("[f'v{i}'.encode() for i in range(10)]", "v7"),
        ("range(100, 110)", "107"),
        ("None", "7"),
    ],
)
def test_validation_examples_have_the_ids_of_the_index(report, rows_of, ids, called):
    _, folder, _ = report(IDS.format(ids=ids), **OTHER_LOADER)

    assert ids_in(folder, "validation_report", rows_of)[7] == called


@pytest.mark.parametrize("number", [9, 11])
def test_the_number_of_ids_must_match_the_examples(report, tmp_path, number):
    with pytest.raises(DataError, match=f"has {number} ids, but .* declares 10 examples"):
        report(IDS.format(ids=f"range({number})"), **OTHER_LOADER)

    assert not (tmp_path / "project" / "runs" / "first" / "reports" / "reports.json").exists()


def test_a_split_that_ends_early_is_refused_and_reports_nothing(report, tmp_path):
    with pytest.raises(DataError, match=r"parts.py:\d+: L.create_test_.* ended after 7 examples"):
        report(TEST.format(generator="iter(pictures('abcdefghij')[:7])", number=10), **OTHER_LOADER)

    reports = tmp_path / "project" / "runs" / "first" / "reports"
    assert not (reports / "test.parquet").exists()
    assert not (reports / "reports.json").exists()


def test_endless_test_data_are_read_to_the_stated_length_and_noted(report, rows_of, notes):
    splits, folder, _ = report(
        TEST.format(generator="itertools.cycle(pictures('abcdefghij'))", number=10), **OTHER_LOADER
    )

    assert splits["test"]["num_examples"] == 10
    assert ids_in(folder, "eval_report", rows_of) == list("abcdefghij")
    (note,) = [note for note in notes.texts if "yields more than the 10 examples" in note]
    assert "L.create_test_generator()" in note


def test_validation_data_may_be_endless(report, notes):
    splits, _, _ = report(
        """
        class L(Loader):
            def create_validation_generator(self):
                return itertools.cycle(pictures(np.ones(N))), N
        """,
        **OTHER_LOADER,
    )

    assert splits["validation"]["num_examples"] == 10
    assert [note for note in notes.texts if "more than" in note] == []


WHOLE = """
class Whole:
    def add_preprocess(self, gen, n):
        def batches():
            while part := list(itertools.islice(gen, 3)):
                x, y, third = zip(*part)
                yield np.stack(x).reshape(-1, 4).astype("float32"), np.stack(y), np.array(third)
        return batches(), -(-n // 3)
"""


def test_batches_of_the_user_are_split_into_examples(report, rows_of):
    splits, folder, model = report(WHOLE, preprocessor_class="parts.Whole")

    assert ids_in(folder, "eval_report", rows_of) == [f"image_{i}.jpg" for i in range(10)]
    assert splits["validation"]["means"] == {"label": 4.5}
    assert model.sizes == [4, 4, 2, 4, 4, 2]
    table = Report(str(folder / "test.parquet"))
    # The input is the same number four times.
    assert table.rows([7])[0]["prediction"] == 28


WEIGHTED = """
class L(Loader):
    def create_validation_generator(self):
        return iter(pictures({weights})), N
"""


def weights_in(folder):
    import pyarrow.parquet as pq

    return pq.read_table(folder / "validation.parquet").to_pydict().get("weight")


@pytest.mark.parametrize(
    ("weights", "found"),
    [
        ("np.arange(N)", list(range(10))),
        ("[np.float32(2)] * N", [2] * 10),
        ("[None] * N", None),
        ("[np.ones((2, 2))] * N", None),
    ],
)
def test_example_weights_are_in_the_report(report, weights, found):
    _, folder, _ = report(WEIGHTED.format(weights=weights), **OTHER_LOADER)

    assert weights_in(folder) == (found or [None] * 10)


@pytest.mark.parametrize("third", ["", "None,"])
@pytest.mark.parametrize("whole", [False, True])
def test_validation_examples_without_a_weight_are_reported(report, third, whole):
    splits, folder, _ = report(
        f"""
        class L(Loader):
            def create_validation_generator(self):
                return ((np.ones(1), i, {third}) for i in range(10)), N
        class P(Preprocessor):
            def add_image_preprocess(self, gen):
                return gen
        class Whole:
            def add_preprocess(self, gen, n):
                examples = list(gen)
                third = (examples[0][2],) if examples[0][2:] else ()
                if third and third[0] is not None:
                    third = ([example[2] for example in examples],)
                x = np.ones((10, 1))
                return [(x, np.arange(10), *third)], 1
        """,
        preprocessor_class="parts.Whole" if whole else "parts.P",
        **OTHER_LOADER,
    )

    assert splits["validation"]["means"] == {"label": 4.5}
    assert weights_in(folder) == [None] * 10


def test_without_an_evaluator_only_predictions_are_reported(report, rows_of):
    splits, folder, _ = report(evaluator_class=None)

    assert splits["test"]["means"] == {}
    assert len(ids_in(folder, "eval_report", rows_of)) == 10


def test_classes_have_their_names(report, rows_of, monkeypatch):
    monkeypatch.setattr(Asked, "predict", lambda _, features: np.eye(10)[: len(features)])

    _, folder, _ = report()

    rows = rows_of(folder / "validation_report.csv")
    assert [row["label_name"] for row in rows] == [*NAMES]
    assert [row["prediction_name"] for row in rows][:5] == ["a", "b", "c", "d", "a"]
    assert ">j<" in (folder / "validation.html").read_text(encoding="utf-8")


def test_an_empty_test_split_is_an_empty_report(report):
    splits, _, _ = report(TEST.format(generator="iter(())", number=0), **OTHER_LOADER)

    assert splits["test"]["num_examples"] == 0


def test_pictures_are_the_raw_inputs_of_the_worst_examples(report, monkeypatch, project):
    pictures = {}

    def write_page(table, folder, *, name, picture_of, num_worst, **more):
        worst = table.worst("label", num_worst)
        pictures[name] = {row: picture_of(row, "") for row in (*worst, 0)}

    monkeypatch.setattr(reporting, "write_page", write_page)
    monkeypatch.setattr(reporting, "_NUM_PICTURES", 3)
    evaluator = """
    class E(EvaluatorBase):
        def get_eval_funcs(self):
            return {"label": lambda y_true, y_pred: float(y_true == 5) + 2 * float(y_true == 8)}
    """
    monkeypatch.setattr(Report, "is_worse_when_larger", lambda self, metric: True)

    report(evaluator, evaluator_class="parts.E")

    for found in pictures.values():
        # Of the seven that are equally good the first comes first.
        assert list(found) == [8, 5, 0]
        assert [int(picture[0, 0]) for picture in found.values()] == [8, 5, 0]


def test_only_requested_pictures_are_stored(report, monkeypatch):
    asked = []

    def write_page(table, folder, *, picture_of, **more):
        asked.append(picture_of(9, ""))

    monkeypatch.setattr(reporting, "write_page", write_page)
    monkeypatch.setattr(reporting, "_NUM_PICTURES", 1)
    monkeypatch.setattr(Report, "is_worse_when_larger", lambda self, metric: False)

    report()

    assert asked == [None, None]


def test_searching_for_pictures_respects_its_time_limit(report, monkeypatch):
    clock = iter(range(0, 10**6, 100))
    monkeypatch.setattr(reporting, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    found = []

    def write_page(table, folder, *, picture_of, **more):
        found.append([picture_of(row, "") is not None for row in range(10)])

    monkeypatch.setattr(reporting, "write_page", write_page)
    report()

    assert found == [[True] + [False] * 9] * 2


# --- the user's batchify --------------------------------------------------------------------------

SCALING = """
class Scaling(Preprocessor):
    def add_image_preprocess(self, gen):
        return ((x.reshape(-1), y, third) for x, y, third in gen)
    def batchify(self, gen, n):
        def batches():
            while part := list(itertools.islice(gen, 4)):
                x, y, third = zip(*part)
                yield np.stack(x) / 2, np.stack(y), np.array(third)
        return batches(), -(-n // 4)
"""


def predictions_in(folder, name):
    table = Report(str(folder / f"{name}.parquet"))
    return [row["prediction"] for row in table.rows(range(10))]


def test_batchify_creates_the_inputs_of_the_model(report):
    _, folder, _ = report(SCALING, preprocessor_class="parts.Scaling")

    # Four times the number of the example, halved.
    for name in ("validation", "test"):
        assert predictions_in(folder, name) == [2 * i for i in range(10)]


DROPPING = """
class Dropping(Preprocessor):
    def batchify(self, gen, n):
        def batches():
            while True:
                yield tuple(np.stack(column) for column in zip(*[next(gen) for _ in range({size})]))
        return batches(), n // {size}
"""


@pytest.mark.parametrize("size", [3, 4, 7, 10, 11, 64])
def test_examples_that_batchify_drops_at_the_end_are_reported(report, rows_of, size):
    splits, folder, _ = report(DROPPING.format(size=size), preprocessor_class="parts.Dropping")

    assert ids_in(folder, "eval_report", rows_of) == [f"image_{i}.jpg" for i in range(10)]
    assert splits["validation"]["means"] == splits["test"]["means"] == {"label": 4.5}


def test_a_batchify_that_reads_everything_first_terminates(report):
    splits, _, _ = report(
        """
        class Listing(Preprocessor):
            def batchify(self, gen, n):
                part = list(gen)
                return iter([tuple(np.stack(column) for column in zip(*part))]), 1
        """,
        preprocessor_class="parts.Listing",
    )

    assert splits["test"]["means"] == {"label": 4.5}


def test_examples_that_batchify_repeats_are_reported_once(report, rows_of, notes):
    _, folder, _ = report(
        """
        class Repeating(Preprocessor):
            def batchify(self, gen, n):
                examples = list(gen)
                def batches():
                    for part in itertools.cycle([examples[:6], examples[6:]]):
                        yield tuple(np.stack(column) for column in zip(*part))
                return batches(), 2
        """,
        preprocessor_class="parts.Repeating",
    )

    assert ids_in(folder, "eval_report", rows_of) == [f"image_{i}.jpg" for i in range(10)]
    assert [note for note in notes.texts if "more than" in note] == []


DATASETS = """
import tensorflow as tf

class L(Loader):
    def create_test_generator(self):
        x = np.arange(N, dtype=np.uint8)
        ids = [f"image_{{i}}.jpg" for i in range(N)]
        data = tf.data.Dataset.from_tensor_slices((x, x.astype(np.float32), ids))
        return data{more}, N

class P(Preprocessor):
    def add_image_preprocess(self, gen):
        if not isinstance(gen, tf.data.Dataset):
            return super().add_image_preprocess(gen)
        return gen.map(lambda x, y, third: (tf.ones(1) * tf.cast(x, tf.float32), y, third))
    def batchify(self, gen, n):
        if not isinstance(gen, tf.data.Dataset):
            return super().batchify(gen, n)
        gen = gen.batch(4, drop_remainder={drop}).repeat()
        return gen.map(lambda x, y, third: (x / 2, y, third)), -(-n // 4)
"""


@pytest.mark.parametrize("drop", [False, True])
@pytest.mark.parametrize("more", ["", ".filter(lambda x, y, third: True)"])
def test_batches_of_a_dataset_are_split_into_examples(report, rows_of, notes, drop, more):
    _, folder, _ = report(
        DATASETS.format(drop=drop, more=more), preprocessor_class="parts.P", **OTHER_LOADER
    )

    assert ids_in(folder, "eval_report", rows_of) == [f"image_{i}.jpg" for i in range(10)]
    assert predictions_in(folder, "test") == [i / 2 for i in range(10)]
    assert [note for note in notes.texts if "more than" in note] == []


def test_a_dataset_that_ends_early_is_refused_despite_repeated_batches(report):
    with pytest.raises(DataError, match=r"L.create_test_generator\(\) ended after 7 examples"):
        report(
            DATASETS.format(drop=False, more=".take(7)"),
            preprocessor_class="parts.P",
            **OTHER_LOADER,
        )


def test_an_endless_dataset_is_read_to_the_stated_length_and_noted(report, notes):
    report(
        DATASETS.format(drop=False, more=".repeat()"), preprocessor_class="parts.P", **OTHER_LOADER
    )

    assert any("yields more than the 10 examples" in note for note in notes.texts)


def test_batches_of_different_shapes_are_predicted_separately(report):
    splits, _, model = report(
        """
        class Padding(Preprocessor):
            def add_image_preprocess(self, gen):
                return ((np.ones(1 + int(y)), y, third) for _, y, third in gen)
            def batchify(self, gen, n):
                def batches():
                    while part := list(itertools.islice(gen, 5)):
                        x, y, third = zip(*part)
                        longest = max(map(len, x))
                        x = [np.pad(each, (0, longest - len(each))) for each in x]
                        yield np.stack(x), np.stack(y), np.array(third)
                return batches(), 2
        """,
        preprocessor_class="parts.Padding",
    )

    assert splits["test"]["means"] == {"label": 4.5}
    assert model.sizes == [4, 1, 4, 1] * 2


# --- a preprocessor that takes weights only -------------------------------------------------------

WEIGHTS_ONLY = """
class Own(Preprocessor):
    def add_preprocess(self, gen, n):
        gen = self.add_image_preprocess(gen)
        gen = ((x, y, np.float32(third) * 1) for x, y, third in gen)
        return self.batchify(gen, n)

class Whole:
    def add_preprocess(self, gen, n):
        def batches():
            while part := list(itertools.islice(gen, 3)):
                x, y, third = zip(*part)
                yield np.ones((len(part), 1), np.float32), np.stack(y), np.float32(third)
        return batches(), -(-n // 3)
"""


@pytest.mark.parametrize(
    ("preprocessor", "noted"),
    [
        ("parts.Own", "made by add_image_preprocess()"),
        ("parts.Whole", "in the order of the loader"),
    ],
)
def test_custom_preprocessing_need_not_accept_ids(report, rows_of, notes, preprocessor, noted):
    splits, folder, _ = report(WEIGHTS_ONLY, preprocessor_class=preprocessor)

    assert ids_in(folder, "eval_report", rows_of) == [f"image_{i}.jpg" for i in range(10)]
    assert splits["test"]["means"] == {"label": 4.5}
    (note,) = [note for note in notes.texts if noted in note]
    assert note.startswith("test: ")


def test_preprocessing_that_always_fails_reports_the_first_error(report):
    with pytest.raises(UserCodeError, match="ValueError: the first way"):
        report(
            """
            class Own(Preprocessor):
                def add_preprocess(self, gen, n):
                    raise ValueError("the first way")
                def add_image_preprocess(self, gen):
                    raise ValueError("another way")
            class L(Loader):
                def create_validation_generator(self):
                    return iter(()), 0
            """,
            preprocessor_class="parts.Own",
            **OTHER_LOADER,
        )
