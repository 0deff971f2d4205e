from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TrainedModel(_message.Message):
    __slots__ = ("docker_commit_id", "model_def", "model_def_params", "params_filename", "input_function", "loss", "optimizer", "format_version", "dialect", "model_zoo", "zoo_commit", "framework", "versions", "data_schema_json", "job_id", "job_json", "created_unix_s", "overrides", "metrics", "params_sha256", "exports", "step", "classes", "record_fields_json", "data_fingerprint_json", "class_columns_json", "sha256")
    class VersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class OverridesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: MetricValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[MetricValue, _Mapping]] = ...) -> None: ...
    DOCKER_COMMIT_ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_DEF_FIELD_NUMBER: _ClassVar[int]
    MODEL_DEF_PARAMS_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FILENAME_FIELD_NUMBER: _ClassVar[int]
    INPUT_FUNCTION_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    DIALECT_FIELD_NUMBER: _ClassVar[int]
    MODEL_ZOO_FIELD_NUMBER: _ClassVar[int]
    ZOO_COMMIT_FIELD_NUMBER: _ClassVar[int]
    FRAMEWORK_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    DATA_SCHEMA_JSON_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_JSON_FIELD_NUMBER: _ClassVar[int]
    CREATED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    PARAMS_SHA256_FIELD_NUMBER: _ClassVar[int]
    EXPORTS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    CLASSES_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELDS_JSON_FIELD_NUMBER: _ClassVar[int]
    DATA_FINGERPRINT_JSON_FIELD_NUMBER: _ClassVar[int]
    CLASS_COLUMNS_JSON_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    docker_commit_id: str
    model_def: str
    model_def_params: str
    params_filename: str
    input_function: str
    loss: str
    optimizer: str
    format_version: int
    dialect: str
    model_zoo: str
    zoo_commit: str
    framework: str
    versions: _containers.ScalarMap[str, str]
    data_schema_json: str
    job_id: str
    job_json: str
    created_unix_s: float
    overrides: _containers.ScalarMap[str, str]
    metrics: _containers.MessageMap[str, MetricValue]
    params_sha256: str
    exports: _containers.RepeatedScalarFieldContainer[str]
    step: int
    classes: _containers.RepeatedScalarFieldContainer[str]
    record_fields_json: str
    data_fingerprint_json: str
    class_columns_json: str
    sha256: bytes
    def __init__(self, docker_commit_id: _Optional[str] = ..., model_def: _Optional[str] = ..., model_def_params: _Optional[str] = ..., params_filename: _Optional[str] = ..., input_function: _Optional[str] = ..., loss: _Optional[str] = ..., optimizer: _Optional[str] = ..., format_version: _Optional[int] = ..., dialect: _Optional[str] = ..., model_zoo: _Optional[str] = ..., zoo_commit: _Optional[str] = ..., framework: _Optional[str] = ..., versions: _Optional[_Mapping[str, str]] = ..., data_schema_json: _Optional[str] = ..., job_id: _Optional[str] = ..., job_json: _Optional[str] = ..., created_unix_s: _Optional[float] = ..., overrides: _Optional[_Mapping[str, str]] = ..., metrics: _Optional[_Mapping[str, MetricValue]] = ..., params_sha256: _Optional[str] = ..., exports: _Optional[_Iterable[str]] = ..., step: _Optional[int] = ..., classes: _Optional[_Iterable[str]] = ..., record_fields_json: _Optional[str] = ..., data_fingerprint_json: _Optional[str] = ..., class_columns_json: _Optional[str] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class MetricValue(_message.Message):
    __slots__ = ("values", "is_list")
    VALUES_FIELD_NUMBER: _ClassVar[int]
    IS_LIST_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedScalarFieldContainer[float]
    is_list: bool
    def __init__(self, values: _Optional[_Iterable[float]] = ..., is_list: bool = ...) -> None: ...
