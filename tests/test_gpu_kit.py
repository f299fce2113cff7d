"""The kit for a GPU machine, on an invented card: a package whose commands answer from nothing."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from invented_card import PLANTED, make_site

from pydlbench.cli.layer_request import read_request
from pydlbench.cli.parser import read

_FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture
def kit(monkeypatch):
    """The kit's modules, which are scripts beside each other."""
    monkeypatch.syspath_prepend(str(_FOLDER))
    names = ("building", "items", "running", "steps", "summary")
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


@pytest.fixture
def journal(kit, tmp_path):
    return kit.journal.Journal(tmp_path / "journal.jsonl")


@pytest.fixture
def perform(kit, tmp_path):
    """Perform steps to their ends, and return a new reading of the journal."""

    def run(*found: Any, seconds: float = 600, done: bool = True) -> Any:
        journal = kit.journal.Journal(tmp_path / "journal.jsonl")
        environment = dict(os.environ)
        assert kit.running.perform(found, journal, tmp_path, seconds, environment) is done
        return journal

    return run


def test_a_step_that_fails_costs_itself_only(step, perform):
    journal = perform(step("bad", "import sys; sys.exit('no such card')"), step("good", "print(7)"))
    assert journal.get("bad")["error"] == "exit code 1: no such card"
    assert journal.get("good")["printed"] == 7


def test_a_step_that_hangs_is_killed_with_all_that_it_has_started(step, perform, tmp_path):
    sleep = "import time; time.sleep(600)"
    worker = f"subprocess.Popen([sys.executable, '-S', '-c', '{sleep}'], start_new_session=True)"
    code = f"import subprocess, sys; p = {worker}; open('pid', 'w').write(str(p.pid)); p.wait()"
    journal = perform(step("hangs", code, 1.5))
    assert "killed" in journal.get("hangs")["error"]
    state = Path(f"/proc/{(tmp_path / 'pid').read_text()}/stat")
    end = time.monotonic() + 10
    while state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_step_over_its_time_keeps_what_it_prints_when_interrupted(step, perform):
    # As the package does; a job in the background begins with the signal ignored.
    code = (
        "import signal, sys, time\n"
        "def ended(*_):\n    print(7)\n    sys.exit(130)\n"
        "signal.signal(signal.SIGINT, ended)\n"
        "time.sleep(600)"
    )
    entry = perform(step("long", code, 1.0)).get("long")
    assert (entry["code"], entry["printed"]) == (130, 7)
    assert "killed" in entry["error"]


def test_what_cannot_be_read_costs_its_own_step_only(step, perform):
    def read(_: int, said: str) -> dict[str, Any]:
        return {"device": json.loads(said)["device"]}

    found = [dataclasses.replace(step(said, f"print('{said}')"), read=read) for said in ("{}", "7")]
    journal = perform(*found)
    assert "KeyError" in journal.get("{}")["error"]
    assert "TypeError" in journal.get("7")["error"]


def test_what_the_end_of_the_call_cuts_off_is_begun_anew(kit, step, perform, monkeypatch):
    monkeypatch.setattr(kit.running, "_MIN_LEFT_S", 0.1)
    for _ in range(4):
        long = step("long", "import time; time.sleep(60)")
        assert "long" not in perform(long, seconds=0.25, done=False)
    journal = perform(step("long", "print(1)"), seconds=20)
    assert journal.get("long")["printed"] == 1


def test_a_step_that_ends_each_call_is_given_up(step, perform, journal):
    journal.add("begun crash", {"times": 3})
    assert "3 times" in perform(step("crash", "print(1)")).get("crash")["error"]


def test_tests_that_were_all_skipped_have_shown_nothing(kit):
    read = kit.steps.read_tests
    assert read(0, "ss\n2 skipped in 0.1s")["error"]
    assert "error" not in read(0, "s.\n1 passed, 1 skipped in 0.1s")
    assert "error" not in read(5, "3 deselected in 0.1s")  # no test of this mode
    found = read(1, "FAILED a.py::b\n1 failed, 2 passed in 0.1s")
    assert found["counts"] == {"failed": 1, "passed": 2}
    assert found["failed"] == ["FAILED a.py::b"]


