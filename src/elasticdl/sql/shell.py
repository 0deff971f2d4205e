r"""Interactive shell of `elasticdl sql`, with history, completion and commands such as `\d`.

    elasticdl> SELECT role, avg(salary)
           ...   FROM employee GROUP BY role;

A statement ends with `;`. Ctrl-C cancels the current input or statement, never the shell; Ctrl-D or
`\q` ends the shell. A cancelled TRAIN statement has saved its progress; run it again to resume.

Called by `cli/sql.py`.
"""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING

import platformdirs
import pyarrow as pa
from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import Completer, Completion, ThreadedCompleter
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import TokenError
from sqlglot.tokens import TokenType

from elasticdl import __version__
from elasticdl.did_you_mean import did_you_mean
from elasticdl.errors import ElasticDLError, UsageError
from elasticdl.sql.completion import CompletionNames, word_before, words_for
from elasticdl.sql.database_interface import RowSource
from elasticdl.sql.execute import RESUMES, Connection, SqlSession, SubmitterError, execute
from elasticdl.sql.models import Models
from elasticdl.sql.names import typed
from elasticdl.sql.parse import parse
from elasticdl.sql.rendering import write_rows
from elasticdl.sql.results import show
from elasticdl.sql.statements import Train

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from prompt_toolkit.completion import CompleteEvent
    from prompt_toolkit.document import Document

_CANCELLED = "Cancelled."

_PROMPT = "elasticdl> "
_HELP = r"""
\d            tables
\d NAME       columns of a table
\models       trained models
\zoo          models that can be trained
\?            this help
\q            quit (or Ctrl-D)

A statement ends with ;  and may have several lines. Ctrl-C cancels it, Tab completes.

  SELECT a, b FROM t TO TRAIN regressor.DNN WITH train.num_epochs=10 LABEL b INTO my_model;
  SELECT a FROM t TO PREDICT t.predicted_b USING my_model;
  SELECT a, b FROM t TO EVALUATE my_model;
  SELECT a, b FROM t TO EXPLAIN my_model;
  SHOW TRAIN my_model;
""".strip("\n")
_ENDED_BY_SIGNAL = {130, 143}


def is_complete(text: str, dialect: str = "duckdb") -> bool:
    r"""Return whether the input can be run: it ends with `;`, or is a command.

    Example:
        >>> is_complete("SELECT 1"), is_complete("SELECT ';"), is_complete("SELECT 1; -- one")
        (False, False, True)
    """
    if not text.strip() or text.lstrip().startswith("\\") or _is_farewell(text):
        return True
    try:
        tokens = Dialect.get_or_raise(dialect).tokenize(text)
    except TokenError:
        return False
    # Input that consists of comments only is complete as well.
    return not tokens or tokens[-1].token_type == TokenType.SEMICOLON


def _is_farewell(text: str) -> bool:
    return text.strip().rstrip(";").lower() in {"exit", "quit", "\\q"}


class Shell:
    """An interactive session.

    Args:
        session: The settings for running statements.
        form: One of `rendering.FORMATS`.

    Raises:
        ElasticDLError: The database cannot be opened.
    """

    def __init__(self, session: SqlSession, form: str = "table") -> None:
        self._session, self._form = session, form
        self._models = Models(session.models)
        self._connection = Connection(session)
        self._names = CompletionNames(self._connection, self._models, session.zoo)

    def run(self) -> None:
        """Read and run statements until the user ends the shell."""
        prompt: PromptSession[str] = PromptSession(
            _PROMPT,
            history=_history(),
            completer=ThreadedCompleter(_Completer(self._names)),
            complete_while_typing=False,
            auto_suggest=AutoSuggestFromHistory(),
            multiline=True,
            key_bindings=_keys(self._connection.dialect),
            prompt_continuation=lambda width, *_: "... ".rjust(width),
        )
        print(f"ElasticDL {__version__}, {self._connection.name}. Help: \\?   Quit: \\q")  # noqa: T201
        with self._connection:
            while True:
                try:
                    text = prompt.prompt()
                except KeyboardInterrupt:
                    continue
                except EOFError:
                    return
                if _is_farewell(text):
                    return
                self.do(text)

    def do(self, text: str) -> None:
        """Run one complete input, statements or a command, and print its results and errors."""
        try:
            if text.lstrip().startswith("\\"):
                self._command(*text.strip().lstrip("\\").rstrip(";").split())
            else:
                for result in execute(text, self._session, connection=self._connection):
                    show(result, self._form)
        except KeyboardInterrupt:
            _complain(self._cancelled(text))
        except SubmitterError as error:
            # The submitter has already printed the reason on this terminal.
            if error.exit_code in _ENDED_BY_SIGNAL:
                _complain(self._cancelled(text))
            elif error.exit_code > 128:  # noqa: PLR2004 - a signal
                _complain(
                    f"The statement was killed (exit code {error.exit_code}). Run the same "
                    "statement to resume training."
                )
        except ElasticDLError as error:
            _complain(f"error: {error}")
        except Exception as error:  # noqa: BLE001 - our own bugs must not end the session
            _complain(f"internal error: {type(error).__name__}: {error}")
        finally:
            self._names.forget()

    def _cancelled(self, text: str) -> str:
        trains = any(isinstance(each, Train) for each in parse(text, self._connection.dialect))
        return f"{_CANCELLED} {RESUMES}" if trains else _CANCELLED

    def _command(self, name: str = "", *arguments: str) -> None:
        match name, *arguments:
            case "d", table:
                self._columns(table)
            case ("d",):
                self._table({"table": self._names.tables()})
            case ("models",):
                versions = [self._models.current(each) for each in self._models.names()]
                self._table(
                    {
                        "model": [each.name for each in versions],
                        "version": [each.number for each in versions],
                        "predicts": [each.record.label for each in versions],
                        "statement": [" ".join(each.record.statement.split()) for each in versions],
                    }
                )
            case ("zoo",):
                self._table({"model": self._names.zoo()})
            case ("?" | "h" | "help",):
                print(_HELP)  # noqa: T201
            case _:
                raise UsageError(f"Invalid command \\{' '.join([name, *arguments])}. See \\?")

    def _columns(self, name: str) -> None:
        with self._connection.opened() as database:
            table = database.table(typed(name))
        if table is None:
            near = did_you_mean(name, self._names.tables())
            raise UsageError(f"There is no table {name!r}{near}")
        self._table({"column": list(table.columns), "type": list(table.columns.values())})

    def _table(self, columns: Mapping[str, Iterable[object]]) -> None:
        table = pa.table({name: list(values) for name, values in columns.items()})
        width = shutil.get_terminal_size().columns
        write_rows(RowSource(table.schema, table.to_batches()), sys.stdout, self._form, width)
        sys.stdout.flush()


class _Completer(Completer):
    def __init__(self, names: CompletionNames) -> None:
        self._names = names

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        """Yield the completions of the word before the cursor."""
        del complete_event
        before = document.text_before_cursor
        word = word_before(before)
        for each in words_for(before, document.text, self._names):
            yield Completion(each, start_position=-len(word))


def _keys(dialect: str) -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion:
            buffer.complete_state = None
        elif is_complete(buffer.text, dialect):
            buffer.validate_and_handle()
        else:
            buffer.insert_text("\n")

    return keys


def _history() -> History:
    """Return the user's input history, in a file that no other user can read."""
    path = platformdirs.user_data_path("elasticdl") / "sql_history"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600, exist_ok=True)
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)


def _complain(message: str) -> None:
    print(message, file=sys.stderr, flush=True)  # noqa: T201
