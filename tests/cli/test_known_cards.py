"""``device --known``: its JSON and its options; the table is in ``transcripts/catalog.txt``."""

import json

import pytest

from pydlbench.cli import device
from pydlbench.cli.parser import read
from pydlbench.errors import UsageError


def run(*words):
    def probe(**_arguments):
        pytest.fail("probed")

    return device.run(read(["device", "--known", *words])[0], probe)


def cards(capsys):
    found = json.loads(capsys.readouterr().out)
    assert found["schema_version"] >= 1
    return {card["name"]: card for card in found["cards"]}


def test_the_json_of_known_cards(capsys):
    run("--json", "-", "--price", "H200 SXM=30000", "--throughput", "H200 SXM=6000")
    card = cards(capsys)["H200 SXM"]
    assert card["tflops"]["bf16-tc"] == 989.5
    assert card["tflops_derived"]["fp16"] == pytest.approx(133.8, rel=1e-3)
    assert card["tflops_per_kusd"]["fp32"] == pytest.approx(67 / 30)
    assert card["images_per_s_per_usd"] == pytest.approx(0.2)
    assert card["bandwidth_gb_per_s"] == 4800


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--price", "RTX 409=1"), r"--price RTX 409: no such card; nearest: RTX 4090"),
        (("--price", "zzz=1"), r"no such card; nearest: .*TPU v6e"),
        (("--price", "A100=1"), r"nearest: A100 SXM 40GB, A100 SXM 80GB, A100 PCIe 40GB"),
        (("--price", "NVIDIA H200=1"), r"no such card; nearest: H200 SXM, H200 NVL$"),
        (("--price", "GeForce RTX  4090=1"), r"no such card; nearest: RTX 4090$"),
        (("--price", ""), r"--price '': not NAME=NUMBER; nearest: 'H200 SXM=1000'"),
        (("--price", "=5"), r"--price =5: not NAME=NUMBER; nearest"),
        (("--price", "T4"), r"--price T4: not NAME=NUMBER; nearest: 'T4=1000'"),
        (("--price", "T4=cheap"), r"T4=cheap: not a number"),
        (("--price", "T4=nan"), r"T4=nan: not a number"),
        (("--price", "T4=0"), r"T4=0: must be above 0"),
        (("--throughput", "T4=100"), r"need a price; nearest: --price 'T4=USD'"),
    ],
)
def test_bad_prices_are_refused(words, said):
    with pytest.raises(UsageError, match=said):
        run(*words)
