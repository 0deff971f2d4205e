"""Class numbers: assigns each class the same number in all data and in the trained model.

    training data                  the `classes` of the model file decide; without them, the sorted
                                   names of the folders, which become those of the definition
    validation, prediction data    numbered as in the definition, even if some classes do not occur
    trained model                  keeps the names (`artifacts/trained_model.py`)

Only data whose classes are folders are numbered here. In other data, a field already contains the
number. If such data also name their classes, as a Hugging Face `ClassLabel` does, the names are
compared, and it is an error if a class has another number than in the model or the training data.

Callers: `record_data.py`, `training_context.py`, `inference.py`,
`federated/client/party.py`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from elasticdl.data.class_names import names_advice
from elasticdl.data.record_source import HasClassColumns, HasClassNames, RecordSource
from elasticdl.data.split_source import whole
from elasticdl.data.wording import listed
from elasticdl.definition import Mode, ModelDefinition, RecordInput
from elasticdl.did_you_mean import did_you_mean, nearest
from elasticdl.errors import DataError, DefinitionError
from elasticdl.zoo.folder import PREBUILT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elasticdl.data.schema import Schema


# Maximum number of class names that an error message lists.
_MAX_LISTED = 20


@runtime_checkable
class ClassFolders(RecordSource, HasClassNames, Protocol):
    """Interface of a record source in which each class is a folder, named after the class."""

    def numbered_by(self, classes: Sequence[str]) -> RecordSource:
        """Return the same records, with each class numbered by its position in `classes`.

        Raises:
            DataError: A class is not in the list.
        """
        ...

    def without_classes(self, reason: str) -> RecordSource:
        """Return the same records without labels, to predict on classes unknown to the model.

        Args:
            reason: Message about the unknown class. An error shows it if a model turns out to need
                the labels.
        """
        ...

    def check_classified(self, schema: Schema, option: str) -> None:
        """Check before an evaluation that each record has a class, if the schema has a label.

        Args:
            schema: The fields that the model reads.
            option: The option that names the data, such as `--validation_data`, for the error.

        Raises:
            MissingFieldError: A record has no class.
        """
        ...

    def check_labels(self, schema: Schema) -> None:
        """Check before training that the labels are usable: for example, there must be two classes.

        Raises:
            DataError: The labels cannot be learned.
        """
        ...


def of_model(source: RecordSource, definition: ModelDefinition, mode: Mode) -> RecordSource:
    """Return the records with the class numbers of the model, instead of the source's own numbers.

    Args:
        source: The records.
        definition: The model definition; the source is returned unchanged if it has no classes.
        mode: In prediction, all records lose their labels if a class is unknown; in other modes,
            an unknown class is an error.

    Raises:
        DataError: A class is unknown to the model, and the records are not for prediction.
    """
    classes = definition.classes
    if not classes or not isinstance(source, ClassFolders):
        return source
    try:
        return source.numbered_by(classes)
    except DataError as error:
        if mode is Mode.PREDICTION:
            return source.without_classes(str(error))
        if mode is Mode.TRAINING:
            advice = "If the model file lists the wrong classes, correct them there."
            other = _not_in_data(classes, source.classes)
            if other and {*classes} & {*source.classes}:
                advice = f"`classes` of {definition.where('classes')} has {other}"
            raise DataError(f"{error} {advice}") from error
        raise


def of_data(definition: ModelDefinition, source: RecordSource) -> ModelDefinition:
    """Return the definition, with the class names of the training data if it has none of its own.

    Nothing is added if the classes of the data are not folders.

    Raises:
        DataError: The model needs labels that cannot be learned, such as those of a single class.
    """
    if definition.classes or not isinstance(source, ClassFolders):
        return definition
    if isinstance(definition.input, RecordInput) and definition.input.schema is not None:
        source.check_labels(definition.input.schema)
    return replace(definition, classes=source.classes)


def require_classes(definition: ModelDefinition, source: RecordSource, option: str) -> None:
    """Check that records to evaluate on have classes if the model's schema has a label.

    Args:
        definition: The model definition.
        source: The records.
        option: The option that names the records, such as `--data`, for the error.

    Raises:
        MissingFieldError: A record has no class.
    """
    schema = definition.input.schema if isinstance(definition.input, RecordInput) else None
    if schema is not None and isinstance(source, ClassFolders):
        source.check_classified(schema, option)


def require_names(definition: ModelDefinition, classes: Sequence[str]) -> None:
    """Check that the model file lists the classes if the folders of a party's data are classes.

    Otherwise parties with different folders would number the classes differently.

    Args:
        definition: The model file's definition, without classes found in data.
        classes: Names of the party's class folders; empty if its data has none.

    Raises:
        DefinitionError: There are class folders, and the model file does not list the classes.
    """
    if classes and not definition.classes:
        raise DefinitionError(
            f"{definition.origin}: the classes of this party are folders of images, and another "
            "party may have other folders, so the numbers of the classes are unknown. List the "
            f"classes of all parties in the model file: classes = [{listed(classes)}]"
        )


def class_columns(source: object) -> dict[str, tuple[str, ...]]:
    """Return column -> its class names, in the order of their numbers.

    Only columns for which the data define such names are included, as a Hugging Face `ClassLabel`
    does; the result is often empty.

    Args:
        source: The records, or one side of a split into training and validation records.

    Raises:
        DataError: A file cannot be read.
    """
    source = whole(source) if isinstance(source, RecordSource) else source
    found = source.class_columns() if isinstance(source, HasClassColumns) else {}
    return {column: tuple(names) for column, names in found.items()}


def names_note(columns: Mapping[str, Sequence[str]], num_classes: int, where: object) -> str:
    """Return a note on class names of the data that a model file without `classes` can take over.

    The result is empty if not exactly one column has names for the model's classes, or if the names
    are the numbers.

    Args:
        columns: The `class_columns` of the training data.
        num_classes: Number of classes that the model's output distinguishes.
        where: `file:line` of the model.
    """
    fitting = [name for name, names in columns.items() if len(names) == num_classes]
    if len(fitting) != 1:
        return ""
    names = columns[fitting[0]]
    # The digits of MNIST have their numbers as names.
    if list(names) == [*map(str, range(num_classes))]:
        return ""
    known = f"[{listed(names)}]" if num_classes <= _MAX_LISTED else "[...]"
    return (
        f"{where}: predictions will have class numbers, because the model file has no `classes`. "
        f"If the label is {fitting[0]!r}, whose classes the data name, add classes = {known}"
    )


def check_numbers(
    definition: ModelDefinition, columns: Mapping[str, Sequence[str]], what: str
) -> None:
    """Check that the order of `classes` in the model file matches the class numbers in the data.

    It is unknown which column has the labels, so one column that agrees with `classes` is enough.
    If no name is in both, those in the model file may be translations, and columns are ignored.
    If some are, each class of the data must be in the model file, which may have more classes.

    Args:
        definition: The model definition.
        columns: The `class_columns` of the data.
        what: Phrase that names the data, for the error: "the data" or "the validation data".

    Raises:
        DataError: A class has one number in the model file and another in the data, or is only
            in the data. Or a prebuilt table model has names as classes, and the data numbers.
    """
    # A prebuilt table model numbers the values of the column, whatever these denote.
    if not definition.classes or definition.complete_params is not None:
        return
    if (
        "classes" in definition.params
        and Path(definition.origin.file).resolve().parent == PREBUILT.resolve()
    ):
        label = str(definition.params.get("label", "label"))
        check_not_numbers(definition.classes, columns, label, what)
        return
    classes, where = definition.classes, definition.where("classes")
    shared = {name: names for name, names in columns.items() if {*classes} & {*names}}
    differing = {name: renumbered(classes, names) for name, names in shared.items()}
    agreeing = [name for name, number in differing.items() if number is None]
    if not shared or any(_may_be_named(shared[name], classes) for name in agreeing):
        return
    column = next(iter(agreeing or shared))
    names, number = shared[column], differing[column]
    if number is None:
        lacking = [name for name in names if name not in classes]
        other = _not_in_data(classes, names)
        raise DataError(
            f"In {what}, the column {column!r} has {len(names)} classes, and `classes` of {where} "
            f"lacks {listed(lacking[:_MAX_LISTED])}{f'; it has {other}' if other else '.'} "
            f"{_as_in_data(classes, names)}."
        )
    raise DataError(
        f"In {what}, class {number} of the column {column!r} is {names[number]!r}, but "
        f"{classes[number]!r} in `classes` of {where}, so predictions would have the wrong "
        f"names. {_as_in_data(classes, names)}. Or renumber the data. "
        f"{_alignment(column, classes)}"
    )


def check_not_numbers(
    classes: Sequence[str],
    columns: Mapping[str, Sequence[str]],
    label: str,
    what: str = "the data",
) -> None:
    """Check that the label does not hold class numbers if the model's classes are the names.

    Args:
        classes: The model's classes, as the label of the training data had them, or the param
            `classes`.
        columns: The `class_columns` of the data.
        label: Name of the label's column.
        what: Phrase that names the data, for the error.

    Raises:
        DataError: The label holds numbers, for which the data name some of these classes.
    """
    names = columns.get(label, ())
    numbers = [*map(str, range(len(names)))]
    # The digits of MNIST have their numbers as names. If the numbers, and not all names, are
    # classes of the model, it was trained on numbers.
    if list(names) == numbers or ({*numbers} <= {*classes} and not {*names} <= {*classes}):
        return
    if {*names} & {*classes}:
        raise DataError(
            f"In {what}, the column {label!r} holds class numbers (ClassLabel); the classes of the "
            f"model are names, {listed(classes[:_MAX_LISTED])}. Replace the numbers "
            f"by the names; with the package datasets: {names_advice(label)}"
        )


def check_same_numbers(
    trained_on: Mapping[str, Sequence[str]], columns: Mapping[str, Sequence[str]], what: str
) -> None:
    """Check that a class has the same number in other data as in the training data.

    Args:
        trained_on: The `class_columns` of the training data.
        columns: The `class_columns` of the other data.
        what: Phrase that names the other data, for the error: "the data" or "the validation data".

    Raises:
        DataError: A class has another number than in the training data.
    """
    for column in sorted(trained_on.keys() & columns.keys()):
        before, now = trained_on[column], columns[column]
        number = renumbered(before, now)
        if number is not None:
            raise DataError(
                f"In {what}, class {number} of the column {column!r} is {now[number]!r}, "
                f"but {before[number]!r} in the training data, so results would be wrong. "
                f"{_alignment(column, before)}"
            )


def renumbered(before: Sequence[str], now: Sequence[str]) -> int | None:
    """Return the first number that two lists of class names give to different classes, or None.

    The result is None if the lists agree, that is, if each name that is in both has the same
    position. Translated or additional names do not matter.

    Args:
        before: Class names in the order of their numbers, in the model or the training data.
        now: Class names in the order of their numbers, in other data.

    Example:
        >>> renumbered(["cat", "dog", "owl"], ["cat", "owl", "dog"])
        1
        >>> renumbered(["cat", "dog"], ["Katze", "Hund"]), renumbered(["a", "b"], ["a", "b", "c"])
        (None, None)
    """
    numbers = {name: number for number, name in enumerate(now)}
    if all(numbers.get(name, number) == number for number, name in enumerate(before)):
        return None
    shared = zip(before, now, strict=False)
    return next((number for number, (name, other) in enumerate(shared) if name != other), None)


def _may_be_named(names: Sequence[str], classes: Sequence[str]) -> bool:
    """Return False if `classes` of a model file seems to list a column's classes incompletely.

    Args:
        names: The class names of the column; those in both lists have the same numbers.
        classes: The names in the model file.
    """
    lacking = [name for name in names if name not in classes]
    if len(names) > len(classes) or any(
        nearest(name, lacking) for name in classes if name not in names
    ):
        return not lacking
    # A column that is not the label may share a name by chance.
    return not lacking or 2 * len(lacking) >= len(names)


def _not_in_data(classes: Sequence[str], names: Sequence[str]) -> str:
    """Return a phrase on names in `classes` that the data lack, with a similar one of the data.

    The result is empty if there are none. Else it ends a sentence: "'wasq', which the data do not
    have; did you mean 'wasp'?".

    Args:
        classes: The names in the model file.
        names: The class names in the data.
    """
    unknown = [name for name in classes if name not in names]
    if not unknown:
        return ""
    lacking = [name for name in names if name not in classes]
    near = [did_you_mean(name, lacking) for name in unknown]
    return (
        f"{listed(unknown[:_MAX_LISTED])}, which the data do not have"
        f"{next((each for each in near if each != '.'), '.')}"
    )


def _as_in_data(classes: Sequence[str], names: Sequence[str]) -> str:
    """Return advice for an error: list `classes` in the model file in the order of the data.

    Args:
        classes: The names in the model file; those that the data do not have come last, except one
            that is probably a misspelt name of the data.
        names: The class names in the order of the data; a long list is not shown.
    """
    lacking = [name for name in names if name not in classes]
    more = [name for name in classes if name not in names and not nearest(name, lacking)]
    names = [*names, *more[: max(0, len(classes) - len(names))]]
    known = f": classes = [{listed(names)}]" if len(names) <= _MAX_LISTED else ""
    return f"List `classes` in the model file as in the data{known}"


def _alignment(column: str, names: Sequence[str]) -> str:
    """Return Python code, for an error, that renumbers the classes of a Hugging Face data set.

    Args:
        column: The column with the classes.
        names: The class names in the wanted order.
    """
    known = f"[{listed(names)}]" if len(names) <= _MAX_LISTED else "[...]"
    return (
        f"With the package datasets: names = {known}; dataset = "
        "dataset.align_labels_with_mapping({name: i for i, name in enumerate(names)}, "
        f"{column!r})"
    )
