"""Reader for the sections that the configs of aggregator and party share.

These are connections, data and the model. Each function reads one section, records its problems,
and returns None if it cannot be used. No file is opened or imported: a user's file is only checked
to exist inside the config's folder.

Callers: `reading.py`.
"""

from __future__ import annotations

import keyword
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from elasticdl.data.wording import shown
from elasticdl.engines.federated.config import ibmfl_names
from elasticdl.engines.federated.config.component_sections import (
    CLASS_KEYS,
    DATA_DIR,
    data_in,
    names_components,
    read_components,
)
from elasticdl.engines.federated.config.settings import Address, Data, DataHandler, ModelChoice, Tls
from elasticdl.job import ModelReference
from elasticdl.zoo.specs import folder_of

if TYPE_CHECKING:
    from elasticdl.engines.federated.config.section import Section

# A party's name is used for folders and in certificates.
_PARTY_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SHA256 = re.compile(r"[0-9a-fA-F]{64}")
_LOOPBACK = ("localhost", "127.", "::1", "0:0:0:0:0:0:0:1")
_HIGHEST_PORT = 65535
_CUSTOM_MODEL = ("model_zoo", "model_def", "params", "dialect")


def _folder(file: Path) -> Path:
    return file.resolve().parent


def path_of(section: Section, key: str, file: Path) -> Path | None:
    """Read a path on this machine, which may be relative to the config's folder.

    A URI is recorded as a problem.

    Args:
        section: The section with the key.
        key: The key.
        file: The config.

    Returns:
        The absolute path; None if the key is missing.
    """
    text = section.text(key, "the path of a file")
    if text is not None and "://" in text:
        section.problem(key, f"is {text!r}; expected a path on this machine")
    return None if text is None else _folder(file) / Path(text).expanduser()


def read_connection(
    section: Section, file: Path, *, own_name: bool
) -> tuple[Address | None, Tls | None, str]:
    """Read `connection`, recording problems and warnings in it.

    Args:
        section: `connection` of a config.
        file: The config; paths are relative to its folder.
        own_name: True for a party's config. The party's name must then be valid as the name of a
            folder. An address in it is ignored with a warning, because a party does not listen.

    Returns:
        Three values: the address on which an aggregator listens, None for a party or if it is not
        set; the files for TLS, None without encryption; and the name, which is `info.id` or else
        the name of the config file without its suffix.
    """
    if section:
        look_up(section, ibmfl_names.CONNECTION_NAMES)
    if section.flag("sync", default=False):
        section.warning("sync", "has no effect: a round always waits for its replies")
    info = section.section("info")
    tls = _tls(info.section("tls_config"), file, at_party=own_name)
    name = info.text("id", "a name") or file.stem
    listen = None
    if own_name:
        if not _PARTY_NAME.fullmatch(name):
            info.problem(
                "id",
                f"is {name!r}; expected at most 64 letters, digits, dots, dashes and underscores, "
                "because it is used as the name of a folder. Without an id, the name of the config "
                "file is used",
            )
        for key, value in (("ip", info.text("ip")), ("port", info.whole("port"))):
            if value is not None:
                info.warning(
                    key, "is ignored: a party opens no port, it connects to the aggregator"
                )
    elif "ip" in info or "port" in info:
        listen = _address(info, tls)
    no_broker = "parties connect to the aggregator, and there is no broker. Leave it out"
    info.close(dict.fromkeys(("credentials", "role", "task_name"), no_broker), more=("ip", "port"))
    section.close()
    return listen, tls, name


def read_aggregator_address(section: Section, tls: Tls | None) -> Address | None:
    """Read the aggregator's address from a party's config.

    An address of another machine without TLS causes a warning.

    Args:
        section: `aggregator` of the party's config.
        tls: The files for TLS; None without encryption.

    Returns:
        The address; None if the section is missing, or if it has a problem, which is recorded.
    """
    address = _address(section, tls) if section else None
    section.close()
    return address


def _address(section: Section, tls: Tls | None) -> Address | None:
    host = section.text("ip", "a host name or an IP address")
    port = section.whole("port", low=1, high=_HIGHEST_PORT)
    if "ip" not in section:
        section.missing("ip", "set it to the aggregator's host name or IP address")
    if "port" not in section:
        section.missing("port", "set it to the aggregator's port, such as 5000")
    if host is None or port is None:
        return None
    if tls is None and not host.startswith(_LOOPBACK):
        section.warning(
            "ip",
            f"is {host}, but the connection is not encrypted. Make certificates with `elasticdl "
            "federated keys` and name them in connection.info.tls_config",
        )
    return Address(host.strip(), port)


def _tls(section: Section, file: Path, *, at_party: bool) -> Tls | None:
    enabled = section.flag("enable", default=section.there)
    tls = Tls(
        *(path_of(section, key, file) for key in ("ca_certificate", "certificate", "private_key"))
    )
    needed = ("ca_certificate",) if at_party else ("ca_certificate", "certificate", "private_key")
    for key in needed if enabled else ():
        if key not in section:
            section.missing(key, "set the file that `elasticdl federated keys` wrote")
    section.close()
    return tls if enabled else None


