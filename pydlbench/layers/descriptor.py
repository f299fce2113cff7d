"""Reading problems written as text, in benchdnn's manner.

Convolution and pooling are fields (see :mod:`pydlbench.layers.window`); without ``oc`` it is
pooling. Matrix products are ``MxK:KxN`` or ``BxMxK:BxKxN`` (``wtagnk`` behind it: the weights lie
as n x k), memory-bound layers ``relu:mb128ic96ih55``. Each kind of layer knows which descriptors
are its own, and reads them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.errors import UsageError, nearest
from pydlbench.layers.layer import KINDS

if TYPE_CHECKING:
    from pydlbench.layers.layer import Layer

#: What ``--pool`` takes: benchdnn's algorithms; ``avg`` is ``avg_np``, which leaves padding out.
POOL_MODES: Final = ("max", "avg", "avg_np", "avg_p")


def looks_like_problem(text: str) -> bool:
    """Whether ``text`` is a descriptor (perhaps a malformed one) rather than a layer's name."""
    return any(kind.claims(text, None) for kind in KINDS.values())


def check_pool(pool: str | None) -> None:
    """Refuse a pooling that does not exist.

    Raises:
        UsageError: Neither None nor one of :data:`POOL_MODES`.
    """
    if pool is not None and pool not in POOL_MODES:
        choices = nearest(pool, POOL_MODES) or list(POOL_MODES)
        raise UsageError(f"--pool {pool}: no such pooling; nearest: {', '.join(choices)}")


def parse_problem(text: str, *, pool: str | None = None) -> Layer:
    """Read a descriptor.

    Args:
        text: ``mb128ic192ih13oc384oh13kh3ph1``, ``128x9216:9216x4096`` or ``relu:mb128ic96ih55``;
            without ``mb`` the batch is 1.
        pool: What pooling does where the descriptor has no ``oc``: one of :data:`POOL_MODES`.

    Raises:
        UsageError: Malformed (the message names the position, counted from 1), or a layer that
            cannot be.
    """
    check_pool(pool)
    # What nobody claims is most likely a convolution: its error names the fields.
    kind = next((one for one in KINDS.values() if one.claims(text, pool)), KINDS["conv2d"])
    try:
        return kind.parse(text, pool)
    except UsageError as error:
        raise UsageError(f"{text}: {error}") from None
