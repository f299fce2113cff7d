import pytest

from pydlbench.devices.roofline import Level, memory_time, roof, with_launch

MEMORY, LLC, SIZE = 20e9, 200e9, 32e6  # B/s, B/s, bytes


def move(cold, warm):
    levels = (
        Level(name="llc", capacity=SIZE, bytes_per_s=LLC),
        Level(name="memory", capacity=float("inf"), bytes_per_s=MEMORY),
    )
    return memory_time(cold, warm, levels)


def test_what_fits_into_the_cache_moves_at_its_bandwidth():
    seconds, level = move(0, 16e6)
    assert seconds == pytest.approx(16e6 / LLC)
    assert level == "llc"


def test_what_does_not_fit_comes_from_memory():
    seconds, level = move(0, 132e6)
    assert seconds == pytest.approx(100e6 / MEMORY)
    assert level == "memory"


def test_cold_bytes_come_from_memory_however_few_they_are():
    seconds, level = move(4e6, 8e6)
    assert seconds == pytest.approx(4e6 / MEMORY)
    assert level == "memory"


def test_the_level_is_the_one_that_takes_longer():
    # 1 MB at 20 GB/s is 50 us, 20 MB at 200 GB/s are 100 us.
    assert move(1e6, 20e6)[1] == "llc"


def test_each_level_moves_what_it_can_hold():
    levels = (
        Level(name="l2", capacity=2e6, bytes_per_s=400e9),
        Level(name="llc", capacity=32e6, bytes_per_s=LLC),
        Level(name="memory", capacity=float("inf"), bytes_per_s=MEMORY),
    )
    assert memory_time(0, 1e6, levels) == (pytest.approx(1e6 / 400e9), "l2")
    assert memory_time(0, 12e6, levels) == (pytest.approx(10e6 / LLC), "llc")
    assert memory_time(0, 134e6, levels) == (pytest.approx(100e6 / MEMORY), "memory")


def test_levels_move_at_the_same_time_and_the_slowest_bounds():
    alone = max(move(4e6, 0)[0], move(0, 20e6)[0])
    assert move(4e6, 20e6)[0] == pytest.approx(alone)


def test_what_a_cache_without_a_probe_may_hold_is_charged_to_nobody():
    levels = (
        Level(name="l2", capacity=2e6, bytes_per_s=float("inf")),
        Level(name="llc", capacity=SIZE, bytes_per_s=LLC),
        Level(name="memory", capacity=float("inf"), bytes_per_s=MEMORY),
    )
    assert memory_time(0, 1e6, levels) == (0, "llc")
    assert memory_time(0, 3e6, levels) == (pytest.approx(1e6 / LLC), "llc")


def test_nothing_to_move_takes_no_time():
    assert move(0, 0)[0] == 0


def test_the_higher_limit_is_the_roof():
    compute = roof(flops=1e9, flops_per_s=1e11, move_s=0.001, bandwidth="llc")
    assert (compute.bound, compute.time_s) == ("compute", pytest.approx(0.01))
    memory = roof(flops=1e9, flops_per_s=1e11, move_s=0.02, bandwidth="memory")
    assert (memory.bound, memory.time_s, memory.bandwidth) == ("memory", 0.02, "memory")


def test_the_ridge_belongs_to_compute():
    assert roof(flops=1e9, flops_per_s=1e11, move_s=0.01, bandwidth="llc").bound == "compute"


def test_work_shorter_than_its_start_is_bound_by_that():
    base = roof(flops=1e4, flops_per_s=1e11, move_s=5e-8, bandwidth="l2")
    assert (base.bound, base.time_s) == ("compute", pytest.approx(1e-7))
    short = with_launch(base, 2e-6, median_s=3e-6)
    assert (short.bound, short.time_s, short.bandwidth) == ("launch", 2e-6, "l2")


def test_a_kernel_that_was_over_sooner_is_held_against_its_work():
    base = roof(flops=1e3, flops_per_s=1e11, move_s=5e-8, bandwidth="l2")
    assert base.bound == "memory"
    short = with_launch(base, 2e-6, median_s=1e-6)
    assert (short.bound, short.time_s) == ("launch", 5e-8)


def test_longer_work_is_not_bound_by_its_start():
    base = roof(flops=1e9, flops_per_s=1e11, move_s=0.001, bandwidth="llc")
    assert with_launch(base, 2e-6, median_s=0.02) == base
    assert with_launch(base, 0.0, median_s=0.02) == base
