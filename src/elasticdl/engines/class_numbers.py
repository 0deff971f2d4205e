"""Class numbers: assigns each class the same number in all data and in the trained model.

    training data    the folders' sorted names, or `classes` of the model file --> definition
    other data       numbered by the definition, whichever of the classes they contain
    trained model    keeps the names (`artifacts/trained_model.py`)

Only data whose classes are folders need numbering; the labels of other data are stored.

Callers: `record_data.py`, `training_context.py`, `federated/client/party.py`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from elasticdl.data.record_source import HasClassNames, RecordSource
from elasticdl.data.wording import listed
from elasticdl.definition import Mode, ModelDefinition, RecordInput
from elasticdl.errors import DataError, DefinitionError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasticdl.data.schema import Schema


@runtime_checkable
class ClassFolders(RecordSource, HasClassNames, Protocol):
    """A record source that derives class numbers from class names, such as the names of folders."""

    def numbered_by(self, classes: Sequence[str]) -> RecordSource:
        """Return the same records, with each class numbered by its position in `classes`.

        Raises:
            DataError: A class is not in the list.
        """
        ...

    def without_classes(self, reason: str) -> RecordSource:
        """Return the same records without labels, to predict on classes unknown to the model.

        Args:
            reason: Message about the unknown class. It is shown if the labels are needed later.
        """
        ...

    def check_classified(self, schema: Schema, option: str) -> None:
        """Check before an evaluation that each record has a class, if the schema has a label.

        Raises:
            MissingFieldError: A record has no class; the error names the option of the data.
        """
        ...

    def check_labels(self, schema: Schema) -> None:
        """Check before training that the labels are usable: for example, there must be two classes.

        Raises:
            DataError: The labels cannot be learned.
        """
        ...


def of_model(source: RecordSource, classes: Sequence[str], mode: Mode) -> RecordSource:
    """Return the records with the class numbers of the model, instead of the source's own numbers.

    Args:
        source: The records.
        classes: Names of the model's classes by number; empty if they are not known.
        mode: In prediction, all records lose their labels if a class is unknown; in other modes,
            an unknown class is an error.

    Raises:
        DataError: A class is unknown to the model, and the records are not for prediction.
    """
    if not classes or not isinstance(source, ClassFolders):
        return source
    try:
        return source.numbered_by(classes)
    except DataError as error:
        if mode is Mode.PREDICTION:
            return source.without_classes(str(error))
        if mode is Mode.TRAINING:
            advice = "If the model file lists the wrong classes, correct them there."
            raise DataError(f"{error} {advice}") from error
        raise


def of_data(definition: ModelDefinition, source: RecordSource) -> ModelDefinition:
    """Return the definition, with the class names of the training data if it has none of its own.

    Raises:
        DataError: The model needs labels, and the data have no classes to learn.
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
        option: The option that names them.

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
