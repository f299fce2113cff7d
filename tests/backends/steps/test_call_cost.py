"""What a call costs besides its operator."""

from pydlbench.backends.steps.timed_calls import CallCost


def test_the_median_of_the_last_calls_counts():
    times = iter([1.0, 9.0, 2.0, *[4.0] * 100])
    cost = CallCost(lambda: next(times))
    assert [cost.seconds() for _ in range(3)] == [1.0, 5.0, 2.0]
    for _ in range(60):
        last = cost.seconds()
    assert last == 4.0  # the first ones are forgotten


def test_each_question_is_one_call():
    made = []
    cost = CallCost(lambda: made.append(1) or 3.0)
    assert (cost.seconds(), cost.seconds(), len(made)) == (3.0, 3.0, 2)
