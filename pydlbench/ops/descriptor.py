"""Parser of problem descriptors in benchdnn's format: finds the op of a descriptor."""

import math
import re
from typing import Final

from pydlbench.errors import UsageError, nearest
from pydlbench.ops import grammar
from pydlbench.ops.op import Layer, Op
from pydlbench.ops.table import OPS
from pydlbench.ops.windows import INNER_PRODUCT, fits_transposed
from pydlbench.words import check_word

#: Values of ``--pool``: benchdnn's algorithms; ``avg`` is ``avg_np``, which ignores padding.
POOL_MODES: Final = ("max", "avg", "avg_np", "avg_p")

_WINDOWS: Final = re.compile(r"_*(?:mb|g|[io]c|[iokspd][dhw])_*-?[0-9]")
_PREFIX: Final = re.compile(r"([A-Za-z][A-Za-z0-9-]*):(?:([A-Za-z][A-Za-z0-9-]*)(?=:|$))?")


def looks_like_problem(text: str) -> bool:
    """Whether ``text`` is a descriptor (perhaps a malformed one) rather than a layer's name."""
    return (
        text[:1].isdecimal()
        or text.startswith((":", "mb"))
        or _WINDOWS.match(text) is not None
        or _PREFIX.match(text) is not None
        or re.match(r".*[0-9]:[0-9]", text) is not None
    )


def check_pool(pool: str | None) -> None:
    """Check the name of a pooling mode.

    Raises:
        UsageError: ``pool`` is neither None nor one of :data:`POOL_MODES`.
    """
    if pool is not None:
        check_word("--pool", pool, POOL_MODES)


def parse_problem(text: str, *, pool: str | None = None) -> Layer:
    """Parse a descriptor.

    Args:
        text: Descriptor: ``mb128ic192ih13oc384oh13kh3ph1``, ``128x9216:9216x4096`` or
            ``relu:mb128ic96ih55``; without ``mb`` the batch is 1.
        pool: Pooling mode of a descriptor without ``oc``: one of :data:`POOL_MODES`.

    Raises:
        UsageError: The descriptor is malformed (the message names the position, counted from 1),
            or the layer is invalid.
    """
    check_pool(pool)
    try:
        op, position = _op(text, pool)
        values, name = grammar.read(op, text, position)
        if op is INNER_PRODUCT:
            inner = values["in_channels"] * math.prod(values["in_size"])
            sizes = {"m": values.get("batch", 1), "k": inner, "n": values["out_channels"]}
            return OPS["gemm"].build(name, **sizes)
        if op.key == "pool":
            values |= {
                "mode": "max" if pool == "max" else "avg",
                "count_include_pad": pool == "avg_p",
            }
        layer = op.build(name, **values)
        sized = op.key == "conv" and not position and any(values["out_size"])
        if sized and fits_transposed(layer):
            raise UsageError(
                "its padding is larger than its windows, as of a transposed convolution; nearest: "
                "deconv:, or conv: if it is a convolution"
            )
        return layer
    except UsageError as error:
        raise UsageError(f"{text}: {error}") from None


def _op(text: str, pool: str | None) -> tuple[Op, int]:
    """Return the op of a descriptor, and the position after its prefix.

    A descriptor that fits no op is treated as a convolution, whose error names the fields.
    """
    prefix = None if _WINDOWS.match(text) else _PREFIX.match(text)
    if prefix is None:
        if text[:1].isdecimal() or text.startswith(":"):
            return OPS["gemm"], 0
        fields = text.partition("n")[0]
        if "oc" in fields and "ic" in fields and not re.search("[iokspd][dhw]", fields):
            return INNER_PRODUCT, 0
        if "oc" in fields or not _WINDOWS.match(text):
            return OPS["conv"], 0
        if pool is None:
            grammar.read(OPS["pool"], text, 0)  # raises on other mistakes first
            expected = "expected oc (convolution), or --pool max or --pool avg"
            raise grammar.malformed(len(text), expected, "")
        return OPS["pool"], 0
    kind, name = prefix.groups()
    prefixes = {op.prefix: op for op in (*OPS.values(), INNER_PRODUCT) if op.prefix}
    prefixes["conv:"] = OPS["conv"]
    if f"{kind}:" in prefixes:
        return prefixes[f"{kind}:"], len(kind) + 1
    names = [op.name for op in prefixes.values() if op.prefix.startswith(f"{kind}:")]
    if name in names:
        op = prefixes[f"{kind}:{name}:"]
        if prefix.end() == len(text):
            raise grammar.malformed(len(text), "expected : and the shapes of its operands", "")
        return op, prefix.end() + 1
    if names:
        given = text[len(kind) + 1 :].partition(":")[0]
        choices = ", ".join(nearest(given, names) or names)
        raise grammar.malformed(len(kind) + 1, f"expected an op; nearest: {choices}", given)
    known = [name.removesuffix(":") for name in prefixes]
    choices = ", ".join(nearest(kind, known) or known)
    raise grammar.malformed(0, f"expected an op; nearest: {choices}", kind)
