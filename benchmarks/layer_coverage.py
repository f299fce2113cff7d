"""Share of the bytes of users' PyTorch models whose calls have a layer.

    python benchmarks/layer_coverage.py FOLDER [--reasons N]
    python benchmarks/layer_coverage.py benchmarks/coverage_models

FOLDER has files in KernelBench's convention: ``Model``, ``get_inputs``, ``get_init_inputs``;
``coverage_models`` has twenty, and layers were added for fifteen of them. Each forward pass runs
once, and the bytes of each call are those of the calls' meanings. A row per reason follows, with
the operators that have no layer, the largest first. Nothing is timed.
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path

import torch

from pydlbench.backends.steps.user_code import call_user_object
from pydlbench.backends.torch.steps.recording import by_module, record
from pydlbench.calls.seen import meaning_of
from pydlbench.errors import PydlbenchError
from pydlbench.records.trace import RecordedCall


def missing_bytes(file: Path) -> tuple[int, Counter[str]]:
    """Return the bytes of all calls of a model, and those of calls without a layer by reason."""
    model, inputs = call_user_object(f"{file}:Model", {})
    with torch.no_grad():
        recording = record(lambda: model(*inputs), naming=by_module(model), parameters={})
    total, missing = 0, Counter[str]()
    for call in recording.calls:
        recorded = RecordedCall(
            signature=call.signature,
            operator=call.operator,
            direction=call.direction,
            bytes=call.bytes,
        )
        try:
            meaning = meaning_of(recorded)
            size, reason = meaning.bytes or call.bytes, meaning.layers_missing
            if meaning.kind == "view":
                continue
        except PydlbenchError as error:
            size, reason = call.bytes, str(error)
        total += size
        if reason is not None:
            missing[f"{call.operator}: {reason}"] += size
    return total, missing


def main() -> None:
    """Print the share of each model that is not covered, and of all."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--reasons", type=int, default=20, metavar="N")
    args = parser.parse_args()
    total, reasons, shares = 0, Counter[str](), []
    for file in sorted(args.folder.glob("*.py")):
        size, missing = missing_bytes(file)
        total, share = total + size, missing.total() / max(1, size)
        reasons += missing
        shares.append(share)
        if missing:
            print(f"{file.stem:32} {size / 1e6:10.2f} MB {share:8.1%}")
    print(f"{len(shares)} models, {total / 1e6:.2f} MB; without a layer:")
    print(f"{reasons.total() / total:.2%} of the bytes, {sum(shares) / len(shares):.2%} on average")
    for reason, size in reasons.most_common(args.reasons):
        print(f"{size / 1e6:10.2f} MB {size / total:8.2%}  {reason[:140]}")


if __name__ == "__main__":
    main()
