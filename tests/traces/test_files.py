"""Logs and traces as they were recorded, and files that are none."""

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from pydlbench.analysis.ledger import ledger_of
from pydlbench.analysis.recorded import distinct_problems, layers_to_time
from pydlbench.errors import UsageError
from pydlbench.traces import files
from pydlbench.traces.files import is_recorded, read

DATA = Path(__file__).parent / "data"
CONV1, CONV2 = "mb8ic3ih32oc16oh32kh3ph1", "mb8ic16ih32oc32oh16kh3sh2ph1"
LINEAR = "8x2048:2048x10"
#: What a step of training of the network has, whoever recorded it.
STEP = {
    (CONV1, "forward"): 1,
    (CONV1, "backward-weights"): 1,
    (CONV2, "forward"): 1,
    (CONV2, "backward-weights"): 1,
    (CONV2, "backward-data"): 1,
    (LINEAR, "forward"): 1,
    (LINEAR, "backward-weights"): 1,
    (LINEAR, "backward-data"): 1,
}


def name_of(name):
    return str(DATA / f"{name}.gz")


def products(name):
    """Convolutions and products of a file, by problem and pass, with their numbers."""
    found = Counter()
    for problem in distinct_problems(read(name_of(name))):
        for each in problem.meaning.layers:
            if each.layer.multiply_adds:
                found[each.layer.problem, each.pass_] += problem.count
    return found


@pytest.mark.parametrize("name", ["eager.json", "modules.json", "compiled.json", "execution.json"])
def test_the_problems_are_those_of_the_step_that_ran(name):
    assert products(name) == STEP


def test_a_log_has_the_same_problems_and_tensorflow_pads_them_otherwise():
    found = products("tensorflow.log")
    padded = {
        (problem.removesuffix("ph1") if problem == CONV2 else problem, pass_): count
        for (problem, pass_), count in STEP.items()
        if problem != LINEAR
    }
    assert {key: found[key] for key in padded} == padded
    # Gradients of products are products like all others there.
    others = {"8x2048:2048x10", "2048x8:8x10", "8x10:10x2048"}
    assert {problem for problem, _ in found} - {problem for problem, _ in padded} == others


def test_onnxruntime_runs_forward_and_lacks_strides():
    assert products("onnxruntime.json") == {
        (CONV1, "forward"): 1,
        (CONV2, "forward"): 1,
        (LINEAR, "forward"): 1,
    }


def test_a_library_s_log_has_all_kinds_of_primitives():
    found = {
        (problem.call.operator, problem.meaning.dtypes): problem.meaning.layers[0].layer.problem
        for problem in distinct_problems(read(name_of("torch.log")))
        if problem.meaning.layers and problem.meaning.layers[0].layer.multiply_adds
    }
    assert found["oneDNN convolution", ("bfloat16",)] == "mb4ic16ih14oc32oh14kh3ph1"
    assert found["oneDNN deconvolution", ("float32",)] == "deconv:mb4ic16ih14oc8oh29kh3sh2"
    assert found["oneDNN matmul", ("bfloat16",)] == "64x128:128x32"
    assert found["MKL SGEMM", ("float32",)] in ("64x128:128x32", "8x108:108x144")


def test_the_time_of_a_log_is_the_sum_of_its_lines():
    found = ledger_of(read(name_of("tensorflow.log")), "log")
    text = gzip.decompress((DATA / "tensorflow.log.gz").read_bytes()).decode()
    lines = [line.rpartition(",")[2] for line in text.splitlines() if ",exec," in line]
    assert sum(call.count for call in found.calls) == len(lines)
    assert found.step_s == pytest.approx(sum(map(float, lines)) / 1e3)
    assert sum(call.device_s for call in found.calls) == pytest.approx(found.step_s)


def test_the_time_of_a_trace_is_that_of_its_steps_and_events():
    recorded = read(name_of("eager.json"))
    found = ledger_of(recorded, "eager")
    events = json.loads(gzip.decompress((DATA / "eager.json.gz").read_bytes()))["traceEvents"]
    steps = [one["dur"] for one in events if one["name"].startswith("ProfilerStep#")]
    assert found.steps == len(steps) == 2
    assert found.step_s == pytest.approx(sum(steps) / len(steps) / 1e6)
    # Views take the rest of what its calls take.
    assert sum(each.seconds for each in distinct_problems(recorded)) < found.device_time.kernel_s
    forward = [one["dur"] for one in events if one["name"] == "aten::convolution"]
    told = [one for one in found.calls if one.operator == "aten.convolution"]
    assert sum(one.device_s for one in told) == pytest.approx(sum(forward) / 2 / 1e6)


