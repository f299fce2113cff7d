"""How well a measurement repeats: a model's layers against one fixed layer, run after run.

    python benchmarks/repeatability.py --shape 'alexnet-owt/*' --batch 16 --runs 10

Every run starts from nothing (a new worker, new memory, a new search for the fastest kernel) and
samples each layer in turn with the reference layer, round by round. The ratio of the two is what
should repeat; absolute times wander with the machine, in cycles less than in time. Two spreads
are shown: the range (largest value over smallest, minus one) and the standard deviation over the
mean. The limit is held against the latter for the ratios.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections import defaultdict
from collections.abc import Sequence

from pydlbench.models.catalog import find_layers
from pydlbench.records.specs import KernelSpec
from pydlbench.runner.session import Options, Session
from pydlbench.timing.policy import Policy
from pydlbench.timing.procedure import Sampling, interleave
from pydlbench.timing.statistics import paired_ratio

LIMIT = 0.015
SHARE = 0.95


def value_range(values: Sequence[float]) -> float:
    """Largest over smallest, minus one; 0 of fewer than two."""
    return max(values) / min(values) - 1 if len(values) > 1 else 0.0


def deviation(values: Sequence[float]) -> float:
    """Standard deviation over the mean; 0 of fewer than two."""
    return statistics.stdev(values) / statistics.fmean(values) if len(values) > 1 else 0.0


def main() -> int:
    """Print the spreads; exit 1 if too many layers spread too far."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", nargs="+", default=["alexnet-owt/*"])
    parser.add_argument("--reference", default="alexnet/conv3")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=15, help="least number of rounds")
    parser.add_argument("--budget", type=float, default=2.0, help="seconds per kernel")
    args = parser.parse_args()

    layers = find_layers(args.shape, args.batch)
    (reference,) = find_layers([args.reference], args.batch)
    policy = Policy(
        budget_s=args.budget, min_rounds=args.rounds, min_samples=args.rounds, chunk_s=0.04
    )
    ratios, seconds, cycles = defaultdict(list), defaultdict(list), defaultdict(list)
    algorithms, contended = defaultdict(list), defaultdict(int)
    for run in range(args.runs):
        with Session(Options(seed=run)) as session:
            fixed = session.prepare(KernelSpec(layer=reference))
            for layer in layers:
                kernel = session.prepare(KernelSpec(layer=layer))
                samplings = [Sampling(policy), Sampling(policy)]
                kernels = [kernel, fixed]
                interleave(
                    samplings,
                    lambda i, request, kernels=kernels: kernels[i].sample(request),
                    random.Random(run),
                )
                kernel.release()
                own, other = (sampling.result() for sampling in samplings)
                ratios[layer.name].append(paired_ratio(own.by_round(), other.by_round()).median)
                median = own.median
                seconds[layer.name].append(median)
                cycles[layer.name].append(median * (own.clock_hz or float("nan")))
                algorithms[layer.name].append(kernel.facts.algorithm)
                contended[layer.name] += own.contended or other.contended
        print(f"run {run + 1} of {args.runs} done", flush=True)

    print(f"\n{'':<22} {'':>10} {'ratio':^19} {'time':^19} {'cycles':^19}")
    heads = " ".join(f"{'range':>8} {'st.dev.':>10}" for _ in range(3))
    print(f"{'layer':<22} {'median':>10} {heads}  contended  kernels")
    good = 0
    for name, values in ratios.items():
        good += deviation(values) < LIMIT
        middle = statistics.median(seconds[name])
        spreads = " ".join(
            f"{100 * value_range(found):>6.2f} % {100 * deviation(found):>7.2f} %"
            for found in (values, seconds[name], cycles[name])
        )
        print(
            f"{name:<22} {middle * 1e3:>7.3f} ms {spreads}  {contended[name]:>9}  "
            f"{', '.join(dict.fromkeys(algorithms[name]))}"
        )
    share = good / len(ratios)
    print(
        f"ratio to {args.reference}: standard deviation under {100 * LIMIT:g} % "
        f"for {good} of {len(ratios)} "
        f"layers over {args.runs} runs"
    )
    return 0 if share >= SHARE else 1


if __name__ == "__main__":
    raise SystemExit(main())
