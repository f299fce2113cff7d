"""What PyTorch lacks costs a row, in one sentence."""

import pytest
import torch

from pydlbench.backends.base import Preparation
from pydlbench.backends.torch import settings
from pydlbench.backends.torch.backend import create
from pydlbench.errors import UnsupportedError
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec

CONV = build_layer("conv", batch=2, in_channels=4, in_size=6, out_channels=8, kernel=3)
POOL = build_layer("pool", batch=1, channels=2, in_size=6, kernel=3)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            {"layer": CONV, "mode": "xla"},
            "torch has no mode xla; it has eager and compiled and frozen",
        ),
        ({"layer": CONV, "mode": "graph"}, "torch has no mode graph"),
        ({"layer": CONV, "mode": "frozen", "pass_": "backward-data"}, "training changes the"),
        ({"layer": CONV, "mode": "frozen", "propagation": "training"}, "training changes the"),
        ({"layer": CONV, "mode": "frozen", "device": "cuda:0"}, "for CPUs"),
        ({"layer": POOL, "mode": "frozen"}, "with weights"),
        (
            {"layer": CONV, "device": "cuda:0", "fuse": "bias-relu"},
            "--fuse bias-relu .*nearest: bias",
        ),
        ({"layer": CONV, "device": "cuda:0", "precision": "fp16"}, "cannot keep fp16 off"),
        ({"layer": CONV, "device": "cuda:0", "precision": "fp8-tc"}, "matrix products only"),
        (
            {
                "layer": build_layer("gemm", m=16, k=16, n=8),
                "device": "cuda:0",
                "precision": "fp8-tc",
            },
            "multiples of 16",
        ),
        (
            {
                "layer": build_layer("gemm", m=16, k=16, n=16),
                "device": "cuda:0",
                "precision": "fp8-tc",
                "fuse": "bias",
            },
            "fp8-tc with a bias",
        ),
        (
            {
                "layer": build_layer("gemm", m=16, k=16, n=16, batch_count=2),
                "device": "cuda:0",
                "precision": "fp8-tc",
            },
            "no batched product",
        ),
    ],
)
def test_a_word_that_torch_lacks(backend, words, sentence):
    with pytest.raises(UnsupportedError, match=sentence):
        backend.variants(KernelSpec(**words))


def test_cold_caches_and_blocked_layouts_and_missing_passes(backend):
    for words in (
        {"layer": CONV, "cache": "all-cold"},
        {"layer": CONV, "layout": "blocked"},
        {"layer": POOL, "pass_": "backward-weights"},
    ):
        with pytest.raises(UnsupportedError):
            backend.prepare(KernelSpec(**words), Preparation())


@pytest.mark.parametrize(
    ("precision", "flags", "lacking"),
    [
        ("bf16", {}, ("avx512_bf16", "amx_bf16")),
        ("bf16", {"avx512_bf16": True}, ()),
        ("bf16", {"amx_bf16": True}, ()),
        ("fp16", {"avx512_bf16": True}, ("avx512_fp16", "amx_fp16")),
        ("fp16", {"avx512_fp16": True}, ()),
        ("fp32", {}, ()),
    ],
)
def test_a_data_type_needs_its_instructions(backend, monkeypatch, precision, flags, lacking):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags, raising=False)
    assert settings.emulated(precision) == lacking
    case = KernelSpec(layer=CONV, precision=precision)
    if not lacking:
        assert backend.variants(case)
        return
    with pytest.raises(UnsupportedError, match=f"this CPU has no {precision}: it lacks"):
        backend.variants(case)


@pytest.mark.parametrize(
    ("precision", "flags", "lacking"),
    [
        ("bf16", {}, ("avx512_bf16", "amx_bf16")),
        ("bf16", {"_is_amx_tile_supported"}, ()),
        ("bf16", {"_is_avx512_bf16_supported"}, ()),
        ("fp16", {"_is_amx_fp16_supported"}, ()),
    ],
)
def test_older_versions_are_asked_one_by_one(monkeypatch, precision, flags, lacking):
    monkeypatch.delattr(torch.cpu, "get_capabilities", raising=False)
    for name in (
        "_is_avx512_bf16_supported",
        "_is_amx_tile_supported",
        "_is_amx_fp16_supported",
    ):
        monkeypatch.setattr(torch.cpu, name, lambda name=name: name in flags, raising=False)
    assert settings.emulated(precision) == lacking


def test_a_gpu_that_torch_does_not_see(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(UnsupportedError, match="was built without CUDA"):
        create("cuda:0")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UnsupportedError, match="sees no GPU"):
        create("cuda:0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UnsupportedError, match=r"2 GPUs, .*cuda:2"):
        create("cuda:2")
