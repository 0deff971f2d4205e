"""Reader for the configs of an aggregator and of a party.

The files have IBM FL's format: the same sections, keys and class names, each checked. Unsupported
keys are rejected with their line. They are never ignored, because training would then differ from
what the config requests. ElasticDL adds the keys of `data` (uri, validation_uri), of `model`
(model_zoo, model_def, params, dialect, trust) and of `connection.info.tls_config`, and `output`.

Reading has no side effects: no class is imported, and no file except the config is opened. Paths
are relative to the file's folder.

Callers: the command line and `elasticdl.federated`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

from elasticdl import user_files
from elasticdl.config_file import read_config
from elasticdl.engines.federated.config import ibmfl_names
from elasticdl.engines.federated.config.component_sections import check_data
from elasticdl.engines.federated.config.hyperparams import read_fusion, read_local, read_rounds
from elasticdl.engines.federated.config.section import Notes, Section
from elasticdl.engines.federated.config.settings import (
    Address,
    AggregatorConfig,
    Data,
    DataHandler,
    FusionChoice,
    Local,
    ModelChoice,
    PartyConfig,
    Recorder,
    Rounds,
    Tls,
)
from elasticdl.engines.federated.config.shared_sections import (
    look_up,
    path_of,
    read_aggregator_address,
    read_connection,
    read_data,
    read_model,
    read_protocol,
)
from elasticdl.engines.federated.strategies.fusions import FUSIONS, Fusion
from elasticdl.errors import DefinitionError, UsageError
from elasticdl.job import CentralPrivacy

__all__ = [
    "Address",
    "AggregatorConfig",
    "Data",
    "DataHandler",
    "FusionChoice",
    "Local",
    "ModelChoice",
    "PartyConfig",
    "Recorder",
    "Role",
    "Rounds",
    "Tls",
    "read_aggregator",
    "read_party",
    "role_of",
]

Role: TypeAlias = Literal["aggregator", "party"]

_AGGREGATORS = ("fusion", "hyperparams")
_PARTYS = ("aggregator", "local_training", "metrics_recorder")
_BOTHS = ("connection", "data", "model", "protocol_handler", "privacy", "output")
_SECTIONS = (*_BOTHS, *_AGGREGATORS, *_PARTYS)
_SECURE_AGGREGATION = (
    "Flower supports it only for an older kind of app, with four requests per party and round; "
    "ElasticDL sends one. The aggregator sees the weights of each party. Leave it out"
)


def role_of(path: str | Path) -> Role:
    """Tell from a config's section names whether it is for an aggregator or a party.

    Raises:
        UsageError: The file cannot be read.
        DefinitionError: The file is not YAML, or has no section of either config.
        MissingExtraError: The package that reads YAML is not installed.
    """
    _, top, _ = _opened(path)
    return "aggregator" if any(key in top for key in _AGGREGATORS) else "party"


def read_aggregator(path: str | Path, *, is_simulated: bool = False) -> AggregatorConfig:
    """Read and check an aggregator's config.

    Args:
        path: The file.
        is_simulated: All parties run on this machine and cannot be late, so a missing timeout is
            not worth a warning.

    Raises:
        UsageError: The file cannot be read.
        DefinitionError: The file is not YAML, or is not valid; the message lists all problems,
            each with its line.
        MissingExtraError: The package that reads YAML is not installed.
    """
    file, top, notes = _opened(path)
    _check_role(file, top, "aggregator")
    listen, tls, _ = read_connection(top.section("connection"), file, own_name=False)
    data = read_data(top.section("data"), file)
    chosen, preset = read_fusion(top.section("fusion"))
    hyperparams = top.section("hyperparams")
    rounds, params = read_rounds(
        hyperparams.section("global"),
        chosen,
        preset,
        has_data=bool(data),
        waits=not is_simulated,
    )
    local = read_local(hyperparams.section("local"), chosen)
    hyperparams.close()
    model = read_model(top.section("model"), file)
    check_data(top.section("data"), data, model)
    read_protocol(top.section("protocol_handler"), "aggregator")
    central_privacy = _central_privacy(top.section("privacy"), chosen)
    output = path_of(top, "output", file)
    top.close(dict.fromkeys(_PARTYS, "it belongs in the config of a party"))
    notes.raise_problems()
    # Only for the type checker: a None here has already raised a problem.
    if chosen is None or rounds is None:
        raise DefinitionError(f"{file}: fusion and hyperparams.global are required.")
    return AggregatorConfig(
        file=file,
        fusion=FusionChoice(chosen.name, params),
        rounds=rounds,
        local=local,
        listen=listen,
        tls=tls,
        model=model,
        data=data,
        output=output,
        central_privacy=central_privacy,
        warnings=tuple(notes.warnings),
    )


def read_party(path: str | Path) -> PartyConfig:
    """Read and check a party's config.

    Raises:
        UsageError: The file cannot be read.
        DefinitionError: The file is not YAML, or is not valid; the message lists all problems,
            each with its line.
        MissingExtraError: The package that reads YAML is not installed.
    """
    file, top, notes = _opened(path)
    _check_role(file, top, "party")
    _, tls, name = read_connection(top.section("connection"), file, own_name=True)
    aggregator = read_aggregator_address(top.section("aggregator"), tls)
    data = read_data(top.section("data"), file)
    if data is None and "data" not in top:
        top.missing("data", "set the uri of the party's records, or name a class with get_data()")
    model = read_model(top.section("model"), file)
    if model is None and "model" not in top:
        top.missing("model", "set the model that all parties train")
    check_data(top.section("data"), data, model)
    local_training = _local_training(top.section("local_training"))
    read_protocol(top.section("protocol_handler"), "party")
    privacy = top.section("privacy")
    metrics_may_leave = privacy.flag("metrics", default=False)
    privacy.close(
        {
            "central": "it belongs in the aggregator's config",
            "secure_aggregation": _SECURE_AGGREGATION,
        }
    )
    recorder = _recorder(top.section("metrics_recorder"), file)
    output = path_of(top, "output", file)
    top.close(dict.fromkeys(_AGGREGATORS, "it belongs in the aggregator's config"))
    notes.raise_problems()
    if data is None or model is None:
        raise DefinitionError(f"{file}: data and model are required.")
    return PartyConfig(
        file=file,
        name=name,
        model=model,
        data=data,
        aggregator=aggregator,
        tls=tls,
        local_training=local_training,
        metrics_may_leave=metrics_may_leave,
        recorder=recorder,
        output=output,
        warnings=tuple(notes.warnings),
    )


# --- the file -------------------------------------------------------------------------------


def _opened(path: str | Path) -> tuple[Path, Section, Notes]:
    file = Path(path).expanduser()
    try:
        text = user_files.read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        inside = file / "aggregator.yml"
        example = f", such as {inside}" if inside.is_file() else ""
        raise UsageError(
            f"{file}: this config cannot be read: {reason}. Pass a YAML file{example}."
        ) from error
    notes = Notes()
    config = read_config(text, str(file))
    if not any(key in _SECTIONS for key in config):
        # Its contents are not shown, because it may be any file.
        raise DefinitionError(
            f"{file}: not the config of an aggregator or a party: it has none of their sections "
            f"({', '.join(_SECTIONS)})."
        )
    return file, Section(config, "", notes, str(file)), notes


def _check_role(file: Path, top: Section, role: Role) -> None:
    """Reject a party's config where the aggregator's is expected, and the reverse.

    It is rejected with one clear message before its sections are read. Reading it would report
    nearly all of its lines as problems.

    Args:
        file: The config.
        top: All of its sections.
        role: The expected role.

    Raises:
        DefinitionError: The config has sections that only the other role has, such as `fusion`, and
            none that only the expected role has.
    """
    own, others = (_AGGREGATORS, _PARTYS) if role == "aggregator" else (_PARTYS, _AGGREGATORS)
    found = [key for key in others if key in top]
    if found and not any(key in top for key in own):
        what = {"aggregator": "the aggregator's config", "party": "the config of a party"}
        this = what["party" if role == "aggregator" else "aggregator"]
        raise DefinitionError(
            f"{file}: this is {this}, because it has {' and '.join(found)}. Name {what[role]}."
        )


# --- an aggregator's own --------------------------------------------------------------------


def _central_privacy(privacy: Section, fusion: Fusion | None) -> CentralPrivacy | None:
    section = privacy.section("central")
    privacy.close(
        {
            "metrics": "it belongs in the config of a party",
            "secure_aggregation": _SECURE_AGGREGATION,
        }
    )
    if not section:
        if privacy.is_bare("central"):
            # An empty section is an error, because the user expects privacy to be enabled.
            privacy.problem(
                "central", "is empty; set clipping_norm and noise_multiplier in it, or remove it"
            )
        return None
    norm = section.number("clipping_norm", "a maximum norm of an update, above 0")
    multiplier = section.number("noise_multiplier", "a number, at least 0", zero=True)
    for key, what in (
        ("clipping_norm", "set the maximum norm of a party's update"),
        ("noise_multiplier", "set the ratio of noise to clipping norm, such as 1.0"),
    ):
        if key not in section:
            section.missing(key, what)
    if multiplier == 0:
        section.warning(
            "noise_multiplier", "is 0: updates are clipped, but without noise nothing is private"
        )
    section.close()
    if fusion is not None and not fusion.averages:
        averaging = ", ".join(name for name, each in FUSIONS.items() if each.averages)
        privacy.problem(
            "central",
            f"cannot be combined with {fusion.name}: it protects only the mean of the parties' "
            f"weights, and {fusion.name} needs the weights of each party. Use one of {averaging}, "
            "or leave it out",
        )
    if norm is None or multiplier is None:
        return None
    return CentralPrivacy(norm, multiplier)


# --- a party's own --------------------------------------------------------------------------


def _local_training(section: Section) -> str | None:
    found = look_up(section, ibmfl_names.LOCAL_TRAINING_NAMES)
    if section and "name" not in section:
        section.missing("name", "expected LocalTrainingHandler, or leave the section out")
    info = section.section("info")
    by_aggregator = "the aggregator sets it for all parties: hyperparams.global.rho in its config"
    info.close(
        {
            "alpha": by_aggregator,
            "rho": by_aggregator,
            "crypto": "homomorphic encryption is not supported. Leave it out",
        }
    )
    section.close()
    return None if found is None else found.ours


def _recorder(section: Section, file: Path) -> Recorder | None:
    if not section:
        return None
    look_up(section, ibmfl_names.RECORDER_NAMES)
    output = path_of(section, "output_file", file)
    kind = section.text("output_type")
    if kind not in {None, "json"}:
        section.problem("output_type", f"is {kind!r}; expected json")
    before = section.flag("compute_pre_train_eval", default=True)
    after = section.flag("compute_post_train_eval", default=True)
    if "output_file" not in section:
        section.missing("output_file", "set the file that metrics are written to")
    section.close()
    return None if output is None else Recorder(output, before, after)
