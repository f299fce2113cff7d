"""The scripts in ``benchmarks/`` load against this package and read their command lines."""

import ast
import importlib.util
import json
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

_FOLDER = Path(__file__).parents[1] / "benchmarks"
_FILES = sorted(_FOLDER.rglob("*.py"))
_SCRIPTS = [path for path in _FOLDER.glob("*.py") if "add_argument(" in path.read_text("utf-8")]


def _names(path: Path) -> list[tuple[str, str]]:
    """Return what a file imports from this package, as (module, name)."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pydlbench")
        for alias in node.names
    ]


@pytest.mark.parametrize("path", _FILES, ids=lambda path: path.relative_to(_FOLDER).as_posix())
def test_what_a_script_imports_is_there(path):
    for module, name in _names(path):
        there = importlib.import_module(module)
        assert hasattr(there, name) or importlib.util.find_spec(f"{module}.{name}"), (module, name)


@pytest.mark.deep
@pytest.mark.parametrize("path", _SCRIPTS, ids=lambda path: path.stem)
def test_a_script_reads_its_command_line(path):
    done = subprocess.run(
        [sys.executable, str(path), "--help"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert path.name in done.stdout


@pytest.mark.deep
@pytest.mark.parametrize("name", ["a row less", "kept by pointer"])
def test_a_planted_pair_gets_its_verdict_from_the_command(tmp_path, name):
    pytest.importorskip("torch")
    planted = runpy.run_path(str(_FOLDER / "planted_changes.py"))
    verdict, _ = planted["compare_pair"](tmp_path, name, "--repetitions", "4", "--budget", "0.05")
    assert verdict == planted["PAIRS"][name][-1]


def own_models(folder, *words):
    """Run the script of other people's models in a folder."""
    return subprocess.run(
        [sys.executable, str(_FOLDER / "own_models.py"), *words],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
    )


def test_a_forecast_counts_where_it_was_made_before_its_step(tmp_path):
    """Of two steps, one was forecast after it had run; of the other a row was disturbed."""
    told = {"status": "ok", "forecast_s": 1.1, "ci_low": 1.045, "ci_high": 1.155, "took_s": 5.0}
    found = {"additivity_error": 0.02, "unexplained": 0.01, "took_s": 50.0}
    found |= {"unexplained_low": -0.01, "unexplained_high": 0.03}
    found |= {"batch": 8, "disturbed": 0, "measured_s": {"median": 1.25}, "not_measured": []}
    notes = ["other processes used the cores while 3 rows were measured"]
    at = "2030-01-01T12:00:0{}+00:00"
    lines = []
    for phase, made in (("forward", 3), ("training", 5)):
        name = f"vision resnet50 {phase}"
        lines += [
            {"task": f"forecast {name}", "created_utc": at.format(made), "notes": notes, **told},
            {"task": f"step {name}", "when": at.format(4), "processes_s": [0.8, 1.25] * 2}
            | {"disturbed": 0},
            {"task": f"breakdown {name}", **found},
        ]
    (tmp_path / "own_models.jsonl").write_text("\n".join(map(json.dumps, lines)))
    done = own_models(tmp_path)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.replace("\\*", "*").splitlines()  # Markdown's
    rows = [line.split("|") for line in lines if line.startswith("| resnet50")]
    forward, training = ([cell.strip() for cell in row] for row in rows)
    assert forward[5] == "+10.0 % (± 5.0 %) *"
    assert training[5] == "-"
    assert forward[6] == training[6] == "+25.0 %"
    assert "1 steps; median error 10.0 %, worst 10.0 %" in done.stdout
    assert "interval: 0.0 % of 2" in done.stdout


@pytest.mark.parametrize("words", [("--phases", "forward"), ("--parts", "step")])
def test_options_of_the_other_stage_are_refused(tmp_path, words):
    done = own_models(tmp_path, "--stage", "import", *words)
    assert done.returncode == 2
    assert f"{words[0]}: of --stage measure" in done.stdout


def test_slices_of_planted_changes_add_up(tmp_path, capsys, monkeypatch):
    """Two slices count as one run; a missed change is neither found nor false."""
    spec = importlib.util.spec_from_file_location("planted", _FOLDER / "planted_changes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    answers = iter([("SLOWER", 1.03), ("SAME", 1.0), ("UNCLEAR", 1.02), ("SLOWER", 1.02)])

    def compare(_folder, model, units):
        return module.Found(model, units, *next(answers), 30.0)

    monkeypatch.setattr(module, "compare", compare)
    for words in (["--runs", "1"], ["--runs", "1"], ["--runs", "0"]):
        path = str(tmp_path / "found.json")
        words += ["--model", "layers", "--changes", "3,0", "--json", path]
        monkeypatch.setattr("sys.argv", ["planted_changes.py", *words])
        module.main()
    *_, none, three = capsys.readouterr().out.splitlines()
    assert [cell.strip() for cell in none.split("|")[1:7]] == ["layers", "0 %", "2", "1", "0", "1"]
    assert [cell.strip() for cell in three.split("|")[1:7]] == ["layers", "3 %", "2", "1", "1", "0"]


def test_pairs_refuse_the_options_of_planted_changes(capsys, monkeypatch):
    planted = runpy.run_path(str(_FOLDER / "planted_changes.py"))
    monkeypatch.setattr("sys.argv", ["planted_changes.py", "--pairs", "--runs", "3"])
    with pytest.raises(SystemExit) as ended:
        planted["main"]()
    assert ended.value.code == 2
    assert "--runs" in capsys.readouterr().err.splitlines()[-1]
