"""Profiles of a GPU: each dialect, and what belongs to which call."""

import pytest
from invented_profile import ADD, MM, event, launched, module, step, write

from pydlbench.errors import UsageError
from pydlbench.traces import timeline
from pydlbench.traces.files import read, read_captures
from pydlbench.traces.kernel_names import category_of, fused_operators, short_name
from pydlbench.traces.pytorch import with_captures


@pytest.fixture
def recorded(tmp_path):
    return lambda events, **how: read(write(tmp_path / "trace.json", events, **how))


def by_operator(recording):
    """Microseconds by the operator, or by the kernel of no operator."""
    found = {}
    for one in recording.timelines:
        for activity in one.activities:
            call = activity.origin.call
            name = call.operator if call else activity.name
            found[name] = found.get(name, 0.0) + activity.seconds * 1e6
    return {name: round(value, 3) for name, value in found.items()}


def dialect(operator, runtime, launch, kernel, copy):
    return [
        event(operator, "aten::mm", 10, 60, **{"External id": 5}, **MM),
        event(runtime, launch, 30, 10, correlation=77, **{"External id": 77}),
        event(kernel, "some_gemm", 100, 800, tid=7, pid=0, correlation=77, **{"External id": 77}),
        event(operator, "aten::copy_", 80, 15, **{"External id": 6}, **ADD),
        event(runtime, launch, 82, 3, correlation=78, **{"External id": 78}),
        event(copy, "Memcpy DtoD", 900, 50, tid=7, pid=0, correlation=78, bytes=4),
    ]


@pytest.mark.parametrize(
    "names",
    [
        ("cpu_op", "cuda_runtime", "cudaLaunchKernel", "kernel", "gpu_memcpy"),
        ("cpu_op", "cuda_driver", "cuLaunchKernel", "kernel", "gpu_memcpy"),
        ("Operator", "Runtime", "cudaLaunchKernel", "Kernel", "Memcpy"),
        ("cpu_op", "cuda_runtime", "hipExtModuleLaunchKernel", "kernel", "gpu_memcpy"),
        ("cpu_op", "xpu_runtime", "urEnqueueKernelLaunch", "kernel", "gpu_memcpy"),
        ("cpu_op", "mtia_runtime", "runFunction", "mtia_ccp_events", "gpu_memcpy"),
    ],
)
def test_every_dialect_attributes_kernels_by_their_launch(recorded, names):
    found = recorded(dialect(*names))
    assert by_operator(found) == {"aten.mm": 800, "aten.copy_": 50}
    assert found.device == "NVIDIA H100 80GB HBM3"
    (one,) = found.timelines
    assert {each.kind for each in one.activities} == {timeline.KERNEL, timeline.COPY}
    assert one.span_s == pytest.approx(850e-6)


def test_without_a_recorded_launch_the_external_id_tells_the_operator(recorded):
    events = [
        event("cpu_op", "aten::mm", 10, 60, **{"External id": 5}, **MM),
        event("kernel", "g", 100, 800, tid=7, correlation=9, **{"External id": 5}),
    ]
    assert by_operator(recorded(events)) == {"aten.mm": 800}


def test_kernels_that_were_launched_before_the_recording_are_outside_of_its_steps(recorded):
    events = [
        step(3, 0, 1000),
        event("kernel", "earlier", 5, 40, tid=7, pid=0, correlation=1),
        *launched("aten::mm", "g", 10, 100, 200, 5, **MM),
    ]
    found = recorded(events)
    assert by_operator(found) == {"aten.mm": 200}
    assert found.outside_s == pytest.approx(40e-6)
    assert any("no recorded launch" in note for note in found.notes)


def test_steps_follow_each_other_on_the_device(recorded):
    events = [step(1, 0, 100), step(2, 100, 100)]
    events += launched("aten::mm", "g", 10, 300, 200, 1, **MM)
    events += launched("aten::mm", "g", 110, 600, 200, 2, **MM)
    first, second = recorded(events).timelines
    assert first.span_s == pytest.approx(200e-6)
    assert second.span_s == pytest.approx(300e-6)  # from the end of the step before
    assert first.host_s == pytest.approx(100e-6)
    assert second.idle() == {timeline.LAUNCHED: pytest.approx(100e-6)}


