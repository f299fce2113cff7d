"""Convolution plans of cuDNN for a GPU that is described, not there: lists, modes, layouts, names.

cuDNN makes plans from a GPU's serialised properties. Where there is no driver, an empty stand-in
for libcuda.so.1 lets it load its library of compiled engines; nothing here runs a kernel.
"""

import ctypes
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pydlbench.ops.table import build_layer

_HERE = Path(__file__).parent
# As cuDNN 9.19 wrote them on an H200, and what later versions want besides.
_PROPERTIES = _HERE / "data" / "h200_cudnn_9.19.json"
_LATER = {"smCountOrigin": 0, "oversizedSharedMemoryPerBlock": 0, "memoryBusWidth": 6016}
# What libcudnn_engines_runtime_compiled.so.9 wants of the driver; 34 is CUDA_ERROR_STUB_LIBRARY.
_DRIVER_FUNCTIONS = (
    "cuGetErrorString",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuTensorMapEncodeIm2col",
    "cuTensorMapEncodeTiled",
)
# What its compiler of fused kernels wants besides, before it lists any; nothing can be built.
_COMPILER_FUNCTIONS = """
int cuCtxGetCurrent(void** context) { *context = 0; return 0; }
int cuDriverGetVersion(int* version) { *version = 13000; return 0; }
int cuGetErrorName(int, const char** name) { *name = "stub"; return 0; }
""" + "".join(
    f"int {name}() {{ return 34; }}\n"
    for name in (
        *("cuCtxGetLimit", "cuCtxPopCurrent", "cuCtxPushCurrent", "cuDeviceGet"),
        *("cuDeviceGetCount", "cuKernelGetAttribute", "cuKernelGetFunction"),
        *("cuKernelSetAttribute", "cuLaunchCooperativeKernel", "cuLaunchKernel"),
        *("cuLaunchKernelEx", "cuLibraryGetKernel", "cuLibraryLoadData"),
        *("cuLibraryLoadFromFile", "cuLibraryUnload", "cuLinkAddData", "cuLinkComplete"),
        *("cuLinkCreate", "cuLinkDestroy", "cuOccupancyMaxPotentialClusterSize"),
        "cuStreamGetCtx",
    )
)
TENSOR_CORE_MODES = ("tf32", "fp16-tc", "bf16-tc")


def _wheel_file(package: str, pattern: str) -> Path | None:
    """Return a file of an NVIDIA wheel."""
    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        return None
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        for file in sorted((Path(folder) / package / "lib").glob(pattern)):
            return file
    return None


