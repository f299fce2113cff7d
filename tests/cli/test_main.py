import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

import pydlbench
from pydlbench.cli import main
from pydlbench.cli.options import CommandOptions, option
from pydlbench.cli.values import whole_number
from pydlbench.errors import PydlbenchError, UsageError
from pydlbench.records.schema import load_schema

STEP_COMMANDS = ("step", "estimate", "breakdown", "forecast", "diagnose")


def command(run):
    """Stand for a command module."""

    class Options(CommandOptions):
        number: int = option("N", "a number", read=partial(whole_number, least=1))

    return SimpleNamespace(SUBCOMMANDS={"": (Options, run)})


@pytest.fixture
def fake(monkeypatch):
    def install(run):
        monkeypatch.setattr("importlib.import_module", lambda _: command(run))

    return install


def fail_with(error):
    def run(_):
        raise error

    return run


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"pydlbench {pydlbench.__version__}\n"


def test_no_command_shows_the_help_and_is_a_usage_error(capsys):
    assert main([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "layers" in err


@pytest.mark.parametrize(
    ("error", "code", "err"),
    [
        (UsageError("--x y: bad;\nnearest: z"), 2, "pydlbench: --x y: bad; nearest: z\n"),
        (PydlbenchError("worker gone"), 1, "pydlbench: worker gone\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_exit_codes(fake, capsys, error, code, err):
    fake(fail_with(error))
    assert main(["shapes"]) == code
    assert capsys.readouterr().err == err


@pytest.mark.parametrize("kind", ["layers", "sweep", *STEP_COMMANDS])
def test_an_interruption_before_a_run_begins_is_a_json_object(kind, tmp_path, monkeypatch):
    (tmp_path / "s.toml").write_text('[[layers]]\nshape = "conv3"\n')
    words = {"layers": ["--shape", "conv3"], "sweep": [str(tmp_path / "s.toml")]}
    monkeypatch.setattr("pydlbench.cli.measuring.measure", interrupt)
    path = tmp_path / "document.json"
    assert main([kind, *words.get(kind, ["mnist"]), "--json", str(path)]) == 130
    document = json.loads(path.read_text())
    assert (document["kind"], document["interrupted"], document["unfinished"]) == (kind, True, [])
    validator = pytest.importorskip("jsonschema").Draft202012Validator(load_schema(kind))
    assert [*validator.iter_errors(document)] == []


def test_an_interruption_before_a_run_goes_on_leaves_its_document(tmp_path, monkeypatch):
    monkeypatch.setattr("pydlbench.cli.measuring.measure", interrupt)
    path = tmp_path / "document.json"
    path.write_text("kept")
    assert main(["step", "mnist", "--resume", "last", "--json", str(path)]) == 130
    assert path.read_text() == "kept"


def interrupt(*_, **__):
    raise KeyboardInterrupt


def test_code_of_the_command_is_passed_on(fake):
    fake(lambda _: 1)
    assert main(["shapes"]) == 1


def test_bugs_keep_their_traceback(fake):
    fake(fail_with(ZeroDivisionError()))
    with pytest.raises(ZeroDivisionError):
        main(["shapes"])


def test_closed_pipe_is_silent():
    # Far more than a pipe holds, read by nobody.
    script = (
        "import sys, importlib, types\n"
        "from pydlbench.cli import main\n"
        "from pydlbench.cli.options import CommandOptions\n"
        "import pydlbench.cli.parser\n"
        "class Options(CommandOptions):\n"
        "    pass\n"
        "module = types.SimpleNamespace(\n"
        "    SUBCOMMANDS={'': (Options, lambda args: print('x' * 10_000_000) or 0)})\n"
        "importlib.import_module = lambda name: module\n"
        "sys.exit(main(['shapes']))\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait() == 0
    assert err == b""


def test_help_imports_nothing_heavy():
    script = (
        "import sys\n"
        "from pydlbench.cli import main\n"
        "assert main(['--help']) == 0\n"
        "heavy = {'numpy', 'tqdm', 'torch', 'tensorflow', 'numba', 'cupy', 'jax',\n"
        "         'pydlbench._cpu', 'json',\n"
        "         'multiprocessing', 'asyncio', 'subprocess', 'sqlite3', 'platformdirs'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stderr == "[]\n"


def shell(line, **environment):
    """Run a line of shell in which ``$P`` is pydlbench."""
    variables = {**os.environ, "P": f"{sys.executable} -m pydlbench", **environment}
    return subprocess.run(
        ["/bin/sh", "-c", line],
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=variables,
        check=False,
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_error(closed):
    done = shell(f"$P shapes conv3 {closed}")
    assert (done.returncode, done.stderr) == (0, "")


def test_file_does_not_get_what_a_closed_stream_would(tmp_path):
    path = tmp_path / "a.json"
    assert shell(f"$P shapes conv3 --json {path} >&-").returncode == 0
    assert json.loads(path.read_text())["layers"][0]["layer"] == "alexnet/conv3"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("words", ["shapes conv3", "shapes 'vgg16/*' --json -", "--version"])
def test_full_disk_is_one_line_and_exit_code_1(words):
    done = shell(f"$P {words} > /dev/full")
    assert done.returncode == 1
    assert done.stderr == "pydlbench: [Errno 28] No space left on device\n"
    # Python writes what is left in buffers once more when it ends.
    assert shell(f"$P {words} > /dev/full 2>&1", PYTHONUNBUFFERED="").returncode == 1


def test_names_that_the_encoding_lacks():
    name = 'mb1ic3ih8oc4kh3n"caf\u00e9"'
    done = shell(f"$P shapes '{name}'", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "caf\\xe9" in done.stdout
    done = shell(f"$P shapes '{name}' --json -", PYTHONIOENCODING="ascii")
    assert json.loads(done.stdout)["layers"][0]["layer"].endswith("caf\u00e9")
    done = shell(f"$P shapes '{name}x'", PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
