"""The acceptance script without a GPU: what is done, kept, gone on with, and said of it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from pydlbench.errors import UnsupportedError, WorkerError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

MACHINE = {"name": "Invented 200", "uuid": "GPU-1", "date": "2030-01-02"}


@pytest.fixture
def acceptance(script: Callable[[str], Any]) -> Any:
    """The script itself."""
    return script("gpu_acceptance")


@pytest.fixture
def journal(script: Callable[[str], Any], tmp_path: Path) -> Any:
    """An empty journal."""
    return script("acceptance.journal").Journal(tmp_path / "out" / "acceptance.jsonl")


class Clock:
    """Seconds that only tasks let pass."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def task(script: Callable[[str], Any], name: str, run: Callable[[Any], Any], least: float = 0):
    return script("acceptance.tasks").Task(name=name, run=run, least_s=least)


def lasting(clock: Clock, seconds: float, done: list[str], name: str) -> Callable[[Any], Any]:
    def run(_: Any) -> dict[str, Any]:
        clock.now += seconds
        done.append(name)
        return {"value": len(done)}

    return run


def test_what_is_finished_is_on_disk_at_once(script, journal):
    journal.add("a", {"value": 1})
    journal.add("b", {"value": 2})
    assert journal.path.read_text() == '{"task":"a","value":1}\n{"task":"b","value":2}\n'
    again = script("acceptance.journal").Journal(journal.path)
    assert (len(again), "a" in again, "c" in again) == (2, True, False)
    assert again.entries() == {"a": {"value": 1}, "b": {"value": 2}}
    assert again.get("b") == {"value": 2}
    assert again.get("c") is None


def test_a_line_that_was_cut_off_runs_again_and_spoils_no_other(script, journal):
    journal.add("a", {"value": 1})
    with journal.path.open("a") as file:
        file.write('{"task":"b","val')
    again = script("acceptance.journal").Journal(journal.path)
    assert again.entries() == {"a": {"value": 1}}
    again.add("c", {"value": 3})
    last = script("acceptance.journal").Journal(journal.path)
    assert last.entries() == {"a": {"value": 1}, "c": {"value": 3}}


def test_journals_from_elsewhere_are_taken_over(script, tmp_path):
    make = script("acceptance.journal").Journal
    old, older = make(tmp_path / "old.jsonl"), make(tmp_path / "older.jsonl")
    older.add("a", {"value": 1})
    older.add("b", {"value": 2})
    old.add("b", {"value": 3})
    new = make(tmp_path / "deep" / "new.jsonl", (tmp_path / "older.jsonl", tmp_path / "old.jsonl"))
    assert new.entries() == {"a": {"value": 1}, "b": {"value": 3}}
    # They are its own from now on.
    assert make(new.path).entries() == new.entries()
    new.add("c", {})
    both = make(new.path, (tmp_path / "older.jsonl",))
    assert both.entries()["b"] == {"value": 3}, "its own entries count more than others'"
    assert make(tmp_path / "none.jsonl", (tmp_path / "nowhere.jsonl",)).entries() == {}


def test_it_stops_when_the_time_is_over_and_goes_on(script, acceptance, journal, capsys):
    clock, done = Clock(), []
    found = [task(script, name, lasting(clock, 4, done, name)) for name in "abcde"]
    assert not acceptance.perform(found, journal, None, 7, clock)
    assert done == ["a", "b"]
    assert not acceptance.perform(found, journal, None, 4, clock)
    assert acceptance.perform(found, journal, None, 100, clock)
    assert done == list("abcde")
    assert journal.get("e") == {"value": 5, "seconds": 4}
    assert acceptance.perform(found, journal, None, 0, clock), "nothing is left to do"
    assert capsys.readouterr().out.splitlines()[0] == "    4.0 s  a"