def _driver_folder(folder: Path, more: str) -> dict[str, str]:
    """Return the environment in which libcuda.so.1 is found: the driver's, or a stand-in."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        pass
    else:
        return dict(os.environ)
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        pytest.fail("no C++ compiler for the driver's stand-in; set CXX")
    source = folder / "driver.cpp"
    functions = "".join(f"int {name}() {{ return 34; }}\n" for name in _DRIVER_FUNCTIONS) + more
    source.write_text(f'extern "C" {{\n{functions}}}\n', encoding="utf-8")
    target = folder / "libcuda.so.1"
    options = ["-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(source), "-o", str(target)]
    subprocess.run([compiler, *options], check=True)
    paths = [str(folder), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {**os.environ, "LD_LIBRARY_PATH": os.pathsep.join(paths)}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """All lists, made once in another process."""
    return _listed(tmp_path_factory, "main", "")


@pytest.fixture(scope="module")
def unbuilt(tmp_path_factory):
    """Lists of plans that only a driver can build."""
    return _listed(tmp_path_factory, "unbuilt", _COMPILER_FUNCTIONS)


def _listed(tmp_path_factory: Any, part: str, driver: str) -> dict[str, Any]:
    if importlib.util.find_spec("pydlbench._cuda") is None:
        pytest.skip("built without CUDA")
    cudnn = _wheel_file("cudnn", "libcudnn.so.9")
    cublaslt = _wheel_file("cu13", "libcublasLt.so.13") or _wheel_file("cublas", "libcublasLt.so.*")
    if cudnn is None or cublaslt is None:
        pytest.skip("no cuDNN and cuBLASLt wheels")
    folder = tmp_path_factory.mktemp("plans")
    written = folder / "results.json"
    properties = folder / "properties.json"
    properties.write_text(json.dumps(json.loads(_PROPERTIES.read_text()) | _LATER))
    arguments = [part, str(properties), str(cudnn), str(cublaslt), str(written)]
    done = subprocess.run(
        [sys.executable, str(_HERE / "plan_lists.py"), *arguments],
        env=_driver_folder(folder, driver),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(written.read_text(encoding="utf-8"))
    return found


def lists(results: dict[str, Any], **where: str) -> list[dict[str, Any]]:
    """Return the lists of plans with these values of layer, pass and mode."""
    chosen = [
        one for one in results["lists"] if all(one[key] == value for key, value in where.items())
    ]
    assert chosen
    return chosen


def plans(results: dict[str, Any], **where: str) -> list[dict[str, Any]]:
    return [plan for one in lists(results, **where) for plan in one["plans"]]


def test_every_layer_pass_and_mode_has_plans_in_both_layouts(results):
    for one in results["lists"]:
        assert isinstance(one["plans"], list), one["plans"]
        working = {plan["variant"] for plan in one["plans"] if plan["error"] is None}
        assert working == {"nchw", "nhwc"}, one


def test_plans_that_need_no_compiler_can_all_be_built(results):
    failed = {
        (one["layer"], one["pass"], one["mode"], plan["algorithm"]): plan["error"]
        for one in results["lists"]
        for plan in one["plans"]
        if plan["error"] is not None and not plan["runtime_compiled"]
    }
    assert not failed


@pytest.mark.parametrize("mode", ["fp32", "fp16"])
def test_modes_of_the_cuda_cores_have_no_tensor_core_plan(results, mode):
    for plan in plans(results, mode=mode):
        assert plan["tensor_cores"] is False
        assert "TENSOR_CORE" not in plan["notes"]
        assert "DOWN_CONVERT_INPUTS" not in plan["notes"]


@pytest.mark.parametrize("mode", TENSOR_CORE_MODES)
def test_tensor_core_modes_have_only_such_plans_and_sum_in_float32(results, mode):
    for plan in plans(results, mode=mode):
        assert plan["tensor_cores"] is True
        assert "TENSOR_CORE" in plan["notes"]
        assert "DOWN_CONVERT_INPUTS" not in plan["notes"]
        assert plan["accumulate"] == "float32"


def test_fp16_offers_both_accumulators_and_says_which(results):
    found = plans(results, mode="fp16", layer="dense", **{"pass": "forward-inference"})
    assert {plan["accumulate"] for plan in found} == {"float32", "float16"}
    for plan in plans(results, mode="fp16"):
        half = "computing in float16" in plan["algorithm"]
        half = half or "REDUCED_PRECISION_REDUCTION" in plan["notes"]
        assert plan["accumulate"] == ("float16" if half else "float32")


def test_tensors_have_the_storage_the_mode_says(results):
    expected = {"fp32": "float32", "tf32": "float32", "bf16-tc": "bfloat16"}
    for one in results["lists"]:
        for plan in one["plans"]:
            types = {tensor["type"] for tensor in plan["tensors"]}
            assert types == {expected.get(one["mode"], "float16")}


def test_the_result_of_a_pass_is_its_output(results):
    written = {"backward-data": "src", "backward-weights": "weights"}
    for one in results["lists"]:
        for plan in one["plans"]:
            roles = [tensor["role"] for tensor in plan["tensors"]]
            assert roles == ["src", "weights", "dst"]
            outputs = [t["role"] for t in plan["tensors"] if t["use"] == "output"]
            assert outputs == [written.get(one["pass"], "dst")]


def test_strides_follow_the_layout(results):
    for plan in plans(results, layer="dense", mode="fp32"):
        src, weights, _ = plan["tensors"]
        assert src["dims"] == [4, 16, 9, 9]
        assert weights["dims"] == [24, 16, 3, 3]
        if plan["variant"] == "nchw":
            assert plan["layout"] == "src nchw, weights kcrs, dst nchw"
            assert src["strides"] == [1296, 81, 9, 1]
        else:
            assert plan["layout"] == "src nhwc, weights krsc, dst nhwc"
            assert src["strides"] == [1296, 1, 144, 16]
            assert weights["strides"] == [144, 1, 48, 16]


@pytest.mark.parametrize(
    ("kind", "src", "weights", "layouts"),
    [
        ("conv1d", [4, 16, 1, 9], [24, 16, 1, 3], {"src nchw, weights kcrs, dst nchw"}),
        (
            "conv3d",
            [2, 16, 4, 6, 5],
            [24, 16, 3, 3, 1],
            {
                "src ncdhw, weights kctrs, dst ncdhw",
                "src ndhwc, weights ktrsc, dst ndhwc",
            },
        ),
    ],
)
def test_images_may_have_one_side_or_three(results, kind, src, weights, layouts):
    lists = [found for name, found in results["sides"].items() if name.startswith(kind)]
    for found in lists:
        assert any(plan["error"] is None for plan in found), found
        for plan in found:
            assert [tensor["dims"] for tensor in plan["tensors"][:2]] == [src, weights]
    assert layouts <= {plan["layout"] for found in lists for plan in found}


def test_no_plan_is_listed_twice(results):
    for one in results["lists"]:
        names = [(plan["algorithm"], plan["variant"]) for plan in one["plans"]]
        assert len(names) == len(set(names))


def test_padding_is_done_apart_only_where_sides_differ(results):
    for one in results["lists"]:
        backward_data = one["pass"] == "backward-data"
        apart = [p for p in one["plans"] if done_apart(p["algorithm"], backward_data=backward_data)]
        other = len(one["plans"]) - len(apart)
        assert other > 0
        if one["layer"] != "asymmetric":
            assert apart == []
            continue
        assert apart
        size = 2 if one["mode"] in ("fp16", "fp16-tc", "bf16-tc") else 4
        padded = 2 * 16 * 15 * 15 * size
        for plan in apart:
            assert plan["workspace_bytes"] >= padded
            # The caller's tensor is the one without the padding.
            assert plan["tensors"][0]["dims"] == [2, 16, 14, 14]


def done_apart(algorithm: str, *, backward_data: bool) -> bool:
    if backward_data:
        return algorithm.endswith(" + crop 0,1,0,1")
    return algorithm.startswith("pad 0,1,0,1 + engine ")


def test_the_workspace_is_known_before_the_plan_is_built(results):
    known = [plan for plan in plans(results) if plan["error"] is None]
    assert all(plan["listed_bytes"] == plan["workspace_bytes"] for plan in known)


def test_a_layout_can_be_asked_for(results):
    assert {plan["variant"] for plan in results["nhwc"]} == {"nhwc"}
    both = plans(results, layer="dense", mode="fp32", **{"pass": "forward-inference"})
    assert [p["algorithm"] for p in results["nhwc"]] == [
        p["algorithm"] for p in both if p["variant"] == "nhwc"
    ]


def test_the_sweep_adds_to_what_cudnn_lists(results):
    everything = plans(results, layer="dense", mode="fp32", **{"pass": "forward-inference"})
    names = [(p["variant"], p["algorithm"]) for p in everything]
    listed = [(p["variant"], p["algorithm"]) for p in results["listed only"]]
    assert len(listed) < len(names)
    assert set(listed) < set(names)
    for variant in ("nchw", "nhwc"):
        first = [name for name in listed if name[0] == variant]
        assert [name for name in names if name[0] == variant][: len(first)] == first


def test_the_workspace_limit_holds(results):
    assert results["no workspace"]
    assert all(plan["workspace_bytes"] == 0 for plan in results["no workspace"])
    everything = plans(results, layer="dense", mode="fp32", **{"pass": "forward-inference"})
    assert any(plan["workspace_bytes"] > 0 for plan in everything)


@pytest.mark.parametrize("mode", ["fp32", "tf32", "fp16", "fp16-tc", "bf16-tc"])
def test_bias_and_relu_are_fused(results, mode):
    working = [plan for plan in results["fused"][mode] if plan["error"] is None]
    assert {plan["variant"] for plan in working} == {"nchw", "nhwc"}
    for plan in working:
        assert plan["primitive"] == "convolution + bias + ReLU forward"
        assert plan["tensor_cores"] is (mode in TENSOR_CORE_MODES)
        assert plan["accumulate"] == "float32"
        roles = {tensor["role"]: tensor for tensor in plan["tensors"]}
        assert list(roles) == ["src", "weights", "bias", "dst"]
        assert roles["bias"]["dims"] == [1, 24, 1, 1]
        assert roles["bias"]["use"] == "input"


def test_what_there_is_no_plan_for_is_said_in_one_sentence(results):
    assert results["fp8"].startswith("fp8-tc is for GEMM")
    assert results["fused backward"].endswith("fused in the forward pass only")
    assert "compute capability 7.5" in results["bf16 on Turing"]
    assert "has no bf16-tc" in results["bf16 on Turing"]
    assert results["too little"].startswith(
        "cuDNN has no tf32 plan for convolution backward data: "
    )
    assert "more workspace than the limit" in results["too little"]
    assert not any("\n" in results[name] for name in ("fp8", "bf16 on Turing", "too little"))


@pytest.mark.gpu
def test_properties_of_a_gpu_give_the_plans_of_that_gpu():
    cuda = pytest.importorskip("pydlbench._cuda", reason="built without CUDA")
    cuda.load_libraries(None, None)
    device = cuda.Device(0)
    properties = cuda.device_properties(device)
    assert json.loads(properties)["multiProcessorCount"] == device.facts["multiprocessors"]
    layer = build_layer(
        "conv", batch=4, in_channels=16, in_size=9, out_channels=24, kernel=3, padding=1
    )
    asked = ("conv2d", "forward-inference", "fp16-tc", layer.problem_fields())
    there = cuda.plans(device, *asked)
    described = cuda.plans(None, *asked, device_properties=properties)
    assert [plan.algorithm for plan in described] == [plan.algorithm for plan in there]


def test_attention_has_plans_in_both_directions(unbuilt):
    """With and without a causal mask, with as many heads of keys as of queries and with fewer."""
    version = next(iter(unbuilt.values()))[0]["library"].split()[1].split(".")
    if [*map(int, version[:2])] < [9, 21]:
        pytest.skip("cuDNN before 9.21 has no mask in its attention")
    lists = {name: found for name, found in unbuilt.items() if name.startswith("attention")}
    assert len(lists) == 8
    for name, found in lists.items():
        _, pass_, heads, _ = name.split()
        assert found, name
        for plan in found:
            assert plan["tensor_cores"]
            assert plan["accumulate"] == "float32"
            uses = [(tensor["role"], tensor["use"]) for tensor in plan["tensors"]]
            written = [role for role, use in uses if use == "output"]
            assert written == (["dst"] if "forward" in pass_ else ["query", "key", "value"])
            assert plan["tensors"][1]["dims"] == [2, int(heads), 512, 64]


def test_int8_convolutions_sum_in_int32(unbuilt):
    lists = {name: found for name, found in unbuilt.items() if name.startswith("int8")}
    assert any(plan["tensor_cores"] for plan in lists["int8 dense"])
    for found in lists.values():
        assert found
        for plan in found:
            assert plan["accumulate"] == "int32"
            types = {tensor["role"]: tensor["type"] for tensor in plan["tensors"]}
            assert types == {"src": "int8", "weights": "int8", "dst": "int32"}
