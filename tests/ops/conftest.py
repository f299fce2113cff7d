"""Strategies for random layers, small enough to count by brute force."""

from typing import Any

from hypothesis import strategies as st

from pydlbench.ops.op import Layer
from pydlbench.ops.table import OPS, build_layer, ops_of_kind
from pydlbench.ops.windows import RESIZE_MODES

small = st.integers(1, 3)


@st.composite
def window_sides(draw: st.DrawFn, most_pad: int, most_sides: int = 3) -> dict[str, Any]:
    """Fields of one to three sides whose windows fit."""
    columns: dict[str, list[int]] = {}
    for _ in range(draw(st.integers(1, most_sides))):
        size = draw(st.integers(1, 7))
        before, after = draw(st.integers(0, most_pad)), draw(st.integers(0, most_pad))
        dilation = draw(st.integers(1, 4))
        most = (size + before + after - 1) // dilation + 1
        side = {
            "in_size": size,
            "pad_before": before,
            "pad_after": after,
            "dilation": dilation,
            "kernel": draw(st.integers(1, min(most, 4))),
            "stride": draw(st.integers(1, 5)),
        }
        for name, value in side.items():
            columns.setdefault(name, []).append(value)
    return {name: tuple(values) for name, values in columns.items()}


@st.composite
def convolutions(draw: st.DrawFn) -> Layer:
    groups = draw(small)
    return build_layer(
        "conv",
        batch=draw(small),
        in_channels=groups * draw(small),
        out_channels=groups * draw(small),
        groups=groups,
        **draw(window_sides(4)),
    )


def transposed(layer: Layer) -> Layer:
    """The layer whose forward pass is a convolution's backward-data pass."""
    alike = ("batch", "groups", "kernel", "stride", "dilation", "pad_before")
    return build_layer(
        "deconv",
        in_channels=layer.out_channels,
        in_size=layer.out_size,
        out_channels=layer.in_channels,
        out_size=layer.in_size,
        **{field: getattr(layer, field) for field in alike},
    )


@st.composite
def poolings(draw: st.DrawFn) -> Layer:
    """Poolings, of which some windows may contain padding only."""
    mode, counted = draw(st.sampled_from([("max", False), ("avg", True), ("avg", False)]))
    sides = draw(window_sides(6))
    sizes = {"batch": draw(small), "channels": draw(small)}
    return build_layer("pool", mode=mode, count_include_pad=counted, **sizes, **sides)


@st.composite
def products(draw: st.DrawFn) -> Layer:
    batch = draw(st.lists(st.integers(1, 4), max_size=4))
    masks = [draw(st.sampled_from([(True, True), (True, False), (False, True)])) for _ in batch]
    size = st.integers(1, 5000)
    return build_layer(
        "gemm",
        m=draw(size),
        k=draw(size),
        n=draw(size),
        src_batch=[b if kept else 1 for b, (kept, _) in zip(batch, masks, strict=True)],
        weights_batch=[b if kept else 1 for b, (_, kept) in zip(batch, masks, strict=True)],
        weights_tag=draw(st.sampled_from(["any", "kn", "nk"])),
    )


_REAL = st.floats(0, 1e6) | st.sampled_from([0.5, 1e-5, 2.0])
_SHARE = st.floats(0, 1)
_NUMBERS: dict[str, st.SearchStrategy[Any]] = {
    "local_size": st.integers(0, 7).map(lambda half: 2 * half + 1),
    "k": _REAL.filter(bool),
    "epsilon": _REAL.filter(bool),
    "keep": _SHARE.filter(bool),
    **dict.fromkeys(("alpha", "beta", "factor"), _REAL.filter(bool)),
    "momentum": _SHARE,
    "mu": _SHARE,
    "groups": st.just(1),
    "low": st.floats(-1e6, -1),
    "high": st.floats(0, 1e6),
    "shared": st.booleans(),
    "sources": st.lists(small, min_size=2, max_size=4),
}


@st.composite
def pointwise(draw: st.DrawFn) -> Layer:
    op = OPS[draw(st.sampled_from(sorted(ops_of_kind("pointwise"))))]
    values: dict[str, Any] = {}
    for field in op.fields:
        if field.derived:
            continue
        if field.type == "integer" and field.name not in _NUMBERS:
            values[field.name] = draw(st.integers(1, min(9, field.maximum)))
        elif field.type == "flag":
            values[field.name] = draw(st.booleans())
        else:
            values[field.name] = draw(_NUMBERS.get(field.name, _REAL))
    if op.name == "rope":  # two halves
        values["width"] *= 2
    if op.name == "sort":
        along = values[("channels", "height", "width")[values["axis"] - 1]]
        values["k"] = draw(st.integers(1, along))
    return op.build(**values)


@st.composite
def others(draw: st.DrawFn) -> Layer:
    """Attention, recurrent layers, gathers, unfolding and resizing."""
    size = st.integers(1, 9)
    resizes = [f"resize:{mode}" for mode in RESIZE_MODES]
    op = draw(st.sampled_from(["attention", "lstm", "vanilla-gru", "gather", "unfold", *resizes]))
    if op == "attention":
        shared, heads = draw(small), draw(small)
        sizes = {name: draw(size) for name in ("batch", "queries", "keys", "size", "value_size")}
        return build_layer(
            op, heads=shared * heads, kv_heads=heads, causal=draw(st.booleans()), **sizes
        )
    if op == "gather":
        tables, width = draw(small), draw(size)
        own = {"index_tables": draw(st.sampled_from([1, tables]))}
        own["index_width"] = draw(st.sampled_from([1, width]))
        name = draw(st.sampled_from(["rows", "add-rows", "add-rows-in-place"]))
        sizes = {"tables": tables, "rows": draw(size), "width": width, "count": draw(size)}
        return build_layer(f"gather:{name}", **sizes, **own)
    if op == "unfold":
        sides = [draw(st.integers(3, 9)) for _ in range(draw(small))]
        return build_layer(op, channels=draw(small), in_size=sides, kernel=3, padding=draw(size))
    if op.startswith("resize"):
        sides = draw(small)
        both = {name: [draw(size) for _ in range(sides)] for name in ("in_size", "out_size")}
        return build_layer(op, batch=draw(small), channels=draw(small), **both)
    directions, hidden = draw(st.integers(1, 2)), draw(size)
    layers = draw(small)
    others: dict[str, Any] = {}
    if op == "lstm":
        others = {"projection": draw(size), "peephole": draw(st.booleans())}
    wide = directions * others.get("projection", hidden) if layers > 1 else draw(size)
    return build_layer(
        op,
        layers=layers,
        directions=directions,
        hidden=hidden,
        in_size=wide,
        steps=draw(size),
        batch=draw(size),
        **others,
    )


every = st.one_of(
    convolutions(), convolutions().map(transposed), poolings(), products(), pointwise(), others()
)
