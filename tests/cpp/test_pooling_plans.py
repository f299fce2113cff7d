"""Plans of our pooling kernels: where there are any, what they ask for, and that they run."""

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
FLOAT32, FLOAT16, BFLOAT16, INT8 = 0, 1, 2, 5
INPUT, OUTPUT, IN_OUT, DERIVED = range(4)
NUMBERS: dict[int, Any] = {
    FLOAT32: np.float32,
    FLOAT16: np.float16,
    INT8: np.uint8,
}

SHAPE = (2, 8, 5, 6)
OUT = (2, 8, 3, 3)
# 3 x 3 windows, every second pixel, one row of padding above, one below, and one column right.
SIZES = (*SHAPE, *OUT[2:], 3, 3, 2, 2, 1, 1, 1, 0, 1, 1)


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
def library(cpp_library):
    """Return the compiled plans."""
    loaded = cpp_library
    loaded.pooling_plan.restype = ctypes.c_char_p
    loaded.why_not_cudnn.restype = ctypes.c_char_p
    return loaded


def _line(
    library: ctypes.CDLL,
    pass_: str,
    type_: int,
    mode: int,
    *,
    channels_last: bool = False,
    by_cudnn: bool = False,
    sizes: tuple[int, ...] = SIZES,
) -> str:
    numbers = (ctypes.c_int64 * 16)(*sizes)
    words = (type_, mode, int(channels_last), int(by_cudnn))
    return str(library.pooling_plan(pass_.encode(), *words, numbers).decode())


def _plan(
    library: ctypes.CDLL, pass_: str, type_: int, mode: int, *, channels_last: bool = False
) -> Plan:
    line = _line(library, pass_, type_, mode, channels_last=channels_last)
    algorithm, variant, layout, accumulate, cores, notes, tensors = line.split("|")
    read = []
    for words in (word.split() for word in tensors.split(",") if word):
        use, type_of, *strides = (int(word) for word in words[1:])
        read.append(Tensor(words[0], use, type_of, tuple(strides)))
    return Plan(algorithm, variant, layout, accumulate, cores, notes, tuple(read))


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
def test_the_plan_computes_its_pass(library, pass_, mode, type_, channels_last):
    """Derived inputs included: what is listed is what the kernels are given."""
    rng = np.random.default_rng(1)
    x = rng.integers(-8, 9, SHAPE) / 8.0
    dy = rng.integers(-8, 9, OUT) / 8.0
    y, dx = _reference(x, dy, mode)
    plan = _plan(library, pass_, type_, mode, channels_last=channels_last)
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
    library.run_pooling_plan((ctypes.c_void_p * len(pointers))(*pointers), len(pointers))
    forward = pass_ != "backward-data"
    got = views["dst" if forward else "src", OUTPUT].astype(np.float64)
    tolerance = 1e-6 if type_ == FLOAT32 else 1e-3
    np.testing.assert_allclose(got, y if forward else dx, rtol=tolerance, atol=tolerance)


def test_maxima_in_training_store_where_they_are(library):
    """Inference stores nothing; backward derives it from the forward pass's source."""
    plan = _plan(library, "forward-inference", FLOAT32, MAX)
    assert [tensor.role for tensor in plan.tensors] == ["src", "dst"]
    assert plan.notes == ""
    plan = _plan(library, "forward-training", FLOAT32, MAX)
    assert [(t.role, t.use) for t in plan.tensors] == [
        ("src", INPUT),
        ("dst", OUTPUT),
        ("argmax", OUTPUT),
    ]
    assert plan.tensors[2].type == INT8
    assert plan.notes == "writes the argmax;"
    plan = _plan(library, "backward-data", FLOAT32, MAX)
    assert [(t.role, t.use) for t in plan.tensors] == [
        ("src", INPUT),
        ("argmax", DERIVED),
        ("dst", INPUT),
        ("src", OUTPUT),
    ]
    plan = _plan(library, "backward-data", FLOAT32, AVG_INCLUDE)
    assert [(t.role, t.use) for t in plan.tensors] == [("dst", INPUT), ("src", OUTPUT)]


def test_facts(library):
    """Float32 accumulation, no tensor cores, and layouts by name."""
    for last, name in ((True, "nhwc"), (False, "nchw")):
        plan = _plan(library, "forward-inference", BFLOAT16, AVG_EXCLUDE, channels_last=last)
        assert plan.variant == name
        assert plan.layout == f"src {name}, dst {name}"
        assert (plan.accumulate, plan.tensor_cores) == ("float32", "0")
        assert {tensor.type for tensor in plan.tensors} == {BFLOAT16}


PASSES = ("forward-inference", "forward-training", "backward-data")


@pytest.mark.parametrize("mode", [MAX, AVG_INCLUDE, AVG_EXCLUDE])
@pytest.mark.parametrize("pass_", PASSES)
def test_beside_cudnn_ours_are_for_maxima_in_training(library, pass_, mode):
    """The argmax saves reading source and result again; without cuDNN there is always a plan."""
    argmax = mode == MAX and pass_ != "forward-inference"
    assert bool(_line(library, pass_, FLOAT32, mode, by_cudnn=True)) is argmax
    assert _line(library, pass_, FLOAT32, mode, by_cudnn=False)


def test_an_argmax_of_a_byte_tells_256_places_apart(library):
    """Where windows are larger, training is cuDNN's; without it, or padded so, nobody's."""
    sizes = (2, 8, 17, 17, 1, 1, 17, 17, 1, 1, 1, 1, 0, 0, 0, 0)
    for pass_ in ("forward-training", "backward-data"):
        assert _line(library, pass_, FLOAT32, MAX, by_cudnn=True, sizes=sizes) == ""
        refused = _line(library, pass_, FLOAT32, MAX, sizes=sizes)
        assert refused.startswith("!")
        assert "256" in refused
        assert _line(library, pass_, FLOAT32, AVG_INCLUDE, sizes=sizes)[0] != "!"
    assert _line(library, "forward-inference", FLOAT32, MAX, sizes=sizes)[0] != "!"


@pytest.mark.parametrize(
    ("sizes", "reason"),
    [
        ((1, 1, 8, 8, 4, 4, 3, 3, 2, 2, 1, 1, 1, 1, 1, 1), ""),
        # Padding at the end that no window reaches has been cut away.
        ((1, 1, 8, 8, 4, 4, 3, 3, 2, 2, 1, 1, 1, 1, 0, 0), ""),
        # Padding at the end only, as in rounding up.
        ((1, 1, 8, 8, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0, 1, 1), "cuDNN pads both ends alike"),
        # Padding at the start only: cuDNN would find one more window.
        ((1, 1, 5, 5, 5, 5, 2, 2, 1, 1, 1, 1, 1, 1, 0, 0), "cuDNN pads both ends alike"),
        ((1, 1, 5, 5, 4, 4, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0), ""),
        (
            (1 << 15, 1 << 10, 8, 8, 4, 4, 2, 2, 2, 2, 1, 1, 0, 0, 0, 0),
            "cuDNN's pooling counts elements in 32 bits",
        ),
    ],
)
def test_what_cudnn_can_express(library, sizes, reason):
    """Ours remain where cuDNN is left out."""
    assert library.why_not_cudnn((ctypes.c_int64 * 16)(*sizes)).decode() == reason
