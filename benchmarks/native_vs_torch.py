"""pydlbench's native rows against torch.utils.benchmark on the same problems, interleaved.

    python benchmarks/native_vs_torch.py --shape 'alexnet-owt/*','vgg16/*' --batch 16 --pass all

Each layer and pass is sampled in turn with pydlbench (fastest verified candidate) and PyTorch in
both memory formats, round by round in random order, so that all have the same conditions. The
ratio is the median over rounds of native / torch, with torch's better format; its interval comes
from the variance between rounds. Needs torch (``pip install '.[torch]'``).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path

from torch_rows import TorchPeer, TorchRow

from pydlbench.errors import PydlbenchError
from pydlbench.models.catalog import find_layers
from pydlbench.records.measurement import KernelSpec
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.session import Session
from pydlbench.timing.policy import Policy
from pydlbench.words import PASSES

LIMIT = 1.03


def line(row: TorchRow) -> str:
    """Format a row; a single round has no interval."""
    has_interval = row.low is not None and row.high is not None
    interval = f"[{row.low:.3f}, {row.high:.3f}]" if has_interval else "-"
    return (
        f"{row.layer:<22} {row.pass_:<17} {row.precision:<5} "
        f"{row.native_s * 1e3:>7.3f} ms {row.torch_s * 1e3:>7.3f} ms "
        f"{row.torch_format:<6} {row.ratio:>6.3f}  {interval:<14}  "
        f"{row.algorithm}{'  CONTENDED' if row.contended else ''}"
    )


def summary(rows: Sequence[TorchRow], errors: int) -> str:
    """Summarise all rows."""
    if not rows:
        return f"no rows, errors: {errors}"
    mean = math.exp(statistics.fmean(math.log(row.ratio) for row in rows))
    above = sum(row.ratio > LIMIT for row in rows)
    return (
        f"{len(rows)} rows, geometric mean {mean:.3f}, worst "
        f"{max(row.ratio for row in rows):.3f}, above {LIMIT}: {above}, errors: {errors}"
    )


def main() -> int:
    """Compare the requested layers and passes.

    Exit 1 if a ratio is above the limit, if a row could not be compared, or if there was none.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", nargs="+", default=["alexnet-owt/*", "vgg16/*"])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--pass", dest="passes", nargs="+", default=["all"])
    parser.add_argument("--precision", nargs="+", default=["fp32"])
    parser.add_argument("--propagation", default="inference")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds per kernel")
    parser.add_argument("--rounds", type=int, default=9, help="rounds (9)")
    parser.add_argument("--json", help="write the rows to this file")
    args = parser.parse_args()

    passes = PASSES if "all" in args.passes else args.passes
    policy = Policy(budget_s=args.budget, chunk_s=0.04)
    rows: list[TorchRow] = []
    errors = 0
    with Session(RunnerOptions(budget_s=args.budget)) as session, TorchPeer(session.cpus) as peer:
        environment = peer.describe()
        print(f"{session.facts.name}, {len(session.cpus)} threads, torch {environment['torch']}")
        print(
            f"{'layer':<22} {'pass':<17} {'prec':<5} {'native':>10} {'torch':>10} {'format':<6} "
            f"{'ratio':>6}  {'95 % interval':<14}  algorithm"
        )
        specs = (
            KernelSpec(layer=layer, pass_=pass_, precision=precision, propagation=args.propagation)
            for layer in find_layers(args.shape, args.batch)
            for precision in args.precision
            for pass_ in passes
            if pass_ in layer.passes
        )
        for spec in specs:
            try:
                row = peer.compare(session, spec, policy, args.rounds)
            except PydlbenchError as error:
                errors += 1
                print(f"{spec.label}: {error}")
                continue
            rows.append(row)
            print(line(row), flush=True)
    if args.json:
        document = {"torch": environment, "rows": [dataclasses.asdict(row) for row in rows]}
        Path(args.json).write_text(json.dumps(document, indent=1))
    print(summary(rows, errors))
    return 1 if errors or not rows or any(row.ratio > LIMIT for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
