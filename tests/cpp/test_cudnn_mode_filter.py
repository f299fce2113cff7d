"""Which cuDNN engine belongs to which precision mode, how it is named, and padding done apart."""

from __future__ import annotations

import ctypes
import re

import pytest

MODES = ("fp32", "tf32", "fp16", "fp16-tc", "bf16-tc")
TENSOR_CORE_MODES = ("tf32", "fp16-tc", "bf16-tc")


@pytest.fixture(scope="session")
def mode_filter(cpp_library: ctypes.CDLL) -> ctypes.CDLL:
    library = cpp_library
    for name in (
        "objection_text",
        "accumulator_text",
        "numerical_note_text",
        "behavior_note_text",
        "engine_name",
        "all_combinations",
    ):
        getattr(library, name).restype = ctypes.c_char_p
    return library


def objection(mode_filter: ctypes.CDLL, mode: str, notes: str) -> str:
    text: bytes = mode_filter.objection_text(mode.encode(), notes.encode())
    return text.decode()


def name(mode_filter: ctypes.CDLL, engine: int, knobs: dict[int, int], notes: str = "") -> str:
    flat = [number for pair in knobs.items() for number in pair]
    array = (ctypes.c_long * max(len(flat), 1))(*flat)
    text: bytes = mode_filter.engine_name(ctypes.c_long(engine), array, len(knobs), notes.encode())
    return text.decode()


def combinations(
    mode_filter: ctypes.CDLL, ranges: list[tuple[int, int, int, int]], most: int
) -> list[str]:
    flat = [number for range_ in ranges for number in range_]
    array = (ctypes.c_long * max(len(flat), 1))(*flat)
    text: bytes = mode_filter.all_combinations(array, len(ranges), most)
    return text.decode().splitlines()


@pytest.mark.parametrize("mode", MODES)
def test_a_mode_takes_engines_on_its_own_side_of_the_tensor_cores_only(
    mode_filter: ctypes.CDLL, mode: str
) -> None:
    on_tensor_cores = mode in TENSOR_CORE_MODES
    assert (objection(mode_filter, mode, "TENSOR_CORE") == "") is on_tensor_cores
    assert (objection(mode_filter, mode, "") == "") is not on_tensor_cores


@pytest.mark.parametrize("mode", MODES)
def test_no_mode_rounds_its_inputs_further(mode_filter: ctypes.CDLL, mode: str) -> None:
    side = "TENSOR_CORE " if mode in TENSOR_CORE_MODES else ""
    assert objection(mode_filter, mode, side + "DOWN_CONVERT_INPUTS") == (
        "it rounds its inputs to a smaller format"
    )


@pytest.mark.parametrize("mode", MODES)
def test_only_fp16_may_sum_in_less_than_float32(mode_filter: ctypes.CDLL, mode: str) -> None:
    side = "TENSOR_CORE " if mode in TENSOR_CORE_MODES else ""
    why = objection(mode_filter, mode, side + "REDUCED_PRECISION_REDUCTION")
    assert why == ("" if mode == "fp16" else "it sums in less than float32")


@pytest.mark.parametrize(
    "note", ["FFT", "WINOGRAD", "WINOGRAD_TILE_4x4", "NONDETERMINISTIC", "STRICT_NAN_PROP"]
)
def test_notes_that_leave_the_formats_alone_are_taken(mode_filter: ctypes.CDLL, note: str) -> None:
    assert objection(mode_filter, "fp32", note) == ""
    assert objection(mode_filter, "bf16-tc", f"TENSOR_CORE {note}") == ""


@pytest.mark.parametrize("mode", MODES)
def test_a_note_of_a_newer_cudnn_is_not_taken_on_trust(mode_filter: ctypes.CDLL, mode: str) -> None:
    note = mode_filter.numerical_note_text(ctypes.c_long(10)).decode()
    assert note == "NUMERICAL_NOTE_10"
    side = "TENSOR_CORE " if mode in TENSOR_CORE_MODES else ""
    assert note in objection(mode_filter, mode, side + note)


def test_the_accumulator_is_the_smaller_of_what_was_asked_for_and_what_is_noted(
    mode_filter: ctypes.CDLL,
) -> None:
    assert mode_filter.accumulator_text(0, b"") == b"float32"
    assert mode_filter.accumulator_text(0, b"TENSOR_CORE STRICT_NAN_PROP") == b"float32"
    assert mode_filter.accumulator_text(0, b"REDUCED_PRECISION_REDUCTION") == b"float16"
    assert mode_filter.accumulator_text(1, b"") == b"float16"


def test_notes_have_cudnns_names(mode_filter: ctypes.CDLL) -> None:
    numerical = [mode_filter.numerical_note_text(ctypes.c_long(i)).decode() for i in range(10)]
    assert numerical[:4] == [
        "TENSOR_CORE",
        "DOWN_CONVERT_INPUTS",
        "REDUCED_PRECISION_REDUCTION",
        "FFT",
    ]
    assert len(set(numerical)) == 10
    assert mode_filter.behavior_note_text(ctypes.c_long(0)) == b"RUNTIME_COMPILATION"
    assert mode_filter.behavior_note_text(ctypes.c_long(99)) == b"BEHAVIOR_NOTE_99"