_RATES = [{"level": "memory", "pattern": "copy", "bytes_per_s": 3.0e12}]


@pytest.mark.parametrize(
    ("card", "met"), [("NVIDIA H100 80GB HBM3", True), ("NVIDIA H200", False), ("A100", None)]
)
def test_a_target_is_the_cards_and_another_card_has_none(kit, journal, card, met):
    assert {one.met for one in kit.summary.verdicts(journal)} == {None}
    journal.add("device", {"device": {"bandwidths": _RATES, "peaks": []}})
    journal.add("environment", {"items": {"card": {"found": {"name": card}}}})
    _, bandwidth, *_ = kit.summary.verdicts(journal)
    assert bandwidth.met is met


@pytest.mark.parametrize(
    ("native", "met"), [({"tflops": 690.0}, True), ({"tflops": 600.0}, False), ({}, None)]
)
def test_a_products_rate_is_held_against_pytorchs_of_the_same_minute(kit, journal, native, met):
    rows = [
        {**row, "precision": "bf16-tc", "status": "ok", "time_s": None}
        for row in ({"backend": "native", **native}, {"backend": "torch", "tflops": 700.0})
    ]
    journal.add("products", {"rows": rows})
    (product,) = (one for one in kit.summary.verdicts(journal) if "8192" in one.target)
    assert product.met is met


@pytest.mark.parametrize(
    ("failed", "environment", "words", "backends"),
    [
        ((), {}, (), ("native", "torch")),
        (("gate",), {"PYDLBENCH_GATE": "0"}, (), ("native", "torch")),
        (("profiler",), {"PYDLBENCH_PROFILER": "0"}, (), ("native", "torch")),
        (("graph of 1024",), {}, ("--timing", "events"), ("native", "torch")),
        (("gemm tf32",), {}, (), ("native", "torch")),
        (("gemm fp32", "gemm tf32", "graph of 64"), {}, (), ("torch",)),
        (("torch row",), {}, (), ("native",)),
    ],
)
def test_what_failed_is_done_without(kit, journal, tmp_path, failed, environment, words, backends):
    names = ("gate", "graph of 64", "graph of 1024", "gemm fp32", "gemm tf32", "torch row")
    items = {name: {"error": "x"} if name in failed else {} for name in (*names, "profiler")}
    journal.add("smoke", {"items": items})
    found = kit.steps.Switches.of(journal)
    assert (found.environment, found.words, found.backends) == (environment, words, backends)
    for one in kit.steps.steps("cuda:0", tmp_path, found):
        assert one.environment == environment
    (rows,) = (one for one in kit.steps.steps("cuda:0", tmp_path, found) if one.name == "vgg16")
    for line in map(json.loads, rows.given.splitlines()):
        assert set(words) <= set(line)
        assert line[line.index("--backend") + 1].split(",") == list(backends)


_ITEMS = """
import os, sys, time
sys.path.insert(0, {folder!r})
from kit import items
items._ITEM_S = 2.0

class DeviceLostError(Exception): pass

def lost(): raise DeviceLostError("gone")
def slow(): time.sleep(60)
def end(): os._exit(7)
def gate(): raise RuntimeError("never opens")

ITEMS = {{"gate": gate, "end": end, "lost": lost, "slow": slow,
         "pid": os.getpid, "same": os.getpid, "gated": lambda: os.environ.get("GATE")}}
raise SystemExit(items.main(ITEMS, {{"gate": {{"GATE": "0"}}}}))
"""


