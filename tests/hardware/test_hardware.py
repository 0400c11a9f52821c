import hashlib
import sys
from pathlib import Path

import pytest

from mlsd import hardware
from mlsd.hardware import darwin
from mlsd.records import BackendInfo, Environment
from tests.hardware import test_darwin as mac

BACKEND = BackendInfo(
    backend="Metal", device="Apple M2 Ultra", devices=(), binding_version="0.3.36", build="b8240", system_info=""
)


def test_this_machine_can_be_read_and_stays_the_same_machine() -> None:
    machine, now = hardware.read_machine().environment, hardware.read_conditions()
    assert machine.host == hardware.read_environment().host
    assert machine.memory_bytes is not None and now.available_bytes is not None and now.load_1min is not None
    assert 0 < now.available_bytes < machine.memory_bytes


def test_every_field_that_is_none_has_a_reason_and_no_other_has_one() -> None:
    machine = hardware.read_machine()
    fields = Environment.__struct_fields__
    assert set(machine.missing) == {f for f in fields if getattr(machine.environment, f) is None}
    assert machine.missing["backend"] == "the engine was not asked"


def test_a_mac_is_read_through_its_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {
        darwin.FACT_COMMANDS["sysctl"]: mac.M2_ULTRA,
        darwin.FACT_COMMANDS["sw_vers"]: mac.SW_VERS,
        darwin.FACT_COMMANDS["displays"]: mac.DISPLAYS,
        darwin.FACT_COMMANDS["identity"]: mac.IDENTITY,
        darwin.STATE_COMMANDS["pressure"]: "com.apple.system.thermalpressurelevel 0\n",
        darwin.STATE_COMMANDS["power"]: mac.POWER,
    }
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(darwin, "run", lambda argv: texts.get(tuple(argv)))
    environment = hardware.read_environment(BACKEND)
    assert environment.chip == environment.device == "Apple M2 Ultra"
    assert (environment.os, environment.hardware_model) == ("macOS 26.5 (25F71)", "Mac14,14")
    assert (environment.memory_bytes, environment.logical_cores, environment.gpu_cores) == (206158430208, 24, 30)
    assert (environment.performance_cores, environment.efficiency_cores) == (16, 8)
    assert (environment.backend, environment.llama_cpp_build) == ("Metal", "b8240")
    assert (environment.power_source, environment.low_power_mode, environment.thermal_state) == ("ac", True, "nominal")
    assert environment.peak_bandwidth_gb_s == 800
    identity = mac.IDENTITY.split('"')[3]
    assert environment.host == hardware.host_key(identity) and identity not in str(environment)


def test_a_missing_program_gives_no_output_and_a_failing_one_what_it_printed() -> None:
    assert darwin.run(["no-such-program-anywhere"]) is None
    assert darwin.run([sys.executable, "-c", "print('partial'); raise SystemExit(1)"]) == "partial\n"


def test_machines_are_distinguished_without_storing_who_they_are() -> None:
    assert hardware.host_key("a") == hashlib.sha256(b"mlsd host a").hexdigest()[:16], "as stored databases hold it"
    assert hardware.host_key("a") != hardware.host_key("b")
    assert len(hardware.host_key(None)) == 16


def test_a_network_address_cannot_be_searched_for_by_its_hash(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("uuid.getnode", lambda: 0x0242AC110002)
    keys = []
    for user in ("jane", "jane", "joe"):
        monkeypatch.setenv("MLSD_HOME", str(tmp_path / user))
        hardware._secret.cache_clear()
        keys.append(hardware.host_key(None))
    hardware._secret.cache_clear()
    assert keys[0] == keys[1] != keys[2]
    assert hashlib.sha256(b"mlsd host 0242ac110002").hexdigest()[:16] not in keys
