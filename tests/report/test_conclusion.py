import msgspec
import pytest
from said import says

from pydlbench.records.measurement import Roofline
from pydlbench.records.trace import Dominant
from pydlbench.report.verdicts import conclude, conclude_run, dominance_text

PEAKS = {"fp32": 0.58, "bf16": 1.1}


def memory(efficiency, bandwidth="memory"):
    return Roofline(bound="memory", time_s=0.01, efficiency=efficiency, bandwidth=bandwidth)


def test_near_the_compute_peak(measurement):
    first, advice = conclude([measurement(median=0.05, roof=0.0465)], PEAKS)
    assert says(first, "conv3", "93 %", "CPU", "lower precision")
    assert says(advice, "try: --precision bf16", "1.9x")


def test_no_lower_precision_is_recommended_where_it_gains_nothing(measurement):
    row = measurement(median=0.05, roof=0.049)
    assert len(conclude([row], {"fp32": 0.58, "bf16": 0.59})) == 1
    assert len(conclude([row], {"fp32": 0.58})) == 1
    assert len(conclude([row])) == 1


def test_peaks_are_those_that_were_measured_with_the_threads_of_the_row(measurement, run_record):
    def device(bf16):
        peaks = {"fp32": 1e12, "bf16": bf16, "fp16": None}
        found = [{"precision": name, "measured_flops_per_s": one} for name, one in peaks.items()]
        return {"name": "Invented 9000", "peaks": found}

    both = {**device(4e12), "by_threads": {"1": device(3e12), "2": device(2e12)}}
    run = msgspec.structs.replace(run_record, device=both)
    for threads, gain in ((1, "3.0x"), (2, "2.0x"), (8, "4.0x")):
        row = measurement(median=0.05, roof=0.0465, threads=threads)
        assert says(conclude_run(run, [row])[1], "--precision bf16", gain)
    assert len(conclude_run(run_record, [row])) == 1


def test_advice_of_a_run_is_a_line_that_can_be_run(measurement, run_record):
    row = measurement(roof=0.02, batch=1, problem="mb1ic64ih13oc64kh3")
    command = ("pydlbench", "layers", "--shape", "mb1ic64ih13oc64kh3 n", "--batch", "1", "--quiet")
    run = msgspec.structs.replace(run_record, command=command)
    _, why, again = conclude_run(run, [row])
    assert why.startswith("--batch 16: ")
    assert again == "next: pydlbench layers --shape 'mb1ic64ih13oc64kh3 n' --quiet --batch 16"


def test_far_from_the_peak(measurement):
    lines = conclude([measurement(roof=0.025)], PEAKS)
    assert says(lines[0], "50 %", "2.0x")
    assert lines[1].startswith("try: --algorithms")
    assert len(conclude([measurement(roof=0.025, candidates=())], PEAKS)) == 1


def test_small_batch_is_named(measurement):
    lines = conclude([measurement(roof=0.02, batch=1, problem="mb1ic64ih13oc64kh3")])
    assert says(lines[0], "batch 1")
    assert lines[1].startswith("try: --batch 16")


def test_restricted_layout_is_the_first_thing_to_lift(measurement):
    assert conclude([measurement(layout_request="nchw")])[1].startswith("try: --layout best")


@pytest.mark.parametrize(
    ("row", "values"),
    [
        ({"roofline": memory(0.9)}, ("90 %", "memory", "fewer bytes")),
        ({"roofline": memory(0.5, "llc")}, ("last-level cache", "50 %")),
        (
            {"roofline": Roofline(bound="launch", time_s=1e-6, efficiency=0.5)},
            ("too short",),
        ),
        ({"roof": 0.075}, ("150 %", "fewer FLOPs")),
        ({"roof": None}, ("conv3", "50.0 ms")),
        ({"roof": 0.02, "problem": "mb128ic3ih224oc64oh55kh11sh4ph2"}, ("3 input channels",)),
    ],
)
def test_the_verdict_on_a_row(measurement, row, values):
    assert says(conclude([measurement(**row)])[0], *values)


def layer(name, **changes):
    return {"layer": f"alexnet/{name}", **changes}


