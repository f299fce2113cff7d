"""What differs is never drawn as one: lines, bars and sums have all that tells them apart."""

import invented_runs as invented
import msgspec
import pytest
from page_reading import by_id, parse

from pydlbench.report.page.page import build_page


def shown(tmp_path, rows):
    return build_page(invented.read(tmp_path, invented.layers_document(rows)))


def lines(page):
    """What stands at the left of the comparison with the peaks."""
    chart = next(one for one in page.charts if one.name == "peaks-1")
    return [one.get_text() for one in chart.figure.axes[0].get_yticklabels()]


def test_long_names_do_not_join_lines(tmp_path, measurement):
    rows = [
        measurement(layer="net/block3/unit12/conv2", pass_=name, precision=precision, batch=batch)
        for name in ("forward", "backward-weights")
        for precision in ("fp32", "bf16")
        for batch in (64, 128)
    ]
    found = lines(shown(tmp_path, rows))
    assert len(set(found)) == len(found) == len(rows)
    assert any("batch 128 backward-weights fp32" in one for one in found)


def test_descriptors_that_begin_alike_have_lines_of_their_own(tmp_path, measurement):
    problems = [f"mb128ic192ih13oc384oh13kh{size}ph1" for size in (3, 5, 7)]
    rows = [measurement(layer=problem, problem=problem) for problem in problems]
    assert lines(shown(tmp_path, rows)) == problems


def test_numbers_of_threads_have_lines_of_their_own(tmp_path, measurement):
    rows = [measurement(threads=count) for count in (1, 2)]
    assert lines(shown(tmp_path, rows)) == ["conv3 1 thread", "conv3 2 threads"]


@pytest.mark.parametrize(
    ("name", "values", "words"),
    [
        ("threads", (1, 2), ("1 thread", "2 threads")),
        ("layout_request", ("nhwc", "nchw"), ("nhwc", "nchw")),
    ],
)
def test_sums_of_other_settings_are_others_and_say_so(tmp_path, native, name, values, words):
    both = [msgspec.structs.replace(row, **{name: value}) for value in values for row in native]
    page = shown(tmp_path, both)
    titles = [chart.title for chart in page.charts if chart.name.startswith("step")]
    assert len(titles) == 2
    for title, word in zip(titles, words, strict=True):
        assert title.endswith(word)


def test_lines_of_a_batch_sweep_keep_their_settings(tmp_path, measurement):
    rows = [
        measurement(
            batch=batch, problem=f"mb{batch}", threads=threads, layout_request=layout, tflops=rate
        )
        for threads, layout, rate in ((1, "nhwc", 0.1), (2, "nhwc", 0.2), (2, "nchw", 0.15))
        for batch in (1, 2)
    ]
    root = parse(shown(tmp_path, rows).html)
    marks = by_id(root, "batches-1").marks()
    assert {mark["series"]: float(mark["tflops"]) for mark in marks} == {
        "threads=1 nhwc": 0.1,
        "threads=2 nhwc": 0.2,
        "threads=2 nchw": 0.15,
    }


def test_steps_that_took_no_turns_are_not_ranked(tmp_path):
    steps = [invented.step_record(0.1), invented.step_record(0.2, layout="nchw")]
    root = parse(build_page(invented.read(tmp_path, invented.steps_document(steps))).html)
    text = by_id(root, "conclusion").text()
    assert "times as long" not in text
    assert "alexnet-owt \N{MIDDLE DOT} nchw" in text


def test_estimates_of_variants_are_told_apart_in_words(tmp_path, native):
    variants = [{"lrn": "off"}, {"lrn": "on"}]
    documents = [{**invented.model_document(native), "options": one} for one in variants]
    root = parse(build_page(invented.read(tmp_path, *documents)).html)
    text = by_id(root, "conclusion").text()
    assert all(f"fp32 \N{MIDDLE DOT} lrn={one['lrn']}" in text for one in variants)


def test_the_same_step_of_two_runs_is_told_apart_or_said_to_be_left_out(tmp_path, native):
    checks = [invented.check_document(native) for _ in range(2)]
    steps = [invented.steps_document([invented.step_record(0.1 * n)]) for n in (1, 2)]
    root = parse(build_page(invented.read(tmp_path, *checks, *steps)).html)
    figure = by_id(root, "step-1")
    rungs = list(dict.fromkeys(mark["rung"] for mark in figure.marks()))
    assert rungs[-3:] == [
        *("step, torch eager", "step, torch eager, step", "step, torch eager, step, run 4")
    ]
    assert "Rungs that an earlier run has too are not drawn again: run 2." in figure.text()
