"""Runs of all measuring commands that end early at random moments, and what each leaves behind.

    python benchmarks/early_ends.py --count 3                 # three ends of each command
    python benchmarks/early_ends.py --only compare --end worker

Each command runs in a store of its own: once to its end, then again and again until SIGINT,
SIGTERM, ``--minutes`` or the loss of one or of several workers (SIGKILL) at a random moment. The
answer must have the documented exit code, valid JSON that says that it is not whole, no traceback,
no rows that the store lacks, and no process that lives on. A line is printed for each end, and the
faults below it; the exit code is 1 if there are any.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import jsonschema

from pydlbench.records.schema import load_schema

# ``python`` and ``python3`` of an environment are two installations by name.
_PYTHON: Final = Path(sys.executable).with_name("python")
_EXAMPLES: Final = Path(__file__).parents[1] / "examples"
_SWEEP: Final = """
[[layers]]
shape = ["8x16:16x8", "relu:mb1ic8ih8", "mb1ic8ih8oc8oh8kh3ph1"]
budget = 0.2
[[step]]
model = "mnist"
batch = 2
framework = "torch"
"""
_STEP: Final = "mnist --batch 2 --framework torch"
COMMANDS: Final = {
    "layers": "layers --shape 8x16:16x8,relu:mb1ic8ih8,mb1ic8ih8oc8oh8kh3ph1 --budget 0.3",
    "layers of frameworks": "layers --shape 8x16:16x8 --backend native,torch --budget 0.3",
    "step": f"step {_STEP}",
    "estimate": "estimate mnist --batch 2 --budget 0.05",
    "breakdown": f"breakdown {_STEP}",
    "diagnose": f"diagnose {_STEP}",
    "forecast": f"forecast {_STEP}",
    "sweep": "sweep FOLDER/plan.toml",
    "compare models": f"compare {_EXAMPLES}/old.py:build {_EXAMPLES}/new.py:build",
    "compare kernels": "compare native torch --shape relu:mb1ic8ih8",
    "compare installations": "compare --python PYTHON --python PYTHON3 --shape 8x16:16x8",
}
# Number of workers that are killed.
_KILLED: Final = {"worker": 1, "workers": 3}
ENDS: Final = ("interrupt", "terminate", "minutes", *_KILLED)
_CODES: Final = {"interrupt": (130,), "terminate": (143,)}
_RESUMED: Final = ("layers", "sweep", "step", "breakdown", "estimate", "forecast", "diagnose")
# Seconds of imports, in which nothing is known yet.
_IMPORTS_S: Final = 0.5


class Ended(NamedTuple):
    """A run that has ended.

    Attributes:
        code: its exit code.
        seconds: time that it took.
        out: its standard output.
        err: its standard error.
        document: its JSON object; None without a file.
    """

    code: int
    seconds: float
    out: str
    err: str
    document: dict[str, Any] | None


def workers(folder: Path) -> list[int]:
    """Return the processes of a folder's runs, without those that the terminal started."""
    mark = f"PYDLBENCH_STORE={folder}/".encode()
    numbers = []
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if mark in (each / "environ").read_bytes():
                words = (each / "cmdline").read_bytes().split(b"\0")
                if b"-c" in words:
                    numbers.append(int(each.name))
    return numbers


def run(words: str, folder: Path, end: str = "", after_s: float = 0.0) -> Ended:
    """Run a command, and end it early.

    Args:
        words: words after ``pydlbench``.
        folder: folder of its store and files.
        end: an item of :data:`ENDS`; "" for none.
        after_s: seconds after which it ends.
    """
    (folder / "plan.toml").write_text(_SWEEP)
    path = folder / "answer.json"
    path.unlink(missing_ok=True)
    given = words.replace("FOLDER", str(folder)).replace("PYTHON", str(_PYTHON)).split()
    if end == "minutes":
        given += ["--minutes", f"{after_s / 60:.4f}"]
    kept = {"PYDLBENCH_STORE": str(folder / "runs.sqlite")}
    begin = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "pydlbench", *given, "--json", str(path)],
        env={**os.environ, **kept},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        if end and end != "minutes":
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(after_s)
            if end in _KILLED:
                alive = workers(folder)
                for number in random.sample(alive, min(_KILLED[end], len(alive))):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(number, signal.SIGKILL)
            elif process.poll() is None:
                process.send_signal(signal.SIGINT if end == "interrupt" else signal.SIGTERM)
        out, err = process.communicate()
    seconds = time.monotonic() - begin
    document = json.loads(path.read_text()) if path.exists() else None
    return Ended(process.returncode, seconds, out, err, document)


