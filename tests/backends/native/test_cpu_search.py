"""What the search for a native CPU kernel tries, keeps and leaves out."""

import dataclasses
from types import SimpleNamespace

import pytest

from pydlbench.backends import autotune
from pydlbench.backends.base import Preparation
from pydlbench.backends.native import cpu
from pydlbench.backends.native.cpu import without_narrower_code
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec

CONV = build_layer("conv", batch=2, in_channels=16, in_size=7, out_channels=32, kernel=3, padding=1)


@pytest.fixture(scope="module")
def backend():
    return cpu.create()


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    """Short probes and finals: who wins does not matter here."""
    for name in ("CPU_EFFORT", "CPU_BRIEF_EFFORT"):
        quick = dataclasses.replace(getattr(autotune, name), probe_s=0.001, finals_s=0.001)
        monkeypatch.setattr(autotune, name, quick)


def prepare(backend, preparation=None, **words):
    return backend.prepare(KernelSpec(layer=CONV, **words), preparation or Preparation())


def test_a_kernel_that_is_asked_for_by_name_has_no_rivals(backend):
    free = prepare(backend).facts
    assert len(free.candidates) > 1
    last = next(one for one in reversed(free.candidates) if one["status"] == "ok")
    name = f"{last['algorithm']} {last['layout']}"
    facts = prepare(backend, preparation=Preparation(variant=name)).facts
    assert (facts.algorithm, facts.layout) == (last["algorithm"], last["layout"])
    assert len(facts.candidates) == 1
    assert facts.notes == ["the kernel that was fastest with hot caches; no other was tried"]
    unknown = prepare(backend, preparation=Preparation(variant="nothing like it")).facts
    assert len(unknown.candidates) > 1
    assert unknown.notes == []


def test_a_brief_search_leaves_out_older_code_and_is_verified(backend):
    brief = prepare(backend, preparation=Preparation(brief=True)).facts
    full = prepare(backend).facts
    assert brief.correct.status == "ok"
    few, all_ = (
        {(entry["algorithm"], entry["layout"]) for entry in facts.candidates}
        for facts in (brief, full)
    )
    assert few <= all_
    if any("avx512" in name for name, _ in all_):
        assert not any("avx2" in name for name, _ in all_)
    assert any("short search" in note for note in brief.notes)
    assert not full.notes


def test_the_second_kernel_of_an_estimate_is_the_first_one_again(backend):
    first = prepare(backend, layout="blocked", preparation=Preparation(brief=True)).facts
    name = f"{first.algorithm} {first.layout}"
    again = Preparation(brief=True, variant=name, cold_bytes=500_000)
    second = prepare(backend, layout="blocked", cache="all-cold", preparation=again).facts
    assert (second.algorithm, second.layout) == (first.algorithm, first.layout)
    assert second.correct.status == "ok"
    assert (first.reorder_s, second.reorder_s) == ({}, {})
    assert prepare(backend, layout="blocked").facts.reorder_s


def test_code_for_narrower_vectors_is_left_out_where_there_is_some_of_the_same_kind():
    def named(implementation, variant):
        return SimpleNamespace(implementation=implementation, variant=variant)

    found = [
        named("jit:avx512_core", "any"),
        named("jit:avx2", "any"),
        named("x64:gemm:jit", "any"),
        named("jit:avx2", "nhwc"),
        named("brg_fwd:avx512_core+brgconv:avx512_core", "nhwc"),
        named("brg_fwd:avx2+brgconv:avx2", "nhwc"),
        named("brgconv:avx512_core_amx", "blocked"),
        named("brgconv:avx512_core_bf16", "blocked"),
        named("own:avx512", "nhwc"),
        named("own:avx512 non-temporal stores", "nhwc"),
        named("jit:avx", "plain"),
        named("jit:sse41", "plain"),
    ]
    kept = without_narrower_code(found)
    assert [found.index(one) for one in kept] == [0, 2, 3, 4, 6, 7, 8, 9, 10]


def test_what_cannot_win_is_given_back_during_the_probes(backend, monkeypatch):
    held = []
    real = cpu.CpuAutotuner.release_probed

    def release_probed(self, candidate, best):
        real(self, candidate, best)
        held.append(sum(one.kernel is not None for one in self.candidates))

    monkeypatch.setattr(cpu.CpuAutotuner, "release_probed", release_probed)
    prepare(backend)
    assert len(held) > autotune.CPU_EFFORT.finalists
    assert max(held) <= autotune.CPU_EFFORT.finalists
