"""``pydlbench shapes``: the catalog, or any layers, with FLOPs, bytes and intensity; no timing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.cli.options import BATCH, POOL, JsonOutput, argument
from pydlbench.cli.values import patterns

if TYPE_CHECKING:
    from pydlbench.ops.op import Layer
    from pydlbench.report.blocks import Block

_ITEMSIZE = 4  # fp32
_ALL = "*/*"


class Options(JsonOutput):
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
    batch: int | None = BATCH(help="this batch instead of each layer's own", group="")
    pool: str | None = POOL(group="")


def run(args: Options) -> int:
    """List the layers asked for; models where no layer is.

    Raises:
        UsageError: Unknown or malformed layer, bad option, unwritable file.
    """
    from pydlbench.cli.output import Outputs
    from pydlbench.cli.terminal import tell
    from pydlbench.models.catalog import find_layers
    from pydlbench.report.json import dump

    outputs = Outputs.of(args)
    # A lone glob would match the layers of one model only: names without a model mean that one.
    given = [_ALL if pattern == "*" else pattern for pattern in args.pattern] or [_ALL]
    layers = find_layers(
        given,
        args.batch,
        args.pool,
        option="",
        tell=None if args.quiet else tell,
    )
    outputs.write(
        {"json": lambda: dump({"layers": [_entry(layer) for layer in layers]})},
        lambda: _table(layers) if args.pattern else _summary(layers),
    )
    return 0


def _summary(layers: list[Layer]) -> list[Block]:
    """Return a line per model: what its layers are called and what they compute together."""
    from pydlbench.models.catalog import load_entry
    from pydlbench.records.fields import Column
    from pydlbench.report.blocks import Lines, Table
    from pydlbench.units import format_flops

    models: dict[str, list[Layer]] = {}
    for layer in layers:
        models.setdefault((layer.name or "").partition("/")[0], []).append(layer)

    def batches(name: str) -> str:
        return ", ".join(map(str, dict.fromkeys(layer.batch for layer in models[name])))

    def flops(name: str) -> str:
        return format_flops(sum(layer.flops("forward") for layer in models[name]))

    columns: tuple[Column[str], ...] = (
        Column("model", lambda name: name, right=False),
        Column("layers", lambda name: str(len(models[name]))),
        Column("batch", batches),
        Column("FLOPs", flops),
        Column("", lambda name: load_entry(name).title, right=False),
    )
    return [
        Lines(["forward, all layers together. FLOPs: two per multiply-add, padding counted."]),
        Table.of(columns, list(models)),
        Lines(
            [
                f"the layers of one:    pydlbench shapes {next(iter(models))}",
                "some of several:      pydlbench shapes 'vgg*/fc*'",
                f"all {len(layers)} layers:      pydlbench shapes '*'",
            ]
        ),
    ]


def _shown_problem(layer: Layer) -> str:
    """Return the descriptor, with what pooling does, which descriptors leave to an option."""
    if layer.op != "pool":
        return layer.problem
    return f"{layer.problem} {_pooling(layer)}"


def _pooling(layer: Layer) -> str | None:
    if layer.op != "pool":
        return None
    return "avg_p" if layer.count_include_pad else layer.mode


def _table(layers: list[Layer]) -> list[Block]:
    """Return a line per layer, below what its columns mean."""
    from pydlbench.records.fields import Column
    from pydlbench.report.blocks import Lines, Table
    from pydlbench.units import format_bytes, format_flops

    def executed(layer: Layer) -> str:
        flops = layer.flops("forward")
        return f"{100 * layer.flops_executed('forward') / flops:.1f} %" if flops else "-"

    def size(layer: Layer) -> int:
        return layer.bytes("forward", _ITEMSIZE)

    columns: tuple[Column[Layer], ...] = (
        Column("layer", lambda layer: layer.name or "-", right=False),
        Column("problem", _shown_problem, right=False),
        Column("FLOPs", lambda layer: format_flops(layer.flops("forward"))),
        Column("executed", executed),
        Column("bytes", lambda layer: format_bytes(size(layer))),
        Column("FLOP/byte", lambda layer: f"{layer.flops_executed('forward') / size(layer):.2f}"),
    )
    legend = (
        "forward, fp32. FLOPs: two per multiply-add, padding counted; executed: share of them on",
        "real elements; bytes: the least to be moved; FLOP/byte: executed FLOPs over these bytes.",
    )
    return [Lines(legend), Table.of(columns, layers)]


def _entry(layer: Layer) -> dict[str, Any]:
    """Return one layer as JSON; bytes in fp32, everything per pass that the layer has."""
    return {
        "layer": layer.name,
        "kind": layer.kind,
        "problem": layer.problem,
        "pool": _pooling(layer),
        "batch": layer.batch,
        "weight_elements": layer.weight_elements,
        "passes": {
            pass_: {
                "flops": layer.flops(pass_),
                "flops_executed": layer.flops_executed(pass_),
                "bytes": layer.bytes(pass_, _ITEMSIZE),
            }
            for pass_ in layer.passes
        },
    }
