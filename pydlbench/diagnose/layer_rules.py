"""Rules about single layers of a step: each yields hypotheses that one operator can test.

A rule knows no model and no layer by name. It yields nothing if its symptom is absent, or if it
could not save enough.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from typing import Final

import msgspec

from pydlbench.analysis.estimate import EstimateTerm
from pydlbench.diagnose.ablation import AgainstNative, Hypothesis, LayerChange
from pydlbench.diagnose.evidence import Excess, Observations, like, part_of
from pydlbench.grouping import group_by
from pydlbench.models.passes import LOSS
from pydlbench.ops.windows import on_padded_images
from pydlbench.records.measurement import Measurement
from pydlbench.records.specs import KernelSpec
from pydlbench.units import format_bytes, format_seconds, percent


def layer_command(spec: KernelSpec) -> str:
    """Return the command that times a layer natively and in the framework, and explains the gap."""
    words = ["pydlbench", "layers", "--shape", spec.layer.problem, "--pass", spec.pass_]
    if spec.layer.op == "pool":  # its descriptor says where it pools, not how
        padding = "_p" if spec.layer.count_include_pad else ""
        words += ["--pool", f"{spec.layer.mode}{padding}"]
    words += ["--backend", f"native,{spec.backend}", "--device", spec.device]
    if spec.precision != "fp32":
        words += ["--precision", spec.precision]
    if spec.pass_ == "forward" and spec.propagation != "inference":
        words += ["--propagation", spec.propagation]
    return shlex.join([*words, "--explain"])


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
