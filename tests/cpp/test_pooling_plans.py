"""Plans of our pooling kernels: what they list, what they ask for, and that they run."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX, AVG_INCLUDE, AVG_EXCLUDE = 0, 1, 2
FLOAT32, FLOAT16, BFLOAT16, INT32, INT8 = 0, 1, 2, 4, 5
INPUT, OUTPUT, IN_OUT, DERIVED = range(4)
NUMBERS: dict[int, Any] = {
    FLOAT32: np.float32,
    FLOAT16: np.float16,
    INT32: np.int32,
    INT8: np.uint8,
}

SHAPE = (2, 8, 5, 6)
OUT = (2, 8, 3, 3)
# 3 x 3 windows, every second pixel, one row of padding above, one below, and one column right.
SIZES = (*SHAPE, *OUT[2:], 3, 3, 2, 2, 1, 1, 0, 1)


@dataclass(frozen=True)
class Tensor:
    """A tensor that a plan wants."""

    role: str
    use: int
    type: int
    strides: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """What a plan says about itself."""

    algorithm: str
    variant: str
    layout: str
    accumulate: str
    tensor_cores: str
    notes: str
    tensors: tuple[Tensor, ...]


@pytest.fixture(scope="module")
def library(cpp_library: ctypes.CDLL) -> ctypes.CDLL:
    """Return the compiled plans."""
    loaded = cpp_library
    loaded.pooling_plans.restype = ctypes.c_char_p
    loaded.why_not_cudnn.restype = ctypes.c_char_p
    return loaded


def _plans(
    library: ctypes.CDLL,
    pass_: str,
    type_: int,
    mode: int,
    *,
    channels_last: bool,
    sizes: tuple[int, ...] = SIZES,
) -> list[Plan]:
    numbers = (ctypes.c_int64 * 14)(*sizes)
    text = library.pooling_plans(pass_.encode(), type_, mode, int(channels_last), numbers).decode()
    plans = []
    for line in text.splitlines():
        algorithm, variant, layout, accumulate, cores, notes, tensors = line.split("|")
        read = []
        for words in (word.split() for word in tensors.split(",") if word):
            use, type_of, *strides = (int(word) for word in words[1:])
            read.append(Tensor(words[0], use, type_of, tuple(strides)))
        plans.append(Plan(algorithm, variant, layout, accumulate, cores, notes, tuple(read)))
    return plans


def _reference(x: NDArray[Any], dy: NDArray[Any], mode: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the result and the gradient of the source, element by element."""
    y, dx = np.zeros(OUT), np.zeros(SHAPE)
    for n, c, oh, ow in np.ndindex(*OUT):
        taps = [
            (h, w)
            for h in range(2 * oh - 1, 2 * oh + 2)
            for w in range(2 * ow, 2 * ow + 3)
            if 0 <= h < SHAPE[2] and 0 <= w < SHAPE[3]
        ]
        values = [x[n, c, h, w] for h, w in taps]
        if mode == MAX:
            y[n, c, oh, ow] = max(values)
            h, w = taps[int(np.argmax(values))]
            dx[n, c, h, w] += dy[n, c, oh, ow]
            continue
        count = 9 if mode == AVG_INCLUDE else len(taps)
        y[n, c, oh, ow] = sum(values) / count
        for h, w in taps:
            dx[n, c, h, w] += dy[n, c, oh, ow] / count
    return y, dx