def test_streams_overlap_and_only_exposed_communication_counts(recorded):
    events = launched("aten::mm", "g", 0, 100, 100, 1, **MM)
    events += launched("c10d::allreduce_", "ncclDevKernel_AllReduce", 30, 150, 100, 2, stream=20)
    events += [
        event("cuda_runtime", "cudaMemcpyAsync", 60, 5, correlation=3),
        event("gpu_memcpy", "Memcpy HtoD", 240, 30, tid=9, pid=0, correlation=3),
    ]
    (one,) = recorded(events).timelines
    assert one.kernel_s == pytest.approx(230e-6)
    assert one.busy_s == pytest.approx(170e-6)
    assert one.exposed_s(timeline.COLLECTIVE) == pytest.approx(50e-6)
    assert one.exposed_s(timeline.COPY) == pytest.approx(20e-6)
    assert one.idle() == {}


def test_idle_time_has_a_cause(recorded):
    events = launched("aten::mm", "g", 0, 10, 10, 1, **MM)
    events += launched("aten::mm", "g", 40, 60, 10, 2, **MM)  # launched from 45 to 50
    events += [
        event("cpu_op", "aten::item", 65, 20, **{"External id": 8}),
        event("cuda_runtime", "cudaStreamSynchronize", 66, 10, correlation=40),
    ]
    events += launched("aten::mm", "g", 90, 110, 10, 3, **MM)  # launched from 95 to 100
    events += [event("kernel", "lost", 150, 10, tid=7, pid=0, correlation=99)]
    (one,) = recorded(events).timelines
    found = {cause: round(seconds * 1e6) for cause, seconds in one.idle().items()}
    assert found == {
        timeline.NOT_LAUNCHED: 30,  # 20 to 50
        timeline.LAUNCHED: 10 + 10,
        f"{timeline.SYNCHRONISED}: cudaStreamSynchronize in aten.item": 30,  # 70 to 100
        timeline.NO_LAUNCH: 30,
    }


def test_any_wait_of_many_is_a_cause_of_idle_time(recorded):
    events = launched("aten::mm", "g", 0, 10, 10, 1, **MM)
    waits = [event("cuda_runtime", "cudaStreamSynchronize", 21 + n, 0.5) for n in range(50)]
    # All but the last lie before the first launch.
    waits += [event("cuda_runtime", "cudaEventSynchronize", -100 + n, 0.5) for n in range(50)]
    events += [*waits, *launched("aten::mm", "g", 90, 110, 10, 2, **MM)]
    (one,) = recorded(events).timelines
    assert {cause: round(each * 1e6) for cause, each in one.idle().items()} == {
        f"{timeline.SYNCHRONISED}: cudaStreamSynchronize": 80,  # 20 to 100
        timeline.LAUNCHED: 10,
    }


def test_the_longest_gap_of_a_file_without_steps_is_named(recorded):
    events = launched("aten::mm", "before", 0, 10, 10, 1, **MM)
    events += launched("aten::mm", "after", 5000, 5100, 10, 2, **MM)
    events += launched("aten::mm", "last", 5050, 5200, 10, 3, **MM)
    (note,) = (each for each in recorded(events).notes if "one gap" in each)
    assert "5.08 ms of its 5.17 ms" in note
    assert "between before and after" in note
    found = recorded([step(1, 0, 20), step(2, 5000, 100), *events])
    assert not any("one gap" in each for each in found.notes)


def replay(kernels):
    return [
        event("cuda_runtime", "cudaGraphLaunch", 10, 5, correlation=7),
        *(
            event("kernel", name, 100 + 50 * place, 40, tid=7, pid=0, correlation=7)
            for place, name in enumerate(kernels)
        ),
    ]


def test_replayed_kernels_are_known_by_their_names(recorded):
    found = recorded(replay(["gemm_a", "softmax_b"]))
    assert by_operator(found) == {"gemm_a": 40, "softmax_b": 40}
    assert all(each.replayed for each in found.timelines[0].activities)


def capture(kernels, rows=512, **threads):
    """A capture of products and additions in turn; without names if a kernel is None."""
    events = [event("cuda_runtime", "hipStreamBeginCapture", 0, 1, correlation=1)]
    for n, kernel in enumerate(kernels):
        operands = {**(ADD if n % 2 else MM), "Input Dims": [[rows, 1024], [1024, 256]]}
        operator = "aten::add" if n % 2 else "aten::mm"
        named = {} if kernel is None else {"kernel": kernel, **threads}
        events += [
            event("cpu_op", operator, 40 * n + 10, 20, **operands),
            event("cuda_runtime", "hipLaunchKernel", 40 * n + 12, 2, correlation=n, **named),
        ]
    return [*events, event("cuda_runtime", "hipStreamEndCapture", 400, 1, correlation=9)]


