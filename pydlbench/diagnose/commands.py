"""The commands that findings name, with everything that this step was asked for with."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from pydlbench.layers import Pool2d

if TYPE_CHECKING:
    from pydlbench.backends.case import Case
    from pydlbench.endtoend import StepCase

__all__ = ["again", "faults_command", "layer_command"]

_DEFAULTS = (("phase", "forward"), ("precision", "fp32"), ("layout", "nhwc"))


def again(case: StepCase) -> str:
    """Return the command that diagnoses a step."""
    words = ["pydlbench", "diagnose", case.model]
    if case.framework != "torch":
        words += ["--framework", case.framework]
    return shlex.join([*words, *_step_options(case)])


def faults_command(case: StepCase) -> str:
    """Return the command that counts a step's page faults, and says what they cost."""
    words = ["pydlbench", "check", case.model, "--framework", case.framework]
    return shlex.join([*words, *_step_options(case)])


def _step_options(case: StepCase) -> list[str]:
    words: list[str] = []
    if case.mode not in ("eager", "graph"):
        words += ["--mode", str(case.mode)]
    for name, default in _DEFAULTS:
        value = getattr(case, name)
        if value != default:
            words += [f"--{name}", value]
    if case.batch is not None:
        words += ["--batch", str(case.batch)]
    for name, value in case.options.items():
        words += ["--option", f"{name.replace('_', '-')}={value}"]
    return words


def layer_command(case: Case) -> str:
    """Return the command that times a layer natively and in the framework, and explains the gap."""
    words = ["pydlbench", "layers", "--shape", case.layer.problem, "--pass", case.pass_]
    if isinstance(case.layer, Pool2d):  # its descriptor says where it pools, not how
        padding = "_p" if case.layer.count_include_pad else ""
        words += ["--pool", f"{case.layer.mode}{padding}"]
    words += ["--backend", f"native,{case.backend}", "--device", case.device]
    if case.precision != "fp32":
        words += ["--precision", case.precision]
    if case.pass_ == "forward" and case.propagation != "inference":
        words += ["--propagation", case.propagation]
    return shlex.join([*words, "--explain"])
