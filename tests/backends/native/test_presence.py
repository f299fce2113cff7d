"""Whether there is a GPU: the default device, and what is said where there is none."""

import sys
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest

from pydlbench.backends import capabilities as presence
from pydlbench.backends.native import modules
from pydlbench.errors import UnsupportedError


@pytest.fixture
def driver(tmp_path, monkeypatch):
    """A driver's device node, and nothing that hides it."""
    node = tmp_path / "nvidiactl"
    node.touch()
    monkeypatch.setattr(presence, "_DRIVER_NODES", (str(node), str(tmp_path / "dxg")))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return node


@pytest.fixture
def built(monkeypatch):
    def build(missing):
        monkeypatch.setitem(sys.modules, "pydlbench._build", SimpleNamespace(CUDA_MISSING=missing))

    return build


@pytest.mark.parametrize(
    ("driven", "visible", "expected"),
    [
        (True, None, "cuda:0"),
        (False, None, "cpu"),
        *((True, hidden, "cpu") for hidden in ("", "-1", " ")),
    ],
)
def test_a_gpu_that_can_be_used_is_the_default(
    driver, built, monkeypatch, driven, visible, expected
):
    built("")
    if not driven:
        driver.unlink()
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert presence.default_device() == (expected, ())


def test_a_gpu_that_cannot_be_used_is_not_passed_over_in_silence(driver, built):
    assert driver.exists()
    built("built without CUDA")
    device, notes = presence.default_device()
    assert device == "cpu"
    assert notes == ("there is a GPU, but the CPU is measured: built without CUDA",)


@pytest.mark.parametrize("installed", [(), ("12",), ("13",), ("12", "13")])
def test_an_environment_with_cudnn_for_two_versions_of_cuda_is_refused(monkeypatch, installed):
    def version(name):
        if not name.endswith(installed or ("none",)):
            raise PackageNotFoundError(name)
        return "9.20"

    monkeypatch.setattr(modules.metadata, "version", version)
    if len(installed) < 2:
        modules.check_single_cudnn()
        return
    with pytest.raises(UnsupportedError, match=r"cu12 9\.20 and nvidia-cudnn-cu13") as caught:
        modules.check_single_cudnn()
    assert "--python torch=" in str(caught.value)