@pytest.mark.parametrize(
    ("captured", "replayed", "operators", "unnamed"),
    [
        ([capture([None] * 2)], ["a", "b"], ["aten.mm", "aten.add"], 0),
        ([capture([None] * 2)], ["a", "b", "c"], [None] * 3, 3),
        ([capture(["a", "b", "c"])], ["a", "x", "c"], ["aten.mm", None, "aten.mm"], 1),
        ([capture(["a", "b"]), capture(["x", "b"])], ["a", "b"], ["aten.mm", "aten.add"], 0),
        # Two captures of other sizes: the launches' threads decide, else nothing does.
        ([capture(["a", "b"]), capture(["a", "b"], 256)], ["a", "b"], [None] * 2, 2),
        (
            [capture(["a", "b"], 256, grid=[4, 1, 1]), capture(["a", "b"], grid=[8, 1, 1])],
            ["a", "b"],
            ["aten.mm", "aten.add"],
            0,
        ),
    ],
)
def test_a_capture_names_the_operators_of_replayed_kernels(
    recorded, tmp_path, captured, replayed, operators, unnamed
):
    later = [
        [{**each, "ts": each["ts"] + 1000 * n} for each in own] for n, own in enumerate(captured)
    ]
    name = write(tmp_path / "capture.json", [each for own in later for each in own])
    events = replay(replayed)
    for each in events[1:]:
        each["args"]["grid"] = [8, 1, 1]
    found, named, missing = with_captures(recorded(events), read_captures(name))
    (one,) = found.timelines
    calls = [each.origin.call for each in one.activities]
    assert [call and call.operator for call in calls] == operators
    assert (named, missing) == (len(replayed) - unnamed, unnamed)
    assert any("without shapes" in note for note in found.notes) == (named == 0)
    shapes = {each.origin.shapes.split()[0] for each in one.activities if each.origin.call}
    assert shapes <= {"512x1024"}


def test_a_profile_without_a_capture_names_nothing(tmp_path):
    with pytest.raises(UsageError, match="no capture of a graph"):
        read_captures(write(tmp_path / "none.json", capture(["a"])[1:3]))


def test_generated_kernels_are_calls_and_their_operands_are_counted(recorded):
    generated_name = "triton_poi_fused_add_mul_3"
    events = [
        event("user_annotation", "## Call CompiledFxGraph x ##", 0, 90),
        *launched(generated_name, generated_name, 10, 100, 50, 1, **ADD),
        *launched("aten::mm", "g", 40, 150, 900, 2, **MM),
    ]
    found = recorded(events)
    assert by_operator(found) == {"fused add mul": 50, "aten.mm": 900}
    (generated,) = (each.origin for each in found.timelines[0].activities if "triton" in each.name)
    assert generated.moved == 2 * 4 * 1024 * 1024


def test_an_operator_without_a_rule_keeps_the_kernels_that_it_launches_itself(recorded):
    events = [
        event("cpu_op", "mylib::moe_forward", 0, 100, **MM),
        event("cuda_runtime", "cudaLaunchKernel", 5, 5, correlation=1),
        event("cpu_op", "aten::mm", 20, 30, **MM),
        event("cuda_runtime", "cudaLaunchKernel", 25, 5, correlation=2),
        event("kernel", "fused_moe", 100, 700, tid=7, pid=0, correlation=1),
        event("kernel", "g", 800, 100, tid=7, pid=0, correlation=2),
    ]
    assert by_operator(recorded(events)) == {"mylib.moe_forward": 700, "aten.mm": 100}


def gradient(name, ts, dur, number):
    """A function of autograd with its engine's event around it, in a thread of its own."""
    return [
        event("cpu_op", name, ts + place, dur - place, tid=2, **{"Sequence number": number})
        for place, name in enumerate((f"autograd::engine::evaluate_function: {name}", name))
    ]


def in_thread(thread, events):
    return [{**each, "tid": thread} if each["pid"] else each for each in events]


def directions_and_modules(recording):
    return [
        (each.origin.direction, each.origin.modules)
        for one in recording.timelines
        for each in one.activities
    ]


