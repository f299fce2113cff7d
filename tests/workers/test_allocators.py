"""Workers by allocator: what their C library is told, and what this machine has not."""

import pytest

from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.runner.machine import Workers
from pydlbench.workers import environment as allocators
from pydlbench.workers.environment import allocator_environment


@pytest.fixture
def kernel(monkeypatch, tmp_path):
    """A machine whose switch of huge pages says what is asked for."""

    def say(text, library=("glibc", "2.36")):
        switch = tmp_path / "enabled"
        if text is not None:
            switch.write_text(text)
        monkeypatch.setattr(allocators, "HUGE_PAGES_FILE", switch)
        monkeypatch.setattr(allocators.platform, "libc_ver", lambda: library)

    return say


def test_names_and_variables(kernel):
    kernel("always [madvise] never")
    assert allocator_environment("default") == {}
    assert "mmap_max=0" in allocator_environment("kept pages")["GLIBC_TUNABLES"]
    assert allocator_environment("huge pages") == {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
    with pytest.raises(UsageError, match="nearest: huge pages"):
        allocator_environment("huge page")


@pytest.mark.parametrize(
    ("text", "library", "said"),
    [
        ("always madvise [never]", ("glibc", "2.36"), "never"),
        (None, ("glibc", "2.36"), "no transparent huge pages"),
        ("[always] madvise never", ("glibc", "2.34"), "glibc 2.34"),
        ("[always] madvise never", ("", ""), "unknown"),
    ],
)
def test_huge_pages_that_nobody_gives(kernel, text, library, said):
    kernel(text, library)
    with pytest.raises(UnsupportedError, match=said):
        allocator_environment("huge pages")


def test_each_allocator_has_a_worker_of_its_own(kernel):
    kernel("always [madvise] never")
    workers = Workers((0,), None)
    try:
        found = [workers.get("native", "cpu", allocator=name) for name in allocators.ALLOCATORS]
        assert len({id(one) for one in found}) == 3
        assert workers.get("native", "cpu", allocator="kept pages") is found[1]
        assert all(one.pid is None for one in found)
    finally:
        workers.close()
