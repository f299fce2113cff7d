"""Every kind of layer, pass and mode against the float64 reference; and what is refused."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
from this_cpu import HAS_AVX512, HAS_BF16

from pydlbench.backends.base import Preparation
from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import UnsupportedError
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec

if TYPE_CHECKING:
    from pydlbench.backends.tensorflow.backend import TensorflowBackend
    from pydlbench.ops.op import Layer

THOROUGH = Preparation(seed=3, all_candidates=True)
PLAIN = build_layer(
    "conv", batch=2, in_channels=3, in_size=(7, 6), out_channels=5, kernel=3, padding=1
)
STRIDED = build_layer(
    "conv",
    batch=2,
    in_channels=3,
    in_size=(7, 6),
    out_channels=5,
    kernel=3,
    stride=(1, 2),
    padding=1,
)
UNEVEN = build_layer(
    "conv",
    batch=2,
    in_channels=3,
    in_size=(7, 6),
    out_channels=5,
    kernel=(3, 2),
    padding=(1, 0, 2, 1),
)
DILATED = build_layer(
    "conv", batch=1, in_channels=3, in_size=9, out_channels=4, kernel=3, dilation=2
)
GROUPED = build_layer(
    "conv", batch=2, in_channels=4, in_size=6, out_channels=6, kernel=3, padding=1, groups=2
)
DEPTHWISE = build_layer(
    "conv",
    batch=2,
    in_channels=4,
    in_size=7,
    out_channels=8,
    kernel=3,
    stride=2,
    padding=1,
    groups=4,
)
UP = build_layer(
    "deconv", batch=2, in_channels=3, in_size=(4, 3), out_channels=5, kernel=3, stride=2
)
SAME_POOL = build_layer(
    "pool", batch=2, channels=3, in_size=(7, 8), kernel=3, stride=2, padding=(1, 1, 0, 1)
)
MODES = ("graph", "xla")
PASSES = ("forward", "backward-data", "backward-weights")


def prepare(backend: TensorflowBackend, layer: Layer, pass_: str, mode: str | None, **more: str):
    case = KernelSpec(layer=layer, pass_=pass_, mode=mode, **more)
    return backend.prepare(case, THOROUGH)


def _pads(entry: dict) -> bool:
    return entry["algorithm"].startswith("Pad, ") or "of padded images" in entry["algorithm"]


def wrong(entries: list[dict]) -> list[dict]:
    return [entry for entry in entries if (entry["correct"] or {}).get("status") == "failed"]


@pytest.mark.product
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    "layer",
    [
        PLAIN,
        STRIDED,
        UNEVEN,
        UP,
        build_layer("gemm", m=5, k=7, n=3),
        build_layer("gemm", m=4, k=3, n=5, src_batch=(2, 1), weights_batch=(1, 4)),
        build_layer("pool", batch=2, channels=3, in_size=(7, 6), kernel=3, stride=2),
        SAME_POOL,
        SAME_POOL.replace(mode="avg"),
    ],
    ids=["conv", "strided", "uneven", "up", "gemm", "gemms", "max", "max-same", "avg-same"],
)
def test_every_pass_is_right(backend, layer, pass_, mode, precision):
    if pass_ not in layer.passes:
        with pytest.raises(UnsupportedError, match=r"pool2d .*backward-weights"):
            prepare(backend, layer, pass_, mode)
        return
    if precision == "bf16" and not {"avx512_bf16", "amx_bf16"} & set(read_cpu_facts().isa):
        with pytest.raises(UnsupportedError, match="it lacks avx512_bf16"):
            prepare(backend, layer, pass_, mode, precision=precision)
        return
    facts = prepare(backend, layer, pass_, mode, precision=precision).facts
    assert facts.correct.status == "ok"
    assert facts.correct.points > 0
    assert facts.timing == "steady"
    assert facts.library.startswith("TensorFlow 2")
    assert facts.setup_s > 0
    if precision == "fp32":
        assert wrong(facts.candidates) == []


@pytest.mark.parametrize("sizes", ["iw5ow9", "ih7oh5iw5ow9"])
@pytest.mark.parametrize("how", ["nearest", "linear"])
def test_resized_images_are_right(backend, how, sizes):
    layer = parse_problem(f"resize:{how}:mb2ic3{sizes}")
    for pass_ in layer.passes:
        assert prepare(backend, layer, pass_, "graph").facts.correct.status == "ok"
        with pytest.raises(UnsupportedError, match="--mode graph"):
            prepare(backend, layer, pass_, "xla")
    if how == "linear":
        with pytest.raises(UnsupportedError, match="fp32" if HAS_BF16 else "no bf16"):
            prepare(backend, layer, "forward", "graph", precision="bf16")
    with pytest.raises(UnsupportedError, match="three sides"):
        prepare(
            backend, parse_problem(f"resize:{how}:mb2ic3id3od5ih7oh5iw5ow9"), "forward", "graph"
        )


@pytest.mark.product
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("layer", "pass_"), list(itertools.product([DILATED, GROUPED, DEPTHWISE], PASSES))
)
def test_special_convolutions_are_right(backend, layer, pass_, mode):
    if mode == "graph" and layer is not DEPTHWISE and pass_ != "forward" and not HAS_AVX512:
        pytest.skip("TensorFlow has these gradients with oneDNN only, which needs AVX-512")
    facts = prepare(backend, layer, pass_, mode).facts
    assert facts.correct.status == "ok"
    assert wrong(facts.candidates) == []
    own = [one for one in facts.candidates if one["algorithm"].startswith("Depthwise")]
    assert len(own) == (2 if layer is DEPTHWISE else 0)


@pytest.mark.skipif(not HAS_AVX512, reason="TensorFlow has this gradient with oneDNN only")
def test_a_refused_variant_says_why_and_another_takes_its_place(backend):
    layer = GROUPED.replace(pad_before=(2, GROUPED.pad_before[1]))
    facts = prepare(backend, layer, "backward-data", "graph").facts
    reasons = {one["algorithm"]: one["reason"] for one in facts.candidates if one["reason"]}
    assert facts.correct.status == "ok"
    assert facts.algorithm.startswith("Conv2DBackpropInput, Slice of padded images")
    refusal = reasons["Conv2DBackpropInput"]
    assert refusal.startswith("TensorFlow, Conv2DBackpropInput with 2 groups (graph): ")
    assert "\n" not in refusal
    assert "[[" not in refusal


def test_a_mode_is_graph_unless_said_otherwise(backend):
    assert "xla" not in prepare(backend, PLAIN, "forward", None).facts.algorithm.lower()


# XLA compiles each variant: one pass stands for the others.
@pytest.mark.parametrize(
    "pass_", ["forward", *(pytest.param(one, marks=pytest.mark.deep) for one in PASSES[1:])]
)
def test_uneven_padding_may_be_an_operator_of_its_own(backend, pass_):
    facts = prepare(backend, UNEVEN, pass_, "xla").facts
    padded = [one for one in facts.candidates if _pads(one)]
    assert {one["correct"]["status"] for one in padded} == {"ok"}
    assert len(padded) == 2
    even = prepare(backend, DILATED, pass_, "xla").facts
    assert not [one for one in even.candidates if _pads(one)]


def test_the_kernel_behind_is_named(backend):
    graph = prepare(backend, PLAIN, "forward", "graph").facts
    xla = prepare(backend, PLAIN, "forward", "xla").facts
    assert graph.algorithm.startswith("Conv2D")
    assert xla.algorithm.endswith("convolution f32")
    again = prepare(backend, build_layer("gemm", m=3, k=4, n=2), "forward", "graph").facts
    assert "MatMul" in again.algorithm
    assert "Conv" not in again.algorithm
    chosen = [entry["algorithm"] for entry in graph.candidates if entry["chosen"]]
    assert chosen == [graph.algorithm]


def test_layouts_compete_and_can_be_chosen(backend):
    best = prepare(backend, PLAIN, "forward", "xla").facts
    assert {entry["layout"] for entry in best.candidates} == {
        "src nhwc, weights hwio, dst nhwc",
        "src nchw, weights hwio, dst nchw",
    }
    only = prepare(backend, PLAIN, "forward", "xla", layout="nchw").facts
    assert [entry["layout"] for entry in only.candidates] == ["src nchw, weights hwio, dst nchw"]


def test_weights_lie_both_ways(backend):
    facts = prepare(backend, build_layer("gemm", m=3, k=4, n=2), "backward-weights", "graph").facts
    assert {entry["layout"] for entry in facts.candidates} == {
        "src mk, weights kn, dst mn",
        "src mk, weights nk, dst mn",
    }


@pytest.mark.parametrize(
    ("layer", "words", "reason"),
    [
        (PLAIN, {"mode": "eager"}, "tensorflow has no mode eager; it has graph and xla"),
        (PLAIN, {"mode": "compiled"}, "no mode compiled"),
        (PLAIN, {"precision": "tf32"}, "tf32 is a GPU mode"),
        (PLAIN, {"fuse": "bias-relu"}, "no --fuse bias-relu; nearest: bias"),
        (PLAIN, {"cache": "all-cold"}, "there is: hot"),
        (PLAIN, {"layout": "blocked"}, "no operator with --layout blocked"),
        (PLAIN, {"timing": "events"}, "--timing events"),
        (
            build_layer(
                "pool",
                batch=1,
                channels=2,
                in_size=6,
                kernel=3,
                padding=1,
                mode="avg",
                count_include_pad=True,
            ),
            {},
            "leave padding out of the count",
        ),
        (
            build_layer(
                "pool", batch=1, channels=2, in_size=6, kernel=3, stride=2, padding=1, mode="avg"
            ),
            {},
            "SAME or VALID, not mb1ic2ih6oh3kh3sh2ph1",
        ),
    ],
)
def test_what_it_lacks_is_unsupported_with_a_reason(backend, layer, words, reason):
    case = KernelSpec(layer=layer, **{"mode": "graph", **words})
    with pytest.raises(UnsupportedError, match=reason):
        backend.prepare(case, THOROUGH)


def test_what_xla_refuses_is_unsupported_in_its_own_words(backend):
    layer = build_layer("pool", batch=1, channels=2, in_size=6, kernel=3, stride=2, padding=1)
    with pytest.raises(UnsupportedError) as raised:
        prepare(backend, layer, "forward", "xla")
    expected = "TensorFlow, MaxPool (xla): XLA does not support pooling ops with explicit padding"
    assert str(raised.value) == expected
    assert prepare(backend, layer, "forward", "graph").facts.correct.status == "ok"


def test_it_describes_itself(backend):
    described = backend.describe()
    assert described["name"] == "tensorflow"
    assert described["version"].startswith("2.")
    assert described["intra_op_threads"] == len(backend.cpus)
    assert described["inter_op_threads"] == 1
    assert described["synchronous"] is True
    assert described["onednn"] in (True, False, None)
    assert described["modes"] == ["graph", "xla"]
    assert set(described["precisions"]) | set(described["refused"]) == {"fp32", "bf16", "fp16"}


@pytest.mark.usefixtures("backend")
def test_a_gpu_that_is_not_there_is_unsupported():
    from pydlbench.backends.tensorflow.backend import create

    with pytest.raises(UnsupportedError, match="cuda:999: "):
        create("cuda:999")
