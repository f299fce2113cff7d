"""Strategies for random layers, small enough to count by brute force.

They are registered for their types: a test asks for ``st.from_type(Conv2d)``.
"""

from typing import Any

from hypothesis import strategies as st

from pydlbench.layers.conv import Conv2d
from pydlbench.layers.gemm import ORDERS, Gemm
from pydlbench.layers.pointwise import Pointwise
from pydlbench.layers.pointwise_ops import OPERATIONS
from pydlbench.layers.pool import Pool2d

small = st.integers(1, 3)


@st.composite
def convolutions(draw: st.DrawFn) -> Conv2d:
    groups = draw(small)
    sides: dict[str, Any] = {}
    for side, leading, trailing in (("height", "top", "bottom"), ("width", "left", "right")):
        size = draw(st.integers(1, 9))
        before, after = draw(st.integers(0, 4)), draw(st.integers(0, 4))
        dilation = draw(st.integers(1, 4))
        most = (size + before + after - 1) // dilation + 1
        sides |= {
            f"in_{side}": size,
            f"pad_{leading}": before,
            f"pad_{trailing}": after,
            f"dilation_{side}": dilation,
            f"kernel_{side}": draw(st.integers(1, min(most, 5))),
            f"stride_{side}": draw(st.integers(1, 5)),
        }
    return Conv2d(
        batch=draw(small),
        in_channels=groups * draw(small),
        out_channels=groups * draw(small),
        groups=groups,
        **sides,
    )


@st.composite
def poolings(draw: st.DrawFn) -> Pool2d:
    sides: dict[str, Any] = {}
    for side, leading, trailing in (("height", "top", "bottom"), ("width", "left", "right")):
        size = draw(st.integers(1, 9))
        kernel = draw(st.integers(1, 4))
        before, after = draw(st.integers(0, kernel - 1)), draw(st.integers(0, kernel - 1))
        sides |= {
            f"in_{side}": max(size, kernel - before - after),
            f"pad_{leading}": before,
            f"pad_{trailing}": after,
            f"kernel_{side}": kernel,
            f"stride_{side}": draw(st.integers(1, 5)),
        }
    mode = draw(st.sampled_from(["max", "avg"]))
    return Pool2d(
        batch=draw(small),
        channels=draw(small),
        mode=mode,
        count_include_pad=mode == "avg" and draw(st.booleans()),
        **sides,
    )


products = st.builds(
    Gemm,
    m=st.integers(1, 5000),
    k=st.integers(1, 5000),
    n=st.integers(1, 5000),
    batch_count=st.integers(1, 9),
    weights_order=st.sampled_from(ORDERS),
    name=st.none(),
)

real = st.floats(0, 1e6) | st.sampled_from([0.5, 1e-5, 2.0])
share = st.floats(0, 1)
numbers: dict[str, st.SearchStrategy[Any]] = {
    "local_size": st.integers(0, 7).map(lambda half: 2 * half + 1),
    "k": real.filter(bool),
    "epsilon": real.filter(bool),
    "keep": share.filter(bool),
    "momentum": share,
    "mu": share,
    "sources": st.lists(small, min_size=2, max_size=4).map(tuple),
}


@st.composite
def pointwise(draw: st.DrawFn) -> Pointwise:
    op = draw(st.sampled_from(sorted(OPERATIONS)))
    operation = OPERATIONS[op]
    values = {field: draw(numbers.get(field, real)) for field in operation.parameters}
    values["channels"] = sum(values.get("sources", ())) or draw(st.integers(1, 9))
    if not operation.of_weights:
        values["batch"] = draw(small)
    if not operation.flat:
        values |= {"height": draw(st.integers(1, 9)), "width": draw(st.integers(1, 9))}
    return Pointwise(op=op, **values)


st.register_type_strategy(Conv2d, convolutions())
st.register_type_strategy(Pool2d, poolings())
st.register_type_strategy(Gemm, products)
st.register_type_strategy(Pointwise, pointwise())