def test_what_would_not_end_in_time_is_not_begun_unless_it_is_the_first(
    script, acceptance, journal
):
    clock, done = Clock(), []
    found = [
        task(script, "short", lasting(clock, 1, done, "short")),
        task(script, "long", lasting(clock, 60, done, "long"), least=50),
    ]
    assert not acceptance.perform(found, journal, None, 50, clock)
    assert done == ["short"]
    assert acceptance.perform(found, journal, None, 10, clock)
    assert done == ["short", "long"]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (WorkerError("it died"), "WorkerError: it died"),
        (KeyError("compute_capability"), "KeyError: 'compute_capability'"),
    ],
)
def test_a_failing_task_costs_itself_only(script, acceptance, journal, error, words):
    clock, done = Clock(), []

    def fail(_: Any) -> dict[str, Any]:
        clock.now += 2
        if not done:
            raise error
        return {"value": "at last"}

    found = [task(script, "bad", fail), task(script, "b", lasting(clock, 1, done, "b"))]
    assert acceptance.perform(found, journal, None, 100, clock)
    assert journal.get("bad") == {"error": words, "seconds": 2}
    assert journal.get("b")["value"] == 1
    assert acceptance.perform(found, journal, None, 100, clock)
    assert journal.get("bad")["error"] == words, "done is done"
    assert acceptance.perform(found, journal, None, 100, clock, again=True)
    assert journal.get("bad") == {"value": "at last", "seconds": 2}
    assert done == ["b"]


def test_results_of_two_products_are_not_mixed(acceptance, journal):
    assert acceptance.enter_machine(journal, MACHINE) is None
    assert acceptance.enter_machine(journal, MACHINE) is None
    assert acceptance.enter_machine(journal, {**MACHINE, "uuid": "GPU-2"}) is None
    assert len(journal.entries("machine ")) == 2
    reason = acceptance.enter_machine(journal, {**MACHINE, "name": "Invented 300"})
    assert reason.startswith("the journal is of Invented 200, this is Invented 300")


def test_a_machine_is_described_by_its_record(acceptance):
    facts = {"name": "Invented 200", "uuid": "GPU-1", "capability": "9.0"}
    facts |= {"driver_version": "13.0", "runtime_version": "12.8"}
    library = {"cudnn": {"version": "9.28.0", "path": "/lib"}}
    session = SimpleNamespace(
        gpu=lambda *_, **__: SimpleNamespace(facts=SimpleNamespace(**facts)),
        worker=lambda *_: SimpleNamespace(describe=lambda: {"libraries": library}),
    )
    found = acceptance.about(session, "cuda:0")
    assert found["name"] == "Invented 200"
    assert found["compute capability"] == "9.0"
    assert found["cudnn"] == "9.28.0"


SMALL = {"patterns": ("alexnet/conv3", "alexnet/pool5"), "batch": 2}


def settings(script, **changes):
    return script("acceptance.tasks").Settings(**{**SMALL, **changes})


def test_the_tasks_of_a_small_run(script):
    words = {"precisions": ("fp32", "fp16", "fp8-tc"), "kinds": ("device", "gemm", "torch")}
    found = script("acceptance.tasks").tasks(settings(script, **words))
    assert [one.name for one in found] == [
        "device",
        "gemm fp32",
        "gemm fp16",
        "gemm fp8-tc",
        "torch alexnet/conv3 forward fp32 hot",
        "torch alexnet/conv3 backward-data fp32 hot",
        "torch alexnet/conv3 backward-weights fp32 hot",
        "torch alexnet/pool5 forward fp32 hot",
        "torch alexnet/pool5 backward-data fp32 hot",
    ]


def test_layers_are_combined_with_everything_and_repeated(script):
    found = list(script("acceptance.tasks").tasks(settings(script, kinds=("layers", "repeat"))))
    # Three passes of the convolution and two of the pooling, six modes, hot and cold; twice.
    assert len(found) == 2 * 5 * 6 * 2
    names = [one.name for one in found]
    assert len(set(names)) == len(names)
    kinds = Counter(name.split()[0] for name in names)
    assert kinds == {"layers": 60, "repeat": 60}
    assert {name.removeprefix("layers ") for name in names[:60]} == {
        name.removeprefix("repeat ") for name in names[60:]
    }
    assert all(name.endswith(" hot") for name in names[:30]), "hot ones come first"


def test_equal_layers_are_measured_once(script):
    words = {"patterns": ("vgg16/conv5_*",), "kinds": ("layers",), "caches": ("hot",)}
    names = [one.name for one in script("acceptance.tasks").tasks(settings(script, **words))]
    assert len(names) == 3 * 6
    assert all("vgg16/conv5_1 " in name for name in names)


