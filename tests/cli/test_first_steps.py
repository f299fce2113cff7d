"""What new users do: ask for help, complete words, pipe, and give files that are none."""

import contextlib
import io
import json
import re
import shutil
import subprocess
import sys
import types
from dataclasses import dataclass
from typing import ClassVar

import pytest

from pydlbench.cli import main
from pydlbench.cli.measuring import measure
from pydlbench.cli.options import Measuring, flag_of
from pydlbench.cli.parser import COMMANDS, Command, read, records
from pydlbench.cli.values import fail_on
from pydlbench.errors import UsageError
from pydlbench.report.blocks import Lines
from pydlbench.runner.tasks import Result, Task, TaskRow


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_examples_that_parse_and_the_exit_codes(command, capsys):
    assert main(["help", command]) == 0
    out = capsys.readouterr().out
    assert "exit codes: 0 done" in out
    examples = re.findall(r"^  pydlbench (.*?)  +# ", out, flags=re.MULTILINE)
    assert len(examples) >= 2
    for line in examples:
        name, *words = line.replace("'", "").partition(" > ")[0].split()
        read([name, *words])


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_every_option(shell, capsys, tmp_path):
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name in COMMANDS:
        for kind, _ in records(name).values():
            options = [field for field, one in kind.declared().items() if not one.argument]
            assert all(flag_of(field) in script for field in options)
    if (program := shutil.which(shell)) is not None:
        path = tmp_path / "script"
        path.write_text(script, encoding="utf-8")
        subprocess.run([program, "-n", str(path)], check=True)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("comp", {"compare", "completion"}),
        ("layers --fai", {"--fail-on"}),
        ("export rows.j", {"rows.json"}),
        ("export --output rows.j", {"rows.json"}),
        ("report --svg fig", {"figures"}),
    ],
)
def test_completion_in_bash(words, expected, capsys, tmp_path):
    program = shutil.which("bash")
    if program is None:
        pytest.skip("there is no bash")
    (tmp_path / "rows.json").touch()
    (tmp_path / "figures").mkdir()
    (tmp_path / "fig.svg").touch()
    main(["completion", "bash"])
    script = capsys.readouterr().out
    (name,) = re.findall(r"^complete .*-F (\S+) pydlbench$", script, flags=re.MULTILINE)
    count = len(words.split())
    ask = (
        f"COMP_WORDS=(pydlbench {words}) COMP_CWORD={count}; {name}; "
        'printf "%s\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        [program, "-c", f"{script}\n{ask}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) == expected


def test_a_loop_of_links_and_deep_nesting_are_one_line(tmp_path, capsys):
    loop = tmp_path / "loop.json"
    loop.symlink_to(loop)
    deep = tmp_path / "deep.json"
    deep.write_text('{"a":' * 100_000, encoding="utf-8")
    toml = tmp_path / "deep.toml"
    toml.write_text(f"title = {'[' * 5000}", encoding="utf-8")
    parts = tmp_path / "parts.toml"
    parts.write_text(f"{'a.' * 100_000}b = 1", encoding="utf-8")
    for words in (
        ["shapes", "conv3", "--json", str(loop)],
        ["export", str(loop)],
        ["report", str(deep)],
        ["compare", str(deep), str(deep)],
        ["export", str(deep)],
        ["sweep", str(toml), "--dry-run"],
        ["sweep", str(parts), "--dry-run"],
    ):
        assert main(words) == 2
        assert capsys.readouterr().err.count("\n") == 1


def test_a_sweep_comes_from_standard_input_and_with_a_mark_in_front(monkeypatch, capsys):
    text = '\ufeff[[layers]]\nshape = "conv3"\n[[diagnose]]\nmodel = "mnist"\n'
    stdin = io.TextIOWrapper(io.BytesIO(text.encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert main(["sweep", "-", "--dry-run", "--json", "-"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [job["kind"] for job in plan["jobs"]] == ["layers", "diagnose"]


def test_lists_have_an_end(tmp_path, capsys):
    path = tmp_path / "large.toml"
    axes = "".join(f"{name} = [{','.join(map(str, range(1, 60)))}]\n" for name in ("batch", "seed"))
    path.write_text(f'[[estimate]]\nmodel = "mnist"\n{axes}', encoding="utf-8")
    assert main(["sweep", str(path), "--dry-run"]) == 2
    assert "combinations" in capsys.readouterr().err
    assert main(["layers", "--shape", "x" * 100_000]) == 2
    assert len(capsys.readouterr().err) < 2100


def test_a_command_that_stores_is_its_file_and_a_line(monkeypatch, run_record, capsys):
    """Its own module and its line among the commands: all that measuring and keeping takes."""
    module = types.ModuleType("pydlbench.cli.latency")

    class Options(Measuring):
        description = "Invented."

    @dataclass(frozen=True, kw_only=True)
    class Latency(Task):
        kind: ClassVar[str] = "latency"

        def measure(self, session, view):
            assert session.run is run_record
            view.advance(0, 1, "a row")
            yield Result("latency", {"p99_s": 0.25}, self.rows[0])

    @contextlib.contextmanager
    def session():
        yield types.SimpleNamespace(run=run_record)

    def run(args):
        row = TaskRow(fields={"of": "mnist"}, label="mnist", spec="mnist")
        tasks = [Latency(rows=(row,))]
        return measure(args, "latency", tasks, lambda _: None, sessions=session)[0]

    def stored_report(run):
        return [Lines([str(entry.document["p99_s"]) for entry in run.table("latency")])]

    module.SUBCOMMANDS, module.stored_report = {"": (Options, run)}, stored_report
    monkeypatch.setitem(sys.modules, "pydlbench.cli.latency", module)
    line = Command("invented", (("latency", "a"), ("latency -q", "b")), stores="latency")
    monkeypatch.setitem(COMMANDS, "latency", line)
    assert main(["latency"]) == 0
    capsys.readouterr()
    assert main(["runs", "show", "last"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "0.25"
    assert main(["export", "last", "--format", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["latency"]) == ("latency", [{"p99_s": 0.25}])


def test_conditions():
    def read(text, name):
        return fail_on("--fail-on", text, (name,))

    assert read("failed", "failed") == ("failed", 0.0)
    assert read("slower:3%", "slower") == ("slower", 0.03)
    assert read("saves:10%", "saves") == read("0.1", "saves") == ("saves", 0.1)
    for text, near in (("fail", "failed"), ("slower", "failed"), ("failed:3%", "failed")):
        with pytest.raises(UsageError, match=f"nearest: {near}$"):
            read(text, "failed")