def test_modules_are_those_of_the_user_backward_too():
    found = ledger_of(read(name_of("modules.json")), "modules")
    modules = {module.module.rpartition("/")[2]: module for module in found.modules}
    assert {"Conv2d", "BatchNorm2d", "Linear"} <= modules.keys()
    (gradient,) = (
        one
        for one in found.calls
        if one.operator == "aten.convolution_backward" and one.shapes.startswith("8x32")
    )
    assert (gradient.module.rpartition("/")[2], gradient.direction) == ("Conv2d", "backward")


def test_what_the_compiler_has_written_is_counted_and_named():
    found = ledger_of(read(name_of("compiled.json")), "compiled")
    generated = [one for one in found.calls if one.operator == "generated kernels"]
    assert {one.direction for one in generated} == {"forward", "backward"}
    assert all(one.share > 0.1 for one in generated)


def test_an_execution_trace_is_weighted_by_limits():
    found = ledger_of(
        read(name_of("execution.json")),
        "x",
        limit_s=lambda call: 9.0 if "conv" in call.operator else 1.0,
    )
    assert found.step_s is None
    assert {one.device_s for one in found.calls} == {None}
    assert "convolution" in found.calls[0].operator


def test_layers_that_are_timed_make_most_of_the_time():
    problems = distinct_problems(read(name_of("tensorflow.log")))
    layers, light = layers_to_time(problems)
    assert {(each.layer.problem, precision) for each, precision in layers} == {
        (problem, "fp32")
        for problem in ("8x2048:2048x10", "8x10:10x2048", CONV1, CONV2.removesuffix("ph1"))
    }
    assert light == 7 - 1


# -----------------------------------------------------------------------------
# Traces of a GPU: a call takes what its kernels take.


def event(name, ts, dur, cat="cpu_op", **args):
    return {
        "ph": "X",
        "name": name,
        "cat": cat,
        "ts": ts,
        "dur": dur,
        "pid": 1,
        "tid": 2,
        "args": args,
    }


def written(tmp_path, document, name="trace.json"):
    path = tmp_path / name
    path.write_text(document if isinstance(document, str) else json.dumps(document), "utf-8")
    return str(path)


PRODUCT = {
    "Input type": ["float", "float"],
    "Input Dims": [[4, 8], [8, 2]],
    "Input Strides": [[8, 1], [2, 1]],
    "Concrete Inputs": ["", ""],
}


def test_a_call_on_a_gpu_takes_what_its_kernels_take(tmp_path):
    events = [
        event("aten::matmul", 0, 50, **{"External id": 1}, **PRODUCT),
        event("aten::mm", 5, 40, **{"External id": 2}, **PRODUCT),
        event("gemm_kernel", 60, 700, "kernel", **{"External id": 2}),
    ]
    recorded = read(written(tmp_path, {"traceEvents": events}))
    assert recorded.on_gpu
    (problem,) = distinct_problems(recorded)
    assert (problem.call.operator, problem.seconds) == ("aten.mm", pytest.approx(700e-6))
    assert problem.meaning.layers[0].layer.problem == "4x8:8x2"


# -----------------------------------------------------------------------------
# Files that are none.


def test_a_list_of_layers_is_no_log(tmp_path):
    assert not is_recorded(written(tmp_path, "conv3\n--dir=FWD_B mb2ic16ih14oc32kh3ph1\n", "list"))
    assert not is_recorded(str(tmp_path / "missing"))
    assert is_recorded(name_of("tensorflow.log"))
    assert is_recorded(written(tmp_path, "hello\ndnnl_verbose,exec,cpu", "log"))


LINE = (
    "dnnl_verbose,exec,cpu,matmul,gemm:jit,undef,src_f32::blocked:ab:f0 wei_f32::blocked:ab:f0 "
    "dst_f32::blocked:ab:f0,,,4x8:8x2,0.5"
)


