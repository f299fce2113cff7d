"""pydlbench's native rows against oneDNN's own benchdnn: same problem, pass and layout.

    python benchmarks/native_vs_benchdnn.py --shape 'alexnet-owt/conv*' --batch 16 --layout nhwc

Needs ``benchdnn`` on the PATH (built with oneDNN, no package carries it) and of the oneDNN
version that pydlbench loads; its version is printed. Both sides run in turn, round by round.
Rows in which both ran the same implementation must agree within 3 %; where pydlbench found a
faster one the row says so and is not held to that.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys

from pydlbench.errors import PydlbenchError
from pydlbench.models.catalog import find_layers
from pydlbench.records.specs import KernelSpec
from pydlbench.runner.session import Options, Session
from pydlbench.timing.chunk import Request
from pydlbench.words import PASSES
from pydlbench.workers.environment import worker_environment

LIMIT = 0.03
TYPES = {"fp32": "f32", "bf16": "bf16", "fp16": "f16"}
TAGS = {"nhwc": "axb", "nchw": "abx", "any": "any", "blocked": "aBx16b"}
DIRECTIONS = {
    ("forward", "inference"): "FWD_I",
    ("forward", "training"): "FWD_D",
    ("backward-data", None): "BWD_D",
    ("backward-weights", None): "BWD_W",
}


def command(case: KernelSpec, layout: str) -> list[str]:
    """The benchdnn call for a case, without the number of repetitions."""
    layer = case.layer
    kind = case.propagation if case.pass_ == "forward" else None
    tag, data = TAGS[layout], TYPES[case.precision]
    common = [f"--dir={DIRECTIONS[case.pass_, kind]}", "--mode=P"]
    if layer.op == "conv":
        tags = [f"--stag={tag}", "--wtag=any", f"--dtag={tag}"]
        return ["--conv", *common, f"--dt={data}", *tags, layer.problem]
    if layer.op == "gemm":
        problem = f"mb{layer.m}ic{layer.k}oc{layer.n}"
        return ["--ip", *common, f"--dt={data}", "--stag=ab", "--wtag=any", "--dtag=ab", problem]
    assert layer.op == "pool"
    algorithms = {"max": "max", "avg": "avg_p" if layer.count_include_pad else "avg_np"}
    algorithm = f"--alg={algorithms[layer.mode]}"
    return ["--pool", *common, f"--dt={data}", f"--tag={tag}", algorithm, layer.problem]


def run(tool: str, arguments: list[str], times: int, cpus: tuple[int, ...]) -> tuple[float, str]:
    """Milliseconds per execution (benchdnn's average) and the implementation."""
    driver, *rest = arguments
    template = "--perf-template=PERF %0time% %impl%"
    done = subprocess.run(
        [tool, driver, f"--fix-times-per-prb={times}", template, *rest],
        env=worker_environment(os.environ, cpus),
        capture_output=True,
        text=True,
        check=False,
    )
    for line in done.stdout.splitlines():
        if line.startswith("PERF "):
            _, time, implementation = line.split(maxsplit=2)
            return float(time), implementation
    reason = (done.stdout + done.stderr).strip().splitlines()[-1:]
    raise PydlbenchError(f"benchdnn: {' '.join(reason) or done.returncode}")


def main() -> int:
    """Compare every layer and pass asked for.

    Exit 1 if a row with the same implementation is off by more than the limit, if a row could not
    be compared, or if there was none.
    """
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", nargs="+", default=["alexnet-owt/*", "vgg16/*"])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--pass", dest="passes", nargs="+", default=list(PASSES))
    parser.add_argument("--precision", nargs="+", default=["fp32"])
    parser.add_argument("--layout", default="nhwc", choices=sorted(TAGS))
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()

    tool = shutil.which("benchdnn")
    if tool is None:
        print(
            "benchdnn is not on the PATH: build oneDNN with its tests and add it", file=sys.stderr
        )
        return 2
    done = off = errors = 0
    with Session(Options()) as session:
        print(session.worker().describe())
        for layer in find_layers(args.shape, args.batch):
            for precision in args.precision:
                for pass_ in (p for p in args.passes if p in layer.passes):
                    case = KernelSpec(
                        layer=layer, pass_=pass_, precision=precision, layout=args.layout
                    )
                    try:
                        off += not _compare(session, tool, case, args)
                        done += 1
                    except PydlbenchError as error:
                        errors += 1
                        print(f"{case.label}: {error}")
    print(f"{done} rows, off by more than {LIMIT:.0%}: {off}, errors: {errors}")
    return 1 if off or errors or not done else 0


def _compare(session: Session, tool: str, case: KernelSpec, args: argparse.Namespace) -> bool:
    kernel = session.prepare(case)
    first = kernel.sample(Request(samples=3, untimed=1))
    times = max(3, round(0.05 / statistics.median(first.seconds)))
    ratios, implementation = [], ""
    for _ in range(args.rounds):
        # benchdnn reports an average, so ours is one here too.
        ours = statistics.fmean(kernel.sample(Request(samples=times, untimed=2)).seconds)
        theirs, implementation = run(tool, command(case, args.layout), times, session.cpus)
        ratios.append(ours / (theirs / 1e3))
    kernel.release()
    ratio = statistics.median(ratios)
    same = kernel.facts.algorithm.endswith(implementation)
    verdict = "same implementation" if same else f"benchdnn ran {implementation}"
    print(
        f"{case.label:<44} {ratio:6.3f} [{min(ratios):.3f}, {max(ratios):.3f}]  "
        f"{kernel.facts.algorithm}  {verdict}",
        flush=True,
    )
    return not same or abs(ratio - 1) <= LIMIT


if __name__ == "__main__":
    raise SystemExit(main())
