"""Calls of PyTorch's as signatures, from what its profiler and its execution traces note of them.

How signatures are written: :mod:`pydlbench.backends.torch.steps.signature`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

#: NumPy's names by those of C++.
DTYPES: Final = {
    "float": "float32",
    "double": "float64",
    "c10::Half": "float16",
    "bool": "bool",
    "c10::BFloat16": "bfloat16",
    "long int": "int64",
    "long": "int64",
    "int": "int32",
    "short int": "int16",
    "short": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "c10::complex<float>": "complex64",
    "c10::complex<double>": "complex128",
    **{f"c10::Float8_{kind}": f"float8_{kind}" for kind in ("e4m3fn", "e5m2")},
}
#: PyTorch's types by their numbers, as ``ScalarType`` arguments are noted.
_NUMBERS: Final = {
    **dict(enumerate(("uint8", "int8", "int16", "int32", "int64", "float16", "float32"))),
    7: "float64",
    11: "bool",
    15: "bfloat16",
}
_MEMORY: Final = ("contiguous_format", "preserve_format", "channels_last", "channels_last_3d")
#: Parameters that the computation does not depend on.
_IDLE: Final = ("Layout", "Device", "pin_memory", "non_blocking", "Generator")
_SCHEMA: Final = re.compile(r"(\w+::\w+)\.?(\w*)\((.*)\) ->")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an operator.

    Attributes:
        name: of it.
        kind: PyTorch's type: ``ScalarType?``.
        keyword: whether it is given by name.
    """

    name: str
    kind: str
    keyword: bool


def read_schema(text: str) -> tuple[str, tuple[Parameter, ...]]:
    """Return an operator's overload and its parameters; nothing of a text that is no schema."""
    match = _SCHEMA.match(text)
    if match is None:
        return "", ()
    parameters, keyword = [], False
    # Commas stand within brackets, too: ``int[2] stride=[1, 1]``.
    for part in re.split(r", (?![^\[(]*[\])])", match[3]):
        if part == "*":
            keyword = True
            continue
        kind, _, name = part.partition("=")[0].rpartition(" ")
        parameters.append(Parameter(name, kind, keyword))
    return match[2], tuple(parameters)


#: Schemas of the operators whose rules read parameters by name: the profiler notes none.
_SCHEMAS: Final = {
    name: read_schema(f"aten::{name}({parameters}) -> Tensor")[1]
    for name, parameters in {
        "_to_copy": "Tensor self, *, ScalarType? dtype, Layout? layout, Device? device, "
        "bool? pin_memory, bool non_blocking, MemoryFormat? memory_format",
        "clone": "Tensor self, *, MemoryFormat? memory_format",
        "gelu": "Tensor self, *, str approximate",
        "gelu_backward": "Tensor grad_output, Tensor self, *, str approximate",
        "full": "SymInt[] size, Scalar fill_value, *, ScalarType? dtype",
        "ones": "SymInt[] size, *, ScalarType? dtype",
        "zeros": "SymInt[] size, *, ScalarType? dtype",
    }.items()
}


def write_signature(
    name: str,
    arguments: Sequence[str],
    overload: str = "",
    parameters: Sequence[Parameter] = (),
) -> str:
    """Return a call as text.

    Args:
        name: ``aten::convolution``.
        arguments: as texts, in their order; ``None`` for those that were left out.
        overload: of the operator; empty for the one that its arguments tell.
        parameters: of the operator; empty for those that are known here.
    """
    namespace, _, operator = name.partition("::")
    parameters = parameters or _SCHEMAS.get(operator, ())
    positional, keywords = [], []
    for place, argument in enumerate(arguments):
        parameter = parameters[place] if place < len(parameters) else None
        if parameter is None or not parameter.keyword:
            positional.append(argument)
        elif argument not in ("None", "''") and not _idle(parameter):
            keywords.append(f"{parameter.name}={_keyword(parameter, argument)}")
    # PyTorch leaves defaults out.
    while positional and positional[-1] == "None":
        positional.pop()
    overload = overload or _overload(operator, positional)
    return f"{namespace}.{operator}.{overload}({', '.join([*positional, *keywords])})"


def _idle(parameter: Parameter) -> bool:
    return parameter.kind.rstrip("?") in _IDLE or parameter.name in _IDLE


def _keyword(parameter: Parameter, argument: str) -> str:
    kind = parameter.kind.rstrip("?")
    if kind == "ScalarType" and argument.isdecimal():
        return f"torch.{_NUMBERS.get(int(argument), 'unknown')}"
    if kind == "MemoryFormat" and argument.isdecimal():
        return f"torch.{_MEMORY[min(int(argument), len(_MEMORY) - 1)]}"
    return argument


#: Operators whose overload says what their second operand is.
_BINARY: Final = ("add", "sub", "mul", "div", "eq", "ne", "lt", "le", "gt", "ge")


def _overload(operator: str, arguments: Sequence[str]) -> str:
    """Return the usual overload of an operator whose schema was not noted."""
    if operator.rstrip("_") in _BINARY and len(arguments) > 1:
        return "Tensor" if is_tensor(arguments[1]) else "Scalar"
    if operator in ("sum", "mean") and len(arguments) > 1:
        return "dim_IntList" if operator == "sum" else "dim"
    return "default"


def is_tensor(argument: str) -> bool:
    """Whether an argument is a tensor."""
    return re.match(r"\w+\[.*\]\(", argument) is not None


def tensor(dtype: str, shape: Sequence[int], strides: Sequence[int], **more: int) -> str:
    """Return a tensor as text; without strides it is dense.

    Args:
        dtype: NumPy's name.
        shape: of it.
        strides: in elements.
        more: ``at`` and ``of``, see :mod:`pydlbench.backends.torch.steps.signature`.
    """
    if len(strides) != len(shape):
        strides = [1] * len(shape)
        for axis in range(len(shape) - 2, -1, -1):
            strides[axis] = strides[axis + 1] * shape[axis + 1]
    words = [*map(str, strides), *(f"{key}={value}" for key, value in more.items())]
    return f"{dtype}[{', '.join(map(str, shape)) or '()'}]({', '.join(words)})"
