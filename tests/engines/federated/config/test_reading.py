"""The configs of an aggregator and of a party: what they ask for, and what is wrong with them."""

from __future__ import annotations

import math
import textwrap

import pytest
import yaml

from elasticdl.engines.federated.config.reading import (
    Address,
    Data,
    DataHandler,
    Local,
    Recorder,
    Rounds,
    Tls,
    read_aggregator,
    read_party,
)
from elasticdl.engines.federated.strategies.fusions import FUSIONS
from elasticdl.errors import DefinitionError, UsageError
from elasticdl.job import CentralPrivacy

SHA256 = "0123456789abcdef" * 4
AGGREGATOR = """\
connection:
  info:
    ip: 127.0.0.1
    port: 5000
    tls_config:
      enable: false
  name: FlaskConnection
  path: ibmfl.connection.flask_connection
  sync: 'False'
fusion:
  name: IterAvgFusionHandler
  path: ibmfl.aggregator.fusion.iter_avg_fusion_handler
hyperparams:
  global:
    max_timeout: 60
    num_parties: 5
    perc_quorum: 0.7
    rounds: 3
  local:
    optimizer:
      lr: 0.01
    training:
      epochs: 2
model:
  name: KerasFLModel
  path: ibmfl.model.keras_fl_model
  spec:
    model_definition: model.h5
    model_name: cnn
protocol_handler:
  name: ProtoHandler
  path: ibmfl.aggregator.protohandler.proto_handler
"""
PARTY = """\
aggregator:
  ip: 127.0.0.1
  port: 5000
connection:
  info:
    id: north
    tls_config: {enable: 'false'}
  name: FlaskConnection
  path: ibmfl.connection.flask_connection
  sync: false
data:
  info:
    npz_file: north.npz
  name: WardHandler
  path: ward.py
local_training:
  name: LocalTrainingHandler
  path: ibmfl.party.training.local_training_handler
model:
  name: PytorchFLModel
  path: ibmfl.model.pytorch_fl_model
  spec: {model_name: net, model_definition: net.pt}
protocol_handler:
  name: PartyProtocolHandler
  path: ibmfl.party.party_protocol_handler
privacy:
  metrics: 'true'
"""


@pytest.fixture
def written(tmp_path):
    """Return a function that writes a config, and what it names, and returns its path."""
    (tmp_path / "ward.py").write_text("class WardHandler: ...\n")

    def write(text, name="config.yml"):
        file = tmp_path / name
        file.write_text(textwrap.dedent(text))
        return file

    return write


@pytest.fixture
def aggregator(written):
    """Return a function that reads the config of an aggregator with some text changed."""
    return lambda *changes: read_aggregator(written(_changed(AGGREGATOR, changes)))


@pytest.fixture
def party(written):
    """Return a function that reads the config of a party with some text changed."""
    return lambda *changes: read_party(written(_changed(PARTY, changes)))


def _changed(text, changes):
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


def line_of(text, what):
    return next(i for i, line in enumerate(text.splitlines(), 1) if what in line)


# --- an aggregator ---------------------------------------------------------------------------


def test_a_config_of_an_aggregator_is_read(aggregator, tmp_path):
    config = aggregator()

    assert config.listen == Address("127.0.0.1", 5000)
    assert config.tls is None
    assert config.fusion.name == config.fusion.fusion.name == "iter_avg"
    assert config.rounds == Rounds(3, 5, perc_quorum=0.7, max_timeout_s=60.0)
    assert config.local == Local(num_epochs=2, learning_rate=0.01)
    assert config.data is None
    assert config.model.spec == {"model_definition": "model.h5", "model_name": "cnn"}
    assert config.model.reference.zoo == str(tmp_path)
    assert config.model.reference.model_def == "config.yml"
    assert config.model.reference.dialect == "ibmfl_spec"
    assert config.warnings == ()


def test_a_minimal_config_has_fusion_rounds_and_parties(written):
    config = read_aggregator(
        written("fusion: {name: fedavg}\nhyperparams: {global: {rounds: 1, num_parties: 2}}\n")
    )

    assert config.listen is config.model is config.data is config.output is None
    assert config.rounds == Rounds(1, 2)
    assert config.local == Local()


