"""The inputs of an ONNX file: from the graph's own description, from --batch and from --input."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pydlbench.devices.cpu.facts import read_cpu_facts
from pydlbench.errors import InsufficientMemoryError, UnsupportedError, UsageError, nearest
from pydlbench.records.own import OwnSpec
from pydlbench.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from pydlbench.records.own import OwnInput
    from pydlbench.records.step import StepSpec

# By onnxruntime's words.
_DTYPES: Final = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(int64)": "int64",
    "tensor(int32)": "int32",
    "tensor(uint8)": "uint8",
    "tensor(int8)": "int8",
    "tensor(bool)": "bool",
}


def made_inputs(case: StepSpec, wanted: Sequence[Any]) -> dict[str, NDArray[Any]]:
    """Return random inputs by name: floating-point in [-1, 1), others 0 or 1.

    Args:
        case: with its batch, and what ``--input`` says.
        wanted: name, shape and type of each, as onnxruntime describes them; a dimension that is no
            number is dynamic.

    Raises:
        UsageError: a dimension is open or nothing, or what was asked for contradicts the file.
        UnsupportedError: a type that no random values are made of.
        InsufficientMemoryError: they have no room.
    """
    given = _by_name(case, wanted)
    stream = np.random.default_rng(case.seed)
    shapes = {one.name: _shape(case, one, given.get(one.name)) for one in wanted}
    for name, shape in list(shapes.items())[:1]:
        if case.batch not in (None, *shape[:1]):
            raise UsageError(
                f"--batch {case.batch}: the input {name} of {case.model} is "
                f"{'x'.join(map(str, shape))}; nearest: leave it out"
            )
    dtypes = {one.name: _dtype(case, one) for one in wanted}
    _check_room(case, shapes, dtypes)
    return {name: _random(dtypes[name], shape, stream) for name, shape in shapes.items()}


def _check_room(
    case: StepSpec, shapes: Mapping[str, Sequence[int]], dtypes: Mapping[str, str]
) -> None:
    """Refuse inputs that are larger than the memory that is free.

    Raises:
        InsufficientMemoryError: with what they would take.
    """
    size = sum(math.prod(shape) * np.dtype(dtypes[name]).itemsize for name, shape in shapes.items())
    available = read_cpu_facts().memory_available_bytes
    if available is not None and size > available:
        raise InsufficientMemoryError(
            f"{case.model}: its inputs take {format_bytes(size)} of the {format_bytes(available)} "
            "that are free; try a smaller --batch or --input"
        )


def _by_name(case: StepSpec, wanted: Sequence[Any]) -> dict[str, OwnInput]:
    """Return what ``--input`` says by the graph's names; those without one go by their place."""
    names = [one.name for one in wanted]
    found: dict[str, OwnInput] = {}
    inputs = (case.own or OwnSpec()).inputs
    for one in inputs:
        if one.name is None:
            continue
        if one.name not in names:
            near = nearest(one.name, names, 1) or names[:1]
            raise UsageError(
                f"--input {one.text}: {case.model} has no input {one.name}; nearest: {near[0]}"
            )
        found[one.name] = one
    left = [name for name in names if name not in found]
    plain = [one for one in inputs if one.name is None]
    if len(plain) > len(left):
        raise UsageError(
            f"--input {plain[len(left)].text}: {case.model} has {len(names)} inputs only: "
            f"{', '.join(names)}; nearest: leave it out"
        )
    return found | dict(zip(left, plain, strict=False))


def _dtype(case: StepSpec, wanted: Any) -> str:
    if wanted.type not in _DTYPES:
        raise UnsupportedError(
            f"{case.model}: its input {wanted.name} is a {wanted.type}; random ones are made of "
            f"{', '.join(_DTYPES)}"
        )
    return _DTYPES[wanted.type]


def _shape(case: StepSpec, wanted: Any, given: OwnInput | None) -> tuple[int, ...]:
    """Return the shape of an input; the batch is the first dimension, if that is dynamic."""
    if 0 in wanted.shape:
        said = "x".join(map(str, wanted.shape))
        raise UsageError(f"{case.model}: its input {wanted.name} is {said}, without any element")
    known = [size if isinstance(size, int) and size > 0 else None for size in wanted.shape]
    said = "x".join(str(size or "?") for size in wanted.shape)
    dtype = _dtype(case, wanted)
    # What would do: numbers where the file has them.
    usual = [case.batch or 8] + [128] * len(known)
    sizes = "x".join(str(size or other) for size, other in zip(known, usual, strict=False))
    near = f"--input {sizes}" + (f":{dtype}" if dtype != "float32" else "")
    if given is not None:
        fits = len(given.shape) == len(known) and all(
            size in (None, asked) for size, asked in zip(known, given.shape, strict=True)
        )
        if not fits or given.dtype != dtype:
            raise UsageError(
                f"--input {given.text}: the input {wanted.name} of {case.model} is {said} of "
                f"{dtype}; nearest: {near}"
            )
        return given.shape
    if case.batch is not None and known and known[0] is None:
        known[0] = case.batch
    if None in known:
        batched = known[0] is None and None not in known[1:]
        raise UsageError(
            f"{case.model}: its input {wanted.name} is {said}, which leaves dimensions open; "
            f"nearest: {'--batch 8' if batched else near}"
        )
    return tuple(size for size in known if size is not None)


def _random(dtype: str, shape: Sequence[int], stream: np.random.Generator) -> NDArray[Any]:
    if np.dtype(dtype).kind == "f":
        return stream.uniform(-1, 1, shape).astype(dtype)
    return stream.integers(0, 2, shape).astype(dtype)
