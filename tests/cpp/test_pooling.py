"""The pooling kernels and their plans, run on the CPU, against NumPy in float64."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

MODES = ("max", "avg-include-padding", "avg-exclude-padding")  # in the order of PoolMode
TYPES = ("float32", "float16", "bfloat16")  # in the order of DataType
# What rounding to storage may cost, and for float32 what a few float32 operations may.
ROUNDING = {"float32": 2.0**-21, "float16": 2.0**-11, "bfloat16": 2.0**-8}
BATCH = 2


@dataclass(frozen=True)
class Pool:
    """A pooling; pads are top, left, bottom, right."""

    size: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    pads: tuple[int, int, int, int] = (0, 0, 0, 0)
    channels: int = 3

    @property
    def out(self) -> tuple[int, int]:
        """Height and width of the result."""
        (height, width), (rows, columns) = self.size, self.kernel
        top, left, bottom, right = self.pads
        return (
            (height + top + bottom - rows) // self.stride[0] + 1,
            (width + left + right - columns) // self.stride[1] + 1,
        )

    def sizes(self) -> Any:  # a ctypes array
        """Return what the C functions take."""
        numbers = (BATCH, self.channels, *self.size, *self.out, *self.kernel, *self.stride)
        return (ctypes.c_int64 * 16)(*numbers, 1, 1, *self.pads)

    def windows(self) -> Iterator[tuple[int, int, slice, slice, int, int]]:
        """Yield each window: its place, what of it is inside, and where it starts."""
        for oh in range(self.out[0]):
            for ow in range(self.out[1]):
                top = oh * self.stride[0] - self.pads[0]
                left = ow * self.stride[1] - self.pads[1]
                rows = slice(max(top, 0), min(top + self.kernel[0], self.size[0]))
                columns = slice(max(left, 0), min(left + self.kernel[1], self.size[1]))
                yield oh, ow, rows, columns, top, left


SHAPES = {
    "3x3/2": Pool((7, 9), (3, 3), (2, 2)),
    "3x3/2 padded at the end": Pool((6, 8), (3, 3), (2, 2), (0, 0, 1, 1)),
    "3x3/2 padded all round": Pool((7, 5), (3, 3), (2, 2), (1, 1, 1, 1)),
    "3x3/1 padded": Pool((5, 6), (3, 3), (1, 1), (1, 1, 1, 1)),
    "2x2/2": Pool((6, 4), (2, 2), (2, 2)),
    "2x2/1 padded at the start": Pool((3, 5), (2, 2), (1, 1), (1, 0, 0, 1)),
    "5x2/1x3": Pool((9, 11), (5, 2), (1, 3), (3, 1, 2, 0)),
    "gaps between windows": Pool((8, 7), (2, 1), (3, 4)),
    "one tap": Pool((3, 3), (1, 1), (1, 1)),
    "global": Pool((7, 6), (7, 6), (1, 1)),
    "4x4/1, many windows over a pixel": Pool((6, 6), (4, 4), (1, 1), (3, 2, 1, 3)),
    "256 taps": Pool((17, 16), (16, 16), (1, 1), (0, 0, 0, 1), channels=1),
}
# Layout (channels last) and channels: a channel at a time, or a vector of them.
FORMS = [
    *(("float32", *form) for form in ((0, 3), (1, 3), (1, 8))),
    *(("float16", *form) for form in ((0, 3), (1, 6), (1, 16))),
    *(("bfloat16", *form) for form in ((0, 3), (1, 3), (1, 8))),
]
CASES = [(shape, *form) for shape in SHAPES for form in FORMS]


@pytest.fixture(scope="module")
def library(cpp_library):
    """Return the compiled kernels."""
    loaded = cpp_library
    loaded.pool_forward.restype = ctypes.c_char_p
    loaded.pool_backward.restype = ctypes.c_char_p
    loaded.pooling_plan.restype = ctypes.c_char_p
    loaded.why_not_cudnn.restype = ctypes.c_char_p
    return loaded


def _stored(array: NDArray[Any], type_: str, channels_last: int) -> NDArray[Any]:
    """Return NCHW values as a kernel reads them."""
    laid = np.ascontiguousarray(array.transpose(0, 2, 3, 1) if channels_last else array)
    if type_ == "bfloat16":
        return (laid.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return laid.astype(type_)


def _read(array: NDArray[Any], type_: str, channels_last: int) -> NDArray[Any]:
    """Return what a kernel wrote as NCHW in float64."""
    if type_ == "bfloat16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    values = array.astype(np.float64)
    return values.transpose(0, 3, 1, 2) if channels_last else values


def _shape(channels: int, size: tuple[int, int], channels_last: int) -> tuple[int, ...]:
    return (BATCH, *size, channels) if channels_last else (BATCH, channels, *size)


def _empty(shape: tuple[int, ...], type_: str) -> NDArray[Any]:
    """Return an output full of NaN."""
    poison = np.full(shape, np.nan, np.float32)
    return _stored(poison, type_, 0)


def _values(shape: tuple[int, ...], seed: int) -> NDArray[Any]:
    """Return few different values, exact in all types, so that windows hold equal maxima."""
    return np.random.default_rng(seed).integers(-6, 7, shape) / 8.0


def _forward(pool: Pool, mode: str, x: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the result and, for maxima, where in its window each one is."""
    y = np.empty((*x.shape[:2], *pool.out))
    where = np.zeros(y.shape, np.int64)
    for oh, ow, rows, columns, top, left in pool.windows():
        window = x[:, :, rows, columns]
        if mode == "max":
            flat = window.reshape(*x.shape[:2], -1)
            first = flat.argmax(axis=-1)
            y[:, :, oh, ow] = flat.max(axis=-1)
            i, j = np.divmod(first, window.shape[3])
            i, j = i + rows.start - top, j + columns.start - left
            where[:, :, oh, ow] = i * pool.kernel[1] + j
        else:
            inside = window.shape[2] * window.shape[3]
            whole = pool.kernel[0] * pool.kernel[1]
            count = whole if mode == "avg-include-padding" else inside
            y[:, :, oh, ow] = window.sum(axis=(2, 3)) / count
    return y, where