@pytest.mark.parametrize(
    ("num_parties", "part", "quorum"),
    [
        (10, 0.7, 7),
        (3, 0.5, 2),
        (3, 1.0, 3),
        (3, 0.01, 1),
        (10, 0.3, 3),
        (7, 0.29, 3),
        (100, 0.55, 55),
    ],
)
def test_a_quorum_is_a_fraction_of_parties_rounded_up(num_parties, part, quorum):
    assert Rounds(1, num_parties, perc_quorum=part).quorum == quorum


def test_params_of_the_fusion_are_keys_of_global(aggregator):
    config = aggregator(
        ("name: IterAvgFusionHandler", "name: multi_krum"),
        ("  path: ibmfl.aggregator.fusion.iter_avg_fusion_handler\n", ""),
        ("    rounds: 3", "    rounds: 3\n    num_chosen: 2"),
        ("perc_quorum: 0.7", "perc_quorum: 1"),
    )

    assert config.fusion.params == {"byzantine_threshold": 1, "num_chosen": 2}


def test_the_fed_plus_name_determines_its_centre(aggregator):
    config = aggregator(
        ("IterAvgFusionHandler", "CoordinateMedianPlusFusionHandler"),
        ("  path: ibmfl.aggregator.fusion.iter_avg_fusion_handler\n", ""),
        ("    rounds: 3", "    rounds: 3\n    rho: 0.5"),
    )

    assert config.fusion.name == "fed_plus"
    assert config.fusion.params == {"centre": "median", "rho": 0.5}


def test_an_old_name_of_num_parties_is_accepted_with_a_warning(aggregator):
    config = aggregator(("num_parties: 5", "parties: 5"))

    assert config.rounds.num_parties == 5
    (warning,) = config.warnings
    assert warning.endswith("hyperparams.global.parties: is deprecated. Use num_parties.")


def test_aggregator_data_allow_a_termination_accuracy(aggregator, tmp_path):
    config = aggregator(
        ("hyperparams:", "data: {uri: test/*.recordio}\nhyperparams:"),
        ("    rounds: 3", "    rounds: 3\n    termination_accuracy: 0.95"),
    )

    assert config.data == Data(uri=str(tmp_path / "test/*.recordio"))
    assert config.rounds.termination_accuracy == 0.95


def test_certificate_paths_are_relative_to_the_config(aggregator, tmp_path):
    config = aggregator(
        (
            "      enable: false",
            (
                "      enable: true\n"
                "      ca_certificate: keys/ca.crt\n"
                "      certificate: keys/me.crt\n"
                "      private_key: /etc/me.key"
            ),
        ),
        ("ip: 127.0.0.1", "ip: 10.0.0.1"),
    )

    keys = tmp_path / "keys"
    assert (config.tls.ca_certificate, config.tls.certificate) == (keys / "ca.crt", keys / "me.crt")
    assert str(config.tls.private_key) == "/etc/me.key"
    assert config.warnings == ()


def test_a_remote_connection_without_certificates_gets_a_warning(aggregator):
    config = aggregator(("ip: 127.0.0.1", "ip: 10.0.0.1"))

    assert (
        "connection.info.ip: is 10.0.0.1, but the connection is not encrypted."
        in config.warnings[0]
    )


def private(text):
    return "connection:", f"privacy: {{{text}}}\nconnection:"


def test_privacy_settings_are_read_from_the_config(aggregator):
    config = aggregator(private("central: {clipping_norm: 1, noise_multiplier: 0.5}"))

    assert config.central_privacy == CentralPrivacy(1.0, noise_multiplier=0.5)
    assert config.warnings == ()
    assert aggregator().central_privacy is None


def test_clipping_without_noise_gets_a_warning(aggregator):
    config = aggregator(private("central: {clipping_norm: 1, noise_multiplier: 0}"))

    assert config.central_privacy == CentralPrivacy(1.0, noise_multiplier=0.0)
    assert "privacy.central.noise_multiplier: is 0: updates are clipped" in config.warnings[0]


