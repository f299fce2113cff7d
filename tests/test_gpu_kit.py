"""The kit for a GPU machine, on an invented card: a package whose commands answer from nothing."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pydlbench.cli.parser import command_parser

_FOLDER = Path(__file__).parents[1] / "benchmarks"

_CUDA = """
class Device:
    facts = {"name": "NVIDIA H200", "capability": "9.0", "driver_version": 13000}
    def __init__(self, index): pass
def launch_seconds(device): return {"empty_kernel_s": 2e-6}
def libraries(): return {"cudnn": {"version": "9.28.0", "path": ""}}
def built_with(): return {"cuda": "13.0"}
def device_properties(device): return "{}"
"""
_PACKAGE = """
import json, os, sys, time
time.sleep(float(os.environ["CARD_SECONDS"]))
words = sys.argv[1:]
def values(option, default):
    if option not in words:
        return default
    rest = words[words.index(option) + 1 :]
    end = [i for i, word in enumerate(rest) if word.startswith("-")]
    return rest[: end[0]] if end else rest
def row(number, precision, backend, cache):
    return {
        "layer": f"layer{number}", "problem": "p", "pass": values("--pass", ["forward"])[0],
        "precision": precision, "backend": backend, "cache": cache, "status": "ok",
        "tflops": 780.0, "clock_hz": 1.7e9, "algorithm": "engine 7",
        "time_s": {"median": 1e-3 if backend == "native" else 1.25e-3, "n": 9},
        "peak_tflops": {"theoretical": 989.0, "measured": 800.0},
        "roofline": {"bound": "compute", "efficiency": 0.9}, "correct": {"status": "ok"},
    }
found = {"run": {"id": "1"}}
if words[0] == "device":
    found["device"] = {"peaks": [], "bandwidths": [
        {"level": "memory", "pattern": "read", "bytes_per_s": 4.3e12}]}
elif words[0] == "layers":
    found["measurements"] = [
        row(number, precision, backend, cache)
        for number in range(8 if "--model" in words else 1)
        for precision in values("--precision", ["fp32"])
        for backend in values("--backend", ["native"])
        for cache in values("--cache", ["hot"])
    ]
elif words[0] == "e2e":
    found["steps"] = [{"mode": "eager", "phase": "forward", "time_s": {"median": 0.02}}]
elif words[0] == "model":
    found |= {"estimate": {"time_s": 0.01}, "dominant": "conv2", "measurements": []}
elif words[0] == "check":
    found |= {"rungs": {}, "ledger": [], "measured_s": {"median": 0.02}, "measurements": []}
print(json.dumps(found))
"""
_PYTEST = """
import os, time
time.sleep(float(os.environ["CARD_SECONDS"]))
print("3 passed in 0.01s")
"""


@pytest.fixture
def kit(monkeypatch):
    """The kit's modules, which are scripts beside each other."""
    monkeypatch.syspath_prepend(str(_FOLDER))
    names = ("running", "steps", "summary")
    made = {name: importlib.import_module(f"kit.{name}") for name in names}
    return SimpleNamespace(journal=importlib.import_module("journal"), **made)


@pytest.fixture
def step(kit):
    def make(name: str, code: str, timeout_s: float = 60) -> Any:
        return kit.steps.Step(
            name=name,
            command=(sys.executable, "-S", "-c", code),
            timeout_s=timeout_s,
            read=lambda code, said: {"code": code, "printed": json.loads(said)},
        )

    return make


def _perform(kit: Any, found: list[Any], out: Path, seconds: float = 600) -> tuple[bool, Any]:
    journal = kit.journal.Journal(out / "journal.jsonl")
    return kit.running.perform(found, journal, out, seconds, dict(os.environ)), journal


def test_a_step_that_fails_costs_itself_only(kit, step, tmp_path):
    found = [step("bad", "import sys; sys.exit('no such card')"), step("good", "print(7)")]
    done, journal = _perform(kit, found, tmp_path)
    assert done
    assert journal.get("bad")["error"] == "exit code 1: no such card"
    assert journal.get("good")["printed"] == 7


def test_a_step_that_hangs_is_killed_with_all_that_it_has_started(kit, step, tmp_path):
    sleep = "import time; time.sleep(600)"
    worker = f"subprocess.Popen([sys.executable, '-S', '-c', '{sleep}'], start_new_session=True)"
    code = f"import subprocess, sys; p = {worker}; open('pid', 'w').write(str(p.pid)); p.wait()"
    done, journal = _perform(kit, [step("hangs", code, 1.5)], tmp_path)
    assert done
    assert "killed" in journal.get("hangs")["error"]
    state = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    end = time.monotonic() + 10
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_step_over_its_time_keeps_what_it_prints_when_interrupted(kit, step, tmp_path):
    # As the package does; a job in the background begins with the signal ignored.
    code = (
        "import signal, sys, time\n"
        "def ended(*_):\n    print(7)\n    sys.exit(130)\n"
        "signal.signal(signal.SIGINT, ended)\n"
        "time.sleep(600)"
    )
    done, journal = _perform(kit, [step("long", code, 1.0)], tmp_path)
    assert done
    entry = journal.get("long")
    assert (entry["code"], entry["printed"]) == (130, 7)
    assert "killed" in entry["error"]


