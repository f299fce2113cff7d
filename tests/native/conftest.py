"""Small layers of every sort, and what it takes to run one of their candidates."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pydlbench.errors import UnsupportedError
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.op import IN_PLACE, WHOLE_TYPES
from pydlbench.ops.table import build_layer, ops_of_kind
from pydlbench.records.measurement import KernelSpec

if TYPE_CHECKING:
    from pydlbench.ops.op import Layer

NATIVE = importlib.util.find_spec("pydlbench._cpu") is not None
# These import the module at their top.
collect_ignore = (
    []
    if NATIVE
    else [
        "test_batches.py",
        "test_kernel.py",
        "test_plans.py",
        "test_pointwise.py",
        "test_results.py",
        "test_sides.py",
    ]
)

CONVS = {
    "dense": build_layer(
        "conv", batch=2, in_channels=16, in_size=7, out_channels=32, kernel=3, padding=1
    ),
    "first layer": build_layer(
        "conv",
        batch=1,
        in_channels=3,
        in_size=23,
        out_channels=16,
        kernel=11,
        stride=4,
        padding=(3, 4, 3, 4),
    ),
    "grouped": build_layer(
        "conv", batch=2, in_channels=32, in_size=5, out_channels=32, kernel=3, padding=1, groups=2
    ),
    "odd groups": build_layer(
        "conv", batch=2, in_channels=9, in_size=5, out_channels=6, kernel=3, padding=1, groups=3
    ),
    "depthwise": build_layer(
        "conv",
        batch=3,
        in_channels=24,
        in_size=9,
        out_channels=24,
        kernel=3,
        padding=1,
        stride=2,
        groups=24,
    ),
    "depthwise, two per channel": build_layer(
        "conv", batch=1, in_channels=8, in_size=6, out_channels=16, kernel=3, groups=8
    ),
    "dilated": build_layer(
        "conv", batch=1, in_channels=8, in_size=11, out_channels=16, kernel=3, padding=2, dilation=2
    ),
    "skew": build_layer(
        "conv",
        batch=3,
        in_channels=16,
        in_size=(7, 12),
        out_channels=16,
        kernel=(1, 5),
        stride=(2, 1),
        padding=(0, 1, 2, 0),
        dilation=(1, 2),
    ),
    "one pixel": build_layer("conv", batch=1, in_channels=32, in_size=4, out_channels=16, kernel=4),
    "odd channels": build_layer(
        "conv", batch=5, in_channels=5, in_size=6, out_channels=7, kernel=3, padding=1
    ),
    "1x1, stride 2": build_layer(
        "conv", batch=3, in_channels=32, in_size=7, out_channels=16, kernel=1, stride=2
    ),
    "7x7, stride 2": build_layer(
        "conv", batch=1, in_channels=3, in_size=15, out_channels=16, kernel=7, stride=2, padding=3
    ),
}
DECONVS = {
    "doubling": parse_problem("deconv:mb2ic32ih6oc16kh2sh2"),
    "overlapping": parse_problem("deconv:mb1ic16ih5iw7oc32kh4sh2ph1"),
    "further": parse_problem("deconv:mb2ic16ih4oc5oh8kh3sh2ph1"),
    "grouped": parse_problem("deconv:g2mb2ic8ih5oc12kh3ph1"),
    "dilated": parse_problem("deconv:mb1ic3ih5oc4kh3dh1"),
}
GEMMS = {
    "odd": build_layer("gemm", m=17, k=33, n=19),
    "even": build_layer("gemm", m=32, k=64, n=48),
    "one row": build_layer("gemm", m=1, k=24, n=7),
    "one column": build_layer("gemm", m=7, k=24, n=1),
    "one term": build_layer("gemm", m=6, k=1, n=5),
    "dot product": build_layer("gemm", m=1, k=24, n=1),
    "batched": build_layer("gemm", m=6, k=20, n=31, batch_count=3),
    "batched column": build_layer("gemm", m=6, k=20, n=1, batch_count=2),
}
POOLS = {
    f"{mode}{' with padding' if whole else ''}, {name}": build_layer(
        "pool", **shape, mode=mode, count_include_pad=whole
    )
    for mode, whole in (("max", False), ("avg", False), ("avg", True))
    for name, shape in {
        "overlapping": {"batch": 2, "channels": 16, "in_size": 9, "kernel": 3, "stride": 2},
        "skew": {
            "batch": 3,
            "channels": 5,
            "in_size": (7, 9),
            "kernel": (3, 2),
            "stride": (2, 1),
            "padding": (1, 0, 0, 1),
        },
        "one pixel": {"batch": 1, "channels": 8, "in_size": 4, "kernel": 4},
    }.items()
}
RESIZES = {
    f"{mode}, {name}": parse_problem(f"resize:{mode}:{sizes}")
    for mode in ("nearest", "linear")
    for name, sizes in (("doubling", "mb2ic16ih5oh10"), ("skew", "mb3ic5ih7oh5iw4ow9"))
}
# Alike; one row, one column or one element for all; and more than a thread's share of rows.
_OPERANDS = (
    ((37,), (37,), (37,)),
    ((4, 3, 17), (4, 1, 17), (1, 1, 1)),
    ((1, 5, 1), (2, 5, 33), (2, 1, 33)),
    ((700, 30), (1, 30), (700, 1)),
)
_NUMBERS = {"add": (0.5, 1.0, -1.0)} | dict.fromkeys(
    ("power", "add-square", "addcmul", "addcdiv", "hardshrink", "softshrink", "threshold"), (0.5,)
)
# Ops with functions of PyTorch, and no native kernel.
_OF_FRAMEWORKS = (
    *("log1p", "expm1", "erf", "sin", "cos", "var", "std", "prelu-gradient", "norm1"),
    *("log2", "log10", "cast-from-int64"),
    *(f"cast-to-{kind}" for kind in WHOLE_TYPES),
)
ELEMENTWISE = [
    build_layer(
        f"elementwise:{op}",
        number=number,
        **dict(zip(("src", "src2", "src3")[: entry.operand_count], shapes, strict=False)),
    )
    for op, entry in ops_of_kind("elementwise").items()
    if op.removesuffix(IN_PLACE) not in _OF_FRAMEWORKS
    for shapes in _OPERANDS
    # What is overwritten has the result's shape.
    if not op.endswith(IN_PLACE) or shapes[0] == np.broadcast_shapes(*shapes)
    for number in _NUMBERS.get(op.removesuffix(IN_PLACE), (1.0,))
]
TENSORS = (
    *(
        f"reduction:{op}:{shapes}"
        for op in ops_of_kind("reduction")
        if op not in _OF_FRAMEWORKS
        for shapes in ("37:1", "5x700:5x1", "5x9x300:5x1x300", "20000:1")
    ),
    # Of dimensions that are not adjacent.
    *(f"reduction:{op}:3x4x5:1x4x1" for op in ("sum", "mean", "max", "min", "prod", "norm")),
    *("move:flip:33x50by01", "move:flip:5x40x17by0", "move:roll:7x41by01", "move:roll:300x33by0"),
    *("move:tile:1x5x33:40x5x99", "move:tile:7x1:7x300", "move:tril:3x70x50", "move:triu:50x70"),
    *("move:reflect:2x3x20x30:2x3x25x32", "move:reflect:5:9", "move:triu:300x7", "move:tril:9x1"),
    *("move:replicate:2x3x20x30:2x3x25x32", "move:replicate:5:19"),
    *("move:copy:5003", "move:fill:5003", "move:permute:2x7x3x50by0213", "move:permute:30x50by10"),
    *("gather:rows:40x33:700", "gather:rows:9x1:2"),
    *("gather:add-rows:40x33:700", "gather:add-rows:9x300:4", "gather:add-rows:3x1:5"),
)
RECURRENT = [
    *(
        f"{cell}:{sizes}"
        for cell in ("lstm", "gru", "vanilla-gru", "rnn-tanh", "rnn-relu")
        for sizes in ("t1mb3slc8dhc8", "t4mb3slc20dhc16", "l3t3mb2slc8dhc8", "d2t3mb3slc12dhc8")
    ),
    *("lstm:t4mb3slc20dhc16dic8", "lstm:l3t3mb2slc8dhc16dic8", "lstm:t4mb3slc20dhc16peephole1"),
    *("lstm:d2t3mb3slc12dhc8dic4peephole1", "lstm:t4mb3slc20dhc16projected1"),
]
#: Those that are moved through memory in cold caches too.
ROTATED: dict[str, Layer] = {
    f"{kind} {name}": layer
    for kind, layers in (
        ("conv", CONVS),
        ("deconv", DECONVS),
        ("gemm", GEMMS),
        ("pool", POOLS),
        ("resize", RESIZES),
        ("recurrent", {"lstm": parse_problem("lstm:t3mb3slc8dhc8")}),
    )
    for name, layer in layers.items()
}
LAYERS = ROTATED | {
    layer.problem: layer for layer in (*ELEMENTWISE, *map(parse_problem, (*TENSORS, *RECURRENT)))
}


def _has(precision: str) -> bool:
    if not NATIVE:
        return False
    from pydlbench.backends.native.cpu import candidates

    try:
        return bool(candidates(KernelSpec(layer=GEMMS["even"], precision=precision)))
    except UnsupportedError:
        return False


PRECISIONS = tuple(precision for precision in ("fp32", "bf16", "fp16") if _has(precision))


@pytest.fixture(params=PRECISIONS)
def precision(request):
    """Every precision that this CPU has for a matrix product."""
    return request.param


def pytest_generate_tests(metafunc):
    """Give every layer in turn, with each pass that it has where a test asks for that too."""
    names = set(metafunc.fixturenames)
    of_argument = {
        "layer": LAYERS,
        "rotated": ROTATED,
        "weighted": {name: layer for name, layer in ROTATED.items() if layer.weight_elements},
    }
    for argument in names & of_argument.keys():
        parametrize(metafunc, argument, of_argument[argument])


def parametrize(metafunc, argument, layers):
    """Give layers under an argument's name, with kinds of passes where a test asks for these."""
    names = metafunc.fixturenames
    cases = [
        pytest.param(layer, *given, id="-".join([name, *given]).replace(" ", "-"))
        for name, layer in layers.items()
        for given in ([(kind,) for kind in _kinds(layer)] if "kind" in names else [()])
    ]
    metafunc.parametrize([argument, "kind"] if "kind" in names else argument, cases)


def _kinds(layer):
    if layer.kind in ("elementwise", "reduction", "move", "gather"):
        return ("forward inference",)
    # The forward kernel that keeps what training needs is another one.
    return ("forward inference", "forward training", *layer.passes[1:])


@pytest.fixture
def conv():
    """A small dense convolution."""
    return CONVS["dense"]


@pytest.fixture
def max_pool():
    """Max pooling with overlapping windows."""
    return POOLS["max, overlapping"]


@pytest.fixture(params=["odd", "even", "one row", "one column"])
def gemm(request):
    """A single matrix product."""
    return GEMMS[request.param]
