"""What images go through, each against a plain loop or a property that must hold."""

import numpy as np
import pytest

from pydlbench.steps.data.queues import CROP, distort, standardize


@pytest.fixture
def images():
    return np.random.default_rng(3).integers(256, size=(6, 3, 32, 32), dtype=np.uint8)


def test_standardised_images_have_mean_0_and_deviation_1(images):
    for image in standardize(images.astype(np.float32)):
        assert image.mean() == pytest.approx(0, abs=1e-5)
        assert image.std() == pytest.approx(1, abs=1e-5)


def test_an_image_of_one_colour_becomes_zero_and_faint_ones_stay_faint():
    flat = np.full((1, 3, 24, 24), 7, np.float32)
    np.testing.assert_array_equal(standardize(flat), np.zeros_like(flat))
    # A deviation below 1 / sqrt(1728) is not blown up to 1.
    faint = flat + np.where(np.arange(24) % 2, 0.001, -0.001).astype(np.float32)
    assert standardize(faint).std() == pytest.approx(0.001 * np.sqrt(1728), rel=1e-2)


def test_each_crop_is_a_piece_of_its_image_up_to_a_line(images):
    # Brightness, contrast about the channel's mean and standardisation are one line per channel,
    # with one slope per image; so a channel correlates fully with exactly one piece.
    found = distort(images, np.random.default_rng(0))
    assert found.shape == (6, 3, CROP, CROP)
    assert found.dtype == np.float32
    places = set()
    for image, crop in zip(images, found, strict=True):
        matches = []
        for top in range(9):
            for left in range(9):
                piece = image[:, top : top + CROP, left : left + CROP].astype(float)
                for flip in (False, True):
                    turned = piece[:, :, ::-1] if flip else piece
                    slopes = [
                        np.polyfit(turned[c].ravel(), crop[c].ravel(), 1, full=True)
                        for c in range(3)
                        if np.corrcoef(turned[c].ravel(), crop[c].ravel())[0, 1] > 0.999
                    ]
                    if len(slopes) == 3:
                        matches.append((top, left, flip))
                        assert slopes[0][0][0] == pytest.approx(slopes[1][0][0], rel=1e-3)
        assert len(matches) == 1
        places.add(matches[0])
    assert len(places) > 3


def test_all_places_and_both_sides_are_drawn():
    # One bright pixel at row and column 16 stays the brightest and tells where the crop was.
    images = np.zeros((4000, 3, 32, 32), np.uint8)
    images[:, :, 16, 16] = 255
    found = distort(images, np.random.default_rng(5))[:, 0].reshape(4000, -1)
    rows, columns = np.unravel_index(found.argmax(axis=1), (CROP, CROP))
    assert set(rows.tolist()) == {16 - top for top in range(9)}
    unturned = {16 - left for left in range(9)}
    assert set(columns.tolist()) == unturned | {CROP - 1 - column for column in unturned}
    assert 0.45 < (columns > 11.5).mean() < 0.55  # 5 of 9 places unturned, 4 of 9 turned


def test_seeds_decide(images):
    first = distort(images, np.random.default_rng(1))
    np.testing.assert_array_equal(first, distort(images, np.random.default_rng(1)))
    assert not np.array_equal(first, distort(images, np.random.default_rng(2)))