@pytest.mark.parametrize("fusion", [name for name, each in FUSIONS.items() if not each.averages])
def test_a_fusion_unsuitable_for_central_privacy_is_refused(aggregator, tmp_path, fusion):
    with pytest.raises(DefinitionError) as raised:
        aggregator(
            ("IterAvgFusionHandler", fusion),
            ("  path: ibmfl.aggregator.fusion.iter_avg_fusion_handler\n", ""),
            private("central: {clipping_norm: 1, noise_multiplier: 1}"),
        )

    said = f"config.yml:1: privacy.central: cannot be combined with {fusion}: it protects only"
    assert said in str(raised.value)
    assert "Use one of iter_avg, fedavg, fedprox, fedavgm, fedadagrad, fedadam, fedyogi" in str(
        raised.value
    )


def test_rounds_without_a_timeout_get_a_warning(aggregator):
    config = aggregator(("    max_timeout: 60\n", ""))

    assert "hyperparams.global.max_timeout: is missing: the aggregator waits" in config.warnings[0]


def test_a_quorum_too_small_for_the_fusion_gets_a_warning(aggregator):
    config = aggregator(
        ("IterAvgFusionHandler", "krum"),
        ("  path: ibmfl.aggregator.fusion.iter_avg_fusion_handler\n", ""),
    )

    assert "accepts a round with 4 replies, but krum needs 5" in config.warnings[0]
    assert config.warnings[0].endswith("Raise it to 1.")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([("rounds: 3", "rounds: 0")], "hyperparams.global.rounds: is 0; expected a whole number"),
        ([("    rounds: 3\n", "")], "hyperparams.global.rounds: is missing; set the"),
        ([("    num_parties: 5\n", "")], "hyperparams.global.num_parties: is missing; set the"),
        ([("rounds: 3", "rounds: 3\n    round: 3")], "round: is not a key of this section; "),
        ([("rounds: 3", "rounds: 3\n    parties: 4")], "parties: is 4, and num_parties is 5."),
        ([("perc_quorum: 0.7", "perc_quorum: 0")], "perc_quorum: is 0; expected a fraction of the"),
        ([("perc_quorum: 0.7", "perc_quorum: 70")], "perc_quorum: is 70; expected a fraction"),
        ([("max_timeout: 60", "max_timeout: -1")], "max_timeout: is -1; expected seconds, above"),
        (
            [("rounds: 3", "rounds: 3\n    termination_accuracy: 0.9")],
            "termination_accuracy: cannot be measured: the aggregator has no data",
        ),
        ([("rounds: 3", "rounds: 3\n    mu: 0.1")], "mu: is not a key of this section"),
        ([("epochs: 2", "epochs: 2\n      max_iter: 2")], "local.training.max_iter: is not suppo"),
        ([("epochs: 2", "epochs: 2\n      lr: 0.1")], "local.optimizer.lr: is 0.01, and training"),
        ([("epochs: 2", "epochs: 0")], "hyperparams.local.training.epochs: is 0; expected a whol"),
        ([("lr: 0.01", "lr: 0")], "hyperparams.local.optimizer.lr: is 0; expected a learning"),
        ([("lr: 0.01", "lr: 0.01\n      name: adam")], "optimizer.name: is not a key of this"),
        ([("port: 5000", "port: 70000")], "port: is 70000; expected a whole number, at least 1 a"),
        ([("    port: 5000\n", "")], "connection.info.port: is missing; set it to"),
        ([("enable: false", "enable: true")], "tls_config.private_key: is missing; set the file"),
        ([("enable: false", "enabled: false")], "tls_config.enabled: is not a key of this"),
        ([("port: 5000", "port: 5000\n    role: x")], "connection.info.role: is not supported:"),
        ([("name: FlaskConnection", "name: RabbitMQConnection")], "connection.name: is 'RabbitM"),
        ([("connection.flask_connection", "connection.rabbitmq")], "messages over RabbitMQ are"),
        ([("name: IterAvgFusionHandler", "name: PFNMFusionHandler")], "fusion.name: is 'PFNMFusi"),
        ([("name: IterAvgFusionHandler", "name: krum")], "the path next to it, ibmfl.aggregator"),
        ([("  name: IterAvgFusionHandler\n", "")], "fusion.name: is missing; expected one of it"),
        ([("hyperparams:", "  info: {crypto: x}\nhyperparams:")], "fusion.info.crypto: is not su"),
        ([("hyperparams:", "  info: {mu: 1}\nhyperparams:")], "in hyperparams.global.mu"),
        ([("name: KerasFLModel", "name: SklearnSGDFLModel")], "model.name: is 'SklearnSGDFLMode"),
        ([("keras_fl_model", "pytorch_fl_model")], "is the path of PytorchFLModel. Leave"),
        ([("  name: KerasFLModel", "  nam: KerasFLModel")], "model.nam: is not a key of this"),
        ([("model:", "model:\n  info: {gpu: {num_gpus: 1}}")], "model.info.gpu: is not supported"),
        ([("model:", "model:\n  trust: {allow_pickle: true}")], "model.trust.sha256: is missing;"),
        ([("model:", "model:\n  trust: {allow_lamda: true}")], "did you mean allow_lambda?"),
        ([("model:", "model:\n  trust: {sha256: abc}")], "model.trust.sha256: is 'abc'; expected"),
        ([("model:", "model:\n  model_def: a.b")], "model.name: is for a saved model and"),
        ([("name: ProtoHandler", "name: PartyProtocolHandler")], "is the path of aggregator."),
        ([private("metrics: true")], "privacy.metrics: is not supported: it belongs in the"),
        ([private("secure_aggregation: true")], "privacy.secure_aggregation: is not supported: F"),
        ([private("centrall: {}")], "privacy.centrall: is not a key of this section; expected"),
        ([private("central: ")], "privacy.central: is empty; set clipping_norm"),
        ([private("central: 1.0")], "privacy.central: is 1.0; expected a section"),
        ([private("central: {clipping_norm: 1}")], "privacy.central.noise_multiplier: is missing"),
        ([private("central: {noise_multiplier: 1}")], "privacy.central.clipping_norm: is missing"),
        ([private("central: {clipping_norm: 0}")], "privacy.central.clipping_norm: is 0; expect"),
        ([private("central: {noise_multiplier: -1}")], "noise_multiplier: is -1; expected a numb"),
        ([private("central: {noise_multiplier: .inf}")], "noise_multiplier: is inf; expected a n"),
        ([private("central: {epsilon: 1}")], "privacy.central.epsilon: is not a key of this"),
        ([("connection:", "models: {}\nconnection:")], "models: is not a key of this section;"),
    ],
)  # fmt: skip
def test_an_invalid_value_is_refused_with_file_line_and_key(aggregator, tmp_path, changes, said):
    with pytest.raises(DefinitionError) as raised:
        aggregator(*changes)

    found = [line.removeprefix("- ") for line in str(raised.value).splitlines() if said in line]
    assert found, str(raised.value)
    assert found[0].startswith(f"{tmp_path}/config.yml:")


