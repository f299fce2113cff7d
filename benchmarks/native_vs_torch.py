"""pydlbench's native rows against torch.utils.benchmark on the same problems, side by side.

    python benchmarks/native_vs_torch.py --shape 'alexnet-owt/*' 'vgg16/*' --batch 16 --pass all

Each layer and pass is sampled in turn with pydlbench (fastest verified candidate) and PyTorch in
both memory formats, round by round in random order, so that all of them see the same machine. The
ratio is the median over rounds of native / torch, with torch's better format; its interval comes
from the variance between rounds. Needs torch (``pip install '.[torch]'``).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from pydlbench.errors import PydlbenchError
from pydlbench.layers.base import PASSES
from pydlbench.models.catalog import find_layers
from pydlbench.records.specs import KernelSpec
from pydlbench.runner.session import Options, Session
from pydlbench.timing.chunk import Chunk, Request
from pydlbench.timing.policy import Policy
from pydlbench.timing.procedure import Sampling, interleave
from pydlbench.timing.statistics import paired_ratio
from pydlbench.workers.environment import worker_environment

LIMIT = 1.03
# The thread pool that worked last keeps spinning for some milliseconds: on our cores.
REST_S = 0.012


class TorchPeer:
    """The process that runs PyTorch."""

    def __init__(self, cpus: Sequence[int]) -> None:
        script = Path(__file__).with_name("torch_peer.py")
        self._process = subprocess.Popen(
            [sys.executable, str(script), json.dumps({"cpus": list(cpus)})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=worker_environment(os.environ, cpus),
            text=True,
        )

    def ask(self, op: str, **arguments: object) -> dict:
        """Send one request and wait for its reply."""
        self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"the torch process died (exit code {self._process.wait()})")
        return json.loads(line)

    def sample(self, number: int, request: Request) -> Chunk:
        """Time one of the prepared statements."""
        reply = self.ask(
            "sample",
            id=number,
            samples=request.samples,
            inner=request.inner,
            untimed=request.untimed,
        )
        return Chunk(seconds=tuple(reply["seconds"]))

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()
        self._process.wait()


@dataclasses.dataclass(frozen=True)
class Row:
    """One layer and pass. Times in seconds per execution."""

    layer: str
    pass_: str
    precision: str
    native_s: float
    torch_s: float
    torch_format: str
    ratio: float
    low: float | None
    high: float | None
    rounds: int
    contended: bool
    algorithm: str


def compare(session: Session, peer: TorchPeer, case: KernelSpec, rounds: int) -> Row:
    """Sample all three in turn and take the paired ratio to torch's better format."""
    kernel = session.prepare(case)
    layer = {"kind": case.layer.kind, **dataclasses.asdict(case.layer)}
    formats = ("nchw", "nhwc")
    for number, memory_format in enumerate(formats):
        peer.ask(
            "prepare",
            id=number,
            layer=layer,
            format=memory_format,
            precision=case.precision,
            **{"pass": case.pass_},
        )
    policy = Policy(
        budget_s=session.options.budget_s, min_rounds=rounds, min_samples=rounds, chunk_s=0.04
    )
    samplings = [Sampling(policy) for _ in range(3)]

    def sample(index: int, request: Request) -> Chunk:
        time.sleep(REST_S)
        return kernel.sample(request) if index == 0 else peer.sample(index - 1, request)

    interleave(samplings, sample, random.Random(session.options.seed))
    peer.ask("release")
    kernel.release()
    native, *torches = (sampling.result() for sampling in samplings)
    best = min((0, 1), key=lambda i: torches[i].summary().median)
    ratio = paired_ratio(native.by_round(), torches[best].by_round())
    return Row(
        layer=case.layer.name or case.layer.problem,
        pass_=case.pass_,
        precision=case.precision,
        native_s=native.summary().median,
        torch_s=torches[best].summary().median,
        torch_format=formats[best],
        ratio=ratio.median,
        low=ratio.interval.low if ratio.interval else None,
        high=ratio.interval.high if ratio.interval else None,
        rounds=ratio.n,
        contended=native.contended,
        algorithm=kernel.facts["algorithm"],
    )


def line(row: Row) -> str:
    """One row as text; too few rounds have no interval."""
    known = row.low is not None and row.high is not None
    interval = f"[{row.low:.3f}, {row.high:.3f}]" if known else "-"
    return (
        f"{row.layer:<22} {row.pass_:<17} {row.precision:<5} "
        f"{row.native_s * 1e3:>7.3f} ms {row.torch_s * 1e3:>7.3f} ms "
        f"{row.torch_format:<6} {row.ratio:>6.3f}  {interval:<14}  "
        f"{row.algorithm}{'  CONTENDED' if row.contended else ''}"
    )


def summary(rows: Sequence[Row], errors: int) -> str:
    """What all rows say together."""
    if not rows:
        return f"no rows, errors: {errors}"
    mean = math.exp(statistics.fmean(math.log(row.ratio) for row in rows))
    above = sum(row.ratio > LIMIT for row in rows)
    return (
        f"{len(rows)} rows, geometric mean {mean:.3f}, worst "
        f"{max(row.ratio for row in rows):.3f}, above {LIMIT}: {above}, errors: {errors}"
    )


def main() -> int:
    """Compare every layer and pass asked for.

    Exit 1 if a ratio is above the limit, if a row could not be compared, or if there was none.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", nargs="+", default=["alexnet-owt/*", "vgg16/*"])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--pass", dest="passes", nargs="+", default=["all"])
    parser.add_argument("--precision", nargs="+", default=["fp32"])
    parser.add_argument("--propagation", default="inference")
    parser.add_argument("--budget", type=float, default=1.0, help="seconds per kernel")
    parser.add_argument("--rounds", type=int, default=9, help="least number of rounds")
    parser.add_argument("--json", help="write the rows to this file")
    args = parser.parse_args()

    passes = PASSES if "all" in args.passes else args.passes
    session = Session(Options(budget_s=args.budget))
    peer = TorchPeer(session.cpus)
    about = peer.ask("describe")
    print(f"{session.facts.name}, {len(session.cpus)} threads, torch {about['torch']}")
    print(
        f"{'layer':<22} {'pass':<17} {'prec':<5} {'native':>10} {'torch':>10} {'format':<6} "
        f"{'ratio':>6}  {'95 % interval':<14}  algorithm"
    )
    rows: list[Row] = []
    errors = 0
    for layer in find_layers(args.shape, args.batch):
        for precision in args.precision:
            for pass_ in passes:
                if pass_ not in layer.passes:
                    continue
                case = KernelSpec(
                    layer=layer, pass_=pass_, precision=precision, propagation=args.propagation
                )
                try:
                    row = compare(session, peer, case, args.rounds)
                except PydlbenchError as error:
                    errors += 1
                    print(f"{case.label}: {error}")
                    continue
                rows.append(row)
                print(line(row), flush=True)
    peer.close()
    session.close()
    if args.json:
        document = {"torch": about, "rows": [dataclasses.asdict(row) for row in rows]}
        Path(args.json).write_text(json.dumps(document, indent=1))
    print(summary(rows, errors))
    return 1 if errors or not rows or any(row.ratio > LIMIT for row in rows) else 0


if __name__ == "__main__":
    raise SystemExit(main())
