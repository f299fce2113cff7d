"""The command line: one file per command, loaded only when that command is used.

Exit codes: 0 done, 1 an error or no row is ok, 2 usage, 3 a finding under --fail-on, 4 --fail-on
could not tell, 130 interrupted by Ctrl-C, 143 by SIGTERM.
"""

import sys
from collections.abc import Sequence

from pydlbench.workers import ahead


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit code.

    Args:
        argv: Arguments after the program's name; the arguments of this process by default.
    """
    if argv is None and sys.argv[1:2] == ["layers"]:  # its first process is known without options
        ahead.start()
    from pydlbench.cli.terminal import repair_streams
    from pydlbench.interrupts import sigterm_interrupts

    repair_streams()
    with sigterm_interrupts() as received:
        code = _run(list(sys.argv[1:] if argv is None else argv))
    return 143 if code == 130 and received else code


def _run(arguments: Sequence[str]) -> int:
    from pydlbench.cli.terminal import silence, tell
    from pydlbench.errors import PydlbenchError, UsageError

    try:
        from pydlbench.cli.parser import dispatch

        code = dispatch(arguments)
        # A closed pipe can be handled here, but not at the exit of the interpreter.
        sys.stdout.flush()
    except UsageError as error:
        return _complain(error, 2)
    except PydlbenchError as error:
        return _complain(error, 1)
    except KeyboardInterrupt:
        tell("interrupted")
        return 130
    except BrokenPipeError:  # `| head` has read enough
        silence(sys.stdout)
        return 0
    except (OSError, UnicodeEncodeError) as error:  # `> /dev/full`
        silence(sys.stdout)
        return _complain(error, 1)
    return code


def _complain(error: Exception, code: int) -> int:
    from pydlbench.cli.terminal import tell
    from pydlbench.cli.values import shortened
    from pydlbench.units import printable

    # Messages of libraries may have several lines or unprintable characters.
    words = (shortened(word, 400) for word in str(error).split())
    text = printable(" ".join(words)).removeprefix("pydlbench: ")
    tell(f"pydlbench: {shortened(text, 2000)}")
    return code
