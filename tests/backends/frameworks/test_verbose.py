"""Reports of oneDNN and MKL, as they were printed."""

import pytest

from pydlbench.backends.frameworks.verbose import (
    Execution,
    Turn,
    creation_s,
    evidence,
    kernels,
    last_call,
    middle_turn,
    parse,
    remarks,
    total_s,
)
from pydlbench.backends.steps.timed_calls import LoggedOperators
from pydlbench.timing.chunk import ChunkRequest

HEADER = """\
onednn_verbose,v1,info,oneDNN v3.12.0 (commit 80afa71049cd69a3df32adcccb623b12cd7baa22)
onednn_verbose,v1,info,cpu,isa:Intel AVX-512 with Intel DL Boost and bfloat16 support
onednn_verbose,v1,primitive,info,template:operation,engine,primitive,implementation,prop_kind,\
memory_descriptors,attributes,auxiliary,problem_desc,exec_time
"""
REORDER = (
    "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef,src:f32::blocked:abcd::f0 "
    "dst:f32:p:blocked:ABcd16b16a::f0,attr-scratchpad:user,,8x16x3x3,0.5"
)
CONVOLUTION = (
    "onednn_verbose,v1,primitive,exec,cpu,convolution,jit:avx512_core,forward_training,"
    "src:f32:a:blocked:aBcd16b::f0 wei:f32:ap:blocked:ABcd16b16a::f0 bia:undef::undef::: "
    "dst:f32:ap:blocked:aBcd16b::f0,attr-scratchpad:user,alg:convolution_direct,"
    "mb2_ic16oc8_ih9oh9kh3sh1dh0ph1_iw9ow9kw3sw1dw0pw1,1.5"
)
NESTED = (
    "onednn_verbose,v1,primitive,create_nested:cache_miss,cpu,convolution,"
    "brg_conv_fwd:avx512_core,forward_training,src:f32::blocked:acdb::f0,"
    "attr-scratchpad:user,alg:convolution_direct,mb2_ic8oc16,0.08"
)
OLD = (
    "onednn_verbose,exec,cpu,matmul,brg:avx512_core,undef,src_f32::blocked:ab:f0 "
    "wei_f32::blocked:ba:f0 dst_f32::blocked:ab:f0,,,64x32:32x48,0.25"
)
MKL_HEADER = (
    "MKL_VERBOSE oneMKL 2024.0 Update 2 Product build 20240605 for Intel(R) 64 architecture "
    "Intel(R) Architecture processors, Lnx 2.60GHz lp64 gnu_thread"
)
SGEMM = (
    "MKL_VERBOSE SGEMM(T,N,48,64,32,0x7fff6e2b0420,0x556d373c4b80,32,0x556d373c2b40,32,"
    "0x7fff6e2b0440,0x556d373c8a00,48) 12.50us CNR:OFF Dyn:0 FastMM:1 TID:0  NThr:1"
)


def test_creation_of_primitives_is_summed_but_not_what_they_create_themselves():
    missed = NESTED.replace("create_nested", "create").replace(",0.08", ",0.28")
    hit = missed.replace("cache_miss", "cache_hit").replace(",0.28", ",1.5e-3")
    text = f"{HEADER}{NESTED}\n{missed}\n{CONVOLUTION}\n{hit}\n{OLD}\n{SGEMM}\n"
    assert creation_s(text) == pytest.approx(0.2815e-3)
    assert [one.primitive for one in parse(text)] == ["convolution", "matmul", "SGEMM"]
    assert creation_s(HEADER) == 0


def test_an_execution_is_read_and_everything_else_passed_over():
    found = parse(f"{HEADER}\n{REORDER}\n{NESTED}\n{CONVOLUTION}\nhello\n")
    assert [one.primitive for one in found] == ["reorder", "convolution"]
    reorder, convolution = found
    assert reorder.problem == "8x16x3x3"
    assert reorder.formats == "abcd -> ABcd16b16a"
    assert reorder.seconds == pytest.approx(0.5e-3)
    assert convolution.implementation == "jit:avx512_core"
    assert convolution.propagation == "forward_training"
    assert convolution.seconds == pytest.approx(1.5e-3)
    assert kernels(found) == "jit:avx512_core"


def test_older_versions_leave_out_two_words():
    (one,) = parse(OLD)
    assert (one.library, one.implementation) == ("oneDNN", "brg:avx512_core")
    assert one.problem == "64x32:32x48"
    assert one.seconds == pytest.approx(0.25e-3)


def test_mkl():
    (one,) = parse(f"{MKL_HEADER}\n{SGEMM}\n")
    assert one.library == "MKL"
    assert one.implementation == "SGEMM(T,N)"
    assert one.seconds == pytest.approx(12.5e-6)
    assert one.threads == 1
    assert kernels([one]) == "MKL SGEMM(T,N)"
    assert remarks([one], threads=2, inference=True) == ("MKL used 1 of 2 threads",)
    assert remarks([one], threads=1, inference=True) == ()