def look_up(section: Section, table: ibmfl_names.NameTable) -> ibmfl_names.Known | None:
    """Look up `name` and `path` of a section in a table of IBM FL's names.

    An unsupported name is recorded as a problem. A missing name is not, because some sections are
    valid without one.

    Returns:
        ElasticDL's equivalent; None if the name is missing or unsupported.
    """
    name = section.text("name", "a name")
    path = section.text("path", "a dotted path")
    if name is None:
        return None
    try:
        return table.look_up(name, path)
    except ibmfl_names.UnsupportedNameError as problem:
        section.problem("name", f"is {name!r}: {problem}")
        return None


def read_protocol(section: Section, role: str) -> None:
    """Record a problem if `protocol_handler` does not match the config's role.

    Args:
        section: `protocol_handler` of a config.
        role: "aggregator" or "party".
    """
    found = look_up(section, ibmfl_names.PROTOCOL_NAMES)
    if found is not None and found.ours != role:
        section.problem(
            "name", f"belongs in the {found.ours}'s config; this is the {role}'s config"
        )
    section.close()


def read_data(section: Section, file: Path) -> Data | None:
    """Read `data`: the source of the examples.

    Args:
        section: `data` of a config.
        file: The config; paths are relative to its folder.

    Returns:
        The source; None if the section is missing, or if it has a problem, which is recorded.
    """
    if not section:
        return None
    uri, validation_uri = section.text("uri"), section.text("validation_uri")
    data_dir = section.text(DATA_DIR, "a folder")
    name, path = section.text("name", "the name of a class"), section.text("path")
    info = section.values("info")
    section.close()
    if data_dir is not None:
        return data_in(section, _located(data_dir, file))
    if uri is not None:
        for key in ("name", "path", "info"):
            if key in section:
                section.problem(
                    key, "cannot be combined with uri; expected records or a class, not both"
                )
        return Data(_located(uri, file), validation_uri and _located(validation_uri, file))
    if validation_uri is not None:
        section.problem("validation_uri", "needs uri as well: set the records to train on")
        return None
    return _handled(section, file, name, path, info)


def _handled(
    section: Section, file: Path, name: str | None, path: str | None, info: dict[str, Any]
) -> Data | None:
    """Return the settings of data that a user's class reads (a data handler).

    A missing or invalid name or path is recorded as a problem.

    Args:
        section: `data` of a config, where problems are recorded.
        file: The config.
        name: Name of the class.
        path: The Python file that defines the class, relative to the config's folder.
        info: Argument of the class's constructor.

    Returns:
        The data; None if the name is missing, or if the file is missing or cannot be used.
    """
    if name is None or path is None:
        for key, what in (
            ("name", "set the uri of the records, or name a class with get_data()"),
            ("path", "set the Python file with the class, next to this file"),
        ):
            if key not in section:
                section.missing(key, what)
                break
        return None
    if not name.isidentifier() or keyword.iskeyword(name):
        section.problem("name", f"is {name!r}; expected the name of a class")
    source = _own_file(section, path, file)
    return None if source is None else Data(handler=DataHandler(name, source, info))


def _located(uri: str, file: Path) -> str:
    """Resolve a path relative to the config's folder; return a URI or absolute path unchanged."""
    if "://" in uri or Path(uri).is_absolute():
        return uri
    return str(_folder(file) / Path(uri).expanduser())


def _own_file(section: Section, path: str, file: Path) -> Path | None:
    """Return the Python file that a path names; it must be inside the folder of the config.

    Args:
        section: `data` of a config, where problems are recorded.
        path: A path, or the dotted name of a module.
        file: The config.

    Returns:
        The file; None if it is missing, outside the folder, or a module of IBM FL. A problem is
        then recorded.
    """
    problem = ibmfl_names.data_handler_problem(path)
    if problem:
        section.problem("path", f"is {path!r}: {problem}")
        return None
    folder = _folder(file)
    dotted = all(part.isidentifier() for part in path.split(".")) and not path.endswith(".py")
    inside = Path(*path.split(".")).with_suffix(".py") if dotted else Path(path).expanduser()
    source = (folder / inside).resolve()
    # Links are followed, because the import will follow them as well.
    if not source.is_relative_to(folder):
        section.problem(
            "path",
            f"is {path!r}, outside {folder}; expected a Python file inside the folder of this "
            "config. Copy it there",
        )
        return None
    if not source.is_file():
        section.problem(
            "path",
            f"is {path!r}, but the file {source} does not exist. Specify a Python file in the "
            "folder",
        )
        return None
    return source