@pytest.mark.deep
def test_an_item_that_fails_hangs_or_ends_the_process_costs_itself_only(kit, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(_ITEMS.format(folder=str(_FOLDER)))
    done = subprocess.run(
        [sys.executable, "-S", str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    entry = kit.steps.read_items(done.returncode, done.stdout)
    items = entry["items"]
    assert entry["error"] == "4 of 7 failed"
    assert items["gate"]["error"] == "RuntimeError: never opens"
    assert items["end"]["error"] == "ended the process: exit code 7"
    assert items["lost"]["error"] == "DeviceLostError: gone"
    assert items["slow"]["error"] == "hung for 2 s"
    assert items["pid"]["found"] == items["same"]["found"]
    assert items["gated"]["found"] == "0"


def test_the_kit_is_built_with_all_that_the_package_is_built_with(kit):
    project = tomllib.loads((_FOLDER.parent / "pyproject.toml").read_text())
    requires = project["build-system"]["requires"]
    providers = [one["provider"] for one in project["tool"]["scikit-build"]["metadata"].values()]
    wanted = {re.split(r"[>=<;]", one)[0] for one in requires if "onednn" not in one}
    wanted |= {one.rpartition(".")[2].replace("_", "-") for one in providers}
    # A provider's package may have another's name before its own: hatch-fancy-pypi-readme.
    tools = [one.partition(">")[0] for one in kit.building.TOOLS]
    assert {one for one in wanted if any(tool.endswith(one) for tool in tools)} == wanted
    assert len(wanted) >= 4


def test_a_python_of_a_version_manager_is_found_behind_what_does_not_run(
    kit, monkeypatch, tmp_path
):
    def put(place: str, code: int) -> Path:
        file = tmp_path / place
        file.parent.mkdir(parents=True)
        file.write_text(f"#!/bin/sh\nexit {code}\n")
        file.chmod(0o755)
        return file

    shim = put("shims/python3.99", 127)
    monkeypatch.setenv("PATH", str(shim.parent))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    with pytest.raises(SystemExit, match=r"no python3\.99"):
        kit.building.interpreter("3.99")
    put("versions/3.99.1/bin/python", 1)
    works = put("versions/3.99.0/bin/python", 0)
    assert kit.building.interpreter("3.99") == str(works)


def test_the_package_takes_every_command_line(kit, journal, tmp_path):
    taken = set()
    switches = kit.steps.Switches.of(journal)
    for one in kit.steps.steps("cuda:0", tmp_path, switches):
        if "pydlbench" in one.command:
            name, *words = one.command[one.command.index("pydlbench") + 1 :]
            read([name, *words])[0]  # raises UsageError
            taken.add(name)
        for line in map(json.loads, one.given.splitlines()):
            assert read_request(read(["layers", *line])[0]).cases
            taken.add("rows")
    assert taken == {"breakdown", "device", "layers", "step", "rows"}


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
def test_only_undisturbed_rows_are_held_against_pytorch(kit, journal, pairs, met):
    journal.add("layers", {"rows": pairs})
    found = [one.met for one in kit.summary.verdicts(journal) if "native/torch" in one.target]
    assert found == met


def test_an_entry_that_is_not_understood_costs_its_own_lines(kit, journal):
    journal.add("bad", {"rows": [{"status": "ok"}]})
    journal.add("none", {"estimate": {"time_s": None}, "dominant": "conv2"})
    text = kit.summary.summary(journal, ["bad", "none"])
    assert "KeyError" in next(line for line in text.splitlines() if line.startswith("bad"))
    assert "none: no estimate; dominant conv2" in text


@pytest.fixture
def card(tmp_path):
    """A folder with the invented package."""
    return make_site(tmp_path / "site")


def _command(card: Path, out: Path) -> list[str]:
    script = str(_FOLDER / "gpu_kit.py")
    return [sys.executable, script, "run", "--minutes", "2", "--out", str(out), "--site", str(card)]


@pytest.mark.parametrize("what", ["no GPU", "another GPU"])
def test_without_the_journals_gpu_nothing_is_begun(kit, card, tmp_path, what):
    out = tmp_path / "out"
    journal = kit.journal.Journal(out / "journal.jsonl")
    if what == "no GPU":
        (card / "pydlbench/_cuda.py").write_text("raise ImportError('no driver')")
    else:
        journal.add("environment", {"items": {"card": {"found": {"name": "NVIDIA A100"}}}})
    done = subprocess.run(_command(card, out), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    (line,) = done.stdout.splitlines()
    assert ("no driver" if what == "no GPU" else "NVIDIA A100") in line
    entries = kit.journal.Journal(out / "journal.jsonl").entries()
    assert entries.keys() <= {"environment"}


# What fails in the smoke run where something is planted, and what is done without from then on.
_EFFECTS = {
    "": ({}, []),
    "cudnn": ({}, []),
    "gate": ({"gate": "UnsupportedError"}, ["PYDLBENCH_GATE=0"]),
    "profiler": ({"profiler": "ended the process"}, ["PYDLBENCH_PROFILER=0"]),
    "memory": ({"gemm bf16-tc": "2 GB wanted"}, []),
    "launch": ({"gemm tf32": "DeviceLostError"}, []),
}


@pytest.mark.deep
@pytest.mark.parametrize("planted", ["", *PLANTED])
def test_whatever_does_not_work_all_else_is_delivered(kit, card, tmp_path, planted):
    out = tmp_path / "out"
    wanted = ("control", "smoke", "device", "products", "step alexnet-owt", "vgg16")
    done = subprocess.run(
        [*_command(card, out), "--only", *wanted],
        env={**os.environ, "CARD_SECONDS": "0.01", "CARD_PLANTED": planted},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    journal = kit.journal.Journal(out / "journal.jsonl")
    failed, without = _EFFECTS[planted]
    items = journal.get("smoke")["items"]
    for name, reason in failed.items():
        assert reason in items[name]["error"]
    assert ("error" in journal.get("smoke")) == bool(failed)
    assert kit.steps.Switches.of(journal).said() == without
    # All that has nothing to do with it works, and is in the summary.
    assert "found" in items["torch row"]
    assert "found" in items["gemm fp16-tc"]
    # Without one library rows that need it say so, and no others are lost.
    conv = items["conv fp32 forward"]["found"]
    assert ("cuDNN cannot be loaded" in conv.get("unsupported", "")) == (planted == "cudnn")
    assert [name for name in wanted if "error" in journal.get(name)] == ["smoke"] * bool(failed)
    problems = journal.entries("rows vgg16 ").values()
    backends = {row["backend"] for one in problems for row in one["rows"]}
    assert backends == {"native", "torch"}
    for name in ("control", "smoke", "products", "vgg16"):
        assert any(line.startswith(name) for line in done.stdout.splitlines())
    assert len(done.stdout.splitlines()) <= kit.summary.LINES + len(wanted)


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

    def problems() -> int:
        return len(kit.journal.Journal(out / "journal.jsonl").entries("rows alexnet-owt "))

    switches = kit.steps.Switches.of(kit.journal.Journal(out / "journal.jsonl"))
    later = kit.steps.steps("cuda:0", out, switches)
    names = {one.name for one in (*kit.steps.first_steps(), *later)}
    for count, killed_after in ((problems, 9), (finished, 14)):
        process = subprocess.Popen(
            command, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
        )
        while count() < killed_after:
            assert process.poll() is None
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert killed_after <= count()
        assert finished() < len(names)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    # The FMA probe's target is open.
    assert done.returncode == 1, done.stderr
    assert finished() == len(names)
    journal = kit.journal.Journal(out / "journal.jsonl")
    failed = [name for name in names if "error" in journal.get(name)]
    assert failed == []
    # No problem was measured twice, wherever its step was killed.
    tasks = [json.loads(line)["task"] for line in (out / "journal.jsonl").read_text().splitlines()]
    rows = [task for task in tasks if task.startswith("rows ")]
    assert len(rows) == len(set(rows)) > 9
    text = (out / "summary.txt").read_text()
    assert done.stdout.endswith(text)
    assert len(text.splitlines()) <= kit.summary.LINES
    met = {one.target: one.met for one in kit.summary.verdicts(journal)}
    assert list(met.values()) == [True, True, None, True, True, True, True]
    assert "native/torch 0.800 over 36" in text
    assert len(list(out.rglob("*"))) <= 8
