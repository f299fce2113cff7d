from __future__ import annotations

import importlib.metadata
import importlib.util

import pytest

from pydlbench.backends import capabilities as offers
from pydlbench.backends import capabilities as registry
from pydlbench.records.specs import BACKENDS, CPU_PRECISIONS, GPU_PRECISIONS, MODES


def test_every_backend_has_one_offer_in_the_order_of_the_option():
    assert tuple(one.name for one in offers.OFFERS) == BACKENDS
    assert [offers.offer(name).name for name in BACKENDS] == list(BACKENDS)
    with pytest.raises(KeyError):
        offers.offer("caffe")


@pytest.mark.parametrize("one", offers.OFFERS, ids=lambda one: one.name)
def test_offers_are_made_of_known_words(one):
    assert set(one.modes) == set(one.precisions) == set(one.devices) <= {"cpu", "cuda"}
    assert all(mode is None or mode in MODES for modes in one.modes.values() for mode in modes)
    assert set(one.precisions.get("cpu", ())) <= set(CPU_PRECISIONS)
    assert set(one.precisions.get("cuda", ())) <= set(GPU_PRECISIONS)
    assert one.install.startswith("pip install ")
    assert all((one.name, device) in registry._MODULES for device in one.devices)


def versions(monkeypatch, **known):
    def version(name):
        if name not in known:
            raise importlib.metadata.PackageNotFoundError(name)
        return known[name]

    monkeypatch.setattr(importlib.metadata, "version", version)


def test_any_package_that_brings_a_backend_gives_its_version(monkeypatch):
    versions(monkeypatch, **{"cupy-cuda12x": "13.1"})
    assert offers.installed_version(offers.offer("cupy")) == "13.1"
    assert offers.installed_version(offers.offer("torch")) is None


def test_what_can_be_imported_is_there_whatever_brought_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "torch" or None)
    found = {one.name: offers.is_there(one) for one in offers.OFFERS}
    # The native modules are a part of this package.
    assert found == {
        "native": True,
        "torch": True,
        "tensorflow": False,
        "cupy": False,
        "numba": False,
    }