@pytest.mark.parametrize(
    ("rows", "values"),
    [
        (
            [
                layer("conv1", median=0.03, roof=0.01),
                layer("conv2", median=0.06, roof=0.055),
                layer("conv3", median=0.01, roof=0.0095),
            ],
            ("conv2", "60.0 %", "100 ms", "3 layers", "74 %", "conv1", "20.0 ms"),
        ),
        ([{"roof": 0.05}, layer("conv4", roof=0.05)], ("no layer", "2 %")),
        (
            [
                {"pass_": "forward", "median": 0.01, "roof": 0.01},
                {"pass_": "backward-data", "median": 0.03, "roof": 0.02},
            ],
            ("conv3", "40.0 ms", "2 passes", "75 %", "backward-data", "75 %"),
        ),
        ([{"roof": 0.02}, {"layer": "vgg16/conv1_1", "batch": 64}], ("alexnet/conv3", "40 %")),
        (
            [
                {"median": 0.04},
                {"median": 0.02, "precision": "bf16"},
                layer("conv4", median=9.0),
            ],
            ("bf16", "2.0x faster", "fp32", "20.0 ms", "40.0 ms"),
        ),
        (
            [{"median": 0.01, "batch": 1}, {"median": 0.02, "batch": 4}],
            ("batch 4", "2.0x faster per image", "batch 1"),
        ),
        (
            [
                {"median": 0.04},
                {"median": 0.02, "precision": "bf16"},
                {"median": 0.08, "cache": "all-cold"},
            ],
            ("3 settings", "alexnet/conv3 bf16 hot", "4.0x faster", "fp32 all-cold"),
        ),
    ],
    ids=[
        *("the dominating layer and the one that loses most", "nothing to gain", "passes"),
        *("models are not added up", "two precisions", "batches per image", "several settings"),
    ],
)
def test_the_conclusion_from_several_rows(measurement, rows, values):
    (line,) = conclude([measurement(**row) for row in rows])
    assert says(line, *values)


@pytest.mark.parametrize("share", [0.5, 0.9, 1.5])
def test_winograd_is_named_wherever_it_runs(measurement, share):
    row = measurement(roof=share * 0.05, algorithm="jit_wino:avx512_core")
    reached = f"{100 * share:.0f} %"
    found = conclude([row])[0]
    assert says(found, reached, "jit_wino:avx512_core", "Winograd", "fewer FLOPs")
    assert not says(found, "left in the kernel:")


def spread(low, high):
    """A row bound by memory that reaches so much of the fastest window, and of the slowest."""
    return Roofline(
        bound="memory",
        time_s=0.01,
        efficiency=low,
        bandwidth_gbps=50.0,
        bandwidth_low_gbps=50.0 * low / high,
    )


@pytest.mark.parametrize(
    ("low", "high", "values"),
    [
        (0.85, 0.97, ("85 % to 97 %", "fewer bytes")),
        (0.7, 0.9, ("70 % to 90 %", "38.9 to 50.0 GB/s", "not known")),
        (0.4, 0.5, ("40 % to 50 %", "2.5x")),
        (1.2, 1.3, ("120 % to 130 %", "no verdict")),
    ],
)
def test_the_spread_of_a_bandwidth_is_that_of_the_verdict(measurement, low, high, values):
    row = measurement(roofline=spread(low, high))
    assert row.roofline.efficiency_high == pytest.approx(high)
    assert says(conclude([row])[0], *values)


def test_the_spread_of_a_bandwidth_does_not_matter_to_arithmetic():
    over = msgspec.structs.replace(spread(0.5, 0.9), bound="compute")
    assert over.efficiency_high == 0.5


def test_the_next_command_of_a_sum_is_about_the_layer_that_loses_most(measurement, run_record):
    command = ("pydlbench", "layers", "--shape", "alexnet/conv*", "--batch", "8")
    run = msgspec.structs.replace(run_record, command=command)
    rows = [layer("conv1", median=0.09, roof=0.08), layer("conv2", median=0.06, roof=0.01)]
    *_, following = conclude_run(run, [measurement(**row) for row in rows])
    assert following == "next: pydlbench layers --batch 8 --shape alexnet/conv2"


@pytest.mark.parametrize(
    "shape",
    [("--shape", "conv1", "--shape", "conv2"), ("--shape=conv*",), ("--shape=a", "--shape", "b")],
)
def test_the_next_command_has_its_option_once(measurement, run_record, shape):
    command = ("pydlbench", "layers", *shape, "--batch", "8")
    run = msgspec.structs.replace(run_record, command=command)
    rows = [layer("conv1", median=0.09, roof=0.08), layer("conv2", median=0.06, roof=0.01)]
    *_, following = conclude_run(run, [measurement(**row) for row in rows])
    assert following == "next: pydlbench layers --batch 8 --shape alexnet/conv2"


def test_a_layer_whose_limit_is_not_known_is_not_next(measurement, run_record):
    command = ("pydlbench", "layers", "--shape", "alexnet/*")
    run = msgspec.structs.replace(run_record, command=command)
    limits = ("conv1", 0.08), ("conv2", 0.01)
    rows = [measurement(**layer(name, median=0.09, roof=roof)) for name, roof in limits]
    unknown = measurement(**layer("pool", median=0.5), roofline=None)
    *_, following = conclude_run(run, [*rows, unknown])
    assert following == "next: pydlbench layers --shape alexnet/conv2"
    assert not any("next: " in line for line in conclude_run(run, [rows[0], unknown]))


def test_only_the_leader_has_a_share():
    wide = Dominant(name="conv1", share=0.62, ci_low=0.3, ci_high=0.8, rivals=("conv2",))
    text = dominance_text(wide, "the sum")
    assert says(text, "conv1", "62 %", "30 .. 80", "conv2")


