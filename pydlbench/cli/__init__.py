"""The command line: one file per command, loaded only when that command is used.

Exit codes: 0 done, 1 an error or no row is ok, 2 usage, 130 interrupted.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code.

    Args:
        argv: Arguments after the program's name; those of the process by default.
    """
    from pydlbench.cli.parser import dispatch
    from pydlbench.errors import PydlbenchError, UsageError

    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        code = dispatch(arguments)
        # Here, not at interpreter exit, so that a closed pipe is met where it can be handled.
        sys.stdout.flush()
    except UsageError as error:
        return _complain(error, 2)
    except PydlbenchError as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        _silence_stdout()
        return 0
    return code


def _silence_stdout() -> None:
    """`| head` has read enough; Python would flush once more at exit, and complain."""
    with contextlib.suppress(OSError, ValueError):
        sink = os.open(os.devnull, os.O_WRONLY)
        os.dup2(sink, sys.stdout.fileno())
        os.close(sink)


def _complain(error: Exception, code: int) -> int:
    # One line, whatever a library has put into its message.
    print(f"pydlbench: {' '.join(str(error).split())}", file=sys.stderr)
    return code
