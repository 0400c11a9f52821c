"""Only this machine itself counts as this machine."""

import pytest

from mlsd.servers.connection import is_loopback


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.1", "::1"])
def test_addresses_of_this_machine_are_known(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["127.example.com", "127.0.0.1.nip.io", "0.0.0.0", "192.168.1.5", "studio.local", ""])
def test_a_name_that_looks_like_one_is_not_this_machine(host: str) -> None:
    assert not is_loopback(host)