def stored_entries(folder: Path) -> int:
    """Return the number of entries in the store; 0 without a store."""
    path = folder / "runs.sqlite"
    if not path.exists():
        return 0
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        return int(connection.execute("SELECT count(*) FROM entries").fetchone()[0])


def faults(kind: str, ended: Ended, end: str, after_s: float, folder: Path) -> Iterator[str]:
    """Yield what is wrong with a run that has ended early.

    Args:
        kind: its command, with the name of its schema.
        ended: the run.
        end: its end.
        after_s: seconds after which it was to end.
        folder: its folder.
    """
    finished = ended.code == 0 and "interrupted" not in ended.err
    if not finished and ended.code not in _CODES.get(end, (0, 1)):
        yield f"exit code {ended.code}"
    if "Traceback" in ended.out + ended.err:
        yield "a traceback"
    if ended.document is None:
        yield "no JSON"
    else:
        schema = jsonschema.Draft202012Validator(load_schema(kind))
        yield from (
            f"JSON: {error.json_path}: {error.message[:90]}"
            for error in schema.iter_errors(ended.document)
        )
        if ended.code in (130, 143) and not ended.document.get("interrupted"):
            yield "the JSON does not say that it was interrupted"
        rows = ended.document.get("measurements", ())
        if kind == "layers" and len(rows) > (count := stored_entries(folder)):
            yield f"{len(rows)} rows, {count} stored"
    if not finished and ended.seconds > after_s + 20:
        yield f"ended {ended.seconds - after_s:.0f} s later"
    if left := workers(folder):
        yield f"processes that live on: {left}"
    if ended.document and not ended.out.strip() and "unfinished" not in ended.document:
        yield "no text and no list of what is missing"


def resumed(words: str, ended: Ended, folder: Path) -> Iterator[str]:
    """Yield what is wrong with the run that resumes an interrupted one."""
    name = ((ended.document or {}).get("run") or {}).get("id")
    if words.split(maxsplit=1)[0] not in _RESUMED or f"--resume {name}" not in ended.err:
        return
    again = run(f"{words} --resume {name}", folder)
    if again.code != 0:
        last = again.err.strip().splitlines()[-1:]
        yield f"resumed: exit code {again.code}: {last}"
    elif (again.document or {}).get("interrupted") is not False:
        yield "resumed: the JSON says that it was interrupted"


def main() -> None:
    """Print a line for each end and for each fault."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("--only", default="", metavar="WORD", help="commands with this word")
    parser.add_argument("--end", choices=ENDS, help="one end only")
    parser.add_argument("--count", type=int, default=2, help="ends of each kind and command")
    parser.add_argument("--resume", action="store_true", help="resume interrupted runs")
    parser.add_argument(
        "--within", type=float, metavar="S", help="ends within S seconds (default: a whole run)"
    )
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random.seed(options.seed)
    number = 0
    for name, words in COMMANDS.items():
        if options.only not in name:
            continue
        latest_s = options.within
        if latest_s is None:
            with tempfile.TemporaryDirectory() as place:
                whole = run(words, Path(place))
            latest_s = whole.seconds
            print(f"{name}: whole in {latest_s:.1f} s, exit code {whole.code}", flush=True)
        for end in [options.end] if options.end else ENDS:
            if end == "minutes" and words.startswith("compare --"):
                continue
            for _ in range(options.count):
                after_s = random.uniform(_IMPORTS_S, latest_s)
                with tempfile.TemporaryDirectory() as place:
                    folder = Path(place)
                    ended = run(words, folder, end, after_s)
                    wrong = list(faults(words.split(maxsplit=1)[0], ended, end, after_s, folder))
                    if options.resume and ended.code in (130, 143):
                        wrong += resumed(words, ended, folder)
                keys = sorted(set(ended.document or ()) - {"run", "schema_version", "kind"})
                print(f"{name}: {end} after {after_s:.1f} s: {ended.code}; {len(keys)} fields")
                for line in wrong:
                    print(f"    {line}", *ended.err.strip().splitlines()[-2:], sep="\n      ")
                sys.stdout.flush()
                number += len(wrong)
    raise SystemExit(1 if number else 0)


if __name__ == "__main__":
    main()
