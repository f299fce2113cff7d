"""The shuffling queue and the thread that runs ahead."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from pydlbench.steps.data.datasets import Split
from pydlbench.steps.data.queues import Prefetch, ShuffleQueue

if TYPE_CHECKING:
    from collections.abc import Iterator


def split(count: int) -> Split:
    """Each image has one bright pixel column and a label that is its number."""
    images = np.zeros((count, 3, 32, 32), np.uint8)
    images[:, :, :, 16] = 255
    return Split(images=images, labels=np.arange(count))


def test_no_image_comes_twice_before_all_have_come_once():
    queue = ShuffleQueue(split(40), batch=4, minimum=12, seed=0)
    labels = np.concatenate([next(queue)[1] for _ in range(7)])
    assert len(set(labels.tolist())) == 28


def test_what_is_taken_and_what_stays_is_what_was_put_in():
    queue = ShuffleQueue(split(10), batch=5, minimum=20, seed=1)
    taken: Counter[int] = Counter()
    for batches in range(1, 60):
        images, labels = next(queue)
        assert images.shape == (5, 3, 24, 24)
        taken.update(labels.tolist())
        # 20 stay; all that was put in are whole rounds of the 10 and a part of one.
        inside = queue._labels[: queue._filled]
        total = taken + Counter(inside.tolist())
        assert len(inside) == 20
        assert sum(total.values()) == 5 * batches + 20
        assert max(total.values()) - min(total.values()) <= 1


def test_order_is_shuffled_and_seeded():
    def labels(seed: int) -> list[int]:
        queue = ShuffleQueue(split(100), batch=10, minimum=50, seed=seed)
        return np.concatenate([next(queue)[1] for _ in range(3)]).tolist()

    assert labels(1) == labels(1)
    assert labels(1) != labels(2)
    assert labels(1) != sorted(labels(1))


def test_images_stay_with_their_labels():
    # The label is how many channels are dark: a distorted image still tells.
    images = np.zeros((3, 3, 32, 32), np.uint8)
    images[:] = np.random.default_rng(0).integers(100, 256, images.shape)
    for dark in range(3):
        images[dark, :dark] = 0
    queue = ShuffleQueue(Split(images=images, labels=np.arange(3)), batch=3, minimum=6, seed=0)
    for found, labels in itertools.islice(queue, 20):
        flat = (found.std(axis=(2, 3)) < 1e-3).sum(axis=1)
        assert flat.tolist() == labels.tolist()


def test_prefetch_hands_out_everything_in_order():
    with Prefetch(range(50)) as items:
        assert list(items) == list(range(50))


def test_prefetch_stays_a_few_items_ahead_and_ends_its_thread():
    made = []
    third = threading.Event()

    def count() -> Iterator[int]:
        for number in itertools.count():
            made.append(number)
            if number == 3:
                third.set()
            yield number

    before = threading.active_count()
    with Prefetch(count(), ahead=3) as items:
        assert third.wait(10)
        assert next(items) == 0
        assert len(made) <= 1 + 3 + 2
    assert threading.active_count() == before


def test_prefetch_raises_what_the_iterator_raised_after_what_it_made():
    def broken() -> Iterator[int]:
        yield 1
        raise OSError("disk")

    with Prefetch(broken()) as items:
        assert next(items) == 1
        with pytest.raises(OSError, match="disk"):
            next(items)
