"""A dialect: a file with a dict `EXPERIMENT` of functions."""

from __future__ import annotations

from elasticdl.definition import ModelDefinition, Origin, RecordInput

NAME = "experiment"
TITLE = "an experiment of the team"
NEEDS = "a dict EXPERIMENT with model, batch, loss, optimizer"


def matches(model_code):
    """Return whether the file has an experiment."""
    return model_code.find("EXPERIMENT") is not None


def define(model_code):
    """Return the definition of an experiment."""
    symbol = model_code.find("EXPERIMENT")
    parts = symbol.value
    return ModelDefinition(
        origin=Origin(NAME, symbol.file, symbol.line, symbol.name, model_code.zoo),
        framework="torch",
        create_model=parts["model"],
        input=RecordInput(parts["batch"]),
        loss=parts["loss"],
        create_optimizer=lambda: lambda parameters, model: parts["optimizer"](parameters),
    )
