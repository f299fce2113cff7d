"""Performs steps one after another, each with its own time-out, and records them in a journal."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from journal import Journal

from kit.steps import Step

__all__ = ["execute", "perform"]

# A step that ends the machine or the call each time must not prevent the following ones.
_MAX_STARTS = 3
# With less time than this no step is begun: most would be ended before they have found anything.
_MIN_LEFT_S = 15.0
# Time for a step over its time-out to print its finished results.
_GRACE_S = 15.0
# Characters of one step's output in the log.
_MAX_LOGGED = 200_000
_LAST_WORDS = 300
# Becomes the program that it is given, killed when the kit is (1 is PR_SET_PDEATHSIG): what goes on
# alone disturbs the next call. A function that runs between fork and exec would need no interpreter
# of its own, but is not safe in a process with threads.
_TIED = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
try:
    os.execvp(sys.argv[1], sys.argv[1:])
except OSError as error:
    sys.exit(f"{sys.argv[1]}: {error.strerror}")
"""


def perform(
    found: Iterable[Step],
    journal: Journal,
    out: Path,
    seconds: float,
    environment: dict[str, str],
    again: bool = False,
    after: Callable[[], None] = lambda: None,
) -> bool:
    """Perform the steps that are not finished; return whether all are finished then.

    A step that fails, or is over its time-out, is recorded with its reason and what it had found,
    and costs nothing but itself. One that the end of the call has cut off is not finished: the next
    call begins it anew; what it has put into the journal itself it need not do again.

    Args:
        found: what there is to do.
        journal: what was done, and is added to.
        out: folder that the steps run in; their output is in ``kit.log`` there.
        seconds: how long to go on, but for what the last step takes to end when it is told to.
        environment: of the steps.
        again: repeat what has failed.
        after: called after each step.
    """
    end = time.monotonic() + seconds
    for step in found:
        entry = journal.get(step.name)
        if entry is not None and not (again and "error" in entry):
            continue
        begun = f"begun {step.name}"
        times = (journal.get(begun) or {}).get("times", 0)
        if times >= _MAX_STARTS:
            journal.add(step.name, {"error": f"begun {times} times, and never ended"})
            continue
        left = end - time.monotonic()
        if left < _MIN_LEFT_S:
            return False
        journal.add(begun, {"times": times + 1})
        begin = time.monotonic()
        entry = execute(step, out, min(left, step.timeout_s), environment)
        journal.reload()
        took = time.monotonic() - begin
        if "error" in entry and left < step.timeout_s and took >= left:
            journal.add(begun, {"times": times})  # not its fault
            return False
        journal.add(step.name, {**entry, "seconds": round(took, 3)})
        print(f"{took:7.1f} s  {step.name}{_marked(entry)}", flush=True)
        after()
    return True


def _marked(entry: dict[str, Any]) -> str:
    return f": {entry['error']} {str(entry.get('said', ''))[:80]}" if "error" in entry else ""


def execute(step: Step, out: Path, timeout_s: float, environment: dict[str, str]) -> dict[str, Any]:
    """Run a step, and return its entry; if it failed, with ``error`` and its last output.

    Args:
        step: what to run.
        out: the folder to run it in.
        timeout_s: after so many seconds it is interrupted, as by Ctrl-C, and prints what it has
            finished; a little later it is killed, with all that it has started.
        environment: of its process.
    """
    with (
        tempfile.TemporaryFile("w+b") as said,
        tempfile.TemporaryFile("w+b") as errors,
        tempfile.TemporaryFile("w+b") as given,
    ):
        given.write(step.given.encode())
        given.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-S", "-c", _TIED, *step.command],
            cwd=out,
            env={**environment, **step.environment},
            stdin=given,
            stdout=said,
            stderr=errors,
            start_new_session=True,
        )
        over, left = False, []
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            over = True
            left = _descendants(process.pid)  # orphans, later, are nobody's
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_GRACE_S)
        finally:
            _end(process, left)
        output, complaints = _text(said), _text(errors)
    code = process.returncode
    _log(out / "kit.log", step, code, output, complaints)
    last = (complaints.strip().splitlines() or [""])[-1][:_LAST_WORDS]
    try:
        entry = step.read(code, output)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        entry = {"error": f"exit code {code}: {last or repr(error)}", "said": ""}
    if over:
        return {**entry, "error": f"killed after {timeout_s:.0f} s", "said": last}
    return {**entry, "said": entry.get("said", last)} if "error" in entry else entry


def _end(process: subprocess.Popen[bytes], left: list[int]) -> None:
    """Kill the processes of a step: workers have sessions of their own, and may hang on the GPU.

    Args:
        process: of the step.
        left: what it had started before it was told to end.
    """
    left = [*left, *_descendants(process.pid)]
    if process.poll() is None:
        process.kill()
        process.wait()
    for pid in left:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def _descendants(pid: int) -> list[int]:
    """Return the children of a process, and their children."""
    parents: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found, open_ = [], [pid]
    while open_:
        children = parents.get(open_.pop(), [])
        found += children
        open_ += children
    return found


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _log(path: Path, step: Step, code: int, output: str, complaints: str) -> None:
    with path.open("a") as log:
        log.write(f"=== {step.name}: exit code {code}\n{complaints[-_MAX_LOGGED:]}\n")
        if code != 0 or not output.startswith("{"):  # a document is in the journal
            log.write(f"{output[-_MAX_LOGGED:]}\n")
