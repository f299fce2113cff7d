"""NASNet-A mobile and large (arXiv:1707.07012), without auxiliary head and dropped paths.

A cell has two inputs: the outputs of the two cells before. It has a list of states, which starts
with its inputs. Each of five blocks applies an operation to one state and an operation to another
state, and appends the sum to the list. The concat of the states that no block reads is the result.
"""

from dataclasses import dataclass
from typing import Final

from pydlbench.models import family
from pydlbench.models.graph import Builder, Model, Optimizer

_DECAY: Final = 4e-5


@dataclass(frozen=True, slots=True, kw_only=True)
class _NasnetForm:
    """One size of the network.

    Attributes:
        batch: Images per step in the publication.
        size: Side of an image.
        stem: Channels of the first convolution.
        cells: Normal cells in each of the three stages.
        filters: Channels of the first stage's operations.
        skip: Whether the second input of a cell behind a reduction is the reduction's second input
            instead of its first.
    """

    batch: int
    size: int
    stem: int
    cells: int
    filters: int
    skip: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cell:
    """The blocks of one kind of cell.

    Attributes:
        operations: Operations, two per block.
        states: Index of the state that each operation reads.
        outputs: Indices of the states in the output.
    """

    operations: tuple[str, ...]
    states: tuple[int, ...]
    outputs: tuple[int, ...]


_FORMS: Final = {
    "nasnet-mobile": _NasnetForm(batch=32, size=224, stem=32, cells=4, filters=44, skip=False),
    "nasnet-large": _NasnetForm(batch=16, size=331, stem=96, cells=6, filters=168, skip=True),
}
_NORMAL: Final = _Cell(
    operations=(
        *("sep5", "sep3"),
        *("sep5", "sep3"),
        *("avg3", "none"),
        *("avg3", "avg3"),
        *("sep3", "none"),
    ),
    states=(0, 1, 1, 1, 0, 1, 1, 1, 0, 0),
    outputs=(1, 2, 3, 4, 5, 6),
)
_REDUCTION: Final = _Cell(
    operations=(
        *("sep5", "sep7"),
        *("max3", "sep7"),
        *("avg3", "sep5"),
        *("none", "avg3"),
        *("sep3", "max3"),
    ),
    states=(0, 1, 0, 1, 0, 1, 3, 2, 2, 0),
    outputs=(3, 4, 5, 6),
)


@family(*_FORMS)
def build(name: str, batch: int | None, *, classes: int = 1000) -> Model:
    """Build a model."""
    form = _FORMS[name]
    net = Builder(name, batch or form.batch, (3, form.size, form.size), epsilon=1e-3, momentum=3e-4)
    before: str | None = None
    last = net.conv_bn("conv0", form.stem, 3, 2, activation=None)
    for number, part in ((1, 4), (2, 2)):
        before, last = last, _cell(net, f"stem{number}", _REDUCTION, form.filters // part, before)
    for stage in range(3):
        filters = form.filters << stage
        if stage:
            reduced = _cell(net, f"reduce{stage}", _REDUCTION, filters, before)
            before, last = (before if form.skip else last), reduced
        for number in range(stage * form.cells + 1, (stage + 1) * form.cells + 1):
            before, last = last, _cell(net, f"cell{number}", _NORMAL, filters, before)
    net.relu("final/relu")
    net.global_pool("avgpool")
    net.flatten()
    net.dropout("dropout", 0.5)
    net.linear("fc", classes)
    return net.model(
        title=f"NASNet-A {name.removeprefix('nasnet-')}",
        source="B. Zoph et al.: Learning Transferable Architectures for Scalable Image "
        "Recognition, arXiv:1707.07012; tensorflow/models, research/slim/nets/nasnet",
        decay=_DECAY,
        optimizer=Optimizer(kind="sgd", rate=0.005),
    )


def _cell(net: Builder, name: str, cell: _Cell, filters: int, before: str | None) -> str:
    """Add a cell behind the last node; ``before`` is the output of the cell before it."""
    source = net.last
    second = source if before is None else _fit(net, f"{name}/before", before, source, filters)
    net.relu(f"{name}/base/relu", after=source)
    net.conv(f"{name}/base/conv", filters, 1, bias=False)
    states = [net.batchnorm(f"{name}/base/bn"), second]
    for block in range(5):
        sides = []
        for number, side in ((2 * block, "left"), (2 * block + 1, "right")):
            state = cell.states[number]
            # A reduction halves its inputs; the sums are halved already.
            stride = 2 if cell is _REDUCTION and state < 2 else 1
            where = f"{name}/block{block + 1}/{side}"
            operation = cell.operations[number]
            sides.append(_operation(net, where, operation, states[state], filters, stride))
        states.append(net.add(f"{name}/block{block + 1}/add", *sides))
    return net.concat(f"{name}/concat", [states[number] for number in cell.outputs])


def _operation(
    net: Builder, name: str, operation: str, source: str, filters: int, stride: int
) -> str:
    """Add two separable convolutions, a pooling, or nothing."""
    if operation == "none":
        return source
    kernel = int(operation[-1])
    if operation.startswith("sep"):
        for number in (1, 2):
            source = net.relu(f"{name}/relu{number}", after=source)
            channels = net.shape()[0]
            net.conv(
                f"{name}/depthwise{number}",
                channels,
                kernel,
                stride if number == 1 else 1,
                "SAME",
                groups=channels,
                bias=False,
            )
            net.conv(f"{name}/pointwise{number}", filters, 1, bias=False)
            source = net.batchnorm(f"{name}/bn{number}")
        return source
    return net.pool(f"{name}/{operation}", kernel, stride, "SAME", mode=operation[:3], after=source)


def _fit(net: Builder, name: str, before: str, source: str, filters: int) -> str:
    """Add layers that give a cell's second input the size of its first one.

    If it is twice as large, half of the channels come from its even rows and columns, and half from
    its odd ones.
    """
    if net.shape(before)[1:] != net.shape(source)[1:]:
        relu = net.relu(f"{name}/relu", after=before)
        halves = []
        for path, channels in ((1, filters // 2), (2, filters - filters // 2)):
            after = relu if path == 1 else net.shift(f"{name}/shift", after=relu)
            net.pool(f"{name}/path{path}/pool", 1, 2, mode="avg", after=after)
            halves.append(net.conv(f"{name}/path{path}/conv", channels, 1, bias=False))
        net.concat(f"{name}/concat", halves)
    elif net.shape(before)[0] != filters:
        net.relu(f"{name}/relu", after=before)
        net.conv(f"{name}/conv", filters, 1, bias=False)
    else:
        return before
    return net.batchnorm(f"{name}/bn")