def test_modules_surround_what_they_launch_its_gradients_and_what_is_recomputed(recorded):
    events = [
        module("Net_0", 0, 200), module("Block_1", 2, 90), module("Linear.a/b_2", 5, 50),
        *launched("aten::mm", "g", 10, 300, 10, 1, **MM, **{"Sequence number": 4}),
        *gradient("MmBackward0", 210, 60, 4),
        *in_thread(2, launched("aten::mm", "g", 220, 310, 10, 2, **MM)),
        *gradient("CheckpointFunctionBackward", 300, 200, 5),
        {**module("Block_1", 310, 50), "tid": 2},
        *in_thread(2, launched("aten::mm", "g", 315, 500, 10, 3, **MM, **{"Sequence number": 0})),
        {**module("Never_3", 365, 20), "tid": 2},
        *in_thread(2, launched("aten::mm", "g", 366, 505, 10, 4, **MM)),
        *gradient("MmBackward0", 400, 60, 0),
        *in_thread(2, launched("aten::mm", "g", 420, 520, 10, 5, **MM)),
        *in_thread(2, launched("aten::mm", "g", 600, 700, 10, 6, **MM)),  # a hook of the engine's
    ]  # fmt: skip
    block = ("Net_0", "Block_1")
    assert directions_and_modules(recorded(events)) == [
        ("forward", (*block, "Linear.a/b_2")),
        ("backward", (*block, "Linear.a/b_2")),
        ("backward", block),
        ("backward", ("Never_3",)),
        ("backward", block),
        ("backward", ()),
    ]


def test_losses_and_optimizers_are_directions_of_their_own(recorded):
    names = ("mse_loss", "cross_entropy_loss", "mm", "_foreach_add_", "mm_backward", "_foreach_mul")
    calls = {
        name: launched(f"aten::{name}", "g", 50 * place, 1000 + 50 * place, 10, place, **MM)
        for place, name in enumerate(names)
    }
    inside = [module("Net_0", 0, 40), event("user_annotation", "train.step/x", 50, 90)]
    found = recorded([*inside, *(each for own in calls.values() for each in own)])
    assert directions_and_modules(found) == [
        ("forward", ("Net_0",)),
        ("loss", ("train.step/x",)),
        ("forward", ("train.step/x",)),
        ("optimizer", ()),
        ("backward", ()),
        ("optimizer", ()),
    ]
    # Nothing trains in a file without gradients.
    assert directions_and_modules(recorded(calls["_foreach_mul"])) == [("forward", ())]
    losses = [module("MSELoss_4", 0, 50), event("user_annotation", "## optimizer ##", 50, 50)]
    found = recorded([*losses, *calls["mse_loss"], *calls["cross_entropy_loss"]])
    assert [each for each, _ in directions_and_modules(found)] == ["loss", "optimizer"]


def test_a_bad_event_costs_itself_and_a_note(recorded):
    events = launched("aten::mm", "g", 0, 100, 100, 1, **MM)
    events.insert(1, event("cuda_runtime", "cudaDeviceSynchronize", 5, -7))
    found = recorded(events)
    assert by_operator(found) == {"aten.mm": 100}
    assert any("1 of its events are left out" in note for note in found.notes)


def test_numbers_that_are_no_json_are_no_reason_to_refuse_a_file(tmp_path):
    name = write(tmp_path / "inf.json", launched("aten::mm", "g", 0, 100, 100, 1, **MM))
    path = tmp_path / "inf.json"
    path.write_text(path.read_text().replace('"stream": 7', '"stream": 7, "x": [inf, -nan, NaN]'))
    assert by_operator(read(name)) == {"aten.mm": 100}


def test_copies_alone_are_no_step_of_a_device(recorded):
    events = [event("cpu_op", "aten::mm", 0, 500, **MM), event("gpu_memcpy", "Memcpy HtoD", 20, 1)]
    found = recorded(events)
    assert not found.on_gpu
    assert by_operator(found) == {"aten.mm": 500}


def test_kernels_alone_and_operators_without_shapes_are_read(recorded):
    found = recorded([event("kernel", "gemm", 0, 10, tid=7), event("kernel", "relu", 15, 5, tid=7)])
    assert by_operator(found) == {"gemm": 10, "relu": 5}
    found = recorded(launched("aten::mm", "g", 0, 100, 100, 1))
    assert by_operator(found) == {"aten.mm": 100}
    assert any("recorded without shapes" in note for note in found.notes)


