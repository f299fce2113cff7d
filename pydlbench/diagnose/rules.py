"""Rules about a step and its layers: each yields hypotheses that an experiment can test.

A rule knows no model and no layer by name. It yields nothing if its symptom is absent, or if it
could not save enough.
"""

import functools
import math
import re
import shlex
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from pydlbench.analysis.estimate import EstimateTerm
from pydlbench.analysis.experiments import (
    DISPATCH,
    FRESH_MEMORY,
    MAX_FAULT_S,
    REORDERS,
    RETURNED_MEMORY,
)
from pydlbench.backends.steps.device import IDLE_BETWEEN, IDLE_IN_CALLS
from pydlbench.calls.meaning import Value
from pydlbench.diagnose.ablation import (
    AgainstNative,
    CallChange,
    Hypothesis,
    LayerChange,
    StepChange,
)
from pydlbench.diagnose.evidence import Excess, Observations, like, part_of
from pydlbench.grouping import group_by, sum_by
from pydlbench.models.passes import LOSS
from pydlbench.ops.windows import on_padded_images
from pydlbench.records.measurement import KernelSpec, Measurement
from pydlbench.records.step import StepSpec, step_words
from pydlbench.records.trace import operator_of
from pydlbench.records.user_model import FUSED, SPARSE, SPARSE_UPDATES, UserInput
from pydlbench.units import format_bytes, format_seconds, percent
from pydlbench.words import AS_BUILT, ONNX_FRAMEWORK, option_words


def layer_command(spec: KernelSpec) -> str:
    """Return the command that times a layer natively and in the framework, and explains the gap."""
    layer, forward = spec.layer, spec.pass_ == "forward"
    pool = ""
    if layer.op == "pool":  # its descriptor says where it pools, not how
        pool = f"{layer.mode}{'_p' if layer.count_include_pad else ''}"
    words = option_words(
        ("--shape", layer.problem, ""),
        ("--pass", spec.pass_, ""),
        ("--pool", pool, ""),
        ("--backend", f"native,{spec.backend}", ""),
        ("--device", spec.device, ""),
        ("--precision", spec.precision, "fp32"),
        ("--propagation", spec.propagation if forward else "inference", "inference"),
    )
    return shlex.join(["pydlbench", "layers", *words, "--explain"])


# -----------------------------------------------------------------------------
# Operators of the framework that are slower than the fastest kernel known for their layer.

# Maximum number of comparisons per kind; if there are more such layers, they have a common reason.
_MAX_OPERATORS: Final = 8


def find_operators(seen: Observations) -> Iterator[Hypothesis]:
    """Yield a comparison with the native library for each layer with a possible saving."""
    if seen.spec.layout == "nhwc" or not seen.framework.layout_words:
        kinds: tuple[str, ...] = ("layer", "pointwise")
    else:
        kinds = ("layer",)  # alone, operators run in their best layout, which is not the step's
    for kind in kinds:
        for excess in seen.excesses(kind)[:_MAX_OPERATORS]:
            yield from _of_excess(seen, excess)


def _of_excess(seen: Observations, excess: Excess) -> Iterator[Hypothesis]:
    for term in excess.terms:
        most = excess.seconds
        if excess.own_s is None:  # the framework's time is not known yet
            most = excess.count * seen.native_s(term)
        spec = seen.framework_case(term)
        yield Hypothesis(
            problem="slow operators",
            symptom=_symptom(seen, excess),
            evidence=seen.called(excess.name),
            cause="the framework's operator is slower than the native library's kernel",
            experiment=AgainstNative(spec=spec, count=excess.count),
            next=layer_command(spec),
            where=f"{excess.name} {term.step_pass.pass_}",
            part=part_of(excess.name, term.step_pass.pass_),
            most_s=most,
        )


def _symptom(seen: Observations, excess: Excess) -> str:
    native, share = format_seconds(excess.native_s), seen.share(excess.seconds)
    if excess.own_s is None:
        return f"{excess.name} needs {native} natively ({share})"
    often = f", {excess.count} times" if excess.count > 1 else ""
    return (
        f"{excess.name} takes {format_seconds(excess.own_s)} in {seen.spec.framework} alone, "
        f"{native} natively, all passes{often}: {share}"
    )