def _backward(pool: Pool, mode: str, x: NDArray[Any], dy: NDArray[Any]) -> NDArray[Any]:
    """Return the gradient of the source, window by window."""
    dx = np.zeros_like(x)
    _, where = _forward(pool, "max", x)
    images, channels = np.ogrid[: x.shape[0], : x.shape[1]]
    for oh, ow, rows, columns, top, left in pool.windows():
        gradient = dy[:, :, oh, ow]
        if mode == "max":
            i, j = np.divmod(where[:, :, oh, ow], pool.kernel[1])
            dx[images, channels, top + i, left + j] += gradient
        else:
            inside = (rows.stop - rows.start) * (columns.stop - columns.start)
            whole = pool.kernel[0] * pool.kernel[1]
            count = whole if mode == "avg-include-padding" else inside
            dx[:, :, rows, columns] += gradient[:, :, None, None] / count
    return dx


def _pointer(array: NDArray[Any] | None) -> ctypes.c_void_p | None:
    return None if array is None else array.ctypes.data_as(ctypes.c_void_p)


def _run_forward(
    library: ctypes.CDLL,
    pool: Pool,
    mode: str,
    form: tuple[str, int],
    x: NDArray[Any],
    *,
    with_argmax: bool = False,
    with_result: bool = True,
) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    type_, channels_last = form
    shape = _shape(pool.channels, pool.out, channels_last)
    source = _stored(x, type_, channels_last)
    result = _empty(shape, type_) if with_result else None
    argmax = np.full(shape, 113, np.uint8) if with_argmax else None
    error = library.pool_forward(
        TYPES.index(type_),
        channels_last,
        pool.sizes(),
        MODES.index(mode),
        _pointer(source),
        _pointer(result),
        _pointer(argmax),
    )
    assert error == b""
    return result, argmax


def _pool_of(shape: str, channels: int) -> Pool:
    pool = SHAPES[shape]
    return Pool(pool.size, pool.kernel, pool.stride, pool.pads, channels)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("shape", "type_", "channels_last", "channels"), CASES)
def test_forward(library, shape, type_, channels_last, channels, mode):
    """Every element is written; maxima are exact, means as good as one rounding."""
    pool = _pool_of(shape, channels)
    x = _values((BATCH, channels, *pool.size), 1)
    result, _ = _run_forward(library, pool, mode, (type_, channels_last), x)
    expected, _ = _forward(pool, mode, x)
    assert result is not None
    got = _read(result, type_, channels_last)
    if mode == "max":
        np.testing.assert_array_equal(got, expected)
    else:
        np.testing.assert_allclose(got, expected, rtol=ROUNDING[type_], atol=1e-6)


