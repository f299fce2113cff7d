"""Rows of a table that indices name: an embedding, and its gradient."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Self

from pydlbench.errors import UsageError
from pydlbench.layers.base import check_pass, check_total, elements, set_integers
from pydlbench.layers.tensors import Shape, Tensors, check_operator, joined, read

GATHERS: Final = ("rows", "add-rows")
_INDEX_BYTES: Final = 4  # int32
#: Inputs are float32 arrays, in which all whole numbers up to here are.
_MOST_ROWS: Final = 2**24


@dataclass(frozen=True, slots=True, kw_only=True)
class Gather(Tensors):
    """Rows of a table, at uniformly random places.

    - ``rows``: ``dst[i] = src[indices[i]]``: an embedding.
    - ``add-rows``: ``dst`` is zero, then ``dst[indices[i]] += src[i]``: the gradient of its table.

    Attributes:
        op: One of :data:`GATHERS`.
        rows: Of the table.
        width: Elements of a row.
        count: Indices.
        name: How to call the layer in tables.

    Raises:
        UsageError: No such operator, a size below one, or tensors of 2**63 bytes and more.
    """

    kind: ClassVar[str] = "gather"

    op: str
    rows: int
    width: int
    count: int
    name: str | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        check_operator(self.op, GATHERS)
        set_integers(self, 1, "rows", "width", "count")
        if self.rows > _MOST_ROWS:
            raise UsageError(f"rows={self.rows}: too many to be told apart; at most {_MOST_ROWS}")
        check_total(**elements(self.shapes()))

    def shapes(self) -> dict[str, Shape]:
        """Return the shape of the table, of the indices, and of the rows that they name."""
        table, named = (self.rows, self.width), (self.count, self.width)
        source, result = (table, named) if self.op == "rows" else (named, table)
        return {"src": source, "indices": (self.count,), "dst": result}

    @property
    def problem(self) -> str:
        """The canonical descriptor: ``gather:rows:30522x768:4096``."""
        return joined(self.kind, self.op, (self.rows, self.width), (self.count,))

    @classmethod
    def parse(cls, text: str, pool: str | None) -> Self:  # noqa: ARG003 - of other kinds
        """Read ``gather:OPERATOR:ROWSxWIDTH:COUNT``."""
        op, shapes, _, name = read(text, cls.kind, GATHERS)
        if list(map(len, shapes)) != [2, 1]:
            raise UsageError(
                f"{text}: not ROWSxWIDTH:COUNT; nearest: {cls.kind}:{op}:30522x768:128"
            )
        ((rows, width), (count,)) = shapes
        return cls(op=op, rows=rows, width=width, count=count, name=name)

    def flops(self, pass_: str) -> int:
        """Return one for each element that is added."""
        check_pass(pass_, self.passes, self.kind)
        return self.count * self.width if self.op == "add-rows" else 0

    def bytes(self, pass_: str, itemsize: int) -> int:
        """Return the least bytes moved: no more of a table is read than rows are named."""
        check_pass(pass_, self.passes, self.kind)
        read_rows = min(self.count, self.rows) if self.op == "rows" else self.count
        written = self.count if self.op == "rows" else self.rows
        return itemsize * self.width * (read_rows + written) + _INDEX_BYTES * self.count