def test_a_party_protocol_is_refused_for_an_aggregator(aggregator):
    path = "  path: ibmfl.aggregator.protohandler.proto_handler\n"

    with pytest.raises(DefinitionError, match="belongs in the party's config; this is the agg"):
        aggregator(("name: ProtoHandler", "name: PartyProtocolHandler"), (path, ""))


def test_a_problem_has_the_line_of_its_key(aggregator, tmp_path):
    changed = ("    perc_quorum: 0.7", "    perc_quorom: 0.7")

    with pytest.raises(DefinitionError) as raised:
        aggregator(changed)

    line = line_of(_changed(AGGREGATOR, [changed]), "quorom")
    assert str(raised.value).startswith(
        f"{tmp_path}/config.yml:{line}: hyperparams.global.perc_quorom: is not a key of this "
        "section; "
    )
    assert str(raised.value).endswith("did you mean perc_quorum?")


def test_all_problems_of_a_file_are_reported_at_once(aggregator):
    with pytest.raises(DefinitionError, match=r"^3 problems:\n") as raised:
        aggregator(
            ("rounds: 3", "rounds: many"),
            ("port: 5000", "port: 0"),
            ("model_name: cnn", "model_name: cnn\n  specs: x"),
        )

    assert all(key in str(raised.value) for key in ("rounds", "port", "specs"))


