"""Memory formats in a few characters, for a column of a table."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydlbench.results.records import Measurement

__all__ = ["short_layout"]

_ROLE = re.compile(r"(src|weights|dst) ([^,]+)")


def short_layout(row: Measurement) -> str:
    """Return what matters of ``row.layout``, or all of it where it has another form.

    Images: the format of source and destination (``nhwc``), or both where they differ
    (``nchw>nChw16c``). Matrix products: whether the weights are ``packed`` (blocked), ``plain``
    (``kn``) or in which other order.
    """
    if not row.layout:
        return "-"
    formats = {role: text.strip() for role, text in _ROLE.findall(row.layout)}
    weights = formats.get("weights")
    if row.kind == "gemm" and weights is not None:
        if weights in {"kn", "gkn"}:
            return "plain"
        return "packed" if re.search(r"\d", weights) else weights
    ends = dict.fromkeys(formats[role] for role in ("src", "dst") if role in formats)
    return ">".join(ends) or row.layout
