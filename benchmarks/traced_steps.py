"""What tracing a step costs, and how much of a step its recorded calls are.

    python benchmarks/traced_steps.py --rounds 24 > traced_steps.md

Ten steps: convolutions, bottlenecks, an encoder, a U-Net, a mixer of patches, forward and training.
Each is made ready in a process of its own and run in rounds: traced, and not traced, in random
order. ``traced / untraced`` is the median of the rounds' ratios with its distribution-free 95 %
interval; ``covered`` the seconds of the recorded calls in the traced step, over that step. A step
whose profile is not that of its recorded calls says so in its row.

Run it alone on the machine.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pydlbench.errors import PydlbenchError
from pydlbench.records.step import StepPreparation, StepSpec
from pydlbench.runner.options import Options
from pydlbench.runner.session import Session
from pydlbench.steps.prepare import prepare_step
from pydlbench.steps.traced import Rounds
from pydlbench.timing.chunk import Request
from pydlbench.timing.statistics import median, median_interval
from pydlbench.units import format_seconds, percent

_NETS = Path(__file__).with_name("traced_nets.py")
#: Name, MODEL on a command line, and its batch where it is one of the catalogue.
NETS = (
    ("AlexNet", "alexnet-owt", 8),
    ("bottlenecks", "resnet50", 4),
    ("encoder", f"{_NETS}:encoder", None),
    ("U-Net", f"{_NETS}:unet", None),
    ("mixer", f"{_NETS}:mixer", None),
)


def row(name: str, case: StepSpec, session: Session, rounds: int) -> list[str]:
    """Return the cells of a step's row."""
    how = StepPreparation(checks=False, trace=True)
    session.renew()
    try:
        kernel = prepare_step(case, session, preparation=how)
        facts = kernel.facts.trace
        if facts is None:
            return [name, case.phase, kernel.facts.untraced]
        request = Request(samples=rounds, untimed=2, timing=next(iter(facts.sources)))
        seconds = kernel.sample(request).seconds
        kernel.release()
    except PydlbenchError as error:
        return [name, case.phase, str(error)]
    found = Rounds.of_seconds(seconds, len(facts.calls))
    interval = median_interval(found.ratios)
    span = "-" if interval is None else f"{interval.low:.3f} .. {interval.high:.3f}"
    pairs = zip(found.calls_s, found.traced_s, strict=True)
    covered = median(sum(calls_s) / step_s for calls_s, step_s in pairs)
    return [
        name,
        case.phase,
        str(len(facts.calls)),
        format_seconds(median(found.plain_s)),
        f"{median(found.ratios):.3f}",
        span,
        percent(covered),
    ]


def main() -> None:
    """Trace the steps and print a table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=24, help="of each step (24)")
    parser.add_argument("--net", action="append", choices=[name for name, *_ in NETS])
    parser.add_argument("--framework", default="torch", choices=("torch", "tensorflow"))
    args = parser.parse_args()
    titles = ("net", "phase", "calls", "step", "traced / untraced", "95 %", "covered")
    print(*titles, sep=" | ")
    print(*["---"] * len(titles), sep=" | ")
    with Session(Options()) as session:
        for name, model, batch in NETS:
            if args.net and name not in args.net:
                continue
            for phase in ("forward", "training"):
                case = StepSpec(model=model, batch=batch, phase=phase, framework=args.framework)
                print(*row(name, case, session, args.rounds), sep=" | ", flush=True)


if __name__ == "__main__":
    main()