def test_what_cannot_be_read_costs_its_own_step_only(kit, step, tmp_path):
    def read(_: int, said: str) -> dict[str, Any]:
        return {"device": json.loads(said)["device"]}

    found = [dataclasses.replace(step(said, f"print('{said}')"), read=read) for said in ("{}", "7")]
    done, journal = _perform(kit, found, tmp_path)
    assert done
    assert "KeyError" in journal.get("{}")["error"]
    assert "TypeError" in journal.get("7")["error"]


def test_what_the_end_of_the_call_cuts_off_is_begun_anew(kit, step, tmp_path, monkeypatch):
    monkeypatch.setattr(kit.running, "_LEAST_S", 0.1)
    long = [step("long", "import time; time.sleep(60)")]
    for _ in range(4):
        done, journal = _perform(kit, long, tmp_path, 0.25)
        assert not done
        assert "long" not in journal
    done, journal = _perform(kit, [step("long", "print(1)")], tmp_path, 20)
    assert done
    assert journal.get("long")["printed"] == 1


def test_a_step_that_ends_each_call_is_given_up(kit, step, tmp_path):
    journal = kit.journal.Journal(tmp_path / "journal.jsonl")
    journal.add("begun crash", {"times": 3})
    done, journal = _perform(kit, [step("crash", "print(1)")], tmp_path)
    assert done
    assert "3 times" in journal.get("crash")["error"]


def test_tests_that_were_all_skipped_have_shown_nothing(kit):
    read = kit.steps.read_tests
    assert read(0, "ss\n2 skipped in 0.1s")["error"]
    assert "error" not in read(0, "s.\n1 passed, 1 skipped in 0.1s")
    assert "error" not in read(5, "3 deselected in 0.1s")  # no test of this mode
    found = read(1, "FAILED a.py::b\n1 failed, 2 passed in 0.1s")
    assert found["counts"] == {"failed": 1, "passed": 2}
    assert found["failed"] == ["FAILED a.py::b"]


def test_targets_without_measurements_are_open_and_another_card_has_none(kit, tmp_path):
    journal = kit.journal.Journal(tmp_path / "journal.jsonl")
    assert {one.met for one in kit.summary.verdicts(journal)} == {None}
    rates = [{"level": "memory", "pattern": "read", "bytes_per_s": 4.3e12}]
    journal.add("device", {"device": {"bandwidths": rates, "peaks": []}})
    _, bandwidth, *_ = kit.summary.verdicts(journal)
    assert bandwidth.met is True
    journal.add("facts", {"facts": {"name": "NVIDIA A100"}})
    _, bandwidth, *_ = kit.summary.verdicts(journal)
    assert bandwidth.met is None


def test_the_package_takes_every_command_line(kit, tmp_path):
    taken = set()
    for one in kit.steps.steps("cuda:0", tmp_path / "runs.sqlite"):
        if "pydlbench" in one.command:
            name, *words = one.command[one.command.index("pydlbench") + 1 :]
            command_parser(name).parse_args(words)  # raises UsageError
            taken.add(name)
    assert taken == {"device", "layers", "e2e", "model", "check"}


def test_a_check_of_one_framework_is_kept(kit):
    found = {"rungs": {"step": 1.0}, "ledger": [], "unexplained": 0.1, "measured_s": 2.0}
    assert kit.steps.read_document(0, json.dumps({"run": {}, **found})) == found


def test_a_check_is_summed_up_in_its_rungs_and_terms(kit):
    terms = [("launch gaps", "experiment", 0.25), ("context", "difference", 0.1)]
    ledger = [{"term": term, "kind": kind, "share": share} for term, kind, share in terms]
    rungs = {"native_chain": None, "operators": {"median": 0.002}, "step": {"median": 0.004}}
    entry = {"rows": [], "rungs": rungs, "ledger": ledger}
    lines = kit.summary.summary({"check x": entry}, ["check x"]).splitlines()
    found = [one for one in lines if one.startswith("check x")]
    assert found == ["check x: operators 2.00 ms, step 4.00 ms", "check x: launch gaps +25.0 %"]


def test_what_was_timed_before_a_crash_is_kept(kit, tmp_path):
    (profiler,) = (one for one in kit.steps.steps("cuda:0", tmp_path) if one.name == "profiler")
    lines = [
        {"seconds": {"a": 1.0}, "kernels": []},
        {"seconds": {"a": 1.0, "b": 2.0}, "kernels": []},
    ]
    entry = profiler.read(-11, "".join(json.dumps(one) + "\n" for one in lines))
    assert entry["times_s"] == {"a": 1.0, "b": 2.0}
    assert "-11" in entry["error"]