def test_a_log_of_the_first_version_with_types_is_read(tmp_path):
    old = read(written(tmp_path, LINE.replace("dnnl", "mkldnn", 1)))
    assert old.timelines == read(written(tmp_path, LINE, "new.log")).timelines


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("[", "not JSON"),
        ("[" * 200_000, "trace.json:"),
        ('{"a": 1}', "neither traceEvents nor nodes"),
        ('{"traceEvents": []}', "no operators and no kernels"),
        ('{"traceEvents": [{"ph": "X", "dur": "long"}]}', "event 0: Expected `float`"),
        ('{"traceEvents": [{"ph": "X", "dur": -1}]}', "event 0: "),
        ('{"traceEvents": [7]}', "event 0: Expected `object`"),
        ('{"traceEvents": [{"ph":"X","cat":"trace","name":"aten::mm"}]}', "record_shapes=True"),
        ('{"nodes": [{"name": "x"}]}', "node 0: Object missing required field `id`"),
        ('{"nodes": [{"id": 1, "ctrl_deps": 2}, {"id": 2, "ctrl_deps": 1}]}', "no operators"),
        ('[{"cat": "Node", "ph": "X", "name": "a"}]', "nodes without shapes"),
        ("onednn_verbose,v1,info,oneDNN v3.7.3", "no execution in it"),
        ("mkldnn_verbose,exec,reorder,jit,undef,in:f32_ab out:f32_ba,num:1,2x3,0.1", "no types"),
        ("hello", "no log and no trace"),
        ("", "no log and no trace"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_in_one_line(tmp_path, content, part):
    with pytest.raises(UsageError) as caught:
        read(written(tmp_path, content))
    assert part in str(caught.value)
    assert "trace.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_damaged_or_too_large_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "torn.json.gz"
    path.write_bytes(gzip.compress(b"[" + b" " * 10_000)[:-12])
    with pytest.raises(UsageError, match="damaged"):
        read(str(path))
    with pytest.raises(UsageError, match="No such file"):
        read(str(tmp_path / "missing"))
    with pytest.raises(UsageError, match=r"nearest: .*torn\.json\.gz"):
        read(str(tmp_path))
    monkeypatch.setattr(files, "LARGEST", 1 << 20)
    path.write_bytes(gzip.compress(b"[" + b" " * (2 << 20)))
    with pytest.raises(UsageError, match="1 MiB"):
        read(str(path))
    monkeypatch.setattr(files, "MAX_ITEMS", 2)
    with pytest.raises(UsageError, match="nearest: record fewer"):
        read(written(tmp_path, {"traceEvents": [event("aten::mm", 0, 1)] * 3}))
    with pytest.raises(UsageError, match=r":3: .* 2 "):
        read(written(tmp_path, f"{LINE}\n{LINE}\n{LINE}\n"))


@pytest.mark.parametrize("behind", [b"junk", gzip.compress(b"1", mtime=0)[:-3]])
def test_members_of_gzip_are_read_and_what_stands_behind_them_is_noted(tmp_path, behind):
    path = tmp_path / "step.log.gz"
    halves = gzip.compress(f"{LINE}\n".encode()), gzip.compress(f"{LINE}\n".encode())
    path.write_bytes(b"".join(halves) + behind)
    recorded = read(str(path))
    assert len(recorded.calls) == 2
    assert any(f"{len(behind)} bytes behind" in note for note in recorded.notes)
    path.write_bytes(b"".join(halves) + bytes(100))
    assert not any("behind" in note for note in read(str(path)).notes)


def test_a_circle_of_nodes_and_torn_lines_are_told(tmp_path):
    nodes = [{"id": 1, "ctrl_deps": 2}, {"id": 2, "ctrl_deps": 1}, {"id": 3, "name": "aten::mm"}]
    recorded = read(written(tmp_path, {"nodes": nodes}))
    assert [one.operator for one in recorded.calls] == ["aten.mm"]
    assert any("2 nodes that nothing calls" in note for note in recorded.notes)
    text = f"worker-0 | {LINE}\n{LINE}\n{LINE.rpartition(',')[0]},soon\n"  # a server's prefix
    recorded = read(written(tmp_path, text))
    assert len(recorded.calls) == 2
    assert "1 torn lines were passed over" in recorded.notes


def test_older_execution_traces_have_operands_side_by_side(tmp_path):
    node = {
        "id": 3,
        "parent": 2,
        "name": "aten::add",
        "inputs": [[5, 6, 0, 32, 4, "cuda:0"], [7, 8, 0, 8, 4, "cuda:0"], 1],
        "input_shapes": [[4, 8], [8], []],
        "input_types": ["Tensor(float)"] * 2 + ["Int"],
        "outputs": [[9, 10, 0, 32, 4, "cuda:0"]],
        "output_shapes": [[4, 8]],
        "output_types": ["Tensor(float)"],
        "op_schema": "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor",
    }
    recorded = read(written(tmp_path, {"nodes": [node]}))
    assert recorded.on_gpu
    (problem,) = distinct_problems(recorded)
    signature = "aten.add.Tensor(float32[4, 8](8, 1), float32[8](1), alpha=1)"
    assert problem.call.signature == signature
    assert problem.meaning.layers[0].layer.problem == "bias:mb4ic8"
    assert problem.meaning.bytes == 4 * (32 + 8 + 32)


def test_a_profile_without_tensors_is_counted(tmp_path):
    node = event("conv_kernel_time", 0, 5, "Node", op_name="Conv", input_type_shape=3)
    (problem,) = distinct_problems(read(written(tmp_path, [node])))
    assert (problem.call.operator, problem.meaning.layers) == ("onnx.Conv", ())


def node_that_ran(operator, inputs, output):
    return event(
        f"{operator}_kernel_time",
        ts=0,
        dur=5,
        cat="Node",
        op_name=operator,
        input_type_shape=[{"float": shape} for shape in inputs],
        output_type_shape=[{"float": output}],
    )


@pytest.mark.parametrize(
    ("operator", "inputs", "output", "layer", "multiply_adds"),
    [
        # Weights of both kinds are packed, and then no operands.
        ("LSTM", [[6, 2, 4], [1, 24]], [6, 1, 2, 3], "lstm:l1t6mb2slc4dhc3", 6 * 2 * 12 * 7),
        # Rows lie before the batches, and the second matrix is turned round.
        ("FusedMatMul", [[5, 2, 4], [7, 2, 4]], [2, 5, 7], "2x5x4:2x4x7", 2 * 5 * 4 * 7),
        ("Gemm", [[4, 5], [7, 4]], [5, 7], "5x4:4x7", 5 * 4 * 7),
    ],
)
def test_what_a_profile_of_nodes_lacks_is_inferred(
    tmp_path, operator, inputs, output, layer, multiply_adds
):
    node = node_that_ran(operator, inputs, output)
    (problem,) = distinct_problems(read(written(tmp_path, [node])))
    (own,) = problem.meaning.layers
    assert own.layer.problem.partition("wtag")[0] == layer
    assert problem.meaning.product_flops == 2 * multiply_adds


def test_wide_types_have_no_layer(tmp_path):
    double = {**PRODUCT, "Input type": ["double", "double"]}
    recorded = read(written(tmp_path, [event("aten::mm", 0, 5, **double)]))
    (problem,) = distinct_problems(recorded)
    assert problem.meaning.layers_missing == "no layer computes in float64"


def test_a_log_of_a_gpu_has_no_limits_here(tmp_path):
    recorded = read(written(tmp_path, LINE.replace(",exec,cpu,", ",exec,gpu:0,")))
    assert recorded.on_gpu


def test_events_within_each_other_are_bounded(tmp_path):
    deep = [event("aten::new", place, 10_000 - 2 * place, **PRODUCT) for place in range(1500)]
    with pytest.raises(UsageError, match=r"trace.json: 'aten::new': .*1,000"):
        read(written(tmp_path, deep))


def test_an_optimizer_s_factors_make_no_other_step(tmp_path):
    scalar = {**PRODUCT, "Input type": ["float", "Scalar"], "Input Dims": [[4, 8], []]}
    events = [
        each
        for number, factor in enumerate((0.1, 0.19, 1e-05))
        for each in (
            event(f"ProfilerStep#{number}", 200 * number, 100, "user_annotation"),
            event("aten::mul", 200 * number + 5, 9, **scalar | {"Concrete Inputs": ["", factor]}),
        )
    ]
    recorded = read(written(tmp_path, events))
    assert (len(recorded.timelines), recorded.notes) == (3, ())
    (problem,) = distinct_problems(recorded)
    assert (problem.count, problem.seconds) == (1, pytest.approx(9e-6))


def test_steps_whose_calls_differ_are_their_mean(tmp_path):
    def step(number, begin, calls):
        return [
            event(f"ProfilerStep#{number}", begin, 100, "user_annotation"),
            *(event("aten::mm", begin + 10 * place, 5, **PRODUCT) for place in range(calls)),
        ]

    recorded = read(written(tmp_path, [*step(1, 0, 1), *step(2, 200, 3)]))
    (problem,) = distinct_problems(recorded)
    assert (problem.count, problem.seconds) == (2, pytest.approx(10e-6))
