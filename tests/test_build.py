"""What the build says about itself, and the CUDA module on a machine without a GPU."""

import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pydlbench.backends.native.modules import native_module
from pydlbench.errors import BackendMissingError

_build = pytest.importorskip("pydlbench._build", reason="pydlbench is not built here")
with_cuda = pytest.mark.skipif(bool(_build.CUDA_MISSING), reason=_build.CUDA_MISSING)
PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def in_a_process_without_gpus(code: str) -> str:
    """Run Python where the driver, if there is one, shows no GPU; return what it prints."""
    hidden = "import os; os.environ['CUDA_VISIBLE_DEVICES'] = ''\n"
    command = [sys.executable, "-c", hidden + code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.skipif(not _build.CUDA_MISSING, reason="the CUDA module is built here")
def test_without_cuda_the_build_says_why_and_what_to_do():
    assert _build.CUDA_MISSING.startswith("pydlbench was built without CUDA: ")
    assert re.search(r"PYDLBENCH_CUDA=12? pip install '\.\[cuda(12)?\]'", _build.CUDA_MISSING)
    assert "\n" not in _build.CUDA_MISSING
    with pytest.raises(BackendMissingError) as caught:
        native_module("_cuda")
    assert str(caught.value) == _build.CUDA_MISSING


def test_each_action_of_a_workflow_is_pinned_by_its_commit():
    workflows = "".join(path.read_text() for path in PROJECT.parent.glob(".github/workflows/*.yml"))
    used = re.findall(r"uses: *(\S+)", workflows)
    assert len(used) > 5
    assert [one for one in used if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", one)] == []


@with_cuda
def test_the_build_names_the_toolkit_and_the_architectures():
    cuda = importlib.import_module("pydlbench._cuda")
    assert re.fullmatch(r"1[2-9]\.\d+(\.\d+)?", _build.CUDA_VERSION)
    assert re.fullmatch(r"((PTX )?\d+[af]?(, )?)+", _build.CUDA_ARCHITECTURES)
    assert cuda.built_with()["architectures"] == _build.CUDA_ARCHITECTURES
    assert _build.CUDA_VERSION.startswith(cuda.built_with()["cuda"])


@with_cuda
@pytest.mark.parametrize("call", ["device_count()", "Device(0)", "device_facts(0)"])
def test_without_a_gpu_the_module_imports_and_says_so_in_one_sentence(call):
    said = in_a_process_without_gpus(
        "import pydlbench._cuda as cuda\n"
        "from pydlbench.errors import UnsupportedError\n"
        f"try: cuda.{call}\n"
        "except UnsupportedError as error: print(error)"
    )
    assert said
    assert "\n" not in said
    assert "driver" in said or "GPU" in said


@with_cuda
def test_importing_the_module_loads_no_library_of_nvidia():
    maps = Path("/proc/self/maps")
    if not maps.exists():
        pytest.skip("no /proc to see the loaded libraries in")
    loaded = in_a_process_without_gpus(
        "import pydlbench._cuda as cuda\n"
        "print(cuda.libraries())\n"
        "print(open('/proc/self/maps').read())"
    )
    assert loaded.startswith("{}")
    assert not re.search(r"libcu(dnn|blas|da|dart)", loaded)


@with_cuda
def test_the_libraries_of_the_wheels_are_loaded():
    wheel = pytest.importorskip("nvidia.cudnn", reason="the extra cuda is not installed")
    said = in_a_process_without_gpus(
        "from pydlbench.backends.native import modules\n"
        "found = modules.load_libraries()\n"
        "print(found['cudnn']['path'], found['cublaslt']['path'], sep='\\n')"
    )
    cudnn, cublaslt = map(Path, said.splitlines())
    folder = Path(wheel.__path__[0]).resolve()
    assert cudnn.parent == folder / "lib"
    assert cublaslt.is_relative_to(folder.parent)


@with_cuda
def test_a_file_that_is_not_cudnn_is_refused():
    cuda = importlib.import_module("pydlbench._cuda")
    errors = importlib.import_module("pydlbench.errors")
    with pytest.raises(errors.UnsupportedError, match=r"/nowhere/libcudnn\.so\.9"):
        cuda.load_libraries("/nowhere/libcudnn.so.9", None)
    with pytest.raises(errors.UnsupportedError, match="has no cudnnGetVersion"):
        cuda.load_libraries(cuda.__file__, None)
    assert "cudnn" not in cuda.libraries()


@pytest.mark.skipif(not PROJECT.exists(), reason="not in a checkout")
@pytest.mark.parametrize(("switch", "extra"), [("1", "cuda"), ("ON", "cuda"), ("12", "cuda12")])
def test_headers_come_from_the_wheels_that_are_loaded_later(switch, extra):
    project = tomllib.loads(PROJECT.read_text())
    overrides = [
        override
        for override in project["tool"]["scikit-build"]["overrides"]
        if re.search(override["if"]["env"]["PYDLBENCH_CUDA"], switch)
    ]
    assert len(overrides) == 1
    assert overrides[0]["cmake"]["define"]["PYDLBENCH_CUDA"] == "ON"
    run_time = project["project"]["optional-dependencies"][extra]
    wheels = set(overrides[0]["build"]["requires"])
    compiler = {wheel for wheel in wheels if re.match(r"nvidia-(nvvm|nvtx|cuda-(?!nvrtc))", wheel)}
    assert wheels - compiler <= set(run_time)
    # Parts of different versions do not compile.
    assert len({wheel.partition("==")[2] for wheel in compiler}) == (switch != "12")


@pytest.mark.skipif(not PROJECT.exists(), reason="not in a checkout")
@pytest.mark.parametrize("switch", ["0", "off", "OFF", "no"])
def test_the_module_can_be_switched_off(switch):
    project = tomllib.loads(PROJECT.read_text())
    defined = [
        override["cmake"]["define"]["PYDLBENCH_CUDA"]
        for override in project["tool"]["scikit-build"]["overrides"]
        if re.search(override["if"]["env"]["PYDLBENCH_CUDA"], switch)
    ]
    assert defined == ["OFF"]