@pytest.mark.parametrize("pass_", ["forward-inference", "forward-training", "backward-data"])
@pytest.mark.parametrize("mode", [MAX, AVG_INCLUDE, AVG_EXCLUDE])
@pytest.mark.parametrize("type_", [FLOAT32, FLOAT16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_every_plan_computes_its_pass(
    library: ctypes.CDLL, pass_: str, mode: int, type_: int, channels_last: bool
) -> None:
    """Derived inputs included: what is listed is what the kernels are given."""
    rng = np.random.default_rng(1)
    x = rng.integers(-8, 9, SHAPE) / 8.0
    dy = rng.integers(-8, 9, OUT) / 8.0
    y, dx = _reference(x, dy, mode)
    plans = _plans(library, pass_, type_, mode, channels_last=channels_last)
    assert plans
    for index, plan in enumerate(plans):
        views: dict[tuple[str, int], NDArray[Any]] = {}
        memory = []
        for tensor in plan.tensors:
            dims = SHAPE if tensor.role == "src" else OUT
            memory.append(np.full(int(np.prod(dims)), 99, NUMBERS[tensor.type]))
            size = memory[-1].itemsize
            view = as_strided(memory[-1], dims, [size * stride for stride in tensor.strides])
            views[tensor.role, tensor.use] = view
            if tensor.use == INPUT:
                view[...] = x if tensor.role == "src" else dy
        pointers = [array.ctypes.data for array in memory]
        library.run_pooling_plan(index, (ctypes.c_void_p * len(pointers))(*pointers), len(pointers))
        forward = pass_ != "backward-data"
        got = views["dst" if forward else "src", OUTPUT].astype(np.float64)
        tolerance = 1e-6 if type_ == FLOAT32 else 1e-3
        np.testing.assert_allclose(got, y if forward else dx, rtol=tolerance, atol=tolerance)


def test_maxima_in_training_store_where_they_are(library: ctypes.CDLL) -> None:
    """Inference stores nothing; backward derives it from the forward pass's source."""
    (plan,) = _plans(library, "forward-inference", FLOAT32, MAX, channels_last=False)
    assert [tensor.role for tensor in plan.tensors] == ["src", "dst"]
    assert plan.notes == ""
    (plan,) = _plans(library, "forward-training", FLOAT32, MAX, channels_last=False)
    assert [(t.role, t.use) for t in plan.tensors] == [
        ("src", INPUT),
        ("dst", OUTPUT),
        ("argmax", OUTPUT),
    ]
    assert plan.tensors[2].type == INT8
    assert plan.notes == "writes the argmax, 1 bytes each;"
    (plan,) = _plans(library, "backward-data", FLOAT32, MAX, channels_last=False)
    assert [(t.role, t.use) for t in plan.tensors] == [
        ("src", INPUT),
        ("argmax", DERIVED),
        ("dst", INPUT),
        ("src", OUTPUT),
    ]
    (plan,) = _plans(library, "backward-data", FLOAT32, AVG_INCLUDE, channels_last=False)
    assert [(t.role, t.use) for t in plan.tensors] == [("dst", INPUT), ("src", OUTPUT)]


def test_facts(library: ctypes.CDLL) -> None:
    """Float32 accumulation, no tensor cores, and layouts by name."""
    for last, name in ((True, "nhwc"), (False, "nchw")):
        plans = _plans(library, "forward-inference", BFLOAT16, AVG_EXCLUDE, channels_last=last)
        for plan in plans:
            assert plan.variant == name
            assert plan.layout == f"src {name}, dst {name}"
            assert (plan.accumulate, plan.tensor_cores) == ("float32", "0")
            assert {tensor.type for tensor in plan.tensors} == {BFLOAT16}


def test_vectors_fit_the_channels(library: ctypes.CDLL) -> None:
    """Sixteen bytes, four bytes, one element: as many as divide the channels."""

    def algorithms(type_: int, channels: int) -> list[str]:
        sizes = (2, channels, *SIZES[2:])
        pass_ = "forward-inference"
        plans = _plans(library, pass_, type_, MAX, channels_last=True, sizes=sizes)
        return [plan.algorithm for plan in plans]

    one = "window per thread"
    assert algorithms(FLOAT16, 16) == [f"{one}, 8 channels", f"{one}, 2 channels", one]
    assert algorithms(FLOAT16, 6) == [f"{one}, 2 channels", one]
    assert algorithms(FLOAT32, 8) == [f"{one}, 4 channels", one]
    assert algorithms(FLOAT32, 7) == [one]


def test_large_windows(library: ctypes.CDLL) -> None:
    """Warps share large windows of NCHW; beyond 256 taps the argmax needs four bytes."""
    sizes = (2, 8, 17, 17, 1, 1, 17, 17, 1, 1, 0, 0, 0, 0)
    plans = _plans(library, "forward-training", FLOAT32, MAX, channels_last=False, sizes=sizes)
    assert [plan.algorithm for plan in plans] == ["window per thread", "window per warp"]
    assert plans[0].tensors[2].type == INT32
    (plan,) = _plans(library, "forward-training", FLOAT32, MAX, channels_last=True, sizes=sizes)
    assert plan.algorithm == "window per thread"


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((1, 1, 8, 8, 4, 4, 3, 3, 2, 2, 1, 1, 1, 1), ""),
        # Padding at the end that no window reaches has been cut away.
        ((1, 1, 8, 8, 4, 4, 3, 3, 2, 2, 1, 0, 1, 0), ""),
        # Padding at the end only, as in rounding up.
        ((1, 1, 8, 8, 4, 4, 3, 3, 2, 2, 0, 1, 0, 1), "cuDNN pads both ends alike"),
        # Padding at the start only: cuDNN would find one more window.
        ((1, 1, 5, 5, 5, 5, 2, 2, 1, 1, 1, 0, 1, 0), "cuDNN pads both ends alike"),
        ((1, 1, 5, 5, 4, 4, 2, 2, 1, 1, 0, 0, 0, 0), ""),
        (
            (1 << 15, 1 << 10, 8, 8, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0),
            "cuDNN's pooling counts elements in 32 bits",
        ),
    ],
)
def test_what_cudnn_can_express(library: ctypes.CDLL, sizes: tuple[int, ...], reason: str) -> None:
    """Ours remain where cuDNN is left out."""
    assert library.why_not_cudnn((ctypes.c_int64 * 14)(*sizes)).decode() == reason
