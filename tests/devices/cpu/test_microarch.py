import pytest

from pydlbench.devices.cpu.facts import CpuFacts
from pydlbench.devices.cpu.peaks import find_microarchitecture, flop_rate

AVX2 = ("sse2", "fma", "avx2")
AVX512 = (*AVX2, "avx512f")
BF16 = (*AVX512, "avx512_bf16")
VNNI = (*BF16, "avx512_vnni")
AMX = (*VNNI, "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8")
AMD, INTEL = "AuthenticAMD", "GenuineIntel"


def cpu(vendor, family, model, isa, brand=None):
    return CpuFacts(vendor=vendor, family=family, model=model, isa=isa, brand=brand)


def rate(*args, precision="fp32", **kwargs):
    found = flop_rate(cpu(*args, **kwargs), precision)
    return None if found is None else found.flop_per_clock


@pytest.mark.parametrize(
    ("vendor", "family", "model", "isa", "name", "fp32"),
    [
        (AMD, 0x17, 0x08, AVX2, "Zen / Zen+", 16),
        (AMD, 0x17, 0x31, AVX2, "Zen 2", 32),
        (AMD, 0x19, 0x01, AVX2, "Zen 3", 32),
        (AMD, 0x19, 0x21, AVX2, "Zen 3", 32),
        (AMD, 0x19, 0x11, BF16, "Zen 4", 32),
        (AMD, 0x19, 0x61, BF16, "Zen 4", 32),
        (AMD, 0x19, 0xA0, BF16, "Zen 4", 32),
        (AMD, 0x1A, 0x02, BF16, "Zen 5", 64),
        (AMD, 0x1A, 0x11, BF16, "Zen 5", 64),
        (AMD, 0x1A, 0x44, BF16, "Zen 5", 64),
        (AMD, 0x1A, 0x24, BF16, "Zen 5 (mobile)", 32),
        ("HygonGenuine", 0x18, 0, AVX2, "Zen / Zen+", 16),
        (INTEL, 6, 0x3F, AVX2, "Haswell", 32),
        (INTEL, 6, 0x55, AVX512, "Skylake-SP to Cooper Lake", 64),
        (INTEL, 6, 0x7E, AVX512, "Ice Lake to Rocket Lake (client)", 32),
        (INTEL, 6, 0x6A, AVX512, "Ice Lake-SP", 64),
        (INTEL, 6, 0x8F, AMX, "Sapphire / Emerald Rapids", 64),
        (INTEL, 6, 0xAD, AMX, "Granite Rapids", 64),
        (INTEL, 6, 0xBE, AVX2, "Gracemont / Crestmont", 16),
        # Model numbers that a hypervisor masks.
        (INTEL, 6, 0xA7, AMX, "server core, by its instruction sets", 64),
        (INTEL, 6, 0x7E, BF16, "server core, by its instruction sets", 64),
        (INTEL, 6, 0x5E, AMX, "server core, by its instruction sets", 64),
    ],
)
def test_known_cores(vendor, family, model, isa, name, fp32):
    found = flop_rate(cpu(vendor, family, model, isa), "fp32")
    assert found is not None
    assert found.flop_per_clock == fp32
    assert found.derivation.startswith(f"{name}: ")
    assert not found.assumed


@pytest.mark.parametrize(
    ("brand", "fp32"),
    [
        ("Intel(R) Xeon(R) Silver 4114 CPU @ 2.20GHz", 32),
        ("Intel(R) Xeon(R) Gold 5118 CPU @ 2.30GHz", 32),
        ("Intel(R) Xeon(R) Gold 5122 CPU @ 3.60GHz", 64),
        ("Intel(R) Xeon(R) Gold 6148 CPU @ 2.40GHz", 64),
        ("Intel(R) Xeon(R) Platinum 8275CL CPU @ 3.00GHz", 64),
    ],
)
def test_small_skylake_servers_have_one_wide_pipe(brand, fp32):
    assert rate(INTEL, 6, 0x55, AVX512, brand=brand) == fp32


def test_bf16_on_zen_4_is_twice_fp32_and_on_zen_5_twice_that():
    assert rate(AMD, 0x19, 0x11, BF16, precision="bf16") == 64
    assert rate(AMD, 0x1A, 0x02, BF16, precision="bf16") == 128


def test_tiles():
    # 16 x 16 x 32 multiply-adds in 16 cycles.
    assert rate(INTEL, 6, 0x8F, AMX, precision="bf16") == 16 * 16 * 32 * 2 // 16
    assert rate(INTEL, 6, 0x8F, AMX, precision="fp16") == 128  # vectors: no amx_fp16
    assert rate(INTEL, 6, 0xAD, (*AMX, "amx_fp16"), precision="fp16") == 1024


@pytest.mark.parametrize(
    ("vendor", "family", "model", "isa", "operations"),
    [
        (AMD, 0x19, 0x11, VNNI, 128),  # two pipes of 256 bits, 4 products per 32 bits
        (AMD, 0x1A, 0x02, VNNI, 256),
        (INTEL, 6, 0x6A, VNNI, 256),
        (INTEL, 6, 0x97, (*AVX2, "avx_vnni"), 128),
        (INTEL, 6, 0x8F, AMX, 16 * 16 * 64 * 2 // 16),
        # Without the 512-bit instruction, the wide pipes execute one of 256 bits at a time.
        (AMD, 0x1A, 0x02, (*BF16, "avx_vnni"), 128),
    ],
)
def test_products_of_bytes(vendor, family, model, isa, operations):
    assert rate(vendor, family, model, isa, precision="int8") == operations


@pytest.mark.parametrize("precision", ["bf16", "fp16", "tf32", "int8"])
def test_what_the_cpu_lacks_has_no_rate(precision):
    assert rate(AMD, 0x19, 0x01, AVX2, precision=precision) is None


def test_hidden_instructions_narrow_the_pipes():
    assert rate(AMD, 0x1A, 0x02, AVX2) == 32
    # One 512-bit pipe is two of 256 bits joined: they are there for AVX2.
    assert rate(INTEL, 6, 0x7E, AVX2) == 32


def test_an_unknown_core_is_assumed_from_its_instructions():
    facts = cpu(AMD, 0x1F, 1, BF16)
    assert find_microarchitecture(facts) is None
    found = flop_rate(facts, "fp32")
    assert found is not None
    assert (found.flop_per_clock, found.assumed) == (64, True)
    assert "assumed" in found.derivation


def test_no_rate_without_x86():
    assert flop_rate(CpuFacts(machine="aarch64", isa=("asimd", "bf16")), "fp32") is None
