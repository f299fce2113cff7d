"""Finds cuDNN and cuBLASLt in folders as NVIDIA's wheels make them; only their loading is faked."""

import ctypes
import sys
from pathlib import Path

import pytest

from pydlbench.backends.native import modules
from pydlbench.errors import BackendMissingError, UnsupportedError


class FakeModule:
    """Stands for pydlbench._cuda."""

    def __init__(
        self, error: str | None = None, cuda: str = "13.0", loaded: tuple[str, ...] = ("cudnn",)
    ) -> None:
        self.error = error
        self.loaded = loaded
        self.cuda = cuda
        self.asked: list[tuple[str | None, str | None]] = []

    def load_libraries(self, cudnn: str | None, cublaslt: str | None) -> None:
        self.asked.append((cudnn, cublaslt))
        if self.error:
            raise UnsupportedError(self.error)

    def libraries(self) -> dict[str, dict[str, str]]:
        return {name: {"version": "9.28.0", "path": f"/x/lib{name}.so.9"} for name in self.loaded}

    def built_with(self) -> dict[str, str]:
        return {"cuda": self.cuda}


@pytest.fixture
def site(tmp_path, monkeypatch):
    """An empty folder for wheels, the only one that modules are looked for in."""
    monkeypatch.delenv("PYDLBENCH_CUDNN", raising=False)
    monkeypatch.delenv("PYDLBENCH_CUBLASLT", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "nothing"), str(tmp_path)])
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    return tmp_path


def _put(site: Path, *names: str) -> list[str]:
    files = [site / name for name in names]
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    return [str(file) for file in files]


def test_cudnn_and_cublaslt_are_found_in_the_wheels_of_cuda_13(site):
    wanted = _put(site, "nvidia/cudnn/lib/libcudnn.so.9", "nvidia/cu13/lib/libcublasLt.so.13")
    _put(site, "nvidia/cublas/lib/libcublasLt.so.12")  # another environment's left-over
    module = FakeModule()
    assert modules.load_libraries(module)["cudnn"]["version"] == "9.28.0"
    assert module.asked == [tuple(wanted)]


def test_cudnn_and_cublaslt_are_found_in_the_wheels_of_cuda_12(site):
    wanted = _put(site, "nvidia/cudnn/lib/libcudnn.so.9", "nvidia/cublas/lib/libcublasLt.so.12")
    _put(site, "nvidia/cu13/lib/libcublasLt.so.13")
    module = FakeModule(cuda="12.8")
    modules.load_libraries(module)
    assert module.asked == [tuple(wanted)]


def test_pythons_own_libraries_come_behind_the_wheels(site):
    (own,) = _put(site, "prefix/lib/libcudnn.so.9")
    assert modules.find_library("cudnn", "13") == own
    (wheel,) = _put(site, "nvidia/cudnn/lib/libcudnn.so.9")
    assert modules.find_library("cudnn", "13") == wheel


@pytest.mark.usefixtures("site")
def test_what_is_in_no_wheel_is_left_to_the_loader():
    module = FakeModule()
    modules.load_libraries(module)
    assert module.asked == [(None, None)]


def test_nvrtc_is_loaded_for_engines_that_are_compiled_at_run_time(site, monkeypatch):
    (file,) = _put(site, "nvidia/cu13/lib/libnvrtc.so.13")
    loaded: list[str] = []
    monkeypatch.setattr(ctypes, "CDLL", loaded.append)
    modules.load_libraries(FakeModule())
    assert loaded == [file]


def test_a_copy_that_the_user_names_comes_first(site, monkeypatch):
    wanted = _put(site, "nvidia/cudnn/lib/libcudnn.so.9", "nvidia/cu13/lib/libcublasLt.so.13")
    monkeypatch.setenv("PYDLBENCH_CUDNN", "/mine/libcudnn.so.9")
    module = FakeModule()
    modules.load_libraries(module)
    assert module.asked == [("/mine/libcudnn.so.9", wanted[1])]


@pytest.mark.usefixtures("site")
def test_one_library_is_enough_to_begin_with():
    module = FakeModule("cuDNN cannot be loaded: libcudnn.so.9: no such file", loaded=("cublasLt",))
    assert modules.load_libraries(module).keys() == {"cublasLt"}


@pytest.mark.parametrize(
    ("cuda", "extra", "wheel"),
    [("13.0", "'.[cuda]'", "nvidia-cublas)"), ("12.8", "'.[cuda12]'", "nvidia-cublas-cu12)")],
)
@pytest.mark.usefixtures("site")
def test_a_missing_library_says_what_installs_it(cuda, extra, wheel):
    reason = "cuDNN cannot be loaded: libcudnn.so.9: cannot open shared object file"
    with pytest.raises(BackendMissingError, match=r"libcudnn\.so\.9") as caught:
        modules.load_libraries(FakeModule(reason, cuda, ()))
    assert extra in str(caught.value)
    assert wheel in str(caught.value)
