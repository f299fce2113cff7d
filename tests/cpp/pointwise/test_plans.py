import ctypes

import pytest
from hypothesis import given
from hypothesis import strategies as st

SIZES = (2, 8, 3, 3)
LRN = {"local_size": 5, "alpha": 1e-4, "beta": 0.75, "k": 2.0}


def test_facts(pointwise):
    first = pointwise.plans("relu", "backward-data", SIZES)[0].facts
    assert first["primitive"] == "relu backward-data"
    assert first["algorithm"] == "pydlbench relu 1 vector per thread"
    assert first["library"] == "pydlbench 0"
    assert (first["accumulate"], first["tensor_cores"]) == ("float32", False)
    assert (first["variant"], first["layout"]) == ("nchw", "src nchw, dst nchw")
    assert [(t["role"], t["use"]) for t in first["tensors"]] == [
        ("src", "input"), ("dst", "input"), ("src", "output"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("layout", "variants"),
    [("best", {"nchw", "nhwc"}), ("any", {"nchw", "nhwc"}), ("nchw", {"nchw"}), ("nhwc", {"nhwc"})],
)
def test_layouts(pointwise, layout, variants):
    plans = pointwise.plans("lrn", "forward-training", SIZES, layout=layout, **LRN)
    assert {plan.facts["variant"] for plan in plans} == variants


def test_strides_follow_the_layout(pointwise):
    (nchw,) = pointwise.plans("relu", "forward-training", SIZES, layout="nchw")
    (nhwc,) = pointwise.plans("relu", "forward-training", SIZES, layout="nhwc")
    assert nchw.facts["tensors"][0]["strides"] == [72, 9, 3, 1]
    assert nhwc.facts["tensors"][0]["strides"] == [72, 1, 24, 8]


def test_one_layout_where_both_are_the_same(pointwise):
    assert {p.facts["variant"] for p in pointwise.plans("add", "forward-training", SIZES)} == {
        "nchw"
    }
    flat = pointwise.plans("bias", "forward-training", (2, 8, 1, 1))
    assert {p.facts["variant"] for p in flat} == {"plain"}


@pytest.mark.parametrize(
    ("mode", "types"),
    [("fp32", [0]), ("tf32", [0]), ("fp16", [1]), ("fp16-tc", [1]), ("bf16-tc", [2])],
)
def test_storage_by_mode(pointwise, mode, types):
    for plan in pointwise.plans("add", "forward-training", SIZES, mode):
        assert sorted({t["type"] for t in plan.facts["tensors"]}) == types


def test_statistics_are_float32_in_every_mode(pointwise):
    plans = pointwise.plans(
        "batchnorm", "forward-training", SIZES, "bf16-tc", epsilon=1e-5, momentum=0.1
    )
    for plan in plans:
        types = {t["role"]: t["type"] for t in plan.facts["tensors"]}
        assert types == {"src": 2, "dst": 2} | dict.fromkeys(
            ("weights", "bias", "mean", "variance", "running_mean", "running_variance"), 0
        )
        uses = {t["role"]: t["use"] for t in plan.facts["tensors"]}
        assert uses["running_mean"] == uses["running_variance"] == "in-out"


@pytest.mark.parametrize(
    ("op", "pass_", "mode", "capability", "message"),
    [
        ("relu", "forward-training", "fp8-tc", 90, "fp8-tc"),
        ("relu", "forward-training", "bf16-tc", 75, "7.5"),
        ("relu", "backward-weights", "fp32", 90, "relu has no backward-weights pass"),
        ("add", "backward-data", "fp32", 90, "add has no backward-data pass"),
        ("layernorm", "forward-training", "fp32", 90, "layernorm"),
        ("dropout", "forward-training", "fp32", 90, "keep"),
    ],
)
def test_refusals(pointwise, op, pass_, mode, capability, message):
    with pytest.raises(ValueError, match=message):
        pointwise.plans(op, pass_, SIZES, mode, capability=capability)


def test_unknown_parameters_and_layouts_are_refused(pointwise):
    with pytest.raises(ValueError, match="relu has no parameter slope"):
        pointwise.plans("relu", "forward-training", SIZES, slope=0.1)
    with pytest.raises(ValueError, match="blocked"):
        pointwise.plans("relu", "forward-training", SIZES, layout="blocked")
    with pytest.raises(ValueError, match="add up"):
        pointwise.plans("concat", "forward-training", SIZES, sources=(3, 4))


def test_more_channels_than_shared_memory_holds_are_refused(pointwise):
    assert pointwise.plans("lrn", "forward-training", (1, 4096, 1, 2), **LRN)
    with pytest.raises(ValueError, match="more than 4096 channels"):
        pointwise.plans("lrn", "forward-training", (1, 4097, 1, 2), **LRN)


@pytest.mark.parametrize(
    ("channels", "algorithm", "workspace"),
    # Channels enough for every multiprocessor: nothing to cut.
    [(3, "3 blocks per channel", 3 * 3 * 4), (64, "block per channel", 0)],
)
def test_channels_are_cut_until_the_gpu_is_full(pointwise, channels, algorithm, workspace):
    sizes = (3, channels, 37, 41)
    (plan,) = pointwise.plans("bias", "backward-weights", sizes, layout="nchw")
    assert plan.facts["algorithm"] == f"pydlbench bias {algorithm}"
    assert plan.facts["workspace_bytes"] == workspace


@given(
    divisor=st.integers(1, 2**40),
    limit=st.one_of(st.integers(1, 2**31), st.integers(1, 2**50)),
    data=st.data(),
)
def test_division_by_multiplication(pointwise, divisor, limit, data):
    near = st.integers(0, limit // divisor).map(lambda n: min(max(n * divisor - 1, 0), limit - 1))
    dividend = data.draw(st.one_of(st.integers(0, limit - 1), near))
    both = (ctypes.c_int64 * 2)()
    arguments = [ctypes.c_int64(n) for n in (divisor, limit, dividend)]
    pointwise.library.divide(*arguments, both)
    assert tuple(both) == divmod(dividend, divisor)