KRUM = [
    ("IterAvgFusionHandler", "KrumFusionHandler"),
    ("iter_avg_fusion_handler", "krum_fusion_handler"),
]


def test_too_many_byzantine_parties_are_reported_immediately(aggregator):
    with pytest.raises(
        DefinitionError,
        match="global.byzantine_threshold: is invalid: krum with byzantine_threshold 2 needs at "
        "least 7 parties; num_parties is 5. Lower byzantine_threshold, or add parties.",
    ):
        aggregator(*KRUM, ("rounds: 3", "rounds: 3\n    byzantine_threshold: 2"))
    with pytest.raises(
        DefinitionError,
        match="global.num_parties: is invalid: krum with byzantine_threshold 1 needs at least 5",
    ):
        aggregator(*KRUM, ("num_parties: 5", "num_parties: 4"))


def test_too_few_parties_for_a_fusion_are_reported_immediately(aggregator):
    with pytest.raises(
        DefinitionError, match="num_parties: is invalid: coordinate_median needs at"
    ):
        aggregator(
            ("IterAvgFusionHandler", "CoordinateMedianFusionHandler"),
            ("iter_avg_fusion_handler", "coordinate_median_fusion_handler"),
            ("num_parties: 5", "num_parties: 2"),
        )


def test_an_invalid_param_is_reported_with_the_valid_ones(aggregator):
    with pytest.raises(
        DefinitionError,
        match="byzantine_threshold: is -1; expected a whole number, at least 0",
    ):
        aggregator(*KRUM, ("rounds: 3", "rounds: 3\n    byzantine_threshold: -1"))
    with pytest.raises(DefinitionError, match="is not .*did you mean byzantine_threshold?"):
        aggregator(*KRUM, ("rounds: 3", "rounds: 3\n    byzantine_treshold: 1"))


def test_a_param_that_contradicts_the_fusion_name_is_refused(aggregator):
    with pytest.raises(
        DefinitionError, match="centre: is 'mean'; the name of the fusion implies 'me"
    ):
        aggregator(
            ("IterAvgFusionHandler", "CoordinateMedianPlusFusionHandler"),
            ("  path: ibmfl.aggregator.fusion.iter_avg_fusion_handler\n", ""),
            ("rounds: 3", "rounds: 3\n    centre: mean"),
        )


def test_zeno_needs_data_of_the_aggregator(aggregator):
    zeno = [
        ("IterAvgFusionHandler", "ZenoFusionHandler"),
        ("iter_avg_fusion_handler", "zeno_fusion_handler"),
    ]

    with pytest.raises(DefinitionError, match="zeno evaluates parties on the aggregator's"):
        aggregator(*zeno)
    assert aggregator(*zeno, ("hyperparams:", "data: {uri: x}\nhyperparams:")).fusion.name == "zeno"


def test_epochs_of_parties_that_do_not_train_are_refused(aggregator):
    gradient = [
        ("IterAvgFusionHandler", "GradientFusionHandler"),
        ("iter_avg_fusion_handler", "gradient_fusion_handler"),
    ]

    with pytest.raises(DefinitionError, match="epochs: is 2, but with gradient_avg parties send"):
        aggregator(*gradient)
    assert aggregator(*gradient, ("epochs: 2", "epochs: 1")).local.num_epochs == 1


def test_an_unknown_fusion_does_not_hide_other_problems(aggregator):
    with pytest.raises(DefinitionError, match=r"^2 problems:\n") as raised:
        aggregator(
            ("name: IterAvgFusionHandler", "name: FedAvrg"),
            ("perc_quorum: 0.7", "perc_quorum: 7"),
            ("rounds: 3", "rounds: 3\n    byzantine_threshold: 1"),
        )

    assert "unknown fusion (did you mean fedavg?)" in str(raised.value)


