"""What backends declare of themselves, and how one is found and loaded."""

import ctypes
import importlib
import importlib.metadata
import importlib.util
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from pydlbench.backends import capabilities
from pydlbench.backends.native import backend as native
from pydlbench.errors import BackendMissingError, UsageError
from pydlbench.words import CPU_LAYER_PRECISIONS, FRAMEWORK_MODES, GPU_LAYER_PRECISIONS

EVERY = capabilities.all_capabilities()
FOLDER = Path(capabilities.__file__).parent
PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_every_folder_with_a_backend_declares_it():
    folders = {path.parent.name for path in FOLDER.glob("*/backend.py")} - {"frameworks"}
    assert set(capabilities.backend_names()) == folders
    assert capabilities.backend_names()[0] == "native"
    assert [capabilities.declaration(one.name) for one in EVERY] == list(EVERY)


@pytest.mark.parametrize("one", EVERY, ids=lambda one: one.name)
def test_declarations_are_whole(one):
    assert set(one.modes) == set(one.precisions) == set(one.devices) <= {"cpu", "cuda"}
    assert set(one.precisions.get("cpu", ())) <= set(CPU_LAYER_PRECISIONS)
    assert set(one.precisions.get("cuda", ())) <= set(GPU_LAYER_PRECISIONS)
    assert one.install.startswith("pip install ")


def test_no_two_are_in_one_place():
    assert len({one.rank for one in EVERY}) == len(EVERY)


@pytest.mark.parametrize(
    ("version", "newer"),
    [("2.13.4", False), ("2.9.0+cpu", False), ("2.14.0.dev1", True), ("3.0", True), (None, False)],
)
def test_a_framework_that_is_newer_than_what_was_tested_is_named(monkeypatch, version, newer):
    monkeypatch.setattr(capabilities, "installed_version", lambda _: version)
    lines = capabilities.untested_versions(["torch", "native", "nobody", "torch"])
    assert len(lines) == newer
    assert all(line.startswith(f"torch {version} is newer") for line in lines)


@pytest.mark.skipif(not PROJECT.exists(), reason="not in a checkout")
@pytest.mark.parametrize("one", [one for one in EVERY if one.tested], ids=lambda one: one.name)
def test_what_is_tested_is_what_the_tests_are_installed_with(one):
    extras = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    (bound,) = re.findall(rf"^{one.name}\S*<([\d.]+)", "\n".join(extras["test"]), re.MULTILINE)
    major, minor = one.tested.split(".")
    assert bound == f"{major}.{int(minor) + 1}"
    name = one.install.partition("[")[2].partition("]")[0]
    assert not any("<" in requirement for requirement in extras[name])


def test_declarations_import_no_library():
    heavy = {one.requires for one in EVERY if one.requires}
    code = (
        "import sys; from pydlbench.backends import capabilities; capabilities.all_capabilities(); "
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not heavy & set(done.stdout.split())


def test_an_unknown_backend_is_refused_with_what_is_near():
    for ask in (capabilities.declaration, lambda name: capabilities.load(name, "cpu")):
        with pytest.raises(UsageError, match=r"--backend troch: .*nearest: torch"):
            ask("troch")


def versions(monkeypatch, **known):
    def version(name):
        if name not in known:
            raise importlib.metadata.PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(importlib.metadata, "version", version)


def test_any_package_that_brings_a_backend_gives_its_version(monkeypatch):
    versions(monkeypatch, **{"cupy-cuda12x": "13.1"})
    assert capabilities.installed_version(capabilities.declaration("cupy")) == "13.1"
    assert capabilities.installed_version(capabilities.declaration("torch")) is None


def test_what_can_be_imported_is_there_whatever_brought_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "torch" or None)
    # The native modules are a part of this package.
    assert [one.name for one in EVERY if capabilities.is_installed(one)] == ["native", "torch"]
    with pytest.raises(BackendMissingError, match=r"pip install .*numba"):
        capabilities.load("numba", "cpu")


