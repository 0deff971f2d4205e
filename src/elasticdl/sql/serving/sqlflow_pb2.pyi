from google.protobuf import any_pb2 as _any_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Request(_message.Message):
    __slots__ = ("stmts", "session")
    STMTS_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    stmts: str
    session: Session
    def __init__(self, stmts: _Optional[str] = ..., session: _Optional[_Union[Session, _Mapping]] = ...) -> None: ...

class Session(_message.Message):
    __slots__ = ("token", "db_conn_str", "exit_on_submit", "user_id", "hive_location", "hdfs_namenode_addr", "hdfs_user", "hdfs_pass", "submitter", "service_account", "wf_namespace")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    DB_CONN_STR_FIELD_NUMBER: _ClassVar[int]
    EXIT_ON_SUBMIT_FIELD_NUMBER: _ClassVar[int]
    USER_ID_FIELD_NUMBER: _ClassVar[int]
    HIVE_LOCATION_FIELD_NUMBER: _ClassVar[int]
    HDFS_NAMENODE_ADDR_FIELD_NUMBER: _ClassVar[int]
    HDFS_USER_FIELD_NUMBER: _ClassVar[int]
    HDFS_PASS_FIELD_NUMBER: _ClassVar[int]
    SUBMITTER_FIELD_NUMBER: _ClassVar[int]
    SERVICE_ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    WF_NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    token: str
    db_conn_str: str
    exit_on_submit: bool
    user_id: str
    hive_location: str
    hdfs_namenode_addr: str
    hdfs_user: str
    hdfs_pass: str
    submitter: str
    service_account: str
    wf_namespace: str
    def __init__(self, token: _Optional[str] = ..., db_conn_str: _Optional[str] = ..., exit_on_submit: bool = ..., user_id: _Optional[str] = ..., hive_location: _Optional[str] = ..., hdfs_namenode_addr: _Optional[str] = ..., hdfs_user: _Optional[str] = ..., hdfs_pass: _Optional[str] = ..., submitter: _Optional[str] = ..., service_account: _Optional[str] = ..., wf_namespace: _Optional[str] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("head", "row", "message", "eoe", "job")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    ROW_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    EOE_FIELD_NUMBER: _ClassVar[int]
    JOB_FIELD_NUMBER: _ClassVar[int]
    head: Head
    row: Row
    message: Message
    eoe: EndOfExecution
    job: Job
    def __init__(self, head: _Optional[_Union[Head, _Mapping]] = ..., row: _Optional[_Union[Row, _Mapping]] = ..., message: _Optional[_Union[Message, _Mapping]] = ..., eoe: _Optional[_Union[EndOfExecution, _Mapping]] = ..., job: _Optional[_Union[Job, _Mapping]] = ...) -> None: ...

class Head(_message.Message):
    __slots__ = ("column_names",)
    COLUMN_NAMES_FIELD_NUMBER: _ClassVar[int]
    column_names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, column_names: _Optional[_Iterable[str]] = ...) -> None: ...

class Row(_message.Message):
    __slots__ = ("data",)
    class Null(_message.Message):
        __slots__ = ()
        def __init__(self) -> None: ...
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
    def __init__(self, data: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("message",)
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    message: str
    def __init__(self, message: _Optional[str] = ...) -> None: ...

class EndOfExecution(_message.Message):
    __slots__ = ("sql", "spent_time_seconds")
    SQL_FIELD_NUMBER: _ClassVar[int]
    SPENT_TIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    sql: str
    spent_time_seconds: int
    def __init__(self, sql: _Optional[str] = ..., spent_time_seconds: _Optional[int] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "namespace")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    id: str
    namespace: str
    def __init__(self, id: _Optional[str] = ..., namespace: _Optional[str] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("job", "step_id", "step_phase")
    JOB_FIELD_NUMBER: _ClassVar[int]
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    STEP_PHASE_FIELD_NUMBER: _ClassVar[int]
    job: Job
    step_id: str
    step_phase: str
    def __init__(self, job: _Optional[_Union[Job, _Mapping]] = ..., step_id: _Optional[str] = ..., step_phase: _Optional[str] = ...) -> None: ...

class FetchResponse(_message.Message):
    __slots__ = ("updated_fetch_since", "eof", "responses")
    class Responses(_message.Message):
        __slots__ = ("response",)
        RESPONSE_FIELD_NUMBER: _ClassVar[int]
        response: _containers.RepeatedCompositeFieldContainer[Response]
        def __init__(self, response: _Optional[_Iterable[_Union[Response, _Mapping]]] = ...) -> None: ...
    UPDATED_FETCH_SINCE_FIELD_NUMBER: _ClassVar[int]
    EOF_FIELD_NUMBER: _ClassVar[int]
    RESPONSES_FIELD_NUMBER: _ClassVar[int]
    updated_fetch_since: FetchRequest
    eof: bool
    responses: FetchResponse.Responses
    def __init__(self, updated_fetch_since: _Optional[_Union[FetchRequest, _Mapping]] = ..., eof: bool = ..., responses: _Optional[_Union[FetchResponse.Responses, _Mapping]] = ...) -> None: ...