def test_a_model_can_be_given_by_zoo_and_definition(aggregator, tmp_path):
    saved = AGGREGATOR[AGGREGATOR.index("model:") : AGGREGATOR.index("protocol_handler:")]
    config = aggregator(
        (saved, "model: {model_zoo: zoo, model_def: mnist.model, params: {width: 3}}\n")
    )

    reference = config.model.reference
    assert (reference.zoo, reference.model_def) == (str(tmp_path / "zoo"), "mnist.model")
    assert (reference.dialect, reference.params) == (None, {"width": 3})
    assert config.model.spec is None


@pytest.mark.parametrize(
    "zoo", ["https://host/zoo.git@main", "git@host:zoo.git", "/srv/zoo", "ssh://host/zoo"]
)
def test_a_zoo_elsewhere_keeps_its_location(written, zoo):
    config = read_aggregator(
        written(
            "fusion: {name: fedavg}\nhyperparams: {global: {rounds: 1, num_parties: 2}}\n"
            f"model: {{model_zoo: '{zoo}', model_def: m.m}}\n"
        )
    )

    assert config.model.reference.zoo == zoo


def test_a_saved_model_without_a_spec_is_reported_once(aggregator):
    spec = "  spec:\n    model_definition: model.h5\n    model_name: cnn\n"

    with pytest.raises(DefinitionError, match="yml:24: model.spec: is missing; expected keys"):
        aggregator((spec, ""))
    with pytest.raises(DefinitionError, match="yml:27: model.spec: is 'spec'; expected a section"):
        aggregator((spec, "  spec: spec\n"))


def test_trust_is_read_with_its_digest(aggregator):
    config = aggregator(
        ("model:", f"model:\n  trust: {{allow_pickle: true, sha256: {SHA256.upper()}}}")
    )

    assert config.model.trust == {"allow_pickle": True, "allow_lambda": False, "sha256": SHA256}


def test_trust_is_only_for_saved_models(written):
    with pytest.raises(
        DefinitionError,
        match="model.trust: is for a saved model and cannot be combined with model_def",
    ):
        read_party(
            written(
                "data: {uri: x}\n"
                f"model: {{model_def: m.m, trust: {{allow_pickle: true, sha256: {SHA256}}}}}\n"
            )
        )


# --- a party ---------------------------------------------------------------------------------


def test_a_config_of_a_party_is_read(party, tmp_path):
    config = party()

    assert config.name == "north"
    assert config.aggregator == Address("127.0.0.1", 5000)
    assert config.tls is None
    assert config.data == Data(
        handler=DataHandler("WardHandler", tmp_path / "ward.py", {"npz_file": "north.npz"})
    )
    assert config.model.spec == {"model_name": "net", "model_definition": "net.pt"}
    assert config.local_training == "local"
    assert config.metrics_may_leave is True
    assert config.recorder is None
    assert config.warnings == ()


def test_metrics_are_not_shared_by_default(party):
    assert party(("privacy:\n  metrics: 'true'\n", "")).metrics_may_leave is False
    assert party(("metrics: 'true'", "metrics: false")).metrics_may_leave is False


def test_a_party_without_an_id_is_named_after_its_file(written):
    file = written("data: {uri: x}\nmodel: {model_def: m.m}\n", "south.yml")

    assert read_party(file).name == "south"


def test_data_paths_of_a_party_are_relative_to_its_config(written, tmp_path):
    config = read_party(
        written(
            "data: {uri: 'train/*.csv', validation_uri: 's3://bucket/test'}\n"
            "model: {model_def: m.m}\n"
        )
    )

    assert config.data == Data(str(tmp_path / "train/*.csv"), "s3://bucket/test")


