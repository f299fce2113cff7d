"""Read the text of XLA's optimised program of a function, which TensorFlow and JAX return."""

import re

# Instructions that :func:`kernels` reports; the rest are mostly layout changes and elementwise
# arithmetic.
_INSTRUCTION = re.compile(
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
    """Return the main instructions of a compiled program, with their types.

    Fusions that XLA hands to a library have its name: ``dot f32 (ynn)``.
    """
    library = _FUSION.search(program)
    by = f" ({library[1]})" if library else ""
    names = (
        f"{match['target'] or match['word']} {match['type']}{by}"
        for match in _INSTRUCTION.finditer(program)
    )
    return ", ".join(dict.fromkeys(names)) or None


def detail(program: str) -> str:
    """Describe what computes the convolutions of a program that XLA compiled for a CPU.

    XLA calls Eigen if channels are innermost, weights are (rows, columns, inputs, outputs), and
    nothing is reversed or grouped by images (``ConvolutionThunk`` in XLA's sources). For all others
    it emits plain loops. Convolutions of other libraries are custom calls, or fusions that are
    named after the library, and are not described.
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
    implementation = "it goes to Eigen" if eigen else "XLA writes plain loops for it"
    return f"its program has a convolution {order}: {implementation}"
