"""The fixtures that pydlbench gives to other people's tests, in runs of pytest of their own."""

import dataclasses
import importlib
import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from invented_installations import installation, invent_workers
from said import says

from pydlbench import pytest_plugin
from pydlbench.cli import main

pytest_plugins = ["pytester"]

# A run in this process forgets what it has imported, and NumPy cannot be imported twice.
for _name in ("api", "compare.interleaved", "compare.stored", "report.compare", "steps.run"):
    importlib.import_module(f"pydlbench.{_name}")

TEST = """
import pytest

@pytest.mark.pydlbench({limits})
def test_product(pydlbench_layer):
    found = pydlbench_layer("8x8:8x8")
    (row,) = found.rows
    assert row.layer == "8x8:8x8"
    print(found.to_dict()["counts"])
"""
QUICK = "slower='3%', repetitions=5, budget=0.02"


@pytest.fixture
def run(pytester, request):
    """Run a test file in this process; return what came of it."""

    def with_options(*options, limits=QUICK, test=TEST):
        pytester.makepyfile(test.format(limits=limits))
        # Where pydlbench is installed it has registered the plugin itself.
        there = request.config.pluginmanager.hasplugin("pydlbench")
        plugin = [] if there else ["-p", "pydlbench.pytest_plugin"]
        return pytester.runpytest_inprocess(*plugin, "-rs", *options)

    return with_options


@pytest.fixture(scope="module")
def baseline(tmp_path_factory):
    """The interpreter of an installation whose kernels take a millisecond."""
    return installation(tmp_path_factory.mktemp("baseline") / "env")


@pytest.mark.parametrize(
    ("milliseconds", "counts"),
    [
        (1.06, {"failed": 1}),
        (0.9, {"passed": 1}),
    ],
)
def test_a_layer_that_is_slower_than_in_the_other_installation_fails(
    run, baseline, monkeypatch, tmp_path, milliseconds, counts
):
    invent_workers(monkeypatch, native=milliseconds / 1000)
    report = tmp_path / "report.xml"
    result = run("--pydlbench-python", baseline, f"--junit-xml={report}")
    result.assert_outcomes(**counts)
    text = result.stdout.str()
    assert says(text, "1 row is slower by more than 3 %", "8x8:8x8") == ("failed" in counts)
    (value,) = ET.parse(report).findall(".//property[@name='pydlbench 8x8:8x8']")
    assert float(value.attrib["value"]) == pytest.approx(milliseconds, rel=0.01)


def test_what_cannot_be_told_is_skipped_with_what_would_decide(run, baseline, monkeypatch):
    invent_workers(monkeypatch)
    result = run("--pydlbench-python", baseline, limits="repetitions=2, budget=0.01")
    result.assert_outcomes(skipped=1)
    assert says(result.stdout.str(), "cannot tell 5 %", "2 repetitions", "more repetitions")
    assert "--repetitions" not in result.stdout.str()


@pytest.fixture
def stored(tmp_path, monkeypatch):
    """A file that ``layers`` has written."""
    invent_workers(monkeypatch)
    path = tmp_path / "baseline.json"
    words = ["layers", "--shape", "8x8:8x8", "--budget", "0.05", "--repetitions", "6", "--quiet"]
    assert main([*words, "--json", str(path)]) == 0
    assert json.loads(path.read_text())["measurements"][0]["status"] == "ok"
    return str(path)


def test_a_stored_run_is_compared_with_by_its_own_scatter(run, stored, monkeypatch):
    run("--pydlbench-baseline", stored, limits="slower='50%'").assert_outcomes(passed=1)
    invent_workers(monkeypatch, native=3e-3)
    result = run("--pydlbench-baseline", stored, limits="slower='50%'")
    result.assert_outcomes(failed=1)
    assert says(result.stdout.str(), "1 row is slower by more than 50 %", "8x8:8x8")


@pytest.mark.parametrize(
    ("options", "limits", "outcome", "reason"),
    [
        ((), QUICK, "skipped", "nothing to compare with: give --pydlbench-python PYTHON"),
        (("--pydlbench-python", "/no"), QUICK, "failed", "--pydlbench-python /no: cannot be run"),
        (("--pydlbench-baseline", "x/y"), QUICK, "failed", "x/y: cannot be read"),
        (
            ("--pydlbench-baseline", "x", "--pydlbench-python", "y"),
            QUICK,
            "failed",
            "leave one out",
        ),
        (("--pydlbench-baseline", "x"), "slower='a lot'", "failed", "nearest: 2%"),
    ],
)
def test_what_is_asked_for_wrongly_is_said(run, options, limits, outcome, reason):
    result = run(*options, limits=limits)
    result.assert_outcomes(**{outcome: 1})
    assert reason in result.stdout.str()


def test_a_keyword_that_the_marker_does_not_have_is_an_error(run):
    result = run(limits="faster='2%'")
    result.assert_outcomes(errors=1)
    assert "faster" in result.stdout.str()


def test_the_documentation_has_the_keywords_of_the_marker():
    page = (Path(__file__).parents[1] / "docs" / "pytest.md").read_text(encoding="utf-8")
    (sentence,) = re.findall(
        r"^The marker's keywords: .*?\. Ratios", page, re.DOTALL | re.MULTILINE
    )
    keywords = [field.name for field in dataclasses.fields(pytest_plugin._Limits)]
    assert re.findall(r"`(\w+)`", sentence) == keywords
    assert set(re.findall(r"mark\.pydlbench\((\w+)=", page)) <= set(keywords)


@pytest.mark.deep
def test_a_layer_and_a_step_of_one_file_have_a_baseline_each(run, stored, tmp_path):
    # The first run has no row of the layer that the test measures.
    document = json.loads(Path(stored).read_text())
    document["measurements"][0] |= {"layer": "9x9:9x9", "problem": "9x9:9x9"}
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document))
    result = run("--pydlbench-baseline", f"{other},{stored}", limits="slower='50%'")
    result.assert_outcomes(passed=1)


def test_the_configuration_may_name_the_baseline(run, pytester):
    pytester.makeini("[pytest]\npydlbench_baseline = no/such.json\n")
    assert "no/such.json: cannot be read" in run().stdout.str()


def test_a_step_is_asked_for_by_its_words(run, baseline):
    test = (
        "def test_step(pydlbench_step):\n"
        "    pydlbench_step('mnist', batch=2, framework='torch', mode='compield')\n"
    )
    result = run("--pydlbench-python", baseline, test=test)
    result.assert_outcomes(failed=1)
    assert says(result.stdout.str(), "--mode compield", "compiled")


def test_the_plugin_imports_nothing_of_what_measures():
    code = (
        "import sys, pytest; before = set(sys.modules); import pydlbench.pytest_plugin; "
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = [name for name in done.stdout.split() if name.startswith("pydlbench")]
    assert ours == ["pydlbench", "pydlbench.pytest_plugin"]
    assert not {"numpy", "msgspec"} & set(done.stdout.split())
