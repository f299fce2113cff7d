"""Backends and models of other packages, found by their entry points."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from said import says

from pydlbench import models, plugins
from pydlbench.backends import capabilities
from pydlbench.backends.base import Preparation
from pydlbench.cli import backends as command
from pydlbench.cli import main
from pydlbench.cli.parser import read
from pydlbench.errors import UsageError
from pydlbench.models.catalog import find_layers
from pydlbench.models.passes import parameters
from pydlbench.records.measurement import KernelSpec
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.session import Session
from pydlbench.timing.chunk import ChunkRequest

EXAMPLE = Path(__file__).parent / "example_plugin"


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """The folder that the example's package is installed into, built as anybody's would be."""
    folder = tmp_path_factory.mktemp("example")
    source = shutil.copytree(EXAMPLE, folder / "source")  # setuptools writes beside its files
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    how = ["--no-build-isolation", "--target", str(folder / "packages"), str(source)]
    done = subprocess.run([*pip, *how], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "packages"


@pytest.fixture
def look_again(monkeypatch):
    """Have packages of a folder found, and forgotten behind the test."""
    caches = (plugins.modules, capabilities.all_capabilities, capabilities._all_declarations)
    monkeypatch.setattr(plugins, "_broken", {})
    before = {name: dict(known) for name, known in models._REGISTERED.items()}
    loaded = set(sys.modules)

    def look(*folders):
        for folder in folders:
            monkeypatch.syspath_prepend(str(folder))
        for cached in caches:
            cached.cache_clear()

    yield look
    for cached in caches:
        cached.cache_clear()
    for name in [name for name in models._REGISTERED if name not in before]:
        if not name.startswith("pydlbench."):
            del models._REGISTERED[name]
    for name in set(sys.modules) - loaded:
        if not name.startswith("pydlbench."):
            del sys.modules[name]


@pytest.fixture
def plugin(tmp_path):
    """Write a package with an entry point: a module of its own, unless one is named."""

    def write(name, group, code="", module=None):
        folder = tmp_path / name
        about = folder / f"{name}-2.0.dist-info"
        about.mkdir(parents=True)
        (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 2.0\n")
        (about / "entry_points.txt").write_text(f"[{group}]\n{name} = {module or f'{name}_code'}\n")
        (folder / f"{name}_code.py").write_text(code)
        return folder

    return write


def test_a_backend_of_another_package_measures(packages, look_again):
    look_again(packages)
    assert capabilities.backend_names()[-1] == "numpy"
    (layer,) = find_layers(["8x64:64x32"])
    spec = KernelSpec(layer=layer, backend="numpy")
    with Session(RunnerOptions(threads=1)) as session:
        worker = session.worker("numpy")
        assert worker.describe()["name"] == "NumPy"
        kernel = worker.prepare(spec, Preparation())
        assert kernel.facts.correct.status == "ok"
        assert kernel.facts.algorithm == "numpy.matmul"
        assert min(kernel.sample(ChunkRequest(samples=3)).seconds) > 0


def test_a_model_of_another_package_is_in_the_catalogue(packages, look_again, capsys):
    look_again(packages)
    assert models.model_names()[-1] == "perceptron"
    assert parameters(models.build_model("perceptron", hidden=10)) == 785 * 10 + 11 * 10
    assert main(["shapes", "perceptron/hidden", "--json", "-"]) == 0
    (row,) = json.loads(capsys.readouterr().out)["layers"]
    assert row["problem"] == "32x784:784x100"


def backends(capsys, *words):
    args = read(["backends", "--device", "cpu", *words])[0]
    assert command.run(args, lambda name, _: {"name": name, "version": "1"}) == 0
    return capsys.readouterr().out


def test_the_example_is_listed_beside_our_own(packages, look_again, capsys):
    look_again(packages)
    found = json.loads(backends(capsys, "--json", "-"))
    assert found["backends"][-1]["title"] == "NumPy's products of matrices"
    assert found["left_out"] == []


TAKEN = "from pydlbench.models import family\n@family('vgg16')\ndef build(name, batch): ..."


@pytest.mark.parametrize(
    ("group", "code", "module", "reason"),
    [
        ("backends", "", None, "bad_code has no CAPABILITIES"),
        ("backends", "1 / 0", None, "ZeroDivisionError: division by zero"),
        ("backends", "raise SystemExit('no\\nmore')", None, "SystemExit: no more"),
        ("backends", "", "nowhere.at_all", "ModuleNotFoundError: No module named 'nowhere'"),
        ("backends", "", "pydlbench.backends.numba", "there is a backend numba already"),
        ("models", "import nowhere", None, "ModuleNotFoundError: No module named 'nowhere'"),
        ("models", TAKEN, None, "vgg16: there is a model of that name already"),
    ],
)
def test_a_broken_package_costs_itself_only_and_is_named(
    plugin, look_again, capsys, group, code, module, reason
):
    before = capabilities.backend_names(), models.model_names()
    look_again(plugin("bad", f"pydlbench.{group}", code, module))
    text = backends(capsys)
    assert (capabilities.backend_names(), models.model_names()) == before
    (one,) = json.loads(backends(capsys, "--json", "-"))["left_out"]
    assert (one["name"], one["distribution"]) == ("bad", "bad 2.0")
    assert one["reason"].endswith(reason)
    assert says(text, "bad of bad 2.0", f"pydlbench.{group}")
    assert text.rstrip().endswith(one["reason"])
    assert models.build_model("vgg16").title.startswith("VGG-16")


def test_a_name_that_nobody_has_is_refused_as_before(packages, look_again):
    look_again(packages)
    with pytest.raises(UsageError, match=r"nearest: numpy"):
        capabilities.declaration("nunpy")
    with pytest.raises(UsageError, match=r"nearest: perceptron"):
        models.build_model("perceptrom")
