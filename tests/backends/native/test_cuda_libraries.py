import sys
import types

import pytest

from pydlbench.backends.native import cuda_libraries
from pydlbench.errors import BackendMissingError, UnsupportedError


class FakeModule:
    """Stands for pydlbench._cuda."""

    def __init__(self, error: str | None = None, cuda: str = "13.0") -> None:
        self.error = error
        self.cuda = cuda
        self.asked: list[tuple[str | None, str | None]] = []

    def load_libraries(self, cudnn: str | None, cublaslt: str | None) -> None:
        self.asked.append((cudnn, cublaslt))
        if self.error:
            raise UnsupportedError(self.error)

    def libraries(self) -> dict[str, dict[str, str]]:
        return {"cudnn": {"version": "9.28.0", "path": "/x/libcudnn.so.9"}}

    def built_with(self) -> dict[str, str]:
        return {"cuda": self.cuda}


@pytest.fixture
def pathfinder(monkeypatch):
    """Put a cuda-pathfinder in place that knows the files that it is given."""
    monkeypatch.delenv("PYDLBENCH_CUDNN", raising=False)
    monkeypatch.delenv("PYDLBENCH_CUBLASLT", raising=False)
    known: dict[str, str] = {}
    asked: list[str] = []

    def load_nvidia_dynamic_lib(name):
        asked.append(name)
        if name not in known:
            raise RuntimeError(f"{name} not found")
        return types.SimpleNamespace(abs_path=known[name])

    module = types.ModuleType("cuda.pathfinder")
    module.load_nvidia_dynamic_lib = load_nvidia_dynamic_lib
    monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", module)
    known["asked"] = asked
    return known


def test_the_files_that_pathfinder_knows_are_loaded(pathfinder):
    pathfinder.update(cudnn="/wheel/libcudnn.so.9", cublasLt="/wheel/libcublasLt.so.13")
    module = FakeModule()
    assert cuda_libraries.load(module)["cudnn"]["version"] == "9.28.0"
    assert module.asked == [("/wheel/libcudnn.so.9", "/wheel/libcublasLt.so.13")]
    # cuDNN's engines that compile at run time need it in the process.
    assert "nvrtc" in pathfinder["asked"]


def test_what_pathfinder_does_not_find_is_left_to_the_loader(pathfinder):
    module = FakeModule()
    cuda_libraries.load(module)
    assert module.asked == [(None, None)]
    assert pathfinder["asked"][:2] == ["cudnn", "cublasLt"]


def test_without_pathfinder_everything_is_left_to_the_loader(monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.pathfinder", None)
    monkeypatch.delenv("PYDLBENCH_CUDNN", raising=False)
    monkeypatch.delenv("PYDLBENCH_CUBLASLT", raising=False)
    module = FakeModule()
    cuda_libraries.load(module)
    assert module.asked == [(None, None)]


def test_a_copy_that_the_user_names_comes_first(pathfinder, monkeypatch):
    pathfinder.update(cudnn="/wheel/libcudnn.so.9", cublasLt="/wheel/libcublasLt.so.13")
    monkeypatch.setenv("PYDLBENCH_CUDNN", "/mine/libcudnn.so.9")
    module = FakeModule()
    cuda_libraries.load(module)
    assert module.asked == [("/mine/libcudnn.so.9", "/wheel/libcublasLt.so.13")]


@pytest.mark.parametrize(
    ("cuda", "extra", "wheel"),
    [("13.0", "'.[cuda]'", "nvidia-cublas "), ("12.8", "'.[cuda12]'", "nvidia-cublas-cu12 ")],
)
def test_a_missing_library_says_what_installs_it(pathfinder, cuda, extra, wheel):
    reason = "cuDNN cannot be loaded: libcudnn.so.9: cannot open shared object file"
    with pytest.raises(BackendMissingError, match=r"libcudnn\.so\.9") as caught:
        cuda_libraries.load(FakeModule(reason, cuda))
    assert extra in str(caught.value)
    assert wheel in str(caught.value)
    assert "cudnn" in pathfinder["asked"]
