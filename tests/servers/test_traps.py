"""A proxy that lies stands between client and server: found every time, and the run goes on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mlsd.errors import InputError, MlsdError
from mlsd.servers.connection import KEY_VARIABLE, Connection, check_url
from mlsd.servers.dialects import connect
from mlsd.servers.endpoint import Endpoint, Request
from mlsd.servers.measure import ServerResult
from mlsd.servers.protocols import Health
from tests.servers import proxy as faults
from tests.servers.asked import pair, reasons, verdicts
from tests.servers.conftest import GAMMA
from tests.servers.proxy import Fault, Proxy

TIMES = 10  # a fault must be found this often

Measure = Callable[..., ServerResult]


@pytest.fixture
def behind(plain: Endpoint, speculative: Endpoint, tmp_path: Path) -> Measure:
    """Measures with a fault before the speculative server, or before the plain one."""

    def run(fault: Fault, *prompts: str, before_plain: bool = False, patience_s: float = 30.0, **more: object):
        with Proxy((plain if before_plain else speculative).url, fault) as proxy:
            lying = connect(proxy.url, patience_s)
            ends = (lying, speculative) if before_plain else (plain, lying)
            try:
                return pair(*ends, tmp_path / "s.sqlite", *prompts, gamma=GAMMA, **more)
            finally:
                lying.close()

    return run


def test_an_honest_proxy_is_not_doubted(behind: Measure) -> None:
    result = behind(Fault(), repeats=TIMES)
    assert not reasons(result) and not reasons(result, "ar")
    assert set(verdicts(result)) <= {"lossless", "near_tie"}


def test_one_altered_token_in_200_is_found_every_time(behind: Measure) -> None:
    # Every answer of so many tokens holds at least one that was altered.
    result = behind(faults.AltersTokens(200), n_predict=220, repeats=TIMES)
    assert set(verdicts(result)) == {"diverged"} and len(reasons(result)) == TIMES


def test_altered_tokens_of_the_plain_server_are_named_and_nothing_is_said_of_losslessness(behind: Measure) -> None:
    # In two answers of 150 tokens the altered ones stand at different places.
    result = behind(faults.AltersTokens(200), n_predict=150, repeats=1, before_plain=True)
    assert not result.deterministic and any("does not repeat itself" in note for note in result.notes)
    assert set(verdicts(result)) == {None} and not reasons(result)


@pytest.mark.parametrize("fault", [faults.DoublesAccepted, faults.HidesPages])
def test_doubled_acceptance_is_found_every_time(behind: Measure, fault: type[Fault]) -> None:
    result = behind(fault(), repeats=TIMES)
    found = reasons(result)
    assert len(found) == TIMES and all("accepted" in reason for reason in found)


def test_a_fast_clock_is_not_believed(behind: Measure) -> None:
    result = behind(faults.FastClock(), n_predict=200, repeats=4)
    assert any("claims another time for its decoding than passed here" in note for note in result.notes)
    for one in (one.trial for one in result.trials if one.trial.arm == "sd"):
        # A tenth is claimed; how late the last pieces came is for the machine to say.
        assert one.decode_ns is not None and one.decode_ns > 2 * one.stats["server_decode_ns"]
    (row,) = (row for row in result.results if not row.is_plain)
    assert row.ratio is None or row.ratio.value < 3


def test_an_answer_from_a_cache_is_found_every_time(behind: Measure) -> None:
    fault = faults.Caches()
    result = behind(fault, repeats=TIMES)
    found = reasons(result)
    assert fault.served >= TIMES and len(found) == TIMES
    assert all("cached answer" in reason or "its own counters" in reason for reason in found)


def test_a_stalled_stream_is_a_failed_trial_with_its_reason(behind: Measure) -> None:
    result = _late(behind, faults.Stalls, 2.0, patience_s=1.0)
    # Whether the empty line behind the last piece came before or after it was read is for the machine to say.
    assert all("nothing for 1 s" in reason for reason in reasons(result)) and reasons(result)
    assert not reasons(result, "ar")


@pytest.mark.parametrize("fault", [faults.Cuts, faults.EndsEarly])
def test_half_a_stream_is_a_failed_trial_with_its_reason(behind: Measure, fault: type[faults.Cuts]) -> None:
    result = _late(behind, fault)
    assert reasons(result) and not reasons(result, "ar")
    assert all("half an answer" in reason or "broke off" in reason for reason in reasons(result))


def _late(behind: Measure, fault: type[Fault], *more: object, **settings: float) -> ServerResult:
    """The fault begins with the measured requests, which are longer than those of the warm-up."""

    class Late(fault):  # type: ignore[valid-type,misc]
        n_streams = 0

        def begins(self) -> None:
            self.n_streams += 1

        def goes_on(self, n_events: int) -> bool:
            return self.n_streams < 4 or super().goes_on(n_events)

    return behind(Late(20, *more), **settings)


def test_a_server_that_limits_the_output_is_named(behind: Measure) -> None:
    result = behind(faults.Limits(40))
    assert all("40 of 48 tokens" in reason for reason in reasons(result)) and reasons(result)


def test_a_template_around_the_prompt_is_named(behind: Measure) -> None:
    result = behind(faults.AddsTemplate())
    assert all("a template or a BOS token came on top" in reason for reason in reasons(result)) and reasons(result)


def test_a_server_that_loads_is_waited_for(speculative: Endpoint) -> None:
    with Proxy(speculative.url, faults.Loads(3)) as proxy:
        endpoint = connect(proxy.url, 10.0)
        assert endpoint.server == speculative.server
        endpoint.close()


def test_one_connection_serves_many_requests(plain: Endpoint) -> None:
    with Proxy(plain.url, Fault()) as proxy:
        endpoint = connect(proxy.url, 10.0)
        for _ in range(5):
            endpoint.complete(Request(prompt=(1, 2, 3), n_predict=2))
        assert len(proxy.connections) == 1
        endpoint.close()


def test_a_key_is_used_and_shown_nowhere(
    plain: Endpoint, speculative: Endpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, "sk-secret-of-somebody")
    with Proxy(speculative.url, faults.Refuses()) as proxy:
        endpoint = connect(proxy.url, 10.0)
        refused = pair(plain, endpoint, tmp_path / "s.sqlite")
        endpoint.close()
    assert all("bad key ***" in reason for reason in reasons(refused)) and reasons(refused)
    assert "secret" not in f"{refused}"
    result = pair(plain, speculative, tmp_path / "s.sqlite")
    assert not reasons(result)
    for path in tmp_path.iterdir():
        assert b"sk-secret" not in path.read_bytes()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://me:key@127.0.0.1:1", "no user, password or key"),
        ("http://127.0.0.1:1/?key=x", "no user, password or key"),
        ("http://example.org", "not this machine"),
        ("http://192.168.1.5:8080", "not this machine"),
        ("ftp://127.0.0.1", "no URL of a server"),
        ("8080", "no URL of a server"),
    ],
)
def test_a_url_that_leaves_the_machine_or_holds_a_key_is_refused(url: str, why: str) -> None:
    with pytest.raises(InputError, match=why):
        check_url(url)


def test_a_url_elsewhere_is_taken_when_asked_for() -> None:
    assert check_url("http://192.168.1.5:8080/", remote=True) == "http://192.168.1.5:8080"


def test_a_server_that_is_not_there_is_one_message() -> None:
    connection = Connection("http://127.0.0.1:9", 1.0)
    with pytest.raises(MlsdError, match="No server answers"):
        connection.get("/health", Health, "status")
    connection.close()