def read_model(section: Section, file: Path) -> ModelChoice | None:
    """Read `model`: ElasticDL's own keys, a session's components, or a saved file with its spec.

    Args:
        section: `model` of a config.
        file: The config; paths are relative to its folder.

    Returns:
        The model; None if the section is missing, or if it has a problem, which is recorded.
    """
    if not section:
        return None
    if names_components(section):
        return read_components(section, file)
    own = [key for key in _CUSTOM_MODEL if key in section and key != "params"]
    choice = _own_model(section, file) if own else _saved_model(section, file)
    section.close(more=(*_CUSTOM_MODEL, *CLASS_KEYS, "name", "path", "spec", "trust"))
    return None if choice is None else replace(choice, written=section.everything())


def _own_model(section: Section, file: Path) -> ModelChoice | None:
    """Read a model that is described by ElasticDL's own keys; None without a valid `model_def`."""
    zoo, model_def = section.text("model_zoo"), section.text("model_def")
    dialect, params = section.text("dialect"), _params(section)
    for key in ("name", "path", "spec", "info", "trust"):
        if key in section:
            section.values(key) if key in {"spec", "info", "trust"} else section.text(key)
            section.problem(
                key,
                "is for a saved model and cannot be combined with model_def. Keep one of the two",
            )
    if model_def is None:
        if "model_def" not in section:
            section.missing("model_def", "set the file and function, such as mnist.model")
        return None
    return ModelChoice(
        ModelReference(
            zoo=None if zoo is None else _zoo(zoo, file),
            model_def=model_def,
            dialect=dialect,
            params=params,
            config_file=str(file.resolve()),
        )
    )


def _params(section: Section) -> dict[str, Any]:
    """Return the model's params; record a problem if one is not a JSON value.

    They are saved with the model as JSON.
    """
    params = section.values("params")
    for key, value in params.items():
        if (odd := _not_plain(value)) is not None:
            section.section("params").problem(
                key,
                f"has a {type(odd).__name__}, {shown(odd)}; expected numbers, strings, true or "
                "false, lists and sections of them. Put it in quotes if it is a string",
            )
    return params


def _not_plain(value: Any) -> Any:
    """Return the first value within `value` that JSON cannot hold; None if there is none."""
    if isinstance(value, dict | list | tuple):
        inner = value.values() if isinstance(value, dict) else value
        return next((odd for each in inner if (odd := _not_plain(each)) is not None), None)
    return None if value is None or isinstance(value, bool | int | float | str) else value


def _zoo(zoo: str, file: Path) -> str:
    """Return a zoo's folder as an absolute path; the address of a repository is unchanged."""
    if re.match(r"[\w+.-]+://|[\w.-]+@[\w.-]+:", zoo):
        return zoo
    return str((_folder(file) / Path(zoo).expanduser()).resolve())


def _saved_model(section: Section, file: Path) -> ModelChoice | None:
    """Read a model that is a saved file; None if its `name` is missing or unsupported.

    The contents of `spec` are not checked here: the dialect `ibmfl_spec` reads them.
    """
    found = look_up(section, ibmfl_names.MODEL_NAMES)
    if "name" not in section:
        section.missing(
            "name", "set it to KerasFLModel, TensorFlowFLModel or PytorchFLModel, or set model_def"
        )
    spec = section.values("spec")
    if "spec" not in section:
        section.missing("spec", "expected keys such as model_name and model_definition")
    info = section.section("info")
    info.close(
        {"gpu": "a process uses the visible devices. Set CUDA_VISIBLE_DEVICES, and leave it out"}
    )
    trust = _trust(section.section("trust"))
    # Only checked here: the dialect reads the params from the same section.
    _params(section)
    if found is None:
        return None
    here = file.resolve()
    zoo = folder_of(here)
    return ModelChoice(
        ModelReference(
            zoo=str(zoo),
            model_def=here.relative_to(zoo).as_posix(),
            dialect="ibmfl_spec",
            config_file=str(file.resolve()),
        ),
        spec=spec,
        trust=trust,
    )


def _trust(section: Section) -> dict[str, Any]:
    """Read `model.trust`: which kinds of code in a saved file may run, such as pickles.

    If the section allows any, it must also contain the SHA-256 of the trusted file. A missing
    SHA-256 is then recorded as a problem.

    Returns:
        `allow_pickle`, `allow_lambda` and `sha256`; empty if there is no such section.
    """
    allowed = {key: section.flag(key, default=False) for key in ("allow_pickle", "allow_lambda")}
    digest = section.text("sha256", "the SHA-256 of the file: 64 hexadecimal digits")
    if digest is not None and not _SHA256.fullmatch(digest):
        section.problem(
            "sha256", f"is {digest!r}; expected 64 hexadecimal digits, as sha256sum prints them"
        )
    if any(allowed.values()) and "sha256" not in section:
        section.missing(
            "sha256",
            "expected the digest of the trusted file, so that no other file is trusted. Set it to "
            "the output of sha256sum",
        )
    section.close()
    return {**allowed, "sha256": digest.lower() if digest else None} if section else {}
