import pytest

from mlsd.hardware.chips import bins, peak_bandwidth


@pytest.mark.parametrize(
    ("name", "gpu_cores", "cpu_cores", "gb_s"),
    [
        ("Apple M1", None, None, 68.2),  # whose bins agree
        ("Apple M3 Ultra", None, None, 819),
        ("A18 Pro", None, None, 60),  # of the MacBook Neo
        ("Apple M3 Max", 30, None, 300),
        ("Apple M3 Max", 40, None, 400),
        ("Apple M3 Max", None, 14, 300),
        ("Apple M4 Max", 32, 14, 410),
        ("Apple M4 Max", None, 16, 546),
        ("M4 Max 36GB", None, None, 410),  # sold with 32 GPU cores alone
        ("M4 Max 64 GB", None, None, 546),
        ("Apple M5 Max", 40, None, 614),
    ],
)
def test_core_counts_choose_the_bin_where_bins_differ(
    name: str, gpu_cores: int | None, cpu_cores: int | None, gb_s: float
) -> None:
    assert peak_bandwidth(name, gpu_cores=gpu_cores, cpu_cores=cpu_cores)[0] == gb_s


@pytest.mark.parametrize("counts", [{}, {"gpu_cores": 99}, {"cpu_cores": 12}, {"gpu_cores": 99, "cpu_cores": 14}])
def test_counts_that_do_not_decide_give_no_bandwidth_and_say_so(counts: dict[str, int]) -> None:
    why = "Apple M3 Max has 300 GB/s (30 GPU cores) or 400 GB/s (40 GPU cores); the core counts do not decide"
    assert peak_bandwidth("Apple M3 Max", **counts) == (None, why)


@pytest.mark.parametrize(
    ("name", "why"), [("Apple M9", "no chip of that name"), ("Apple M5 Ultra", "no confirmed figure")]
)
def test_unknown_and_unconfirmed_chips_have_no_bandwidth(name: str, why: str) -> None:
    peak, source = peak_bandwidth(name)
    assert peak is None and why in source


def test_a_chip_is_found_with_or_without_apple_and_a_prefix_is_another_chip() -> None:
    assert bins("m2  ultra") == bins("Apple M2 Ultra") != ()
    assert {chip.name for chip in bins("M2")} == {"Apple M2"}