def test_an_engine_is_named_with_its_knobs_in_order(mode_filter: ctypes.CDLL) -> None:
    assert name(mode_filter, 70, {18: 1, 2: 12}) == "engine 70 {tile 12, idx_mode 1}"
    assert name(mode_filter, 70, {2: 12, 18: 1}) == "engine 70 {tile 12, idx_mode 1}"
    assert name(mode_filter, 0, {}) == "engine 0 {default}"
    assert name(mode_filter, 3, {77: 5}) == "engine 3 {k77 5}"


@pytest.mark.parametrize(
    ("notes", "expected"),
    [
        ("WINOGRAD", "engine 4 (winograd) {default}"),
        ("WINOGRAD WINOGRAD_TILE_4x4", "engine 4 (winograd 4x4) {default}"),
        ("WINOGRAD_TILE_13x13", "engine 4 (winograd 13x13) {default}"),
        ("FFT", "engine 4 (fft) {default}"),
    ],
)
def test_fast_transforms_are_in_the_name_where_the_tolerance_looks(
    mode_filter: ctypes.CDLL, notes: str, expected: str
) -> None:
    assert name(mode_filter, 4, {}, notes) == expected
    assert re.search("wino|fft", expected)


def test_all_knob_values_are_combined(mode_filter: ctypes.CDLL) -> None:
    assert combinations(mode_filter, [(2, 0, 2, 1), (3, 0, 1, 1)], 6) == [
        "engine 7 {tile 0, use_tex 0}",
        "engine 7 {tile 0, use_tex 1}",
        "engine 7 {tile 1, use_tex 0}",
        "engine 7 {tile 1, use_tex 1}",
        "engine 7 {tile 2, use_tex 0}",
        "engine 7 {tile 2, use_tex 1}",
    ]
    assert combinations(mode_filter, [(14, 1, 7, 3)], 64) == [
        "engine 7 {stages 1}",
        "engine 7 {stages 4}",
        "engine 7 {stages 7}",
    ]


def test_too_many_combinations_are_none(mode_filter: ctypes.CDLL) -> None:
    assert combinations(mode_filter, [(2, 0, 2, 1), (3, 0, 1, 1)], 5) == []
    assert combinations(mode_filter, [(17, 1, 2048, 1)], 64) == []
    assert combinations(mode_filter, [], 64) == []
    assert combinations(mode_filter, [(2, 3, 2, 1)], 64) == []


@pytest.mark.parametrize(
    ("top", "left", "bottom", "right"), [(0, 0, 1, 1), (3, 2, 1, 2), (0, 5, 0, 0), (2, 2, 2, 2)]
)
def test_padding_done_apart_leaves_the_library_a_symmetric_rest(
    mode_filter: ctypes.CDLL, top: int, left: int, bottom: int, right: int
) -> None:
    given = (ctypes.c_long * 6)(14, 15, top, left, bottom, right)
    got = (ctypes.c_long * 10)()
    differs = mode_filter.explicit_sides(given, got)
    height, width, in_top, in_left, in_bottom, in_right, *extra = list(got)
    assert bool(differs) is ((top, left) != (bottom, right))
    assert (in_top, in_left) == (in_bottom, in_right)
    assert min(extra) == 0
    assert [in_top + extra[0], in_left + extra[1]] == [top, left]
    assert [in_bottom + extra[2], in_right + extra[3]] == [bottom, right]
    # The padded size, hence the output, is the same as before.
    assert height + in_top + in_bottom == 14 + top + bottom
    assert width + in_left + in_right == 15 + left + right
    assert any(extra) is bool(differs)


@pytest.mark.parametrize(
    ("sets", "most", "made", "looked_at"),
    [
        (1, 4096, 1, 1),
        (3, 3, 3, 3),
        # What a launch costs does not grow with the number of sets.
        (1000, 4096, 1000, 1000),
    ],
)
def test_what_was_made_for_operands_is_found_again(
    mode_filter: ctypes.CDLL, sets: int, most: int, made: int, looked_at: int
) -> None:
    out = (ctypes.c_long * 2)()
    mode_filter.rotate_operands.restype = ctypes.c_long
    arguments = [ctypes.c_long(number) for number in (sets, 3, most)]
    assert mode_filter.rotate_operands(*arguments, out) == made
    assert list(out) == [looked_at, 0]


def test_more_operands_than_are_kept_are_made_anew(mode_filter: ctypes.CDLL) -> None:
    out = (ctypes.c_long * 2)()
    mode_filter.rotate_operands.restype = ctypes.c_long
    made = mode_filter.rotate_operands(ctypes.c_long(5), ctypes.c_long(2), ctypes.c_long(4), out)
    assert 5 < made <= 10
    assert out[1] == 0
