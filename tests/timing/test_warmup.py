from said import says

from pydlbench.timing.stopping import Warmup


def test_steady_after_three_equal_chunks():
    warmup = Warmup()
    for _ in range(2):
        warmup.add_chunk([1e-3], [4e9], 0.05)
        assert not warmup.is_finished()
    assert warmup.outcome().reason == "running"
    warmup.add_chunk([1.001e-3], [4e9], 0.05)
    assert warmup.is_finished()
    outcome = warmup.outcome()
    assert (outcome.reason, outcome.steady) == ("steady", True)


def test_a_ramping_clock_keeps_it_going_though_the_time_is_steady():
    warmup = Warmup()
    for clock in (2.6e9, 3.0e9, 3.6e9, 4.2e9, 4.2e9):
        warmup.add_chunk([1e-3], [clock], 0.05)
        assert not warmup.is_finished()
    warmup.add_chunk([1e-3], [4.2e9], 0.05)
    assert warmup.is_finished()


def test_a_slow_trend_inside_the_tolerance_is_still_a_trend():
    warmup = Warmup()
    for time in (1.018e-3, 1.009e-3, 1.000e-3):
        warmup.add_chunk([time], (), 0.05)
    assert not warmup.is_finished()
    warmup.add_chunk([1.001e-3], (), 0.05)
    assert warmup.is_finished()


def test_an_unsteady_machine_hits_the_limit_and_says_so():
    warmup = Warmup()
    count = 0
    while not warmup.is_finished():
        warmup.add_chunk([1e-3 * (1 + count % 2)], (), 0.05)
        count += 1
        assert count < 100
    assert warmup.outcome().reason == "limit"
    assert says(warmup.outcome().detail, "time", "not steady")
    assert 20 <= count <= 21


def test_an_unsteady_clock_is_named():
    warmup = Warmup()
    for count in range(21):
        warmup.add_chunk([1e-3], [4e9 if count % 2 else 3e9], 0.05)
    assert says(warmup.outcome().detail, "clock", "not steady")


def test_a_slow_kernel_warms_up_once():
    warmup = Warmup()
    warmup.add_chunk([3.0], [4e9], 3.0)
    assert warmup.is_finished()
    assert says(warmup.outcome().detail, "1 chunks")


def test_one_chunk_without_a_clock_does_not_block():
    warmup = Warmup()
    for clock in ([4e9], [], [2e9]):
        warmup.add_chunk([1e-3], clock, 0.05)
    assert warmup.is_finished()