def test_autocast_s_casts_are_calls_beside_the_operator(recorded):
    linear = {"Input type": ["float", "float"], "Input Dims": [[64, 8], [16, 8]]}
    half = {"Input type": ["c10::BFloat16", "c10::BFloat16"], "Input Dims": [[64, 8], [16, 8]]}
    events = [
        event("cpu_op", "aten::linear", 0, 1000, **linear),
        event("cpu_op", "aten::to", 10, 710, **linear),
        event("cpu_op", "aten::_to_copy", 15, 700, **linear),
        event("cpu_op", "aten::linear", 730, 260, **half),
    ]
    assert by_operator(recorded(events)) == {"aten._to_copy": 700, "aten.linear": 260}


def test_an_operator_of_a_cpu_that_works_itself_keeps_its_own_time(recorded):
    events = [
        event("cpu_op", "aten::searchsorted", 0, 820, **MM),
        event("cpu_op", "mylib::helper", 5, 12),
        event("cpu_op", "aten::conv2d", 900, 100, **MM),
        event("cpu_op", "aten::convolution", 902, 97, **MM),
    ]
    assert by_operator(recorded(events)) == {
        "aten.searchsorted": 808,
        "mylib.helper": 12,
        "aten.convolution": 97,
    }


@pytest.mark.parametrize(
    ("name", "category", "short"),
    [
        ("sm90_xmma_gemm_bf16bf16_f32_tn", "product", "sm90_xmma_gemm_bf16bf16_f32_tn"),
        ("Cijk_Alik_Bljk_BBS_BH_MT64", "product", "Cijk_Alik_Bljk_BBS_BH_MT64"),
        ("void pytorch_flash::flash_fwd_kernel<Traits<64>>(P)", "attention", "flash_fwd_kernel"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", "collective", None),
        ("void cutlass__5x_cudnn::Kernel<cutlass_tensorop_fprop>(P)", "convolution", "Kernel"),
        ("_ZN5aiter24add_rmsnorm_quant_kernelIDF16b", "norm", "add_rmsnorm_quant_kernel"),
        (
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
            "element-wise",
            "vectorized_elementwise_kernel: CUDAFunctor_add",
        ),
        ("triton_poi_fused_add_mul_0", "element-wise", None),
        ("triton_red_fused_add_mean_mul_pow_rsqrt_0", "norm", None),
        ("triton_per_fused__softmax_3", "softmax", None),
        ("aten.clone", "data movement", None),
        ("unheard_of", "other", "unheard_of"),
    ],
)  # fmt: skip
def test_a_kernel_s_name_says_its_category(name, category, short):
    assert category_of(name) == category
    assert short is None or short_name(name) == short


def test_a_generated_kernel_s_name_lists_what_was_fused():
    assert fused_operators("triton_poi_fused_add_mul_0") == ("add", "mul")
    assert fused_operators("gemm") == ()


def test_steps_whose_kernels_overlap_have_no_negative_times(recorded):
    events = [step(1, 0, 100), step(2, 100, 100)]
    events += launched("aten::mm", "g", 10, 300, 400, 1, **MM)
    events += launched("aten::mm", "g", 110, 350, 100, 2, stream=9, **MM)  # within the other one
    first, second = recorded(events).timelines
    assert first.span_s == pytest.approx(400e-6)
    assert second.span_s == 0
    assert first.busy_s + second.busy_s == pytest.approx(400e-6)
    assert not second.idle()


def test_a_gap_that_a_neighbour_fills_is_not_idle(recorded):
    events = [step(1, 0, 100), step(2, 100, 100)]
    events += launched("aten::mm", "g", 10, 300, 100, 1, **MM)
    events += launched("aten::mm", "g", 40, 500, 100, 2, **MM)
    events += launched("aten::mm", "g", 110, 400, 100, 3, stream=9, **MM)  # between the two
    first, second = recorded(events).timelines
    assert first.busy_s == pytest.approx(300e-6)
    assert not first.idle()
    assert second.span_s == 0


@pytest.mark.parametrize("size", [-4, 10**400, "many"])
def test_impossible_sizes_of_copies_are_unknown(recorded, size):
    copy = event("gpu_memcpy", "Memcpy DtoD", 100, 5, tid=7, pid=0, bytes=size)
    found = recorded([event("kernel", "k", 0, 10, tid=7, pid=0), copy])
    assert [each.bytes for each in found.timelines[0].activities] == [None, None]


def test_events_without_arguments_are_read(recorded):
    events = [event("kernel", "k", 0, 10, tid=7, pid=0), event("kernel", "k", 20, 5, tid=7, pid=0)]
    events[0]["args"] = None
    del events[1]["args"]
    assert by_operator(recorded(events)) == {"k": 15}
