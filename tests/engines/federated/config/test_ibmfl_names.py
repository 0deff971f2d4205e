"""Class names and paths of other configs, and what they mean here."""

import pytest

from elasticdl.engines.federated.config import ibmfl_names
from elasticdl.engines.federated.config.ibmfl_names import Known, UnsupportedNameError
from elasticdl.engines.federated.strategies.fusions import FUSIONS

TABLES = {
    "fusion": ibmfl_names.FUSION_NAMES,
    "model": ibmfl_names.MODEL_NAMES,
    "connection": ibmfl_names.CONNECTION_NAMES,
    "protocol": ibmfl_names.PROTOCOL_NAMES,
    "training": ibmfl_names.LOCAL_TRAINING_NAMES,
    "recorder": ibmfl_names.RECORDER_NAMES,
}


@pytest.mark.parametrize(
    ("table", "name", "ours"),
    [
        ("fusion", "IterAvgFusionHandler", "iter_avg"),
        ("fusion", "FedAvgFusionHandler", "fedavg"),
        ("fusion", "GradientFusionHandler", "gradient_avg"),
        ("fusion", "KrumFusionHandler", "krum"),
        ("fusion", "CoordinateMedianFusionHandler", "coordinate_median"),
        ("fusion", "ZenoFusionHandler", "zeno"),
        ("fusion", "FedPlusFusionHandler", "fed_plus"),
        ("fusion", "iter_avg_fusion_handler", "iter_avg"),
        ("fusion", "ibmfl.aggregator.fusion.krum_fusion_handler", "krum"),
        ("fusion", "FedAvg+", "fed_plus"),
        ("fusion", "multi_krum", "multi_krum"),
        ("model", "KerasFLModel", "KerasFLModel"),
        ("model", "ibmfl.model.keras_fl_model", "KerasFLModel"),
        ("model", "tensorflow_fl_model", "TensorFlowFLModel"),
        ("model", "PytorchFLModel", "PytorchFLModel"),
        ("connection", "FlaskConnection", "flower"),
        ("protocol", "ProtoHandler", "aggregator"),
        ("protocol", "PartyProtocolHandler", "party"),
        ("training", "LocalTrainingHandler", "local"),
        ("training", "FedAvgLocalTrainingHandler", "local"),
        ("training", "FedPlusLocalTrainingHandler", "own_weights"),
        ("recorder", "MetricsRecorder", "metrics"),
    ],
)
def test_ibmfl_names_resolve_as_class_module_and_short_name(table, name, ours):
    assert TABLES[table].look_up(name).ours == ours


@pytest.mark.parametrize("name", FUSIONS)
def test_our_own_fusion_names_resolve_to_themselves(name):
    assert ibmfl_names.FUSION_NAMES.look_up(name) == Known(name)


def test_the_fed_plus_name_determines_its_centre():
    found = ibmfl_names.FUSION_NAMES.look_up("CoordinateMedianPlusFusionHandler")

    assert found == Known("fed_plus", {"centre": "median"})


@pytest.mark.parametrize(
    ("table", "name", "reason"),
    [
        ("fusion", "PFNMFusionHandler", "PFNM"),
        ("fusion", "SPAHMFusionHandler", "SPAHM combines clusters"),
        ("fusion", "AFAFusionHandler", "use multi_krum, trimmed_mean or geometric_median"),
        ("fusion", "ComparativeEliminationFusionHandler", "use krum or multi_krum"),
        ("fusion", "CryptoIterAvgFusionHandler", "homomorphic encryption"),
        ("fusion", "fhe_iter_avg", "homomorphic encryption"),
        ("fusion", "ShuffleIterAvgFusionHandler", "use iter_avg"),
        ("fusion", "ID3FusionHandler", "decision tree"),
        ("fusion", "NaiveBayesFusionHandler", "naive Bayes"),
        ("fusion", "RLAvgFusionHandler", "reinforcement learning"),
        ("fusion", "Doc2VecFusionHandler", "doc2vec"),
        ("fusion", "PrejudiceRemoverFusionHandler", "prejudice remover"),
        ("fusion", "ReweighFusionHandler", "reweigh"),
        ("model", "SklearnSGDFLModel", "scikit-learn models"),
        ("model", "SklearnKMeansFLModel", "scikit-learn models"),
        ("model", "NaiveBayesFLModel", "naive Bayes"),
        ("model", "DTFLModel", "decision tree"),
        ("model", "PrejRemoverFLModel", "prejudice remover"),
        ("model", "RLlibFLModel", "reinforcement learning"),
        ("model", "Doc2VecFLModel", "doc2vec"),
        ("connection", "RabbitMQConnection", "RabbitMQ"),
        ("connection", "pubsub", "RabbitMQ"),
        ("protocol", "ProtoHandlerRabbitMQ", "RabbitMQ"),
        ("training", "ReweighLocalTrainingHandler", "reweigh"),
        ("training", "PFNMLocalTrainingHandler", "PFNM"),
    ],
)
def test_unsupported_names_are_refused_with_the_reason(table, name, reason):
    with pytest.raises(UnsupportedNameError, match=reason):
        TABLES[table].look_up(name)


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_no_name_is_both_supported_and_unsupported(table):
    for word in table.known:
        assert table.look_up(word) == table.known[word]


def test_an_unknown_name_is_reported_with_a_similar_one():
    with pytest.raises(UnsupportedNameError, match=r"unknown fusion \(did you mean iter_avg\?\)"):
        ibmfl_names.FUSION_NAMES.look_up("IterAvrgFusionHandler")
    with pytest.raises(UnsupportedNameError, match="^unknown model; expected one of K"):
        ibmfl_names.MODEL_NAMES.look_up("Zebra")


def test_a_path_of_another_package_is_refused():
    with pytest.raises(UnsupportedNameError, match="is the path of krum. Leave `path` out"):
        ibmfl_names.FUSION_NAMES.look_up(
            "FedAvgFusionHandler", "ibmfl.aggregator.fusion.krum_fusion_handler"
        )
    with pytest.raises(UnsupportedNameError, match="homomorphic"):
        ibmfl_names.FUSION_NAMES.look_up(
            "IterAvgFusionHandler", "ibmfl.aggregator.fusion.crypto_fusion_handler"
        )


def test_a_custom_class_is_refused():
    with pytest.raises(UnsupportedNameError, match="a custom fusion cannot be loaded"):
        ibmfl_names.FUSION_NAMES.look_up("FedAvgFusionHandler", "my.fusion")


def test_an_ibmfl_data_handler_is_refused_with_advice():
    reason = ibmfl_names.data_handler_problem("ibmfl.util.data_handlers.mnist_keras_data_handler")

    assert "get_data()" in reason
    assert ibmfl_names.data_handler_problem("my_data") is None