def test_the_default_run_covers_both_models(script):
    module = script("acceptance.tasks")
    names = [one.name for one in module.tasks(module.Settings(kinds=("layers",)))]
    assert sum("alexnet-owt/conv3 " in name for name in names) == 3 * 6 * 2
    assert sum("vgg16/fc8 " in name for name in names) == 3 * 6 * 2
    assert {name.split()[0] for name in names} == {"layers"}


def test_gpu_tests_are_run_file_by_file(script):
    names = [
        one.name for one in script("acceptance.tasks").tasks(settings(script, kinds=["tests"]))
    ]
    assert "tests tests/cuda/test_errors.py" in names
    assert "tests tests/cuda_host/test_real_calls.py" in names
    modes = [name for name in names if "test_correct_conv2d" in name]
    assert [name.split()[-1] for name in modes] == [
        *("fp32", "tf32", "fp16", "fp16-tc", "bf16-tc", "fp8-tc")
    ]
    assert not [name for name in names if "tests/benchmarks" in name]


def test_mode_by_mode_misses_no_test_of_the_file(script):
    """Every test of the file that is run mode by mode ends with one mode."""
    module = script("acceptance.tasks")
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"tests/cuda/{module._MODE_BY_MODE}"],
        cwd=module.REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    names = [line for line in done.stdout.splitlines() if "::" in line]
    assert len(names) > 50, done.stdout + done.stderr
    ends = Counter(name.rpartition("-")[2] if "-tc]" not in name else "tc]" for name in names)
    endings = [f"{mode}]" for mode in module.GPU_PRECISIONS]
    for name in names:
        assert sum(ending in name for ending in endings) == 1, name
    assert ends["tc]"] > 10


def test_what_pytest_says_is_read(script):
    read = script("acceptance.tasks").read_tests
    text = (
        "..s\nSKIPPED [1] a: no TF32\nFAILED tests/a.py::b\n1 failed, 2 passed, 3 skipped in 1s\n"
    )
    assert read(1, text) == {
        "exit_code": 1,
        "counts": {"failed": 1, "passed": 2, "skipped": 3},
        "failed": ["FAILED tests/a.py::b"],
        "skipped": ["SKIPPED [1] a: no TF32"],
    }
    assert read(4, "") == {
        "exit_code": 4,
        "counts": {},
        "failed": [],
        "skipped": [],
        "said": [],
    }
    assert read(1, "1 error in 2s")["counts"] == {"error": 1}


def test_a_skipped_case_has_no_comparison(script):
    rows = script("acceptance.torch_rows").TorchRows(0.1)

    def prepare(_: Any) -> Any:
        raise UnsupportedError("no such plan")

    found = rows.compare(SimpleNamespace(prepare=prepare), None)
    assert found == {"status": "skipped", "reason": "no such plan"}


def test_without_a_gpu_it_says_so_and_writes_nothing(acceptance, tmp_path, monkeypatch, capsys):
    def refuse(*_: Any) -> Any:
        raise UnsupportedError("there is no cuda:0")

    monkeypatch.setattr(acceptance, "about", refuse)
    assert acceptance.main(["--out", str(tmp_path / "out"), "--only", "device"]) == 2
    assert capsys.readouterr().out == "gpu_acceptance: there is no cuda:0\n"
    assert list(tmp_path.iterdir()) == []


def test_a_whole_run_on_an_invented_gpu(script, acceptance, tmp_path, monkeypatch):
    """Two invocations: the first has no time left, the second finishes."""
    made = []

    def tasks(_: Any) -> Any:
        for name in ("device", "gemm fp32"):
            yield task(script, name, lambda _, name=name: made.append(name) or {"made": name})

    monkeypatch.setattr(acceptance, "about", lambda *_: MACHINE)
    monkeypatch.setattr(acceptance, "tasks", tasks)
    words = ["--out", str(tmp_path), "--seconds"]
    assert acceptance.main([*words, "0"]) == acceptance.TIME_IS_OVER
    assert made == []
    # Finished, but no target is met where nothing was measured.
    assert acceptance.main([*words, "100"]) == 1
    assert made == ["device", "gemm fp32"]
    document = json.loads((tmp_path / "acceptance.json").read_text())
    assert document["about"] == MACHINE
    assert document["open"] == []
    assert document["tasks"]["device"]["made"] == "device"
    assert all(one["met"] is None for one in document["verdicts"])
    assert "2 of 2 tasks are finished" in (tmp_path / "acceptance.md").read_text()
