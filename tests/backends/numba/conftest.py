"""Small odd layers of every kind, for the kernels."""

from __future__ import annotations

import importlib.util

import pytest

from pydlbench.layers.conv import Conv2d
from pydlbench.layers.gemm import Gemm
from pydlbench.layers.pool import Pool2d

# They import Numba at their top.
collect_ignore = (
    [] if importlib.util.find_spec("numba") else ["test_kernels.py", "test_cpu_backend.py"]
)

LAYERS: dict[str, Conv2d | Gemm | Pool2d] = {
    "uneven padding, stride": Conv2d.of(
        batch=2,
        in_channels=5,
        in_size=(7, 9),
        out_channels=7,
        kernel=3,
        padding=(1, 0, 2, 1),
        stride=(2, 1),
    ),
    "groups, dilation": Conv2d.of(
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
    "depthwise": Conv2d.of(
        batch=1,
        in_channels=3,
        in_size=(6, 37),
        out_channels=3,
        kernel=3,
        padding=1,
        groups=3,
    ),
    "1x1, stride leaves gaps": Conv2d.of(
        batch=1, in_channels=9, in_size=(5, 4), out_channels=4, kernel=1, stride=(3, 2)
    ),
    "all of a column on padding": Conv2d.of(
        batch=1, in_channels=1, in_size=(3, 2), out_channels=2, kernel=(1, 4), padding=(0, 0, 3, 3)
    ),
    "product": Gemm(m=5, k=7, n=3),
    "one row": Gemm(m=1, k=2, n=1),
    "batched product, several blocks": Gemm(m=37, k=600, n=261, batch_count=2),
    "max": Pool2d.of(batch=2, channels=3, in_size=(7, 9), kernel=3, stride=2, padding=(1, 0, 1, 1)),
    "max, gaps": Pool2d.of(batch=1, channels=2, in_size=(8, 7), kernel=(2, 1), stride=(3, 4)),
    "max, global": Pool2d.of(batch=1, channels=3, in_size=(4, 6), kernel=(4, 6)),
    "avg": Pool2d.of(
        batch=2,
        channels=3,
        in_size=(7, 9),
        kernel=(3, 2),
        stride=(2, 1),
        padding=(1, 2, 0, 1),
        mode="avg",
    ),
    "avg, padding counted": Pool2d.of(
        batch=2,
        channels=3,
        in_size=(7, 9),
        kernel=(3, 4),
        stride=(2, 3),
        padding=(1, 2, 0, 3),
        mode="avg",
        count_include_pad=True,
    ),
}


# Numba compiles a kernel for each, for seconds: these are of every kind and every pass.
_DEFAULT = {
    ("groups, dilation", "forward"),
    ("groups, dilation", "backward-weights"),
    ("batched product, several blocks", "backward-data"),
    ("max", "forward"),
    ("avg, padding counted", "backward-data"),
}


@pytest.fixture(
    params=[
        pytest.param((name, pass_), marks=() if (name, pass_) in _DEFAULT else pytest.mark.deep)
        for name, one in LAYERS.items()
        for pass_ in one.passes
    ]
)
def problem(request: pytest.FixtureRequest) -> tuple[Conv2d | Gemm | Pool2d, str]:
    """Return each layer with each of its passes."""
    name, pass_ = request.param
    return LAYERS[name], pass_
