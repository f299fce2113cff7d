"""Images in a layout that the library's kernels do not want."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.diagnose.commands import again
from pydlbench.diagnose.experiments import StepChange
from pydlbench.diagnose.finding import ALL, WORTH, Hypothesis
from pydlbench.units import format_percent, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pydlbench.diagnose.observations import Observations

__all__ = ["find"]

_NAMES: Final = {
    "nhwc": "channels last (model.to(memory_format=torch.channels_last), and the images too)",
    "nchw": "contiguous NCHW images",
}


def find(seen: Observations) -> Iterator[Hypothesis]:
    """Yield the other layout, where the step converts layouts or runs in NCHW."""
    case = seen.case
    if case.framework != "torch" or not any(node.op == "conv" for node in seen.model):
        return  # TensorFlow has one layout on CPUs, and products have none
    reorder = seen.reorder_s
    if case.layout == "nhwc" and (reorder is None or reorder < WORTH * seen.step_s):
        return
    other = "nhwc" if case.layout == "nchw" else "nchw"
    if reorder is None:
        symptom = f"the step runs in {case.layout.upper()}; nothing logs its layout reorders"
        evidence: tuple[str, ...] = ()
    else:
        share = format_percent(reorder / seen.step_s)
        symptom = f"{format_seconds(reorder)} of layout reorders in each step ({share})"
        evidence = (f"reorders by {seen.reorder_how}",)
    changes = (("layout", other),)
    yield Hypothesis(
        problem="layout reorders",
        symptom=symptom,
        evidence=evidence,
        cause=f"the kernels want another layout than {case.layout.upper()}: operands are brought "
        "into it before them and back behind them",
        experiment=StepChange(what=_NAMES[other], changes=changes, checks=True),
        next=again(seen.changed(layout=other)),
        parts=frozenset({ALL}),
        most_s=seen.step_s,
    )