@pytest.mark.parametrize(("shape", "type_", "channels_last", "channels"), CASES)
def test_forward_stores_the_first_maximum(library, shape, type_, channels_last, channels):
    """The argmax counts taps from the window's corner; the result need not be wanted."""
    pool = _pool_of(shape, channels)
    x = _values((BATCH, channels, *pool.size), 2)
    form = (type_, channels_last)
    result, argmax = _run_forward(library, pool, "max", form, x, with_argmax=True)
    expected, where = _forward(pool, "max", x)
    assert result is not None
    assert argmax is not None
    np.testing.assert_array_equal(_read(result, type_, channels_last), expected)
    stored = argmax.transpose(0, 3, 1, 2) if channels_last else argmax
    np.testing.assert_array_equal(stored, where)
    _, alone = _run_forward(library, pool, "max", form, x, with_argmax=True, with_result=False)
    np.testing.assert_array_equal(alone, argmax)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("shape", "type_", "channels_last", "channels"), CASES)
def test_backward(library, shape, type_, channels_last, channels, mode):
    """Each pixel gets its share of every window's gradient, and zero where no window reaches."""
    pool = _pool_of(shape, channels)
    x = _values((BATCH, channels, *pool.size), 4)
    dy = _values((BATCH, channels, *pool.out), 5)
    form = (type_, channels_last)
    argmax = None
    if mode == "max":
        _, argmax = _run_forward(library, pool, "max", form, x, with_argmax=True)
    gradient = _stored(dy, type_, channels_last)
    written = _empty(_shape(channels, pool.size, channels_last), type_)
    error = library.pool_backward(
        TYPES.index(type_),
        channels_last,
        pool.sizes(),
        MODES.index(mode),
        _pointer(gradient),
        _pointer(argmax),
        _pointer(written),
    )
    assert error == b""
    got = _read(written, type_, channels_last)
    expected = _backward(pool, mode, x, dy)
    # Shares of up to 16 windows add up in float32 and are rounded once.
    np.testing.assert_allclose(got, expected, rtol=ROUNDING[type_], atol=2e-6)


@pytest.mark.parametrize("type_", TYPES)
def test_minus_infinity_has_a_place_too(library, type_):
    """A window of nothing but minus infinity points at its first tap inside the image."""
    pool = _pool_of("3x3/2 padded all round", 3)
    x = np.full((BATCH, 3, *pool.size), -np.inf)
    result, argmax = _run_forward(library, pool, "max", (type_, 0), x, with_argmax=True)
    assert result is not None
    assert np.isneginf(_read(result, type_, 0)).all()
    np.testing.assert_array_equal(argmax, _forward(pool, "max", x)[1])


def test_images_beyond_32_bits_are_refused(library):
    """Kernels count the elements of an image in 32 bits; nothing is launched."""
    pool = Pool((1 << 16, 1 << 15), (2, 2), (2, 2), channels=1)
    error = library.pool_forward(0, 0, pool.sizes(), 0, None, None, None)
    assert b"2**31 elements" in error


# --- plans: where there are any, what they ask for, and that they run ---

PASSES = ("forward-inference", "forward-training", "backward-data")
MAX, AVG_INCLUDE, AVG_EXCLUDE = 0, 1, 2
FLOAT32, FLOAT16, BFLOAT16, INT8 = 0, 1, 2, 5
INPUT, OUTPUT, IN_OUT, DERIVED = range(4)
NUMBERS: dict[int, Any] = {
    FLOAT32: np.float32,
    FLOAT16: np.float16,
    INT8: np.uint8,
}

# One row of padding above, one below, and one column right.
PLANNED = Pool((5, 6), (3, 3), (2, 2), (1, 0, 1, 1), channels=8)
SHAPE, OUT = (BATCH, 8, *PLANNED.size), (BATCH, 8, *PLANNED.out)


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


def _line(
    library: ctypes.CDLL,
    pass_: str,
    type_: int,
    mode: int,
    *,
    channels_last: bool = False,
    by_cudnn: bool = False,
    sizes: tuple[int, ...] | None = None,
) -> str:
    numbers = PLANNED.sizes() if sizes is None else (ctypes.c_int64 * 16)(*sizes)
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


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("mode", [MAX, AVG_INCLUDE, AVG_EXCLUDE])
@pytest.mark.parametrize("type_", [FLOAT32, FLOAT16])
@pytest.mark.parametrize("channels_last", [False, True])
def test_the_plan_computes_its_pass(library, pass_, mode, type_, channels_last):
    """Derived inputs included: what is listed is what the kernels are given."""
    x, dy = _values(SHAPE, 1), _values(OUT, 2)
    forward = pass_ != "backward-data"
    named = MODES[mode]
    expected = _forward(PLANNED, named, x)[0] if forward else _backward(PLANNED, named, x, dy)
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
    got = views["dst" if forward else "src", OUTPUT].astype(np.float64)
    tolerance = 1e-6 if type_ == FLOAT32 else 1e-3
    np.testing.assert_allclose(got, expected, rtol=tolerance, atol=tolerance)


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
