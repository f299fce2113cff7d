import pytest
from said import says

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


def test_the_algorithms_of_a_row_have_what_the_gpu_runs(gpu_row):
    shape = {"grid": [132, 1, 1], "block": [128, 2, 1], "shared_bytes": 4096, "registers": 168}
    candidates = [{"algorithm": "engine 7", "status": "ok", "chosen": True}]
    row = gpu_row("tf32", kernels=({"name": "sm90_gemm", **shape},), candidates=candidates)
    _, line, *_ = render_algorithms(row, "conv3").splitlines()
    assert says(line, "sm90_gemm", "132x1x1", "128x2x1", "4.10 kB", "168")


@pytest.mark.parametrize(
    ("precision", "accumulate", "values"),
    [
        ("fp32", "float32", ("FMA units", "lower precision")),
        ("fp16", "float16", ("FMA units", "fp16", "tensor cores")),
        ("fp16", "float32", ("FMA units", "fp16", "float32 accumulation")),
        ("tf32", "float32", ("tensor cores", "tf32", "lower precision")),
        ("bf16-tc", "float32", ("tensor cores", "bf16-tc", "fewer FLOPs")),
    ],
)
def test_the_units_that_a_row_is_held_against(gpu_row, precision, accumulate, values):
    (first, *_) = conclude([gpu_row(precision, accumulate=accumulate)])
    assert says(first, *values)
    assert says(first, "lower precision") == ("lower precision" in values)


@pytest.mark.parametrize(
    ("precision", "changes", "option", "why"),
    [
        ("fp32", {}, "--precision bf16-tc", "13x"),
        ("tf32", {}, "--precision bf16-tc", "2.1x"),
        ("bf16-tc", {"kind": "gemm"}, "--precision fp8-tc", "1.9x"),
        ("fp32", {"roofline": MEMORY}, "--precision bf16-tc", "half the bytes"),
        ("tf32", {"roofline": MEMORY}, "--precision bf16-tc", "half the bytes"),
        ("fp16-tc", {"roofline": MEMORY, "kind": "gemm"}, "--precision fp8-tc", "half the bytes"),
        ("bf16-tc", {"roofline": LAUNCH}, "--batch 2048", "more work"),
    ],
)
def test_what_to_try(gpu_row, precision, changes, option, why):
    _, advice = conclude([gpu_row(precision, **changes)], PEAKS)
    assert advice.startswith(f"try: {option} (")
    assert says(advice, why)


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
    assert says(line, "no tensor cores")
    problem = "mb128ic3ih224oc64oh55kh11sh4ph2"
    (line, *_) = conclude([gpu_row("bf16-tc", roof=0.02, tensor_cores=True, problem=problem)])
    assert says(line, "3 input channels", "tile")
    assert not says(line, "no tensor cores")


def test_a_transform_is_known_by_its_notes(gpu_row):
    row = gpu_row("fp32", roof=0.08, algorithm="engine 4 {tile 1}", notes=("WINOGRAD",))
    assert says(conclude([row])[0], "engine 4 {tile 1}", "Winograd", "fewer FLOPs")


def test_heat_is_not_called_other_work(gpu_row):
    hot = "3 of 4 chunks disturbed: software thermal slowdown at 88 degrees C"
    other = "3 of 4 chunks disturbed: another process computed on the GPU (process 7)"
    slowed = gpu_row("fp32", contended=True, contention_reason=hot)
    shared = gpu_row("fp32", contended=True, contention_reason=other, layer="alexnet/conv4")
    alone, other, both = (conclude(rows)[-1] for rows in ([slowed], [shared], [slowed, shared]))
    assert says(alone, "upper bound")
    assert not says(alone, "other work")
    assert says(other, "other work", "upper bound")
    assert not says(other, "heat")
    assert says(both, "heat", "other work", "2 of")


def test_the_row_that_loses_most_time_is_named_with_its_pass(gpu_row):
    rows = [
        gpu_row(precision, pass_=pass_, cache=cache, roof=0.01 if pass_ != "forward" else 0.04)
        for precision in ("fp32", "bf16-tc")
        for pass_ in ("forward", "backward-data")
        for cache in ("hot", "all-cold")
    ]
    # One that takes less time may be further from its limit, and loses less.
    rows.append(gpu_row("fp32", layer="alexnet/conv4", cache="hot", roof=1e-9, median=1e-6))
    (line,) = conclude(rows)
    assert says(line, "alexnet/conv3 backward-data fp32 hot", "40.0 ms", "20 %")


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
