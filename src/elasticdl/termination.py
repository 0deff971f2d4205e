"""SIGTERM as an exception, which ends a run as Ctrl-C does: after a last checkpoint.

Without a handler, SIGTERM ends a Python process at once. The command line installs `terminate` for
the whole process; a call from a script uses `ExitOnSigterm`, which does nothing if the script has
installed a handler.

Some packages import optional parts within a bare `except:`, and Python only prints an exception
that is raised in a finalizer or a C callback. Either would swallow the exception, and the process
would continue as if there had been no signal. So `terminate` waits for the end of an import, and
`signal_again`, a hook for `sys.unraisablehook`, sends the signal once more.

Callers: `cli/main.py`, `api.py`.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from types import FrameType, TracebackType

EXIT_CODE = 143
"""Exit code after SIGTERM: 128 and the number of the signal, as shells report it."""

# A SIGTERM during an import is handled after the import, or after 20 seconds.
_DELAY_S = 0.1
_MAX_DELAYS = 200
_num_delays = 0


class TerminatedError(BaseException):
    """Raised on SIGTERM: ends a run as Ctrl-C does, after a last checkpoint; not an `Exception`."""


def terminate(signum: int, frame: FrameType | None, within: FrameType | None = None) -> None:
    """Signal handler of SIGTERM: raise `TerminatedError`, after an import that is in progress.

    Args:
        signum: The signal.
        frame: The frame that it interrupted.
        within: An outer frame of `frame`, such as that of a call of `train`. Only imports that
            began inside this frame delay the exception, not the import of a script that calls
            `train` at its top level. None: every import in progress delays it.
    """
    global _num_delays  # noqa: PLW0603 - of this process
    if _num_delays >= _MAX_DELAYS or not _is_importing(frame, within):
        raise TerminatedError
    _num_delays += 1
    _signal_later(signum)


def signal_again(unraisable: sys.UnraisableHookArgs) -> bool:
    """Resend SIGINT or SIGTERM if Python swallowed the exception of its handler.

    Returns:
        Whether a signal was resent.
    """
    if isinstance(unraisable.exc_value, TerminatedError):
        _signal_later(signal.SIGTERM)
    elif isinstance(unraisable.exc_value, KeyboardInterrupt):
        _signal_later(signal.SIGINT)
    else:
        return False
    return True


class ExitOnSigterm:
    """Context manager: on SIGTERM, its block ends as on Ctrl-C, and the script exits with 143.

    It prints the notes that the run has added to the exception, which tell its progress, to stderr.
    Then it raises `SystemExit`, so `finally` blocks of the script run. It does nothing outside the
    main thread, or if the script or the command line handles SIGTERM itself.
    """

    def __init__(self) -> None:
        self._is_active = False

    def __enter__(self) -> Self:
        self._is_active = (
            threading.current_thread() is threading.main_thread()
            and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        )
        if self._is_active:
            caller = sys._getframe(1)  # noqa: SLF001 - documented
            signal.signal(signal.SIGTERM, lambda number, frame: terminate(number, frame, caller))
            self._hook = hook = sys.unraisablehook

            def unraisable(each: Any) -> None:
                if not signal_again(each):
                    hook(each)

            sys.unraisablehook = unraisable
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._is_active:
            return
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        sys.unraisablehook = self._hook
        if isinstance(error, TerminatedError):
            notes = "".join(f" {note}" for note in getattr(error, "__notes__", ()))
            print(f"Terminated.{notes}", file=sys.stderr, flush=True)  # noqa: T201 - its last words
            raise SystemExit(EXIT_CODE) from None


def _signal_later(number: int) -> None:
    again = threading.Timer(_DELAY_S, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()


def _is_importing(frame: FrameType | None, within: FrameType | None) -> bool:
    while frame is not None and frame is not within:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