@pytest.mark.parametrize(
    "line",
    [
        "",
        "onednn_verbose",
        "onednn_verbose,v1,primitive,exec,cpu",
        CONVOLUTION.rpartition(",")[0] + ",soon",
        "MKL_VERBOSE SGEMM(T,N",
        "someone_verbose,v1,primitive,exec,cpu,convolution,a,b,c,d,e,f,1",
        "onednn_verbose,v1,graph,exec,cpu,100002,matmul_post_ops,a,b,c,d,e,dnnl_backend,1",
    ],
)
def test_a_torn_line_is_no_execution(line):
    assert parse(line) == []


def test_kernels_are_named_once_and_in_order():
    assert kernels(parse(f"{CONVOLUTION}\n{REORDER}\n{SGEMM}\n{CONVOLUTION}")) == (
        "jit:avx512_core + MKL SGEMM(T,N)"
    )
    assert kernels(parse(REORDER)) is None
    assert kernels([]) is None


def test_remarks_tell_of_conversions_and_of_kernels_for_training():
    found = parse(f"{REORDER}\n{CONVOLUTION}")
    conversion = "oneDNN converts layouts in each call: 8x16x3x3 abcd -> ABcd16b16a"
    assert remarks(found, threads=2, inference=False) == (conversion,)
    first, second = remarks(found, threads=2, inference=True)
    assert first == conversion
    assert "forward_training" in second
    assert remarks([], threads=2, inference=True) == ()


def execution(seconds, name="brg:avx512", primitive="convolution"):
    return Execution(library="oneDNN", primitive=primitive, implementation=name, seconds=seconds)


def test_evidence_is_of_one_call_and_keeps_reorders_apart():
    kernel, reorder = execution(0.004), execution(0.001, "jit:uni", "reorder")
    assert evidence([reorder, kernel], 0.006) == {
        "kernel": "brg:avx512",
        "kernel_s": pytest.approx(0.004),
        "reorder_s": pytest.approx(0.001),
        "call_s": 0.006,
    }
    assert evidence([reorder], 0.006) == {}


class _Repeated:
    """An operator that executes twice in a run; the cost of a call exceeds one of its runs."""

    executions = 2

    def __init__(self):
        self._seconds = iter([3e-3, 4e-3, -1e-6])

    def run(self):
        return next(self._seconds)


def test_logged_times_are_of_one_execution_of_an_operator_that_is_repeated():
    def log(call):
        call()
        return "\n".join([CONVOLUTION, REORDER] * 2)

    kernel = LoggedOperators({"conv": _Repeated()}, {"other": "no"}, log, [0])
    assert kernel.facts.executions == {"conv": {"oneDNN convolution": 1, "oneDNN reorder": 1}}
    assert kernel.facts.refused == {"other": "no"}
    seconds = kernel.sample(ChunkRequest(samples=1)).seconds
    assert seconds == pytest.approx([4e-3, 0.0, total_s(parse(log(int))) / 2, 0.5e-3, 0.0])


def test_of_several_equal_calls_the_last_one_is_taken():
    logged = [execution(seconds) for seconds in (1.0, 1.0, 9.0, 9.0, 2.0, 2.0)]
    assert last_call(logged, 3) == logged[4:]
    assert last_call(logged, 4) == []  # not equal calls
    assert last_call([], 3) == []
    assert last_call([execution(1.0), execution(1.0, "ref:any")], 2) == []


def turn(seconds, logged_s, plain_s=None):
    return Turn(executions=[execution(seconds)], logged_s=logged_s, plain_s=plain_s)


def test_the_middle_turn_is_that_of_the_middle_share_whatever_the_machine_s_pace():
    """The slowest log need not be that of the kernel that had most of its call."""
    half, most, whole = turn(5.0, 10.0), turn(0.9, 1.0), turn(2.0, 2.0)
    assert middle_turn([whole, half, most]) == (most.executions, 1.0)


def test_the_logged_call_is_the_whole_whatever_disturbed_the_one_beside_it():
    calls = [turn(0.9, 1.0, 1.0), turn(1.8, 2.0, 1.0), turn(0.9, 1.0, 3.0)]
    executions, call_s = middle_turn(calls)
    assert total_s(executions) / call_s == pytest.approx(0.9)


def test_what_writing_the_log_costs_is_no_part_of_the_call():
    calls = [turn(0.6, 2.0, 1.0), turn(1.2, 2.6, 2.0), turn(0.6, 5.0, 3.0)]
    executions, call_s = middle_turn(calls)
    assert total_s(executions) / call_s == pytest.approx(0.6)
    # It cannot be more than the call took besides its executions.
    executions, call_s = middle_turn([turn(1.8, 2.0, 1.0)])
    assert total_s(executions) == call_s