def test_a_metrics_recorder_writes_beside_the_config(party, tmp_path):
    config = party(
        (
            "privacy:",
            (
                "metrics_recorder:\n  name: MetricsRecorder\n"
                "  path: ibmfl.party.metrics.metrics_recorder\n  output_file: out/metrics.json\n"
                "  output_type: json\n  compute_pre_train_eval: False\nprivacy:"
            ),
        )
    )

    assert config.recorder == Recorder(tmp_path / "out/metrics.json", before_training=False)


def test_certificates_of_a_party_are_read(party, tmp_path):
    config = party(
        ("{enable: 'false'}", "{enable: 'true', ca_certificate: ca.crt, private_key: me.key}")
    )

    assert config.tls == Tls(tmp_path / "ca.crt", None, tmp_path / "me.key")


def test_a_port_of_a_party_is_ignored_with_a_warning(party):
    config = party(("    id: north", "    id: north\n    ip: 127.0.0.1\n    port: 8085"))

    assert len(config.warnings) == 2
    assert "connection.info.ip: is ignored: a party opens no port" in config.warnings[0]


@pytest.mark.parametrize("path", ["../other.py", "/etc/passwd.py", "..ward", "sub/../../x.py"])
def test_a_code_file_outside_the_folder_is_refused(party, tmp_path, path):
    (tmp_path.parent / "other.py").write_text("")

    with pytest.raises(DefinitionError, match="data.path: is '.*(outside|but the file)"):
        party(("path: ward.py", f"path: {path}"))


def test_a_link_out_of_the_folder_is_refused(party, tmp_path, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside") / "code.py"
    outside.write_text("class WardHandler: ...\n")
    (tmp_path / "link.py").symlink_to(outside)

    with pytest.raises(DefinitionError, match=r"data\.path: is 'link\.py', outside"):
        party(("path: ward.py", "path: link.py"))


def test_a_dotted_path_names_a_file_in_the_folder(party, tmp_path):
    (tmp_path / "site").mkdir()
    (tmp_path / "site/ward.py").write_text("")

    def found(path):
        return party(("path: ward.py", f"path: {path}")).data.handler.file

    assert found("site.ward") == tmp_path / "site/ward.py"
    assert found("ward") == tmp_path / "ward.py"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ([("path: ward.py", "path: wart.py")], "data.path: is 'wart.py', but the file"),
        ([("path: ward.py", "path: ibmfl.util.data_handlers.x")], "IBM FL's data handlers are n"),
        ([("  path: ward.py\n", "")], "data.path: is missing; set the Python file with"),
        ([("name: WardHandler", "name: class")], "data.name: is 'class'; expected the name of"),
        ([("name: WardHandler", "name: WardHandler\n  uri: x")], "data.name: cannot be combined"),
        ([("name: WardHandler", "validation_uri: x\n  name: W")], "needs uri as well: set th"),
        ([("id: north", "id: ../north")], "connection.info.id: is '../north'; expected at most"),
        ([("id: north", "id: 7")], "connection.info.id: is 7; expected a name"),
        ([("{enable: 'false'}", "{enable: true}")], "tls_config.ca_certificate: is missing; set"),
        ([("LocalTrainingHandler", "ReweighLocalTrainingHandler")], "local_training.name: is 'Re"),
        ([("model:", "  info: {rho: 1}\nmodel:")], "hyperparams.global.rho in its config"),
        ([("privacy:", "fusion: {name: x}\nprivacy:")], "fusion: is not supported: it belongs in"),
        ([("privacy:", "privacies:")], "privacies: is not a key of this section"),
        ([("metrics: 'true'", "metrics: maybe")], "privacy.metrics: is 'maybe'; expected true"),
        ([("metrics: 'true'", "central: {}")], "privacy.central: is not supported: it belongs i"),
        ([("metrics: 'true'", "secure_aggregation: yes")], "secure_aggregation: is not supported"),
        ([("metrics: 'true'", "metric: true")], "privacy.metric: is not a key of this section; ex"),
        ([("privacy:", "metrics_recorder: {output_type: xml}\nprivacy:")], "is 'xml'; expected j"),
        ([("  port: 5000\n", "")], "aggregator.port: is missing; set it to the aggregator's port"),
    ],
)  # fmt: skip
def test_invalid_settings_of_a_party_are_refused(party, tmp_path, changes, said):
    with pytest.raises(DefinitionError) as raised:
        party(*changes)

    found = [line.removeprefix("- ") for line in str(raised.value).splitlines() if said in line]
    assert found, str(raised.value)
    assert found[0].startswith(f"{tmp_path}/config.yml:")


