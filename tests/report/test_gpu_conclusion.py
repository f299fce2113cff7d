from __future__ import annotations

import pytest

from pydlbench.records.measurement import Roofline
from pydlbench.report.layers import algorithms_report
from pydlbench.report.text import as_text
from pydlbench.report.verdicts import conclude

PEAKS = {"fp32": 54.0, "tf32": 330.0, "bf16-tc": 700.0, "fp16-tc": 690.0, "fp8-tc": 1300.0}
MEMORY = Roofline(bound="memory", time_s=0.01, efficiency=0.9, bandwidth="memory")
LAUNCH = Roofline(bound="launch", time_s=2e-6, efficiency=0.8)


def render_algorithms(row, name):
    return as_text(algorithms_report(row, name))


@pytest.fixture
def gpu_row(measurement):
    def build(precision, **changes):
        about = {"device": "cuda:0", "threads": None, "library": "cuDNN 9.28.0"}
        return measurement(**{**about, "precision": precision, "roof": 0.048, **changes})

    return build


@pytest.mark.parametrize(
    ("precision", "accumulate", "text"),
    [
        ("fp32", "float32", "this GPU's FMA units deliver: only fewer FLOPs or lower precision"),
        ("fp16", "float16", "FMA units deliver in fp16: only fewer FLOPs or tensor cores would"),
        ("fp16", "float32", "FMA units deliver in fp16 with float32 accumulation: only fewer"),
        ("tf32", "float32", "this GPU's tensor cores deliver in tf32: only fewer FLOPs or lower"),
        ("bf16-tc", "float32", "tensor cores deliver in bf16-tc: only fewer FLOPs would make it"),
    ],
)
def test_the_units_that_a_row_is_held_against(gpu_row, precision, accumulate, text):
    (first, *_) = conclude([gpu_row(precision, accumulate=accumulate)])
    assert text in first


@pytest.mark.parametrize(
    ("precision", "changes", "line"),
    [
        ("fp32", {}, "try: --precision bf16-tc (the measured bf16-tc peak is 13x higher)"),
        ("tf32", {}, "try: --precision bf16-tc (the measured bf16-tc peak is 2.1x higher)"),
        ("bf16-tc", {"kind": "gemm"}, "try: --precision fp8-tc (the measured fp8-tc peak is 1.9x"),
        ("fp32", {"roofline": MEMORY}, "try: --precision bf16-tc (half the bytes)"),
        ("tf32", {"roofline": MEMORY}, "try: --precision bf16-tc (half the bytes)"),
        ("fp16-tc", {"roofline": MEMORY, "kind": "gemm"}, "try: --precision fp8-tc (half the byt"),
        ("bf16-tc", {"roofline": LAUNCH}, "try: --batch 2048 (more work for each start"),
    ],
)
def test_what_to_try(gpu_row, precision, changes, line):
    found = conclude([gpu_row(precision, **changes)], PEAKS)
    assert len(found) == 2
    assert found[1].startswith(line)


@pytest.mark.parametrize(
    ("precision", "changes", "peaks"),
    [
        ("bf16-tc", {}, PEAKS),  # fp8 is for products
        ("fp8-tc", {"kind": "gemm"}, PEAKS),
        ("bf16-tc", {"roofline": MEMORY}, PEAKS),
        ("fp32", {"roofline": MEMORY}, {"fp32": 54.0, "tf32": 330.0}),  # as many bytes
    ],
)
def test_where_there_is_nothing_to_try(gpu_row, precision, changes, peaks):
    assert len(conclude([gpu_row(precision, **changes)], peaks)) == 1


def test_a_card_without_bf16_is_told_of_fp16(gpu_row):
    lines = conclude([gpu_row("fp32")], {"fp32": 8.0, "fp16-tc": 60.0})
    assert lines[1].startswith("try: --precision fp16-tc")


def test_causes_on_a_gpu(gpu_row):
    (line, *_) = conclude([gpu_row("bf16-tc", roof=0.02, tensor_cores=False)])
    assert line.endswith("left in the kernel; it uses no tensor cores.")
    problem = "mb128ic3ih224oc64oh55kh11sh4ph2"
    (line, *_) = conclude([gpu_row("bf16-tc", roof=0.02, tensor_cores=True, problem=problem)])
    assert line.endswith("; 3 input channels fill little of a tile.")


def test_a_transform_is_known_by_its_notes(gpu_row):
    row = gpu_row("fp32", roof=0.08, algorithm="engine 4 {tile 1}", notes=("WINOGRAD",))
    assert "engine 4 {tile 1} needs fewer FLOPs than are counted" in conclude([row])[0]


def test_heat_is_not_called_other_work(gpu_row):
    hot = "3 of 4 chunks disturbed: software thermal slowdown at 88 degrees C"
    other = "3 of 4 chunks disturbed: another process computed on the GPU (process 7)"
    slowed = gpu_row("fp32", contended=True, contention_reason=hot)
    shared = gpu_row("fp32", contended=True, contention_reason=other, layer="alexnet/conv4")
    assert conclude([slowed])[-1] == (
        "the GPU was slowed down: this time is an upper bound; repeat when it is cool."
    )
    assert conclude([shared])[-1].startswith("other work disturbed the run: this time")
    assert conclude([slowed, shared])[-1].startswith("heat and other work disturbed the run: 2 of")


def test_the_row_furthest_from_its_roof_is_named_with_its_pass(gpu_row):
    rows = [
        gpu_row(precision, pass_=pass_, cache=cache, roof=0.01 if pass_ != "forward" else 0.04)
        for precision in ("fp32", "bf16-tc")
        for pass_ in ("forward", "backward-data")
        for cache in ("hot", "all-cold")
    ]
    (line,) = conclude(rows)
    assert line == "furthest from its roof: alexnet/conv3 backward-data fp32 hot with 20 % of it."


def test_candidates_tell_tensor_cores_error_and_build_time(gpu_row):
    def candidate(name, used, **more):
        about = {"algorithm": name, "layout": "nhwc", "status": "ok", "time_s": 0.05}
        return {**about, "tensor_cores": used, "setup_s": 0.25, "reorder_s": None, **more}

    row = gpu_row(
        "bf16-tc",
        candidates=(
            candidate("engine 1", True, correct={"status": "ok", "rel_error": 1.5e-3}),
            candidate("engine 2", False),
            candidate("engine 3", None, setup_s=None, status="failed", reason="too wrong"),
        ),
    )
    _, _, titles, *lines = render_algorithms(row, "conv3").splitlines()
    assert "reorders" not in titles
    assert titles.split("  ")[-3:] == ["tensor cores", "built in", "verdict"]
    assert lines[0].split()[-5:] == ["yes", "250", "ms", "ok", "2e-3"]
    assert lines[1].split()[-5:] == ["no", "250", "ms", "ok,", "unchecked"]
    assert lines[2].split()[-5:] == ["-", "-", "failed:", "too", "wrong"]
