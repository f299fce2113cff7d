import pytest
from said import says

from pydlbench.report.rivals import compare_backends
from pydlbench.report.verdicts import conclude


@pytest.fixture
def row_of(measurement):
    """A row with its ratio; ``low`` is the lower end of the interval."""

    def build(name, ratio, low=None, to="native", **changes):
        backend, _, mode = name.partition(" ")
        found = {
            "to": to,
            "median": ratio,
            "ci_low": low or ratio,
            "ci_high": ratio,
            "rounds": 9,
        }
        words = {"backend": backend, "mode": mode or None, "ratio": found, **changes}
        return measurement(median=0.05 * ratio, **words)

    return build


@pytest.mark.parametrize(
    ("others", "values"),
    [
        (
            [("torch eager", 1.5), ("numba", 4.123)],
            ("native", "conv3", "fastest", "90 %", "torch eager", "1.50x", "numba", "4.12x"),
        ),
        (
            [("torch eager", 1.02, 0.99)],
            ("native and torch eager cannot be told apart", "conv3", "native", "90 %"),
        ),
        (
            [("torch eager", 1.02, 0.99), ("tensorflow xla", 1.01, 1.0), ("numba", 4.123)],
            (
                "native, tensorflow xla and torch eager cannot be told apart",
                *("fastest", "native", "90 %", "numba", "4.12x"),
            ),
        ),
        # The fastest is the backend that the ratios refer to.
        ([("torch eager", 0.99, 0.97)], ("native and torch eager", "conv3")),
        ([("torch eager", 0.999, 1.001)], ("native", "conv3", "fastest")),
    ],
)
def test_one_problem(row_of, others, values):
    rows = [row_of("native", 1), *(row_of(*other) for other in others)]
    (text,) = compare_backends(rows)
    assert says(text, *values)
    assert conclude(rows)[0] == text


def test_without_a_roof_there_is_no_limit(row_of):
    (text,) = compare_backends([row_of("native", 1, roof=None), row_of("numba", 2, roof=None)])
    assert says(text, "native", "conv3", "fastest", "numba", "2.00x")
    assert "%" not in text


def test_few_rounds_without_an_interval(measurement):
    ratio = {"to": "native", "median": 1.0, "ci_low": None, "ci_high": None, "rounds": 3}
    rows = [
        measurement(ratio=ratio),
        measurement(ratio={**ratio, "median": 1.4}, backend="numba"),
    ]
    assert says(compare_backends(rows)[0], "numba", "1.40x")


def test_many_problems_are_geometric_means(row_of):
    rows = []
    for layer, ratios in {"conv3": (1, 2.0, 4.0), "conv4": (4.0, 1, 8.0)}.items():
        to = "native" if ratios[0] == 1 else "torch eager"
        rows += [
            row_of(name, ratio, to=to, layer=f"alexnet/{layer}")
            for name, ratio in zip(("native", "torch eager", "numba"), ratios, strict=True)
        ]
    # One that was not run everywhere is compared where it was.
    rows.append(row_of("torch compiled", 3.0, layer="alexnet/conv3"))
    text, beside = compare_backends(rows)
    means = ("torch eager 1.41x", "1 of 2", "native 2.00x", "1 of 2", "numba 5.66x")
    assert says(text, "over 2 problems", *means)
    means = ("native 1.00x", "1 of 1", "torch eager 2.00x", "torch compiled 3.00x", "numba 4.00x")
    assert says(beside, "over 1 problem of 2", "torch compiled", *means)
    assert conclude(rows)[0] == text


def test_backends_without_a_problem_in_common_are_not_compared(row_of):
    rows = [row_of("native", 1), row_of("numba", 2)]
    rows += [row_of(name, one, layer="alexnet/pool1") for name, one in (("native", 1), ("x", 3))]
    first, second = compare_backends(rows)
    assert says(first, "over 1 problem of 2", "those of numba", "native 1.00x")
    assert says(second, "over 1 problem of 2", "those of x", "native 1.00x")
    assert "x 3.00x" not in first
    assert "numba" not in second


def test_who_sums_less_exactly_is_not_the_fastest_without_a_word(row_of):
    rows = [
        row_of("native", 1, accumulate="float32"),
        row_of("torch eager", 0.5, accumulate="bfloat16"),
        row_of("tensorflow xla", 1.02, low=0.9, accumulate="bfloat16"),
        row_of("numba", 2, accumulate="float32"),
    ]
    first, *others = compare_backends(rows)
    assert says(first, "native", "conv3", "fastest", "90 %", "numba", "2.00x")
    torch, tensorflow = others
    assert says(torch, "torch eager", "bfloat16", "native", "float32", "0.500x", "less exact")
    assert says(tensorflow, "tensorflow xla", "bfloat16", "native", "float32", "1.02x")


def test_sums_that_are_less_exact_count_in_no_mean(row_of):
    rows = [row_of(name, one) for name, one in (("native", 1), ("torch eager", 2))]
    rows += [
        row_of("native", 1, accumulate="float32", layer="alexnet/pool1"),
        row_of("torch eager", 0.25, accumulate="bfloat16", layer="alexnet/pool1"),
    ]
    means, exact = compare_backends(rows)
    assert says(means, "over 1 problem of 2", "native 1.00x", "1 of 1", "torch eager 2.00x")
    assert says(exact, "torch eager", "bfloat16", "1 problem")


def test_a_tie_is_nobody_s_win(row_of):
    rows = [row_of("native", 1), row_of("numba", 1.02, low=0.98)]
    for layer in ("conv4", "conv5"):
        rows += [
            row_of(name, ratio, layer=f"alexnet/{layer}")
            for name, ratio in (("native", 1), ("numba", 2))
        ]
    means, ties = compare_backends(rows)
    assert says(means, "native 1.00x", "2 of 3", "numba")
    assert says(ties, "1 of 3 problems", "cannot be told apart")


@pytest.mark.parametrize(
    "other", [{"precision": "bf16"}, {"threads": 1}, {"pass_": "backward-data"}, {"cache": "x"}]
)
def test_settings_are_problems_of_their_own(row_of, other):
    rows = [row_of(name, ratio) for name, ratio in (("native", 1), ("numba", 2))]
    rows += [row_of(name, ratio, **other) for name, ratio in (("native", 1), ("numba", 8))]
    assert says(compare_backends(rows)[0], "2 problems", "native 1.00x")


def test_clocks_of_a_gpu_may_differ_between_backends(row_of):
    def row(name, ratio, timing):
        return row_of(name, ratio, device="cuda:0", timing=timing, threads=None)

    first = [row("native", 1, "cuda-graph"), row("tensorflow xla", 2, "host-sync")]
    assert says(compare_backends(first)[0], "native", "conv3", "fastest")
    second = [row("native", 1, "events"), row("tensorflow xla", 8, "host-sync")]
    assert "tensorflow xla 4.00x the fastest" in compare_backends(first + second)[0]


def test_with_one_backend_nothing_is_said(row_of, measurement):
    assert compare_backends([]) == []
    assert compare_backends([row_of("native", 1)]) == []
    assert compare_backends([measurement(), measurement(backend="numba")]) == []