def test_expensive_reorders_are_told(measurement):
    row = measurement(reorder_s={"src": 0.005, "weights": 0.0})
    assert any(says(line, "src", "5.00 ms", "10 %") for line in conclude([row]))
    assert not any(says(line, "weights") for line in conclude([row]))


@pytest.mark.parametrize(
    ("median", "gap"), [(0.0400, "less than 1 %"), (0.0406, "1 %"), (0.0438, "9 %")]
)
def test_rows_timed_one_after_another_may_differ_by_drift(measurement, median, gap):
    rows = [measurement(median=0.04), measurement(median=median, cache="all-cold")]
    both = ("hot", "all-cold", gap, "40.0 ms", f"{1e3 * median:.1f} ms", "interleaved")
    assert says(conclude(rows)[0], *both)
    rows.append(measurement(median=median, cache="all-cold", precision="bf16"))
    (line,) = conclude(rows)
    assert says(line, "3 settings", "alexnet/conv3", gap, "interleaved")


def test_wide_intervals_keep_larger_differences_open(measurement):
    slow = measurement(median=0.048, cache="all-cold")
    slow = msgspec.structs.replace(slow, time=msgspec.structs.replace(slow.time, ci_low=0.04))
    line = conclude([measurement(median=0.04), slow])[0]
    assert says(line, "hot", "all-cold", "not", "40.0 ms", "48.0 ms")
    assert not says(line, "faster")


@pytest.mark.parametrize(
    ("rows", "values", "which"),
    [
        ([{"roof": 0.02}], ("conv3", "at most 50.0 ms", "40 %"), "this time is an upper bound"),
        (
            [{}, {"layer": "alexnet/conv4", "median": 0.01}],
            ("2 layers", "at most 60.0 ms"),
            "2 of 2 times are upper bounds",
        ),
        (
            [{"backend": "torch", "median": 0.08}, {"median": 0.04, "roof": 0.01}],
            ("fastest", "native", "at most 40.0 ms", "25 %"),
            "2 of 2 times are upper bounds",
        ),
        ([{"roof": None}], ("conv3", "at most 50.0 ms"), "this time is an upper bound"),
    ],
)
def test_times_of_contended_rows_are_upper_bounds(measurement, rows, values, which):
    first, warning = conclude([measurement(contended=True, **row) for row in rows])
    assert says(first, *values)
    assert says(warning, which)


def test_nothing_else_is_concluded_from_contended_rows(measurement):
    quiet = [measurement(), measurement(layer="alexnet/conv4")]
    assert "dominates" in conclude(quiet)[0]
    sum_, warning = conclude([*quiet, measurement(layer="alexnet/conv5", contended=True)])
    assert says(sum_, "3 layers", "at most 150 ms")
    assert says(warning, "1 of 3", "upper bound")


def test_a_small_contended_row_leaves_the_sum_as_it_is(measurement):
    rows = [measurement(median=0.06), measurement(layer="alexnet/conv4")]
    small = measurement(layer="alexnet/pool1", median=1e-4, contended=True)
    first, warning = conclude([*rows, small])
    assert says(warning, "1 of 3", "upper bound")
    assert first.startswith("conv3 dominates")


def test_no_layer_that_was_disturbed_is_named(measurement):
    many = [measurement(layer=f"alexnet/conv{i}", roof=0.049) for i in range(40)]
    first = measurement(layer="alexnet/fc6", median=0.08, roof=0.01, contended=True)
    assert not any("dominates" in line for line in conclude([*many, first]))
    loser = measurement(layer="alexnet/fc6", median=0.04, roof=0.001, contended=True)
    line, _ = conclude([measurement(median=0.06, roof=0.05), *many, loser])
    assert line.startswith("conv3 dominates")
    assert "fc6" not in line


def test_what_cannot_be_told_apart_does_not_dominate_alone(measurement):
    near = measurement(layer="alexnet/conv4", median=0.0498)
    far = measurement(layer="alexnet/conv5", median=0.01)
    (line,) = conclude([measurement(), near, far])
    assert says(line, "no layer dominates", "conv3", "45.5 %", "conv4")
    (line,) = conclude([measurement(median=0.06), near, far])
    assert line.startswith("conv3 dominates: 50.1 % (95 % ")


def test_settings_are_compared_over_the_rows_that_nothing_disturbed(measurement):
    rows = [
        measurement(layer=layer, cache=cache, median=seconds, contended=layer == "alexnet/conv4")
        for layer in ("alexnet/conv3", "alexnet/conv4")
        for cache, seconds in (("hot", 0.05), ("all-cold", 0.1))
    ]
    first, warning = conclude(rows)
    assert says(warning, "2 of 4", "upper bounds")
    assert first == conclude(rows[:2])[0]


def test_nothing_was_timed(without_time):
    rows = [without_time("skipped", "x"), without_time("failed", "y")]
    (both,), (skipped,) = conclude(rows), conclude(rows[:1])
    assert says(both, "nothing", "of 2 rows 1 failed", "1 skipped")
    assert says(skipped, "nothing", "of 1 row 1 skipped")