# -----------------------------------------------------------------------------
# Convolutions with fewer channels than a vector holds: images of three channels, for example.

# The smallest block of channels of kernels.
_CHANNEL_BLOCK: Final = 8


def find_channels(seen: Observations) -> Iterator[Hypothesis]:
    """Yield the same convolution with channels padded to a multiple of eight."""
    for site in seen.convolutions():
        layer = site.layer
        if layer.groups > 1 or not layer.in_channels % _CHANNEL_BLOCK:
            continue
        whole = -(-layer.in_channels // _CHANNEL_BLOCK) * _CHANNEL_BLOCK
        padded = layer.replace(in_channels=whole, name=None)
        for term in site.terms:
            spec = seen.framework_case(term)
            yield Hypothesis(
                problem=f"{layer.in_channels} input channels",
                symptom=f"{site.name} has {layer.in_channels} input channels and takes "
                f"{format_seconds(site.seconds)} ({seen.share(site.seconds)})",
                evidence=seen.called(site.name),
                cause="kernels work on blocks of channels: what does not fill one is computed by "
                "another, slower kernel, or in vain",
                experiment=LayerChange(
                    what=f"channels padded to {whole}",
                    spec=spec,
                    changed=msgspec.structs.replace(spec, layer=padded),
                    count=site.count,
                ),
                next=layer_command(msgspec.structs.replace(spec, layer=padded)),
                where=f"{site.name} {term.step_pass.pass_}",
                part=part_of(site.name, term.step_pass.pass_),
                most_s=min(site.seconds, seen.step_s),
            )


# -----------------------------------------------------------------------------
# Copies of images that a framework makes where a padding differs on two sides.


def find_copies(seen: Observations) -> Iterator[Hypothesis]:
    """Yield the same convolution on images that were padded beforehand."""
    if not seen.framework.pads_evenly:
        return
    for site in seen.convolutions():
        layer = site.layer
        if layer.pad_before[0] == layer.pad_after[0] and layer.pad_before[1] == layer.pad_after[1]:
            continue
        ready = on_padded_images(layer).replace(name=None)
        size = 4 * ready.batch * ready.in_channels * math.prod(ready.in_size)
        for term in site.terms:
            if term.step_pass.pass_ == "backward-weights":
                continue  # it reads the padded images of the forward pass
            spec = seen.framework_case(term)
            rows, columns = zip(layer.pad_before, layer.pad_after, strict=True)
            yield Hypothesis(
                problem="extra copy for uneven padding",
                symptom=f"{site.name} pads {rows[0]}/{rows[1]} rows and "
                f"{columns[0]}/{columns[1]} columns: {format_bytes(size)} are copied",
                evidence=(f"{site.name} takes {seen.share(site.seconds)}",),
                cause="PyTorch's convolutions pad both ends of an axis alike; anything else is an "
                "operator of its own, which copies the images",
                experiment=LayerChange(
                    what="images that are padded already",
                    spec=spec,
                    changed=msgspec.structs.replace(spec, layer=ready),
                ),
                next=layer_command(spec),
                where=f"{site.name} {term.step_pass.pass_}",
                part=part_of(site.name, term.step_pass.pass_),
                most_s=site.seconds,
            )


# -----------------------------------------------------------------------------
# Layers far below their roofline even with the fastest kernel.

# Share of the roofline below which a kernel is limited by something other than the hardware.
_LOW_EFFICIENCY: Final = 0.6
_MAX_LAYERS: Final = 5
_SEARCHED_KINDS: Final = ("conv2d", "gemm")
#: The words for layouts of operators, as in the capabilities of frameworks.
LAYOUT_ALTERNATIVES: Final = {
    "nchw": "contiguous NCHW images",
    "nhwc": "channels last",
    "plain": "weights kept as (inputs, outputs)",
    "transposed": "weights kept as (outputs, inputs)",
}


def find_roofs(seen: Observations) -> Iterator[Hypothesis]:
    """Yield another algorithm and another batch for the layers that lose most."""
    gaps: list[tuple[float, EstimateTerm, int, Measurement]] = []
    for spec, terms in group_by(seen.plan.terms, lambda term: term.hot).items():
        term, count, row = terms[0], len(terms), seen.rows[spec]
        listed = term.step_pass.layer.kind in _SEARCHED_KINDS
        if not listed or not row.ok or row.time is None or row.contended:
            continue
        if row.roofline is None or row.roofline.efficiency >= _LOW_EFFICIENCY:
            continue
        gap = count * (row.time.median - row.roofline.time_s)
        gaps.append((gap, term, count, row))
    gaps.sort(key=lambda gap: -gap[0])
    for gap, term, count, row in gaps[:_MAX_LAYERS]:
        yield from _below(seen, gap, term, count, row)


def _below(
    seen: Observations, gap: float, term: EstimateTerm, count: int, row: Measurement
) -> Iterator[Hypothesis]:
    """Yield changes that may bring a layer, or several equal ones, closer to the roofline."""
    assert row.time is not None
    assert row.roofline is not None
    kernel_work, name = term.step_pass, f"{term.step_pass.node}{like(count)}"
    where = f"{name} {kernel_work.pass_}"
    symptom = (
        f"{where} reaches {percent(row.roofline.efficiency)} of its roof "
        f"({row.roofline.bound}): {format_seconds(row.time.median)} where "
        f"{format_seconds(row.roofline.time_s)} are possible"
    )
    kernel = row.algorithm or "unknown kernel"
    evidence = (f"native row, {kernel}, hot caches", *seen.called(name))
    spec = seen.framework_case(term)
    layout = seen.spec.layout if kernel_work.layer.kind == "conv2d" else ""
    ways = seen.framework.layout_alternatives.get((kernel_work.layer.kind, layout))
    twice = kernel_work.layer.with_batch(2 * kernel_work.layer.batch)

    def suspected(problem: str, cause: str, experiment: LayerChange) -> Hypothesis:
        return Hypothesis(
            problem=problem,
            symptom=symptom,
            evidence=evidence,
            cause=cause,
            experiment=experiment,
            next=layer_command(experiment.changed),
            where=where,
            part=part_of(name, kernel_work.pass_),
            most_s=gap,
        )

    if ways is not None:
        own, other = ways
        yield suspected(
            "far below its roof",
            "the kernel that these layouts lead to does not suit these sizes",
            LayerChange(
                what=LAYOUT_ALTERNATIVES[other],
                spec=spec,
                changed=spec,
                variant=own,
                changed_variant=other,
                count=count,
            ),
        )
    yield suspected(
        "too few images for its size",
        "what a layer does once, whatever the batch, is a large part of it",
        LayerChange(
            what="twice the batch",
            spec=spec,
            changed=msgspec.structs.replace(spec, layer=twice),
            count=count,
            images=2,
        ),
    )


# -----------------------------------------------------------------------------
# A loss with too large a share of the step.

# Share of the step.
_LARGE_LOSS: Final = 0.03


def find_loss(seen: Observations) -> Iterator[Hypothesis]:
    """Yield a comparison with the native library on the loss itself."""
    if seen.model is None or seen.model.decays:
        return  # see the rule about L2 terms
    own, _ = seen.time_of(LOSS, seen.native.of_part("loss"))
    if not seen.matters(own, _LARGE_LOSS):
        return
    for term in seen.plan.terms:
        loss_work = term.step_pass
        if loss_work.node != LOSS:
            continue
        spec = seen.framework_case(term)
        yield Hypothesis(
            problem="slow loss",
            symptom=f"the loss takes {format_seconds(own)}, {seen.share(own)}",
            cause="the framework's loss is slower than one kernel that does it all",
            experiment=AgainstNative(spec=spec),
            next=layer_command(spec),
            where=f"{LOSS} {loss_work.pass_}",
            most_s=own,
        )


def again(spec: StepSpec, command: str = "diagnose") -> str:
    """Return the command that diagnoses a step, or another one that looks at it."""
    return shlex.join(["pydlbench", command, *step_words(spec)])


# -----------------------------------------------------------------------------
# New memory in every step: each page costs a page fault.

_PAGE_BYTES: Final = 4096
_FRESH_MEMORY_CAUSE: Final = (
    "the C library gives large blocks back to the system when they are freed, and gets new ones "
    "for the next result: the kernel clears each page and maps it, while the step waits"
)


def find_first_touch(seen: Observations) -> Iterator[Hypothesis]:
    """Yield huge pages and an allocator that keeps its pages."""
    faults = seen.step.faults
    if faults is None or seen.spec.on_gpu:
        return
    symptom = (
        f"{faults:.0f} page faults in each step: {format_bytes(faults * _PAGE_BYTES)} of new memory"
    )
    evidence = ["page faults counted by the kernel around the samples"]
    evidence += [
        f"breakdown: {format_seconds(term.seconds)} ({percent(term.share)} of the step): {term.how}"
        for name in (FRESH_MEMORY, RETURNED_MEMORY)
        if (term := seen.difference(name)) is not None
    ]
    for experiment in (_HUGE_PAGES, _KEPT_PAGES):
        yield Hypothesis(
            problem="first touch of fresh memory",
            symptom=symptom,
            evidence=tuple(evidence),
            cause=_FRESH_MEMORY_CAUSE,
            experiment=experiment,
            next=again(seen.spec, "breakdown"),  # it measures the cost of page faults
            part="allocation",
            most_s=min(faults * MAX_FAULT_S, seen.step_s),
        )


_HUGE_PAGES: Final = StepChange(
    what="huge pages (GLIBC_TUNABLES=glibc.malloc.hugetlb=1)", allocator="huge pages"
)
_KEPT_PAGES: Final = StepChange(
    what="an allocator that keeps its pages (MALLOC_MMAP_MAX_=0 MALLOC_TRIM_THRESHOLD_=4294967296)",
    allocator="kept pages",
)


# -----------------------------------------------------------------------------
# Images in a layout that the library's kernels have to convert.

_LAYOUTS: Final = {
    "nhwc": "channels last (model.to(memory_format=torch.channels_last), and the images too)",
    "nchw": "contiguous NCHW images",
    AS_BUILT: "the layout that it is built in",
}


def find_layout(seen: Observations) -> Iterator[Hypothesis]:
    """Yield the other layout, where the step converts layouts or runs in NCHW."""
    spec = seen.spec
    if not seen.framework.layout_words or not seen.convolves:
        return  # products have no layout
    term = seen.difference(REORDERS)
    if spec.layout == "nhwc" and (term is None or not seen.matters(term.seconds)):
        return
    plain = "nchw" if spec.own is None else AS_BUILT
    other = "nhwc" if spec.layout == plain else plain
    own = _LAYOUTS[AS_BUILT] if spec.layout == AS_BUILT else spec.layout.upper()
    if term is None:
        symptom = f"the step runs in {own}; nothing logs its layout reorders"
        evidence: tuple[str, ...] = ()
    else:
        seconds = format_seconds(term.seconds)
        symptom = f"{seconds} of layout reorders in each step ({seen.share(term.seconds)})"
        evidence = (f"breakdown: {term.how}",)
    yield Hypothesis(
        problem="layout reorders",
        symptom=symptom,
        evidence=evidence,
        cause=f"the kernels want another layout than {own}: operands are brought "
        "into it before them and back behind them",
        experiment=StepChange(what=_LAYOUTS[other], changes=(("layout", other),), checks=True),
        next=again(seen.changed(layout=other)),
        most_s=seen.step_s,
    )


# -----------------------------------------------------------------------------
# Pointwise layers limited by memory, where a compiling mode would keep values in registers.

#: The common problem of launch gaps and of pointwise layers that are not fused.
ONE_BY_ONE: Final = "operators run one by one"
# Minimum share of the step for pointwise layers.
_LARGE_POINTWISE: Final = 0.03
_FUSING_MODES: Final = {"eager": "compiled", "graph": "xla", "unoptimized": "optimized"}


def compiling_mode(spec: StepSpec) -> str | None:
    """Return the mode that fuses operators; None if the step runs in it."""
    return _FUSING_MODES.get(str(spec.mode))


def joining(seen: Observations, mode: str) -> StepChange:
    """Return the change of the step to a mode that fuses operators."""
    compiler_s = 20.0 + 0.3 * seen.size  # about what it takes for the step's model
    return StepChange(what=mode, changes=(("mode", mode),), checks=True, setup_s=compiler_s)


def find_fusion(seen: Observations) -> Iterator[Hypothesis]:
    """Yield the fusing mode where pointwise layers have a relevant share of the step."""
    mode = compiling_mode(seen.spec)
    if mode is None:
        return
    native = 0.0 if seen.model is None else seen.native.of_pointwise(seen.model)
    seconds, who = seen.time_of("pointwise", native)
    if not seen.matters(seconds, _LARGE_POINTWISE):
        return
    yield Hypothesis(
        problem=ONE_BY_ONE,
        reason="pointwise layers bound by memory",
        symptom=f"{format_seconds(seconds)} of each step "
        f"({seen.share(seconds)}) go into layers that hardly compute",
        evidence=(f"pointwise layers, {who}", *seen.copied()),
        cause="each of them reads its input from memory and writes it back; joined with the layer "
        "before, it would do neither",
        experiment=joining(seen, mode),
        next=again(seen.changed(mode=mode)),
        most_s=seen.step_s,
    )


# -----------------------------------------------------------------------------
# Gaps between kernels: the time to start an operator, whatever it computes.

# Minimum share of the step for starting operators.
_LARGE_DISPATCH: Final = 0.02


def find_dispatch(seen: Observations) -> Iterator[Hypothesis]:
    """Yield a mode that fuses operators, and a larger batch that makes each of them longer."""
    dispatch = _dispatch(seen)
    if dispatch is None or not seen.matters(dispatch[0], _LARGE_DISPATCH):
        return
    seconds, how = dispatch
    symptom = (
        f"{format_seconds(seconds)} of each step ({seen.share(seconds)}) go into starting operators"
    )
    cause = "many operators are so small that starting them is a large part of their time"
    mode = compiling_mode(seen.spec)
    ways = []
    if (larger := _larger(seen)) is not None:
        ways.append((*larger, seconds))
    if mode is not None:
        ways.insert(0, (joining(seen, mode), seen.changed(mode=mode), seen.step_s))
    for experiment, changed, most in ways:
        yield Hypothesis(
            problem=ONE_BY_ONE,
            symptom=symptom,
            evidence=(how,),
            reason="launch gaps",
            cause=cause,
            experiment=experiment,
            next=again(changed),
            most_s=most,
        )


def _larger(seen: Observations) -> tuple[StepChange, StepSpec] | None:
    """Return the change of the step to twice the batch, and that step.

    None for a user's model with inputs that are not tensors, which cannot be doubled.
    """
    batch = 2 * seen.plan.batch
    changes: dict[str, Any] = {"batch": batch}
    if seen.spec.own is not None:
        inputs = tuple(map(UserInput.parse, seen.step.inputs))
        doubled = tuple(tensor.with_batch(seen.plan.batch, batch) for tensor in inputs)
        if doubled == inputs:
            return None
        # The batch size comes from the inputs.
        own = msgspec.structs.replace(seen.spec.own, inputs=doubled)
        changes = {"own": own, "batch": None}
    experiment = StepChange(what=f"batch {batch}", changes=tuple(changes.items()), images=2)
    return experiment, seen.changed(**changes)


def _dispatch(seen: Observations) -> tuple[float, str] | None:
    term = seen.difference(DISPATCH)
    if term is not None:
        return term.seconds, f"breakdown: {term.how}"
    idle = [term for name in (IDLE_IN_CALLS, IDLE_BETWEEN) if (term := seen.difference(name))]
    if idle:  # on a GPU
        return sum(term.seconds for term in idle), f"breakdown: {idle[0].how}"
    if seen.dispatch_s is None:
        return None
    calls = sum(call.count for call in seen.mapped.values())  # in a recorded step
    operators = calls or len(seen.plan.terms)
    each = format_seconds(seen.dispatch_s)
    return seen.dispatch_s * operators, f"{each} for a call that does nothing, times {operators}"


# -----------------------------------------------------------------------------
# An optimizer that is slower than moving its tensors once.

# Minimum share of the step for the optimizer.
_LARGE_OPTIMIZER: Final = 0.03


def find_optimizer(seen: Observations) -> Iterator[Hypothesis]:
    """Yield the step without its updates, less what the native library needs for them.

    For a user's model, yield the step with PyTorch's fused version of its optimizer.
    """
    model = seen.model
    if model is None:
        yield from _fused_optimizer(seen)
        return
    if seen.spec.phase != "training" or model.optimizer.kind == "none":
        return
    if "optimizer" in seen.native.incomplete:
        return  # the necessary time is not known
    native = seen.native.of_part("optimizer")
    own, who = seen.time_of("optimizer", native)
    if not seen.matters(own, _LARGE_OPTIMIZER):
        return
    if seen.calls("optimizer") and not seen.matters(own - native):
        return  # it is as fast as memory allows
    yield Hypothesis(
        problem="slow optimizer",
        symptom=f"the updates ({model.optimizer.kind}) take {format_seconds(own)} {who}, "
        + seen.share(own),
        evidence=(f"native kernels need {format_seconds(native)} for the same updates",),
        cause="it goes over weights, gradients and velocities more often than once; a fused "
        "optimizer reads and writes each of them once",
        experiment=StepChange(
            what="no updates",
            changes=(("phase", "forward-backward"),),
            # A step without updates has no L2 terms either: another rule is about them.
            both=(("decay", "0"),) if model.decays else (),
            kept_s=native,
            kept_how="the updates in native kernels",
        ),
        next=again(seen.changed(phase="forward-backward")),
        part="optimizer",
        most_s=own,
    )


def _fused_optimizer(seen: Observations) -> Iterator[Hypothesis]:
    own = seen.spec.own
    seconds, who = seen.time_of("optimizer", 0.0)
    if own is None or own.fused or not seen.framework.fuses_optimizers:
        return
    if not seen.matters(seconds, _LARGE_OPTIMIZER):
        return
    fused = seen.changed(own=msgspec.structs.replace(own, optimizer=f"{own.optimizer}{FUSED}"))
    yield Hypothesis(
        problem="slow optimizer",
        symptom=f"the updates ({own.optimizer}) take {format_seconds(seconds)} {who}, "
        + seen.share(seconds),
        cause="it goes over weights, gradients and its state more often than once; a fused "
        "optimizer reads and writes each of them once",
        experiment=StepChange(what="a fused optimizer (fused=True)", changes=(("own", fused.own),)),
        next=again(fused),
        part="optimizer",
        most_s=seconds,
    )


# -----------------------------------------------------------------------------
# Operands that are not contiguous, which a product or an attention copies or reads in strides.

_TENSOR: Final = re.compile(r"(\w+)\[([\d, ]+)\]\(([\d, ]+)(?:, at=\d+)?(?:, of=\d+)?\)")


def find_strides(seen: Observations) -> Iterator[Hypothesis]:
    """Yield products and attentions of a user's model on contiguous operands."""
    if seen.spec.own is None or not seen.framework.makes_calls or seen.spec.mode != "eager":
        return
    for calls in seen.calls("layer"):
        (signature, *others), seconds = calls.signatures or ("",), calls.alone_s or 0.0
        mapped = seen.mapped.get((signature, calls.direction))
        if others or mapped is None or mapped.meaning.kind not in ("product", "attention"):
            continue
        dense = functools.partial(_dense, swaps=mapped.meaning.kind == "product")
        changed = _TENSOR.sub(dense, signature)
        if changed == signature or not seen.matters(seconds):
            continue
        yield Hypothesis(
            problem="operands that are not contiguous",
            symptom=f"{calls.operator} of {calls.module} reads operands in strides, and takes "
            f"{format_seconds(seconds)} ({seen.share(seconds)})",
            evidence=seen.called(calls.module),
            cause="a kernel copies such operands first, or reads them with jumps; the layer that "
            "makes them can write them in the order in which they are read",
            experiment=CallChange(
                what="contiguous operands", signature=signature, changed=changed, count=calls.count
            ),
            next=again(seen.spec, "breakdown"),
            where=f"{calls.module} {calls.direction}",
            part=part_of(calls.module, calls.direction),
            most_s=seconds,
        )


def _dense(match: re.Match[str], *, swaps: bool) -> str:
    """Return a tensor of a signature with contiguous strides; unchanged if it is contiguous.

    Args:
        match: type, shape and strides.
        swaps: whether the last two dimensions may be swapped, as BLAS takes transposed operands.
    """
    shape, strides = ([int(word) for word in match[group].split(", ")] for group in (2, 3))
    dense = Value.dense(match[1], shape)
    if swaps and len(shape) == 2 and min(strides) == 1 and max(strides) >= shape[strides.index(1)]:
        return match[0]  # BLAS takes rows or columns of a larger matrix
    orders = [dense.strides]
    if swaps and len(shape) > 1:
        *outer, rows, columns = shape
        orders.append(Value.dense(match[1], [*outer, columns, rows]).strides)
        orders[1] = (*orders[1][:-2], orders[1][-1], orders[1][-2])
    given = [stride for size, stride in zip(shape, strides, strict=True) if size > 1]
    for order in orders:
        if given == [stride for size, stride in zip(shape, order, strict=True) if size > 1]:
            return match[0]
    return f"{match[1]}[{match[2]}]({', '.join(map(str, dense.strides))})"


# -----------------------------------------------------------------------------
# Tables whose gradients and updates touch all rows, though a step reads few of them.

# Minimum elements of a table for each element that a step reads.
_UNUSED_RATIO: Final = 4.0
# The number of rows, and arguments behind it, of a maximum over bags: it has no sparse gradient.
_MAXIMUM: Final = re.compile(r"_embedding_bag\w*backward.*, \d+, (?:False|True), 2, ")
# Smallest gradient of a table that matters.
_MIN_TABLE_BYTES: Final = 1 << 20


def find_unused_rows(seen: Observations) -> Iterator[Hypothesis]:
    """Yield sparse gradients where an optimizer rewrites rows of tables that nobody used."""
    own = seen.spec.own
    if own is None or own.optimizer not in SPARSE_UPDATES or seen.spec.phase != "training":
        return
    if not seen.framework.sparse_tables or seen.spec.mode != "eager":
        return
    written = used = 0
    for (signature, _), call in seen.mapped.items():
        operator, meaning = operator_of(signature), call.meaning
        if "embedding" not in operator or "backward" not in operator or not meaning.writes:
            continue
        if _MAXIMUM.search(signature):
            continue
        item_bytes = 4 if seen.spec.precision in ("fp32", "tf32") else 2
        touched = item_bytes * (meaning.flops or 0)
        if meaning.writes >= max(_MIN_TABLE_BYTES, _UNUSED_RATIO * touched):
            written += call.count * meaning.writes
            used += call.count * touched
    if not written:
        return
    sparse = seen.changed(own=msgspec.structs.replace(own, optimizer=f"{own.optimizer}{SPARSE}"))
    updated = "SGD" if own.optimizer == "sgd" else "SparseAdam"
    yield Hypothesis(
        problem="updates of unused rows",
        symptom=f"the gradients of tables have {format_bytes(written)}, of which a step uses "
        f"{format_bytes(used)}; {own.optimizer} reads and writes all rows",
        cause="a dense gradient is filled with zeros, and the optimizer updates rows whose "
        "gradient is zero; sparse gradients leave unused rows, their moments and decay as they are",
        experiment=StepChange(
            what=f"sparse gradients of tables (sparse=True) and {updated} for them",
            changes=(("own", sparse.own),),
        ),
        next=again(sparse),
        part="optimizer",
        most_s=seen.step_s,
    )


# -----------------------------------------------------------------------------
# L2 terms in the loss: sums of squares whose value is not used.


def find_decay(seen: Observations) -> Iterator[Hypothesis]:
    """Yield the step without L2 terms, where they have a relevant share."""
    model = seen.model
    if model is None or seen.spec.phase != "training" or not model.decays:
        return
    own, who = seen.time_of(LOSS, seen.native.of_part("loss"))
    yield Hypothesis(
        problem="L2 terms in the loss",
        symptom=f"the loss with its {len(model.decays)} L2 terms takes {format_seconds(own)} "
        f"{who}, {seen.share(own)}",
        cause="each term reads its weights to sum squares, and once more for its gradient; an "
        "optimizer that takes the decay itself reads them anyway",
        experiment=StepChange(
            what="no L2 terms in the loss (weight_decay of the optimizer instead)",
            options=(("decay", "0"),),
        ),
        next=again(seen.changed(options={**seen.spec.options, "decay": "0"})),
        part="loss",
        most_s=own,
    )


# -----------------------------------------------------------------------------
# Products with so few rows that reading the weights dominates.

# Minimum share of the step for such products.
_LARGE_PRODUCTS: Final = 0.05


def find_batch(seen: Observations) -> Iterator[Hypothesis]:
    """Yield twice the batch, where weights are read from memory for few images."""
    products = [term for term in seen.plan.terms if term.step_pass.layer.kind == "gemm"]
    seconds_of = sum_by(
        (term.step_pass.node, seen.native_s(term))
        for term in products
        if (roof := seen.rows[term.hot].roofline) is not None and roof.bound == "memory"
    )
    seconds = sum(seconds_of.values())
    if not seen.matters(seconds, _LARGE_PRODUCTS) or (larger := _larger(seen)) is None:
        return
    names = sorted(seconds_of, key=lambda name: -seconds_of[name])[:3]
    yield Hypothesis(
        problem="small batch",
        symptom=f"{', '.join(names)}: weights are read from memory for {seen.plan.batch} images "
        f"only, {seen.share(seconds)}",
        evidence=(f"{format_seconds(seconds)} in native rows that memory bounds",),
        cause="weights are read once per step, whatever the batch: more images share the cost",
        experiment=larger[0],
        next=again(larger[1]),
        most_s=seconds,
    )


# -----------------------------------------------------------------------------
# A float32 step on hardware that computes faster in a narrower type.

# Minimum share of compute-bound layers in the native sum.
_MIN_COMPUTE_SHARE: Final = 0.3
_SETUP_S: Final = 15.0


def find_arithmetic(seen: Observations) -> Iterator[Hypothesis]:
    """Yield the step in bfloat16, where a large share of it is limited by arithmetic."""
    spec = seen.spec
    if spec.precision != "fp32" or spec.on_gpu or spec.framework == ONNX_FRAMEWORK:
        return  # a file computes in its own types
    layers = seen.estimate.layers
    bound = sum(layer.time_s for layer in layers if layer.bound == "compute")
    total = seen.estimate.estimate.time_s
    if not total or bound < _MIN_COMPUTE_SHARE * total:
        return
    yield Hypothesis(
        problem="float32 arithmetic",
        symptom=f"arithmetic bounds {percent(bound / total)} of the native sum",
        evidence=(f"{format_seconds(bound)} in native layers whose roof is the compute peak",),
        cause="units for bfloat16 do more per cycle, and its tensors are half as large",
        experiment=StepChange(
            what="bf16 products", changes=(("precision", "bf16"),), checks=True, setup_s=_SETUP_S
        ),
        next=again(seen.changed(precision="bf16")),
        most_s=bound,
    )
