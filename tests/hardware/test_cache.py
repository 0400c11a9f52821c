"""The size of the largest cache as Linux writes it."""

from mlsd.hardware.cache import largest


def test_the_largest_cache_is_read_as_linux_writes_it() -> None:
    assert largest(["48K\n", "32768K\n", "2M"]) == 32 << 20
    assert largest(["", "unknown"]) is None
