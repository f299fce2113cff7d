"""``pydlbench trace``: the ledger as text, JSON and a kept run, with invented limits of a CPU."""

import csv
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from invented_profile import MM, MM_FLOPS, launched, module, write

from pydlbench.cli import trace
from pydlbench.cli.parser import dispatch, read
from pydlbench.devices.roofline import MemoryLevel
from pydlbench.errors import UsageError
from pydlbench.records.run import RunRecord

DATA = Path(__file__).parents[1] / "traces" / "data"
FLOPS, BYTES = 1e12, 1e10


class Machine:
    """A session on a machine of invented peaks, which runs nothing."""

    cpus = (0, 1)
    facts = SimpleNamespace(name="a machine")
    run = RunRecord(id="20261126-00000000", created_utc="2026-11-26T00:00:00+00:00")

    def __init__(self, **_):
        level = MemoryLevel(name="memory", capacity=float("inf"), bytes_per_s=BYTES)
        known = SimpleNamespace(
            levels=lambda _: [level], limits=lambda _: SimpleNamespace(measured=FLOPS)
        )
        self.devices = SimpleNamespace(cpu=lambda *_, **__: known)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def cache_bytes(self):
        return 1 << 20


def traced(capsys, *words):
    """The output of the command on files, each a name below the data or a path."""
    args = read(["trace", *words])[0]
    assert trace.run(args, Machine) == 0
    return capsys.readouterr().out


def document(capsys, *words):
    return json.loads(traced(capsys, *words, "--json", "-", "--store", "none"))


@pytest.fixture
def profile(tmp_path):
    events = [module("Net_0", 0, 200)]
    events += launched("aten::mm", "g", 10, 100, 100, 1, **MM)
    events += launched("aten::mm", "g", 60, 250, 100, 2, **MM)
    return lambda name="trace", **how: write(tmp_path / f"{name}.json", events, **how)


def test_a_recording_of_a_cpu_is_held_against_this_machine_if_the_user_says_so(capsys):
    unknown = document(capsys, str(DATA / "eager.json.gz"))["recorded"]
    assert unknown["limit_s"] is None
    assert {"--on cpu" in each["limit_missing"] for each in unknown["calls"]} == {True}
    found = document(capsys, str(DATA / "eager.json.gz"), "--on", "cpu")["recorded"]
    call = next(each for each in found["calls"] if each["operator"] == "aten.convolution_backward")
    # Memory: what it reads, and both gradients.
    source, weights, result = 8 * 16 * 32 * 32, 32 * 16 * 9, 8 * 32 * 16 * 16
    assert call["limit_s"] == pytest.approx(4 * (2 * source + 2 * weights + result) / BYTES)
    assert found["limits_of"] == "a machine, 2 threads"
    assert found["card"] is None
    line = found["device_time"]
    assert line["kernel_s"] + line["idle_s"] == pytest.approx(found["step_s"])


def test_a_card_is_that_of_the_file_or_of_the_option(capsys, profile):
    assert document(capsys, profile())["recorded"]["card"] == "H100 SXM"
    found = document(capsys, profile(), "--on", "mi300x")["recorded"]
    assert (found["device"], found["card"]) == ("NVIDIA H100 80GB HBM3", "MI300X")
    found = document(capsys, profile(device="Unheard of"))["recorded"]
    assert found["card"] is None
    assert "Unheard of" in found["calls"][0]["limit_missing"]
    assert (
        "--on CARD"
        in document(capsys, profile(device=None))["recorded"]["calls"][0]["limit_missing"]
    )


def test_the_conclusion_comes_first_and_the_parts_of_the_model_are_named(capsys, profile):
    text = traced(capsys, profile(), "--store", "none")
    first = text.splitlines()[0]
    assert first.startswith("Product kernels take")
    assert "Net" in text


@pytest.mark.parametrize("on", ["MI300x", "rtx-40", "NVIDIA H200"])
def test_a_card_has_several_names(on):
    assert trace.find_card(on) is not None


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--on", "h100-smx"], "nearest: H100 SXM"),
        (["missing.json"], "missing.json: No such file"),
        (["--on", "h100"], "nearest: H100 PCIe, H100 SXM"),
        (["--on", "rtx-50"], "nearest: RTX 5090, RTX 5080"),
        (["--capture", str(DATA / "eager.json.gz")], "no capture of a graph"),
    ],
)
def test_bad_input_is_refused_in_one_line(capsys, profile, words, part):
    with pytest.raises(UsageError) as caught:
        traced(capsys, profile(), profile("other"), *words)
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_of_ranks_each_is_one_file(capsys, profile):
    names = [profile(f"rank{number}") for number in range(3)]
    found = document(capsys, *names)
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1, 2]
    assert [rank["file"] for rank in found["ranks"]] == names
    with pytest.raises(UsageError, match="is rank 1, and so is"):
        traced(capsys, *names, names[1])
    both = document(capsys, *names[:2])
    assert (len(both["ranks"]), both["difference_s"]) == (2, pytest.approx(0))


def test_csv_has_a_line_for_each_call(capsys, profile):
    lines = traced(capsys, profile(), "--csv", "-", "--store", "none").splitlines()
    (call,) = csv.DictReader(lines)
    assert (call["operator"], float(call["device_s"])) == ("aten.mm", pytest.approx(200e-6))
    assert float(call["flops"]) == 2 * MM_FLOPS


def test_kept_traces_are_compared_as_files_are(capsys, profile, tmp_path):
    names = [profile(), profile("other", device="AMD Instinct MI300X")]
    kept = [str(tmp_path / f"kept{number}.json") for number in range(3)]
    for files, path in zip(([names[0]], [names[1]], names), kept, strict=True):
        traced(capsys, *files, "--json", path, "--store", "none")
    assert dispatch(["compare", *kept[:2], "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == document(capsys, *names)["rows"]
    assert dispatch(["export", kept[0]]) == 0
    assert "aten.mm" in capsys.readouterr().out
    for words in ([*kept[:2], "--same", "3%"], kept[1:]):
        with pytest.raises(UsageError, match="nearest"):
            dispatch(["compare", *words])


def test_two_traces_are_compared(capsys, profile):
    found = document(capsys, profile(), profile("other"))
    assert [each["steps"] for each in found["recorded"]] == [1, 1]
    assert found["difference_s"] == pytest.approx(0)
    assert {row["why"] for row in found["rows"]} <= {"same", "idle", "overlap"}


def test_a_trace_is_kept_shown_and_exported_like_other_runs(capsys, profile, tmp_path):
    store = ["--store", str(tmp_path / "runs.db")]
    text = traced(capsys, profile(), *store)
    assert dispatch(["runs", "show", "last", *store]) == 0
    assert text.splitlines()[0] in capsys.readouterr().out
    assert dispatch(["export", "last", "--format", "json", *store]) == 0
    exported = json.loads(capsys.readouterr().out)
    assert exported["recorded"]["calls"][0]["operator"] == "aten.mm"
    path = tmp_path / "run.json"
    path.write_text(json.dumps(exported))
    assert dispatch(["runs", "show", str(path)]) == 0
    assert text.splitlines()[0] in capsys.readouterr().out
