"""Small odd layers of every kind, which every backend must get right, and how they are tried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pydlbench.backends.base import Preparation
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from pydlbench.ops.op import Layer

_AVG: dict[str, Any] = {"batch": 2, "channels": 3, "in_size": (7, 9), "mode": "avg"}
LAYERS: dict[str, Layer] = {
    "even padding": build_layer(
        "conv", batch=2, in_channels=4, in_size=(7, 5), out_channels=6, kernel=3, padding=1
    ),
    "uneven padding, stride": build_layer(
        "conv",
        batch=2,
        in_channels=5,
        in_size=(7, 9),
        out_channels=7,
        kernel=3,
        padding=(1, 0, 2, 1),
        stride=(2, 1),
    ),
    "groups, dilation": build_layer(
        "conv",
        batch=2,
        in_channels=12,
        in_size=(9, 33),
        out_channels=6,
        kernel=(3, 2),
        padding=(1, 2, 0, 3),
        stride=(1, 2),
        dilation=(2, 3),
        groups=2,
    ),
    "depthwise": build_layer(
        "conv",
        batch=1,
        in_channels=3,
        in_size=(6, 37),
        out_channels=3,
        kernel=3,
        padding=1,
        groups=3,
    ),
    "1x1, stride leaves gaps": build_layer(
        "conv", batch=1, in_channels=9, in_size=(5, 4), out_channels=4, kernel=1, stride=(3, 2)
    ),
    "all of a column on padding": build_layer(
        "conv",
        batch=1,
        in_channels=1,
        in_size=(3, 2),
        out_channels=2,
        kernel=(1, 4),
        padding=(0, 0, 3, 3),
    ),
    "product": build_layer("gemm", m=5, k=7, n=3),
    "one row": build_layer("gemm", m=1, k=2, n=1),
    "batched product": build_layer("gemm", m=5, k=7, n=3, batch_count=2),
    "two dimensions of a batch": build_layer(
        "gemm", m=5, k=7, n=3, src_batch=(2, 3), weights_batch=(2, 3)
    ),
    "matrices for several": build_layer(
        "gemm", m=5, k=7, n=3, src_batch=(2, 1), weights_batch=(1, 4)
    ),
    "batched product, several blocks": build_layer("gemm", m=37, k=600, n=261, batch_count=2),
    "max": build_layer(
        "pool", batch=2, channels=3, in_size=(7, 9), kernel=3, stride=2, padding=(1, 0, 1, 1)
    ),
    "max, gaps": build_layer(
        "pool", batch=1, channels=2, in_size=(8, 7), kernel=(2, 1), stride=(3, 4)
    ),
    "max, global": build_layer("pool", batch=1, channels=3, in_size=(4, 6), kernel=(4, 6)),
    "avg": build_layer("pool", **_AVG, kernel=(3, 2), stride=(2, 1), padding=(1, 2, 0, 1)),
    "avg, padding counted": build_layer(
        "pool", **_AVG, kernel=(3, 4), stride=(2, 3), padding=(1, 2, 0, 3), count_include_pad=True
    ),
}


def each_pass(
    default: Collection[str | tuple[str, str]], names: Collection[str] = tuple(LAYERS)
) -> list[Any]:
    """Return names of layers with each of their passes; those beyond the default are deep.

    Args:
        default: names, and pairs of a name and a pass, that are always tried.
        names: of all layers that are tried.
    """
    return [
        pytest.param(
            name,
            pass_,
            marks=() if name in default or (name, pass_) in default else pytest.mark.deep,
        )
        for name in names
        for pass_ in LAYERS[name].passes
    ]


SIDES = {"batch": 3, "channels": 6, "height": 5, "width": 4}
_PLAIN = ("bias", "relu", "relu6", "hardswish", "hardsigmoid", "scale", "batchnorm", "add")
_SMOOTH = (
    *("sigmoid", "tanh", "softplus", "logsigmoid", "elu", "silu", "mish", "gelu", "gelu-tanh"),
)
_ROWS = ("softmax", "log-softmax", "layernorm", "rmsnorm")
LOSSES = ("mse", "l1", "smooth-l1", "bce-logits")
#: Pointwise ops that only PyTorch computes.
OF_PYTORCH = ("sort", "cummax", "cummin")
_OF_LANGUAGE_MODELS = ("swiglu", "rope", "add-rmsnorm")
_POINTWISE = (
    *(build_layer(op, **SIDES) for op in (*_PLAIN, *_SMOOTH, *_ROWS, *_OF_LANGUAGE_MODELS)),
    build_layer("groupnorm", **SIDES, groups=2),
    build_layer("hardtanh", **SIDES, low=-0.5, high=2),
    build_layer("prelu", **SIDES),
    build_layer("cumsum", **SIDES, axis=2),
    build_layer("glu", **SIDES),
    build_layer("sort", **SIDES, axis=1, k=4),
    build_layer("cummax", **SIDES),
    build_layer("cummin", **SIDES, axis=2),
    build_layer("lrn", **SIDES, local_size=3, alpha=0.5, k=1.5),
    build_layer("concat", **SIDES, sources=(2, 3, 1)),
    build_layer("softmax-xent", batch=5, channels=11),
    build_layer("cumprod", **SIDES, axis=2),
    *(build_layer(op, channels=333) for op in LOSSES),
    build_layer("nll", batch=5, channels=11),
    build_layer("dropout", **SIDES, keep=0.8),
    *(build_layer(op, channels=333) for op in ("l2", "sgd", "momentum")),
)
#: The same by operation.
POINTWISE = {layer.op: layer for layer in _POINTWISE}
#: Those that only PyTorch has, of the frameworks.
TORCH_ONLY = {"glu", "sort", "cummax", "cummin"}
_STEPS = [(layer, pass_, "inference") for layer in _POINTWISE for pass_ in layer.passes]
_STEPS += [(POINTWISE[op], "forward", "training") for op in ("batchnorm", "layernorm", "groupnorm")]
_DEEP = {*_SMOOTH, *_OF_LANGUAGE_MODELS, *LOSSES[1:], "relu6", "hardsigmoid", "softmax"} - {
    "elu",
    "gelu",
}
#: Layer, pass and propagation; the default set has a few of those that are much alike.
STEPS: list[Any] = [
    pytest.param(step, marks=pytest.mark.deep if step[0].op in _DEEP else ()) for step in _STEPS
]


def step_name(step: tuple[Layer, str, str]) -> str:
    """Return how a test of a step is called."""
    return f"{step[0].op}-{step[1]}-{step[2]}"


def steps_by_mode(plain: str, built: str) -> list[Any]:
    """Return each step in the mode that runs operators, and in the one that has code built.

    Code is built for one of those that are much alike: a compiler takes seconds for each.
    """
    steps = [(step, plain) for step in STEPS]
    steps += [(step, built) for step in STEPS if not step.marks]
    return [
        pytest.param(
            step.values[0], mode, marks=step.marks, id=f"{mode}-{step_name(step.values[0])}"
        )
        for step, mode in steps
    ]


def every_variant(
    backend: Any, monkeypatch: pytest.MonkeyPatch, **words: Any
) -> Iterator[tuple[Any, Any]]:
    """Prepare a case with each of its variants alone: all are verified, and no race takes time.

    Yields:
        Each variant, and the facts of its kernel.
    """
    case = KernelSpec(**words)
    for variant in backend.variants(case):
        with monkeypatch.context() as patch:
            patch.setattr(backend, "variants", lambda _, one=variant: [one])
            yield variant, backend.prepare(case, Preparation(seed=3)).facts
