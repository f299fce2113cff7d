"""Problems of FlashInfer-Trace: definitions with workloads become layers, or say why not."""

import json

import pytest

from pydlbench.errors import UsageError
from pydlbench.models.catalog import find_listed
from pydlbench.traces.files import is_recorded

GEMM = {
    "name": "gemm_n6_k8",
    "op_type": "gemm",
    "axes": {
        "M": {"type": "var"},
        "N": {"type": "const", "value": 6},
        "K": {"type": "const", "value": 8},
    },
    "inputs": {
        "A": {"shape": ["M", "K"], "dtype": "float16"},
        "B": {"shape": ["N", "K"], "dtype": "float16"},
    },
    "outputs": {"C": {"shape": ["M", "N"], "dtype": "float16"}},
    "reference": "import torch\ndef run(A, B): return A @ B.T",
}
NORM = {
    "name": "rmsnorm_h16",
    "op_type": "rmsnorm",
    "axes": {"rows": {"type": "var"}, "width": {"type": "const", "value": 16}},
    "inputs": {
        "x": {"shape": ["rows", "width"], "dtype": "bfloat16"},
        "weight": {"shape": ["width"], "dtype": "bfloat16"},
        "eps": {"shape": None, "dtype": "float32"},
    },
    "outputs": {"y": {"shape": ["rows", "width"], "dtype": "bfloat16"}},
    "reference": "def run(x, weight, eps): ...",
}


@pytest.fixture
def written(tmp_path):
    """Write a data set with one definition; return the paths of definition and workloads."""

    def write(definition, values, axis):
        paths = []
        lines = [
            {"definition": definition["name"], "workload": {"uuid": str(n), "axes": {axis: n}}}
            for n in values
        ]
        texts = json.dumps(definition), "\n".join(map(json.dumps, lines)) + "\n"
        for folder, ending, text in zip(
            ("definitions", "workloads"), ("json", "jsonl"), texts, strict=True
        ):
            path = tmp_path / folder / definition["op_type"] / f"{definition['name']}.{ending}"
            path.parent.mkdir(parents=True)
            path.write_text(text)
            paths.append(path)
        return paths

    return write


def layers(path):
    return find_listed([f"@{path}"])


@pytest.mark.parametrize("side", [0, 1])
def test_a_product_has_a_layer_for_each_distinct_workload(written, side):
    found = layers(written(GEMM, (3, 5, 3), "M")[side])
    assert [(each.layer.problem, each.precisions) for each in found] == [
        ("3x8:8x6wtagnk", ("fp16",)),
        ("5x8:8x6wtagnk", ("fp16",)),
    ]


def test_a_norm_is_over_the_rows(written):
    (found,) = layers(written(NORM, (4,), "rows")[1])
    assert found.precisions == ("bf16",)
    assert found.layer.op == "rmsnorm"
    assert (found.layer.batch, found.layer.width) == (4, 16)


def test_such_files_are_no_traces(written):
    assert not any(is_recorded(str(path)) for path in written(GEMM, (3,), "M"))


def test_constant_axes_need_no_workloads(tmp_path):
    path = tmp_path / "one.json"
    axes = {**GEMM["axes"], "M": {"type": "const", "value": 7}}
    path.write_text(json.dumps({**GEMM, "axes": axes}))
    assert [each.layer.problem for each in layers(path)] == ["7x8:8x6wtagnk"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"op_type": "gqa_paged"}, "tables of pages"),
        ({"op_type": "gqa_ragged"}, "op_type gqa_ragged"),
        ({"name": "gemma_norm"}, "gemma_norm"),
        ({"outputs": {"C": {"shape": ["M", "N"], "dtype": "float32"}}}, "other operands or types"),
        ({"outputs": {"C": {"shape": ["N", "M"], "dtype": "float16"}}}, "other operands or types"),
        ({"inputs": {"A": {"shape": ["M", "X"], "dtype": "float16"}}}, "'X'"),
        ({"axes": {**GEMM["axes"], "K": {"type": "const", "value": 2.5}}}, "size 2.5"),
        ({"axes": {**GEMM["axes"], "K": {"type": "const", "value": float("inf")}}}, "size inf"),
        ({"axes": {**GEMM["axes"], "K": 8}}, "nearest"),
    ],
)
def test_what_is_no_layer_is_named(written, change, words):
    path = written({**GEMM, **change}, (3,), "M")[1]
    with pytest.raises(UsageError, match=words) as caught:
        layers(path)
    assert "nearest" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        ("json", json.dumps(GEMM)),
        ("jsonl", "{}"),
        ("json", '{"axes": '),
        ("json", "[]"),
        ("json", '{"op_type": "gemm", "axes": [3]}'),
        ("json", '{"op_type": "gemm", "inputs": {"axes": {}}}'),
    ],
)
def test_a_file_without_its_other_half_or_damaged_is_one_line(tmp_path, ending, text):
    path = tmp_path / f"alone.{ending}"
    path.write_text(text)
    with pytest.raises(UsageError, match="nearest"):
        layers(path)


@pytest.mark.parametrize(
    "line", ['{"workload": "axes"}', '{"axes": [3]}', '{"workload": {"axes": 3}}']
)
def test_a_damaged_workload_is_one_line(written, line):
    path = written(GEMM, (3,), "M")[1]
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(UsageError, match=f"{path.name}:2: .*nearest"):
        layers(path)