def _pair(number: int, native_s: float, **words: Any) -> list[dict[str, Any]]:
    shared = {"layer": str(number), "pass": "forward", "precision": "fp32", "cache": "hot"}
    shared |= {"status": "ok", "roofline": None}
    native = {**shared, "backend": "native", "time_s": {"median": native_s}, **words}
    return [native, {**shared, "backend": "torch", "time_s": {"median": 1.0}}]


@pytest.mark.parametrize(
    ("pairs", "met"),
    [
        (_pair(1, 1.1, ratio={"ci_low": 1.05}), [False, False]),
        (_pair(1, 1.1, ratio={"ci_low": 0.99}), [True, False]),
        (_pair(1, 1.1), [None, False]),  # nobody knows
        (_pair(1, 0.9), [True, True]),
        (_pair(1, 0.9) + _pair(2, 9.0, contended=True), [True, True]),
        (_pair(2, 9.0, contended=True), [None, None]),
    ],
)
def test_only_undisturbed_rows_are_held_against_pytorch(kit, tmp_path, pairs, met):
    journal = kit.journal.Journal(tmp_path / "journal.jsonl")
    journal.add("layers", {"rows": pairs})
    found = [one.met for one in kit.summary.verdicts(journal) if "native/torch" in one.target]
    assert found == met


def test_an_entry_that_is_not_understood_costs_its_own_lines(kit, tmp_path):
    journal = kit.journal.Journal(tmp_path / "journal.jsonl")
    journal.add("bad", {"rows": [{"status": "ok"}]})
    journal.add("none", {"estimate": {"time_s": None}, "dominant": "conv2"})
    text = kit.summary.summary(journal, ["bad", "none"])
    assert "KeyError" in next(line for line in text.splitlines() if line.startswith("bad"))
    assert "none: no estimate; dominant conv2" in text


@pytest.fixture
def card(tmp_path):
    """A folder with the invented package."""
    site = tmp_path / "site"
    for name, text in (
        ("pydlbench/__init__.py", ""),
        ("pydlbench/__main__.py", _PACKAGE),
        ("pydlbench/_cuda.py", _CUDA),
        ("pydlbench/backends/native/cuda_libraries.py", "def load(): pass"),
        ("torch.py", "raise SystemExit('no PyTorch here')"),
        ("pytest/__init__.py", ""),
        ("pytest/__main__.py", _PYTEST),
    ):
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text)
    return site


def _command(card: Path, out: Path) -> list[str]:
    script = str(_FOLDER / "gpu_kit.py")
    return [sys.executable, script, "run", "--minutes", "1", "--out", str(out), "--site", str(card)]


@pytest.mark.parametrize("what", ["no GPU", "another GPU"])
def test_without_the_journals_gpu_nothing_is_begun(kit, card, tmp_path, what):
    out = tmp_path / "out"
    journal = kit.journal.Journal(out / "journal.jsonl")
    if what == "no GPU":
        (card / "pydlbench/_cuda.py").write_text("raise SystemExit('no driver')")
    else:
        journal.add("facts", {"facts": {"name": "NVIDIA A100"}})
    done = subprocess.run(_command(card, out), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stdout.splitlines()
    assert ("no driver" if what == "no GPU" else "NVIDIA A100") in line
    entries = kit.journal.Journal(out / "journal.jsonl").entries()
    assert entries.keys() <= {"facts"}


@pytest.mark.deep
def test_a_run_that_is_killed_twice_is_completed_by_the_third(kit, card, tmp_path):
    tools, out = tmp_path / "bin", tmp_path / "out"
    tools.mkdir()
    (tools / "compute-sanitizer").write_text('#!/bin/sh\nshift\nexec "$@"\n')
    (tools / "compute-sanitizer").chmod(0o755)
    command = _command(card, out)
    environment = {**os.environ, "CARD_SECONDS": "0.02", "PATH": f"{tools}:/bin:/usr/bin"}

    def finished() -> int:
        return len(names & kit.journal.Journal(out / "journal.jsonl").entries().keys())

    names = {one.name for one in kit.steps.steps("cuda:0", out / "runs.sqlite")}
    for killed_after in (5, 20):
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
        )
        while finished() < killed_after:
            assert process.poll() is None
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert killed_after <= finished() < len(names)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    # The FMA probe's target is open, and there is no PyTorch.
    assert done.returncode == 1, done.stderr
    assert finished() == len(names)
    journal = kit.journal.Journal(out / "journal.jsonl")
    failed = [name for name in names if "error" in journal.get(name)]
    assert failed == ["profiler"]
    text = (out / "summary.txt").read_text()
    assert done.stdout.endswith(text)
    assert len(text.splitlines()) <= kit.summary.LINES
    met = {one.target: one.met for one in kit.summary.verdicts(journal)}
    assert list(met.values()) == [True, True, None, True, True, True, True]
    assert "native/torch 0.800 over 8" in text
    assert len(list(out.rglob("*"))) <= 8