def test_the_record_of_a_run_names_libraries_and_their_settings(monkeypatch):
    versions(monkeypatch, numba="0.62")
    found = capabilities.environment({"TORCH_LOGS": "all", "NUMBA_OPT": "0", "HOME": "/"})
    assert found["packages"] == {"numba": "0.62"}
    assert found["variables"] == {"TORCH_LOGS": "all", "NUMBA_OPT": "0"}


def test_a_module_that_a_backend_lacks_is_named_in_one_line(monkeypatch):
    def lack(device):
        raise ModuleNotFoundError(f"No module named\n'invented' on {device}")

    monkeypatch.setattr(native, "create", lack)
    with pytest.raises(BackendMissingError) as caught:
        capabilities.load("native", "cpu")
    assert str(caught.value) == "native cannot be imported: No module named 'invented' on cpu"


def test_the_native_backend_loads():
    pytest.importorskip("pydlbench._cpu", reason="the native module _cpu is not built here")
    backend = capabilities.load("native", "cpu")
    assert backend.name == "native"
    assert backend.describe()["name"] == "oneDNN"


def test_a_module_that_is_not_there_says_why():
    with pytest.raises(BackendMissingError, match=r"pydlbench\._tpu cannot be loaded: .*_tpu"):
        native.native_module("_tpu")


def test_onednn_of_an_environment_below_is_loaded_first(monkeypatch, tmp_path):
    library = SimpleNamespace(name="libdnnl.so.3", locate=lambda: tmp_path / "libdnnl.so.3")
    gone = SimpleNamespace(name="libdnnl.so.3", locate=lambda: tmp_path / "gone/libdnnl.so.3")
    library.locate().touch()
    loaded = []

    def refuse(name):
        if not loaded:
            raise ImportError("libdnnl.so.3: cannot open shared object file")
        return name

    monkeypatch.setattr(importlib, "import_module", refuse)
    monkeypatch.setattr(importlib.metadata, "files", lambda _: [gone, library])
    monkeypatch.setattr(ctypes, "CDLL", loaded.append)
    assert native.native_module("_cpu") == "pydlbench._cpu"
    assert loaded == [str(tmp_path / "libdnnl.so.3")]


def test_a_system_without_an_openmp_runtime_is_told_what_to_install(monkeypatch):
    def refuse(name):
        if name.endswith("_build"):
            return SimpleNamespace()
        raise ImportError("libgomp.so.1: cannot open shared object file")

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(BackendMissingError, match=r"libgomp\.so\.1: .*; install it .*libgomp1"):
        native.native_module("_cpu")


def test_the_reason_recorded_at_build_time_is_given(monkeypatch):
    build = pytest.importorskip("pydlbench._build")
    monkeypatch.setattr(build, "TPU_MISSING", "no oneDNN for this machine", raising=False)
    with pytest.raises(BackendMissingError, match=r"^no oneDNN for this machine$"):
        native.native_module("_tpu")


def test_without_a_build_the_command_is_given(monkeypatch):
    def refuse(name):
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(BackendMissingError, match="pip install"):
        native.native_module("_cpu")


def test_a_framework_runs_steps_as_it_runs_layers():
    """The words of steps stand below the backends, which say how they can be run."""
    for name, modes in FRAMEWORK_MODES.items():
        one = capabilities.declaration(name)
        for kind in one.devices:
            assert tuple(mode for mode in one.modes[kind] if mode not in one.on_request) == modes


@pytest.mark.parametrize("one", EVERY, ids=lambda one: one.name)
def test_words_are_declared_for_layouts_that_steps_have(one):
    assert {*one.steps.layout_words} <= {*one.steps.layouts}


def test_a_layout_is_named_where_a_framework_lets_its_users_choose_one():
    assert capabilities.declaration("torch").steps.layout_text("nhwc") == ", channels_last"
    assert capabilities.declaration("torch").steps.layout_text("nchw") == ", nchw"
    assert capabilities.declaration("tensorflow").steps.layout_text("nhwc") == ""


def test_a_backend_of_ours_is_found_without_looking_for_packages_of_others():
    code = (
        "import sys; from pydlbench.backends import capabilities; "
        "capabilities.declaration('native'); "
        "print('pydlbench.plugins' in sys.modules, len(capabilities.all_capabilities()) > 1)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
