"""Convolutions and products of bytes: native rows beside PyTorch's and onnxruntime's.

    python benchmarks/integers.py --json rows.json --md int8-rows.md
    python benchmarks/integers.py --slice 1/4 --json rows.json                    # in slices
    python benchmarks/integers.py --slice 2/4 --json rows.json --md int8-rows.md

Sources and results are unsigned, weights signed with a scale for each output channel; all have zero
points. The native row and PyTorch's quantized operator are timed in one run, in processes of their
own; a QDQ model of onnxruntime with the same numbers is timed right after them, with as many
threads. The results of all three are compared with the reference of integers. Slices of the 20
problems each take less than 100 s; rows are added to those of the file.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import pydlbench
from pydlbench.errors import PydlbenchError
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.op import Layer
from pydlbench.records.measurement import KernelSpec, Measurement
from pydlbench.report.text import markdown_table
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.session import Session
from pydlbench.verification.inputs import fused_inputs, make_inputs
from pydlbench.verification.verify import verify

PRECISION = "u8s8u8"
FUSE = "src_scale-weights_scale-dst_scale-src_zero_point-dst_zero_point"
SEED = 1
_PROBLEMS = (
    "mb1ic64ih56oc64oh56kh3ph1",  # ResNet-50's
    "mb1ic64ih56oc256oh56kh1",
    "mb1ic128ih28oc128oh28kh3ph1",
    "mb1ic256ih14oc256oh14kh3ph1",
    "mb1ic512ih7oc512oh7kh3ph1",
    "mb1ic1024ih14oc256oh14kh1",
    "mb8ic256ih14oc1024oh14kh1",
    "mb1ic3ih224oc64oh112kh7sh2ph3",
    "g96mb1ic96ih56oc96oh56kh3ph1",  # one channel in each group
    "mb1ic256ih28oc512oh14kh3sh2ph1",
    "128x768:768x768",  # products of language models
    "128x768:768x3072",
    "128x3072:3072x768",
    "512x1024:1024x1024",
    "1x4096:4096x4096",
    "16x4096:4096x4096",
    "256x2048:2048x2048",
    "32x1024:1024x4096",
    "64x512:512x30522",
    "1024x1024:1024x1024",
)


def quantized_model(layer: Layer, inputs: dict[str, np.ndarray]) -> bytes:
    """Return an ONNX file: the operator on floats between nodes that convert them."""
    product = layer.op == "gemm"
    weights = inputs["weights"][0] if product else inputs["weights"]
    constants = {
        "weights": weights.astype(np.int8),
        "weights_scale": inputs["weights_scale"],
        "weights_point": np.zeros(len(inputs["weights_scale"]), np.int8),
    }
    for role in ("src", "dst"):
        constants[f"{role}_scale"] = inputs[f"{role}_scale"].reshape(())
        constants[f"{role}_point"] = inputs[f"{role}_zero_point"].astype(np.uint8).reshape(())
    attributes: dict[str, Any] = {}
    if not product:
        pads = [*layer.pad_before, *layer.pad_after]
        attributes = {"strides": layer.stride, "pads": pads, "group": layer.groups}
    nodes = [
        helper.make_node("DequantizeLinear", ["src", "src_scale", "src_point"], ["x"]),
        helper.make_node(
            "DequantizeLinear",
            ["weights", "weights_scale", "weights_point"],
            ["w"],
            axis=1 if product else 0,
        ),
        helper.make_node("MatMul" if product else "Conv", ["x", "w"], ["y"], **attributes),
        helper.make_node("QuantizeLinear", ["y", "dst_scale", "dst_point"], ["dst"]),
    ]
    shapes = layer.shapes()
    ends = [
        helper.make_tensor_value_info(
            role, TensorProto.UINT8, shapes[role][1:] if product else shapes[role]
        )
        for role in ("src", "dst")
    ]
    initializers = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "layer", ends[:1], ends[1:], initializers)
    opset = helper.make_opsetid("", 21)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10).SerializeToString()


def onnxruntime_row(layer: Layer, cpus: list[int], budget_s: float) -> dict[str, Any]:
    """Time onnxruntime in this process, on the CPUs of the other rows."""
    inputs = make_inputs(layer, "forward", PRECISION, SEED)
    inputs |= fused_inputs(layer, PRECISION, SEED, FUSE)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = len(cpus)
    os.sched_setaffinity(0, cpus)
    run = onnxruntime.InferenceSession(
        quantized_model(layer, inputs), options, providers=["CPUExecutionProvider"]
    )
    source = (inputs["src"][0] if layer.op == "gemm" else inputs["src"]).astype(np.uint8)
    bound = run.io_binding()
    bound.bind_cpu_input("src", source)
    bound.bind_output("dst")
    seconds: list[float] = []
    deadline = time.perf_counter() + 2 * budget_s
    while time.perf_counter() < deadline or len(seconds) < 5:
        begin = time.perf_counter()
        run.run_with_iobinding(bound)
        seconds.append(time.perf_counter() - begin)
    output = bound.copy_outputs_to_cpu()[0].reshape(layer.shapes()["dst"]).astype(np.float32)
    verdict = verify(layer, "forward", PRECISION, inputs, output, seed=SEED, fuse=FUSE)
    settled = sorted(seconds[len(seconds) // 4 :])
    cut = len(settled) // 4
    return {
        "median_s": statistics.median(settled),
        "q1_s": settled[cut],
        "q3_s": settled[-1 - cut],
        "n": len(settled),
        "correct": verdict.status,
    }


def cells(row: Measurement) -> dict[str, Any]:
    """Return what is shown of a row."""
    if row.time is None:
        return {"reason": row.reason}
    return {
        "median_s": row.time.median,
        "q1_s": row.time.q1,
        "q3_s": row.time.q3,
        "n": row.time.n,
        "correct": row.correct.status if row.correct else "unchecked",
        "algorithm": row.algorithm,
        "of_limit": row.roofline.efficiency if row.roofline else None,
        "peak_tflops": row.peak.to_dict() if row.peak else None,
        "contended": row.contended,
    }


def text(cell: dict[str, Any]) -> str:
    """Format median, quartiles and number of samples."""
    if "median_s" not in cell:
        return f"{'-':>26}"
    median, low, high = (1e6 * cell[name] for name in ("median_s", "q1_s", "q3_s"))
    wrong = "" if cell["correct"] == "ok" else " WRONG"
    return f"{median:>9.1f} [{low:.1f}, {high:.1f}] {cell['n']}{wrong}"


def page(document: list[dict[str, Any]], machine: str) -> str:
    """Return the page of all rows: medians, ratios to the native row, share of the limit."""
    titles = ["problem", "native", "PyTorch", "onnxruntime", "PyTorch / native", "ort / native"]
    lines = []
    for row in document:
        medians = [row.get(name, {}).get("median_s") for name in ("native", "torch", "onnxruntime")]
        native = row.get("native", {})
        shown = ["-" if each is None else f"{1e6 * each:.0f} us" for each in medians]
        ratios = [
            "-" if None in (each, medians[0]) else f"{each / medians[0]:.2f}"
            for each in medians[1:]
        ]
        limit = native.get("of_limit")
        disturbed = (
            " (disturbed)"
            if any(row.get(n, {}).get("contended") for n in ("native", "torch"))
            else ""
        )
        share = "-" if limit is None else f"{100 * limit:.0f} %"
        lines.append([row["problem"] + disturbed, *shown, *ratios, share])
    peaks = next((row["native"]["peak_tflops"] for row in document if "native" in row), None) or {}
    facts = ", ".join(f"{name} {value:.2f} TOP/s" for name, value in peaks.items() if value)
    return (
        f"# Convolutions and products of bytes\n\n{machine}. Peak: {facts or 'not known'}.\n\n"
        "Made by `python benchmarks/integers.py --json rows.json --md int8-rows.md`: sources and "
        "results unsigned, weights signed with a scale per channel, zero points. Medians; all "
        "results agree with the integer reference. Other work disturbed the rows "
        "that are marked.\n\n"
        f"{markdown_table([*titles, 'native, of limit'], lines)}\n"
    )


def main() -> int:
    """Compare the problems of a slice; exit 1 if a result is wrong or a native row is missing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--slice", default="1/1", metavar="I/N", help="every N-th problem from I on"
    )
    parser.add_argument("--budget", type=float, default=0.15, help="seconds of samples per row")
    parser.add_argument("--json", type=Path, help="file to which the rows are added")
    parser.add_argument("--md", type=Path, help="file to write the page of all rows into")
    args = parser.parse_args()
    first, step = map(int, args.slice.split("/"))
    known = args.json is not None and args.json.exists()
    document: list[dict[str, Any]] = json.loads(args.json.read_text()) if known else []
    bad = 0
    options = RunnerOptions(budget_s=args.budget, repetitions=1)
    with Session(options) as session:
        machine = (
            f"{session.facts.name}, {len(session.cpus)} threads, pydlbench "
            f"{pydlbench.__version__}, onnxruntime {onnxruntime.__version__}"
        )
        print(f"{machine}; us: median [quartiles] n")
        for problem in _PROBLEMS[first - 1 :: step]:
            layer = parse_problem(problem)
            row: dict[str, Any] = {"problem": problem}
            try:
                for name, mode in (("native", None), ("torch", "eager")):
                    spec = KernelSpec(
                        layer=layer, precision=PRECISION, fuse=FUSE, backend=name, mode=mode
                    )
                    row[name] = cells(next(found for _, found in session.measure([spec])))
                row["onnxruntime"] = onnxruntime_row(layer, list(session.cpus), args.budget)
            except PydlbenchError as error:
                row["error"] = str(error)
            document.append(row)
            shown = [row.get(name, {}) for name in ("native", "torch", "onnxruntime")]
            bad += "median_s" not in shown[0] or any(
                cell.get("correct", "ok") == "failed" for cell in shown
            )
            limit = shown[0].get("of_limit")
            share = "-" if limit is None else f"{100 * limit:.0f} %"
            print(
                f"{problem:<34} " + "  ".join(map(text, shown)) + f"  limit/native {share}",
                flush=True,
            )
    if args.json:
        args.json.write_text(json.dumps(document, indent=1))
    if args.md:
        args.md.write_text(page(document, machine))
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
