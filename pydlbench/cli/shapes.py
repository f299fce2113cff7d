"""``pydlbench shapes``: the catalog, or any layers, with FLOPs, bytes and intensity; no timing."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Final

from pydlbench.cli.options import BATCH, OP, POOL, JsonOutput, argument
from pydlbench.cli.output import Outputs
from pydlbench.cli.terminal import tell
from pydlbench.cli.values import patterns
from pydlbench.grouping import group_by
from pydlbench.ops.op import Layer
from pydlbench.report.blocks import Block, Headline, Lines, TableBlock
from pydlbench.units import format_flops, number

if TYPE_CHECKING:
    from pydlbench.records.documents import ShapeEntry

_ITEMSIZE: Final = 4  # fp32
_ALL: Final = "*/*"


class ShapesOptions(JsonOutput):
    """The command's options."""

    description = "List layers with the FLOPs and least bytes of a forward pass in fp32."
    pattern: tuple[str, ...] = argument(
        "PATTERN",
        "conv3, vgg16/conv3_2, vgg16, 'vgg*/fc*', mb128ic192ih13oc384oh13kh3ph1, "
        "128x9216:9216x4096, relu:mb128ic96ih55 or @FILE with one per line; '*' is the whole "
        "catalog (default: a line for each of its models)",
        "*",
        read=patterns,
    )
    batch: int | None = BATCH(help="batch size, in place of each layer's own", group="")
    op: str | None = OP(group="")
    pool: str | None = POOL(group="")


def run(args: ShapesOptions) -> int:
    """List layers, or models without a pattern.

    Raises:
        UsageError: Unknown or malformed layer, bad option, unwritable file.
    """
    from pydlbench.models.catalog import find_layers

    outputs = Outputs.from_options(args)
    # A glob without a model would match the layers of the default model only.
    given = [_ALL if pattern == "*" else pattern for pattern in args.pattern] or [_ALL]
    layers = find_layers(
        given,
        args.batch,
        args.pool,
        op=args.op,
        option="",
        tell=None if args.quiet else tell,
    )
    outputs.write(
        lambda: {"layers": [_entry(layer).to_dict() for layer in layers]},
        lambda: _table(layers, batch=bool(args.batch)) if args.pattern else _summary(layers),
    )
    return 0


def _entry(layer: Layer) -> ShapeEntry:
    """Return a layer with the FLOPs of each pass, and its bytes in fp32."""
    from pydlbench.records.documents import ShapeEntry, ShapePass

    passes = {
        pass_: ShapePass(
            flops=layer.flops(pass_),
            flops_executed=layer.flops_executed(pass_),
            bytes=layer.bytes(pass_, _ITEMSIZE),
        )
        for pass_ in layer.passes
    }
    pool = None
    if layer.op == "pool":
        pool = "avg_p" if layer.count_include_pad else layer.mode
    return ShapeEntry(
        layer=layer.name,
        kind=layer.kind,
        problem=layer.problem,
        pool=pool,
        batch=layer.batch,
        weight_elements=layer.weight_elements,
        passes=passes,
    )


def _summary(layers: list[Layer]) -> list[Block]:
    """Return a line per model with the sums over its layers."""
    from pydlbench.models.catalog import load_entry

    models = group_by(layers, lambda layer: (layer.name or "").partition("/")[0])
    cells = [
        [
            name,
            str(len(members)),
            ", ".join(map(str, dict.fromkeys(layer.batch for layer in members))),
            format_flops(sum(layer.flops("forward") for layer in members)),
            load_entry(name).title,
        ]
        for name, members in models.items()
    ]
    right = (False, True, True, True, False)
    largest = max(cells, key=lambda row: sum(layer.flops("forward") for layer in models[row[0]]))
    most = f"{largest[0]} needs most FLOPs, {largest[3]} at batch {largest[2]}"
    following = f"next: pydlbench estimate {largest[0]} --summary"
    return [
        Headline([f"{len(models)} models with {len(layers)} layers; {most}.", following]),
        Lines(["forward, all layers together. FLOPs: two per multiply-add, padding counted."]),
        TableBlock(("model", "layers", "batch", "FLOPs", ""), cells, right),
        Lines(
            [
                f"the layers of one:    pydlbench shapes {next(iter(models))}",
                "some of several:      pydlbench shapes 'vgg*/fc*'",
                f"all {len(layers)} layers:      pydlbench shapes '*'",
            ]
        ),
    ]


def _table(layers: list[Layer], *, batch: bool) -> list[Block]:
    """Return a line per layer, below a legend of the columns."""
    from pydlbench.records.record import columns_of

    rows = list(map(_entry, layers))
    names = "layer pooled forward.flops forward.executed forward.bytes forward.intensity"
    legend = (
        "forward, fp32. FLOPs: two per multiply-add, padding counted; executed: share of them on",
        "real elements; bytes: the least to be moved; FLOP/byte: executed FLOPs over these bytes.",
    )
    first = max(rows, key=lambda row: row.forward.flops)
    name, forward = first.layer or first.problem, first.forward
    most = f", most of {len(rows)} layers" if len(rows) > 1 else ""
    rate = f"{number(forward.intensity)} FLOP per byte"
    lines = [
        f"{name} needs {format_flops(forward.flops)}{most}: {rate}.",
        f"next: pydlbench layers --shape {shlex.quote(name)}{f' --batch {first.batch}' * batch}",
    ]
    return [Headline(lines), Lines(legend), TableBlock.from_rows(columns_of(rows, names), rows)]


SUBCOMMANDS: Final = {"": (ShapesOptions, run)}
