"""Makes each fallible call of a command fail in turn, and looks at its answer and at the store.

``LD_PRELOAD=faults.so python torture.py COMMAND CALL EACH`` runs a command in a process that has
loaded everything, again and again: the first call fails, then the one EACH calls later, until the
command ends before it. It prints the number of failures, and what no failure may cause.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import importlib
import json
import os
import re
import shutil
import signal
import sqlite3
import sys
import tempfile
from pathlib import Path

from pydlbench.cli import main

TESTS = Path(__file__).parents[1]
COMMANDS = {
    "trace": f"trace {TESTS}/traces/data/modules.json.gz --json OUT --md OUT.md",
    "layers": "layers --shape 8x16:16x8 --pass forward --backend native --budget 0.02 "
    "--repetitions 1 --json OUT",
    "step": "step mnist --batch 2 --framework torch --mode eager --phase forward --budget 0.02 "
    "--repetitions 1 --json OUT",
}
CALLS = ("open", "write", "pwrite", "fsync", "rename", "mmap", "pipe", "fork", "new")
LIMIT_S = 300


def arm(call, number):
    """Make a call of this process fail; what C++ allocates fails in the workers."""
    if call == "new":
        os.environ["FAULT_NEW"] = str(number)
    else:
        ctypes.CDLL(None).fault_arm(call.encode(), ctypes.c_long(number))


def run_once(words, folder, call="", number=0):
    """Run a command in a fork.

    Returns:
        Its exit code, what it printed, and whether the call was reached.
    """
    said = folder / "said"
    child = os.fork()
    if not child:
        os.setsid()
        code = 70
        with contextlib.suppress(BaseException):
            ends = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(ends, 1)
            os.dup2(ends, 2)
            sys.stdout, sys.stderr = (
                os.fdopen(1, "w", closefd=False),
                os.fdopen(2, "w", closefd=False),
            )
            faulthandler.dump_traceback_later(LIMIT_S - 5, file=sys.stderr)
            signal.alarm(LIMIT_S)
            if call:
                arm(call, number)
            try:
                code = main(words)
            except BaseException:  # noqa: BLE001 - it is printed, and found there
                sys.excepthook(*sys.exc_info())
            sys.stdout.flush()
            sys.stderr.flush()
        waits = call not in ("", "new") and ctypes.CDLL(None).fault_waits()
        ctypes.CDLL(None).fault_arm(b"", ctypes.c_long(0))
        (folder / "waits").write_text(str(int(waits)))
        own = [name for name in sys.modules if name.startswith("pydlbench.")]
        (folder / "modules").write_text(json.dumps(own))
        os._exit(code)
    _, status = os.waitpid(child, 0)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # workers that it left
    waits = (folder / "waits").read_text() == "1" if (folder / "waits").exists() else False
    return os.waitstatus_to_exitcode(status), said.read_text(errors="replace"), not waits


def torture(name, call, each, most):
    """Return the number of calls that failed, and the findings."""
    findings, failed = [], 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        store, seed = folder / "store.sqlite", folder / "seed.sqlite"
        words = [word.replace("OUT", str(folder / "out")) for word in COMMANDS[name].split()]
        words += ["--store", str(store)]
        code, said, _ = run_once(words, folder)
        assert code == 0, said
        with contextlib.closing(sqlite3.connect(store)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copyfile(store, seed)
        # The processes that are forked find everything loaded, and share no worker.
        for module in json.loads((folder / "modules").read_text()):
            importlib.import_module(module)
        for number in range(1, 1 + each * most, each):
            for rest in folder.glob("store.sqlite*"):
                rest.unlink()
            shutil.copyfile(seed, store)
            code, said, reached = run_once(words, folder, call, number)
            if not reached:
                break
            failed += 1
            wrong = judge(code, said, store)
            if wrong:
                findings.append(f"{name}, {call} {number}: {wrong}")
    return {"failed": failed, "findings": findings}


def judge(code, said, store):
    """Return what a failed call must not cause; empty if there is nothing."""
    if "Traceback" in said:
        return re.sub(r"\s+", " ", said[said.index("Traceback") :])[-600:]
    if code not in (0, 1, 2):
        return f"exit code {code}: {said[-300:]!r}"
    if code and not said.strip():
        return f"exit code {code} without a word"
    with contextlib.closing(sqlite3.connect(store)) as connection:
        (whole,) = connection.execute("PRAGMA integrity_check").fetchone()
        (rows,) = connection.execute("SELECT count(*) FROM runs WHERE status = 'done'").fetchone()
    return "" if whole == "ok" and rows else f"store: {whole}, {rows} finished runs"


if __name__ == "__main__":
    name, call, each, most = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    sink = os.dup(1)
    os.dup2(2, 1)
    result = torture(name, call, each, most)
    os.write(sink, json.dumps(result).encode() + b"\n")
