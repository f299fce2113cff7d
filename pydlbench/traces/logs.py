"""Logs of ``ONEDNN_VERBOSE=1`` and ``MKL_VERBOSE=1``, of whichever framework or program."""

from typing import Final

from pydlbench.backends.frameworks.verbose import MARK, is_too_old, parse_line
from pydlbench.errors import UsageError
from pydlbench.records.trace import ProgramCall
from pydlbench.traces.timeline import RecordedTrace, sequence_of_calls

#: Characters of a line; a problem takes a few hundred.
_LONGEST: Final = 10_000
_DIRECTIONS: Final = ("backward", "backward_data", "backward_weights")


def read(name: str, text: str, most: int) -> RecordedTrace:
    """Read a log; lines of others are passed over.

    Args:
        name: of the file, for messages.
        text: of it.
        most: executions.

    Raises:
        UsageError: no execution is in it, or there are too many.
    """
    calls: list[ProgramCall] = []
    seconds: list[float] = []
    torn, on_gpu, libraries = 0, False, dict[str, None]()
    for number, given in enumerate(text.splitlines(), start=1):
        mark = MARK.search(given)  # servers put names and times of their own before it
        if mark is None:
            continue
        line = given[mark.start() :]
        if is_too_old(line):
            raise UsageError(
                f"{name}:{number}: of MKL-DNN before version 1, whose lines have no types; "
                "nearest: a log of MKL-DNN 1 or oneDNN"
            )
        execution = parse_line(line) if len(line) <= _LONGEST else None
        if execution is None:
            torn += ",exec," in line and ",graph,exec," not in line
            continue
        if len(calls) == most:
            raise UsageError(
                f"{name}:{number}: more than {most:,} executions; nearest: a log of one step"
            )
        backward = execution.propagation in _DIRECTIONS
        libraries.setdefault(execution.library)
        on_gpu = on_gpu or ",exec,gpu" in line
        direction = "backward" if backward else "forward"
        calls.append(
            ProgramCall(
                operator=f"{execution.library} {execution.primitive}",
                module=direction,
                direction=direction,
                signature=execution.signature,
            )
        )
        seconds.append(execution.seconds)
    if not calls:
        raise UsageError(
            f"{name}: no execution in it; nearest: ONEDNN_VERBOSE=1, or DNNL_VERBOSE=1"
        )
    notes = (f"{torn} torn lines were passed over",) if torn else ()
    return RecordedTrace(
        source=f"log of {' and '.join(libraries)}",
        timelines=(sequence_of_calls(calls, seconds),),
        on_gpu=on_gpu,
        host_times=True,
        notes=(*notes, "times of a log are those of kernels, without what calls them"),
    )