def test_a_party_needs_data_and_a_model(written):
    with pytest.raises(DefinitionError, match=r"^2 problems:\n.*data: is mis.*\n.*model: is mi"):
        read_party(written("privacy: {metrics: true}\n"))


def test_an_empty_section_counts_as_missing(written):
    with pytest.raises(DefinitionError, match=r"^2 problems:\n.*yml:1: data: is missing"):
        read_party(written("data:\nmodel:\n"))
    with pytest.raises(DefinitionError, match="yml:3: hyperparams.global.rounds: is missing"):
        read_aggregator(
            written("fusion: {name: fedavg}\nhyperparams:\n  global:\n    num_parties: 2\n")
        )


def test_a_missing_file_is_reported(tmp_path):
    with pytest.raises(UsageError, match="no.yml: this config cannot be read: No such file"):
        read_party(tmp_path / "no.yml")
    with pytest.raises(UsageError, match="cannot be read: it is a folder"):
        read_aggregator(tmp_path)


def test_a_file_that_is_not_yaml_is_reported_with_its_line(written):
    with pytest.raises(DefinitionError, match="config.yml:3: this is not YAML"):
        read_aggregator(written("fusion:\n  name: [\n"))


NUMBERS = {
    "hyperparams.global": ("rounds", "num_parties", "perc_quorum", "max_timeout", "seed"),
    "hyperparams.local.training": ("epochs", "batch_size", "lr"),
    "hyperparams.local.optimizer": ("lr",),
    "privacy.central": ("clipping_norm", "noise_multiplier"),
    "connection.info": ("port",),
}
ODD = ("1" + "0" * 400, "-1" + "0" * 400, "-1", ".nan", ".inf", "true", '""', "[]", "{}", "[1]")


@pytest.mark.parametrize(
    ("section", "key"), [(where, key) for where, keys in NUMBERS.items() for key in keys]
)
def test_an_invalid_number_is_one_short_problem_with_its_line(section, key, tmp_path):
    zero_may_be = key in {"seed", "noise_multiplier"}
    for value in (*ODD, *(() if zero_may_be else ("0",))):
        file = tmp_path / "aggregator.yml"
        values = yaml.safe_load(AGGREGATOR)
        inner = values
        for name in section.split("."):
            inner = inner.setdefault(name, {})
        if section == "privacy.central":
            inner |= {"clipping_norm": 1.0, "noise_multiplier": 1.0}
        if section == "hyperparams.local.training":
            values["hyperparams"]["local"]["optimizer"] = {}
        inner[key] = "VALUE"
        text = yaml.safe_dump(values)
        file.write_text(text.replace("VALUE", value))
        with pytest.raises(DefinitionError) as raised:
            read_aggregator(file)

        line = 1 + text[: text.index("VALUE")].count("\n")
        said = str(raised.value)
        assert said.startswith(f"{file}:{line}: {section}.{key}: is "), (value, said)
        assert len(said) - len(str(file)) < 300


@pytest.mark.parametrize(
    ("name", "param"),
    [(fusion.name, param) for fusion in FUSIONS.values() for param in fusion.params],
)
def test_an_invalid_fusion_param_is_refused_briefly(name, param):
    for value in (10**400, -(10**400), -1, math.nan, math.inf, True, "", [], {}):
        assert len(FUSIONS[name].problem_of(param, value)) < 200


def test_a_date_is_not_a_model_param(tmp_path):
    file = tmp_path / "party.yml"
    file.write_text(
        "data: {uri: x.recordio}\nmodel:\n  model_def: m\n  params:\n    day: 2026-01-01\n"
    )
    with pytest.raises(DefinitionError, match=r"party.yml:5: model.params.day: has a date"):
        read_party(file)
