"""Runs the kernels for GPUs in Numba's simulator and prints the verdicts; see test_simulator.py.

The simulator runs each thread of a block as a thread of Python, so layers are tiny.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from pydlbench.backends.base import Preparation
from pydlbench.backends.frameworks.backend import HostClock
from pydlbench.backends.numba.backend import create
from pydlbench.backends.verification.inputs import make_inputs
from pydlbench.backends.verification.verify import verify
from pydlbench.errors import UnsupportedError
from pydlbench.layers.conv import Conv2d
from pydlbench.layers.gemm import Gemm
from pydlbench.layers.pool import Pool2d
from pydlbench.records.specs import Case

if TYPE_CHECKING:
    from pydlbench.backends.frameworks.backend import Operator

POOL = Pool2d.of(batch=2, channels=2, in_size=(5, 4), kernel=3, stride=2, padding=(1, 0, 1, 1))
LAYERS: dict[str, Conv2d | Gemm | Pool2d] = {
    "uneven padding and stride": Conv2d.of(
        batch=2,
        in_channels=1,
        in_size=(5, 4),
        out_channels=5,
        kernel=(1, 3),
        padding=(1, 0, 2, 1),
        stride=(2, 1),
    ),
    "groups and dilation": Conv2d.of(
        batch=1,
        in_channels=4,
        in_size=(5, 6),
        out_channels=2,
        kernel=(2, 2),
        padding=(1, 2, 0, 3),
        stride=(1, 2),
        dilation=(2, 3),
        groups=2,
    ),
    "product": Gemm(m=5, k=7, n=3),
    "batched product, two blocks": Gemm(m=3, k=19, n=66, batch_count=2),
    "max": POOL,
    "max, gaps": Pool2d.of(batch=1, channels=1, in_size=(5, 6), kernel=(2, 1), stride=(3, 4)),
    "avg": Pool2d.of(
        batch=1,
        channels=2,
        in_size=(5, 4),
        kernel=(3, 2),
        stride=(2, 1),
        padding=(1, 2, 0, 1),
        mode="avg",
    ),
    "avg, padding counted": Pool2d.of(
        batch=1,
        channels=2,
        in_size=(5, 4),
        kernel=(3, 2),
        stride=(2, 1),
        padding=(1, 2, 0, 1),
        mode="avg",
        count_include_pad=True,
    ),
}


def judged(operator: Operator, layer: Any, pass_: str, inputs: Any) -> Any:
    """Return the verdict on what an operator writes."""
    (written,) = operator.outputs().values()
    return verify(layer, pass_, "fp32", inputs, written, seed=3)


def refusal(case: Case, backend: Any) -> str:
    """Return why a case is not done."""
    try:
        backend.prepare(case, Preparation())
    except UnsupportedError as error:
        return str(error)
    return "done"


def main() -> None:
    """Print one line."""
    backend: Any = create("cuda:0")
    rows = []
    for name, layer in LAYERS.items():
        for pass_ in layer.passes:
            inputs = make_inputs(layer, pass_, "fp32", 3)
            both = isinstance(layer, Pool2d) and layer.mode == "max" and pass_ == "forward"
            for propagation in ("inference", "training") if both else ("inference",):
                case = Case(layer=layer, pass_=pass_, propagation=propagation)
                for variant in backend.variants(case):
                    verdict = judged(variant.build(inputs), layer, pass_, inputs)
                    row = {"name": name, "pass": pass_, "variant": variant.variant}
                    rows.append({**row, "status": verdict.status, "detail": verdict.detail})
    inputs = make_inputs(POOL, "forward", "fp32", 3)
    faulty = backend.variants(Case(layer=POOL))[0].build(inputs)
    faulty._launch = (1, 5)  # a grid-stride loop computes all; without the stride, five elements
    faulty._arguments = (faulty._arguments[0][:1], *faulty._arguments[1:])
    fault = judged(faulty, POOL, "forward", inputs)
    # The simulator keeps no time.
    backend.clock = lambda operator: HostClock(operator, backend.cpus)
    kernel = backend.prepare(Case(layer=POOL), Preparation())
    refused = {
        "fp16": refusal(Case(layer=POOL, precision="fp16"), backend),
        "graph": refusal(Case(layer=POOL, timing="cuda-graph"), backend),
        "nhwc": refusal(Case(layer=POOL, layout="nhwc"), backend),
    }
    try:
        create("cuda:7")
    except UnsupportedError as error:
        refused["device"] = str(error)
    prepared = {"timing": kernel.facts.timing, "status": kernel.facts.correct["status"]}
    found = {
        "rows": rows,
        "fault": {"status": fault.status, "unwritten": fault.unwritten},
        "prepared": prepared,
        "refused": refused,
    }
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
