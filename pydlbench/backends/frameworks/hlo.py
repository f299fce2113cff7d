"""What XLA made of a function: the text of its optimised program, as TensorFlow and JAX give it."""

from __future__ import annotations

import re

# XLA's instructions that are worth naming; the rest is layout and arithmetic on elements.
_HEAVY = re.compile(
    r"= (?P<type>\w+)\[[^\]]*\]\S* "
    r"(?P<word>convolution|dot|reduce|reduce-window|select-and-scatter|scatter|custom-call)\("
    r"(?:.*custom_call_target=\"(?P<target>[^\"]+)\")?"
)
_CONV = re.compile(r"= \w+\[[^\]]*\]\S* convolution\(")
_LABELS = re.compile(r"dim_labels=(\S+?)(?:,|$|\s)")
_EIGEN = re.compile(r"b(\d+)f_\1io->b\1f")
_NOT_EIGEN = ("rhs_reversal", "batch_group_count")
_FUSION = re.compile(r'"kind":"__(\w+)_fusion"')


def kernels(program: str) -> str | None:
    """Return the heavy instructions of a compiled program, with the type that they compute in.

    Those that XLA gives to a library as a fusion carry its name: ``dot f32 (ynn)``.
    """
    library = _FUSION.search(program)
    by = f" ({library[1]})" if library else ""
    names: dict[str, None] = {}
    for match in _HEAVY.finditer(program):
        names[f"{match['target'] or match['word']} {match['type']}{by}"] = None
    return ", ".join(names) or None


def detail(program: str) -> str:
    """Say who computes the convolutions of a program that XLA compiled for a CPU.

    XLA hands one over to Eigen if its channels lie innermost, its weights as (rows, columns,
    inputs, outputs), and if nothing is turned round or grouped by images (``ConvolutionThunk`` in
    XLA's sources); for all others it writes plain loops. One of another library's is a custom call,
    or a fusion that is named for the library: nothing is said of these.
    """
    if _FUSION.search(program):
        return ""
    convolutions = dict.fromkeys(
        _convolution(line) for line in program.splitlines() if _CONV.search(line)
    )
    return "; ".join(convolutions)


def _convolution(line: str) -> str:
    labels = _LABELS.search(line)
    order = labels[1] if labels else "unknown"
    eigen = _EIGEN.fullmatch(order) and not any(word in line for word in _NOT_EIGEN)
    whose = "it goes to Eigen" if eigen else "XLA writes plain loops for it"
    return f"its program has a convolution {order}: {whose}"
