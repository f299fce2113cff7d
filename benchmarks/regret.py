"""Measures the regret of the search: how much slower its kernel is than the best of its candidates.

    python benchmarks/regret.py --json regret.json --md regret.md
    python benchmarks/regret.py --layers 'alexnet/conv*' --seconds 20        # a short trial

For each layer the usual search of ``pydlbench layers`` chooses a native kernel. Then this kernel
and the fastest other candidates of the search are prepared anew and take turns in many rounds. The
regret is the time of the chosen kernel over that of the fastest, less one. Run it alone on the
machine.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

from pydlbench.models.catalog import find_layers
from pydlbench.records.measurement import KernelSpec
from pydlbench.report.text import markdown_table
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.session import Session
from pydlbench.store.place import machine_name
from pydlbench.study.estimate import contrast
from pydlbench.study.loop import Study, Subject, random_order
from pydlbench.timing.policy import Policy
from pydlbench.units import format_seconds, percent
from pydlbench.workers.host import releasing

#: Layers of all kinds, at a batch that takes a few milliseconds.
LAYERS = (
    *("alexnet/conv[12345]", "alexnet-owt/fc[678]", "vgg16/conv[1235]_1"),
    *("relu:mb8ic64ih56", "softmax:mb64ic1000", "512x512:512x512", "64x4096:4096x1024"),
    *(
        "8x128x64:8x64x128",
        "mb4ic256ih14oc1024oh14kh1",
        "g32mb4ic32ih56oc32oh56kh3ph1",
        "512x64:64x10",
    ),
)
BATCH = 4
#: Candidates beside the chosen one, and how much slower in the search they may be.
MAX_RIVALS = 4
MAX_FACTOR = 2.0
ROUNDS = 15


class Regret(NamedTuple):
    """A layer's regret.

    Attributes:
        layer: name of the layer.
        chosen: the kernel of the search.
        best: the fastest kernel of all that were measured long enough.
        seconds: time of the chosen kernel.
        regret: time of the chosen kernel over that of the best, less one.
        low: lower end of its 95 % interval; None where the chosen kernel is the best.
        high: upper end.
        candidates: number of candidates of the search.
        measured: number of kernels that took turns.
    """

    layer: str
    chosen: str
    best: str
    seconds: float
    regret: float
    low: float | None
    high: float | None
    candidates: int
    measured: int


def rivals_of(candidates: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of the chosen kernel and of the fastest others, the chosen one first."""
    times = {
        f"{each['algorithm']} {each['layout']}": min(each["seconds"])
        for each in candidates
        if each["status"] == "ok" and each["seconds"]
    }
    first = next(f"{each['algorithm']} {each['layout']}" for each in candidates if each["chosen"])
    limit = MAX_FACTOR * times[first]
    others = sorted((name for name in times if name != first), key=times.__getitem__)
    return [first, *[name for name in others if times[name] <= limit][:MAX_RIVALS]]


def measure(spec: KernelSpec, session: Session, budget_s: float) -> Regret:
    """Search for a layer's kernel, then let it and its rivals take turns."""
    searched = session.prepare(spec)
    candidates = searched.facts.candidates
    searched.release()
    names = rivals_of(candidates)
    kernels = []
    with releasing(kernels):
        kernels += [session.prepare(spec, variant=name) for name in names]
        subjects = [
            Subject(key=name, sample=kernel.sample, policy=Policy(budget_s=budget_s, visits=ROUNDS))
            for name, kernel in zip(names, kernels, strict=True)
        ]
        study = Study(random_order(0))
        for error in study.take(subjects, rounds=ROUNDS).values():
            raise error
    chosen, *_ = series = [study.table.series(name) for name in names]
    best = min(range(len(names)), key=lambda place: series[place].median)
    ratio = contrast(chosen, series[best]) if best else None
    return Regret(
        layer=spec.layer.name or spec.layer.problem,
        chosen=names[0],
        best=names[best],
        seconds=chosen.median,
        regret=0.0 if ratio is None else ratio.median - 1,
        low=None if ratio is None or ratio.interval is None else ratio.interval.low - 1,
        high=None if ratio is None or ratio.interval is None else ratio.interval.high - 1,
        candidates=len(candidates),
        measured=len(names),
    )


def table(found: Sequence[Regret]) -> str:
    """Return the table of all layers, and a line on them together."""
    rows = [
        [
            *(each.layer, format_seconds(each.seconds), str(each.candidates), str(each.measured)),
            percent(each.regret),
            "-" if each.low is None else f"{percent(each.low)} .. {percent(each.high or 0.0)}",
            each.chosen,
            each.best if each.regret else "",
        ]
        for each in found
    ]
    titles = ["layer", "time", "candidates", "measured", "regret", "95 %", "chosen", "faster"]
    regrets = [each.regret for each in found]
    whole = (
        f"{len(found)} layers: mean regret {percent(fmean(regrets))}, median "
        f"{percent(median(regrets))}, largest {percent(max(regrets))}"
    )
    return f"{whole}\n\n{markdown_table(titles, rows)}"


def main() -> None:
    """Measure all layers, or as many as the time allows, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", default=",".join(LAYERS), help="as layers --shape takes them")
    parser.add_argument("--budget", type=float, default=0.4, help="seconds of each kernel")
    parser.add_argument("--seconds", type=float, default=600, help="begin no layer after them")
    parser.add_argument("--json", help="file to write the rows into")
    parser.add_argument("--md", help="file to write the table into")
    given = parser.parse_args()
    end = time.monotonic() + given.seconds
    found: list[Regret] = []
    with Session(RunnerOptions(keep_probes=False)) as session:
        for layer in find_layers(given.layers.split(","), BATCH):
            if time.monotonic() > end:
                break
            found.append(measure(KernelSpec(layer=layer), session, given.budget))
            print(found[-1].layer, percent(found[-1].regret), flush=True)
        machine = machine_name(session.run.device)
    text = table(found)
    print(text)
    if given.md:
        Path(given.md).write_text(
            f"# Regret of the search\n\n{machine}. {text}\n", encoding="utf-8"
        )
    if given.json:
        rows = [each._asdict() for each in found]
        document = {"machine": machine, "batch": BATCH, "rounds": ROUNDS, "rows": rows}
        Path(given.json).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
