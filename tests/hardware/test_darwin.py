import json

import pytest

from mlsd.engine.context import default_threads
from mlsd.hardware import darwin
from mlsd.records import Conditions, Environment
from mlsd.store.rows import environment_key

# Where the texts come from. sysctl: lines recorded on an M2 Ultra, an M2 Pro, an M5 Pro and an M6 (three tiers of
# cores); unknown names go to stderr, and the rest is printed (apple-oss-distributions/system_cmds, sysctl.c).
# number_processors: recorded in the tests of vladkens/macmon on GitHub, and on an M2 Ultra with macOS 26. notifyutil:
# notifyutil.c of apple-oss-distributions/Libnotify 348, which prints failures to stdout; the levels of
# <libkern/OSThermalNotification.h> in the SDK of macOS 26, of which 0 to 2 were recorded on a fanless M4 Air, and 0 on
# an M2 Air (stanislas.blog/2025/12/macos-thermal-throttling-app).
M2_ULTRA = """\
machdep.cpu.brand_string: Apple M2 Ultra
hw.model: Mac14,14
hw.memsize: 206158430208
hw.ncpu: 24
hw.nperflevels: 2
hw.perflevel0.physicalcpu: 16
hw.perflevel1.physicalcpu: 8
iogpu.wired_limit_mb: 0
"""
M5_CLASS = """\
hw.ncpu: 15
hw.perflevel0.physicalcpu: 5
hw.perflevel1.physicalcpu: 10
"""
THREE_TIERS = "".join(
    f"hw.perflevel{i}.name: {name}\nhw.perflevel{i}.physicalcpu: {n}\n"
    for i, (name, n) in enumerate((("Super", 2), ("Performance", 4), ("Efficiency", 6)))
)
SW_VERS = "ProductName:\tmacOS\nProductVersion:\t26.5\nBuildVersion:\t25F71\n"
DISPLAYS = """
{ "SPDisplaysDataType" : [ { "_name" : "Apple M2 Max",
  "spdisplays_mtlgpufamilysupport" : "spdisplays_metal4",
  "spdisplays_ndrvs" : [ { "_name" : "Color LCD", "spdisplays_connection_type" : "spdisplays_internal",
                           "spdisplays_online" : "spdisplays_yes" } ],
  "spdisplays_vendor" : "sppci_vendor_Apple", "sppci_bus" : "spdisplays_builtin",
  "sppci_cores" : "30", "sppci_device_type" : "spdisplays_gpu", "sppci_model" : "Apple M2 Max" } ] }
"""
POWER = """\
System-wide power settings:
Currently in use:
 displaysleep         10
 sleep                1 (sleep prevented by powerd)
 lowpowermode         1
"""
IDENTITY = '  | "IOPlatformUUID" = "12345678-ABCD-EF01-2345-6789ABCDEF01"\n'


def outputs(**changed: str | None) -> dict[str, str | None]:
    base: dict[str, str | None] = {"sysctl": M2_ULTRA, "sw_vers": SW_VERS, "displays": DISPLAYS, "identity": IDENTITY}
    return base | changed


def test_gpu_cores_decide_the_bandwidth_of_a_max_chip() -> None:
    m4_max = M2_ULTRA.replace("M2 Ultra", "M4 Max")
    forty = DISPLAYS.replace('"30"', '"40"')
    assert darwin.facts(outputs(sysctl=m4_max, displays=forty)).environment.peak_bandwidth_gb_s == 546
    undecided = darwin.facts(outputs(sysctl=m4_max))
    assert undecided.environment.peak_bandwidth_gb_s is None
    assert "the core counts do not decide" in undecided.missing["peak_bandwidth_gb_s"]


def test_a_mac_that_answers_nothing_yields_no_guess_and_reasons() -> None:
    facts = darwin.facts({})
    assert facts.environment == Environment(host="", os="", machine="") and facts.identity is None
    assert facts.missing["peak_bandwidth_gb_s"] == "the chip is not known"
    assert darwin.state({}, on_battery=None) == Conditions()


@pytest.mark.parametrize(("mb", "n_bytes"), [("0", None), ("14000", 14000 << 20), ("", None)])
def test_a_wired_limit_of_zero_means_the_system_decides(mb: str, n_bytes: int | None) -> None:
    text = M2_ULTRA.replace("iogpu.wired_limit_mb: 0", f"iogpu.wired_limit_mb: {mb}")
    facts = darwin.facts(outputs(sysctl=text))
    assert facts.environment.wired_limit_bytes == n_bytes
    assert ("macOS decides" in facts.missing["wired_limit_bytes"]) == (mb == "0")


@pytest.mark.parametrize(
    ("text", "chip", "cores"),
    [
        (M5_CLASS, "Apple M5 Pro", None),
        (M5_CLASS, "Apple M4 Pro", (5, 10)),  # where unnamed tiers are known
        (M5_CLASS + "hw.perflevel0.name: Super\nhw.perflevel1.name: Performance\n", "Apple M5 Pro", (15, 0)),
        (THREE_TIERS, "Apple M6", (6, 6)),
        (M2_ULTRA + "hw.perflevel0.name: Performance\nhw.perflevel1.name: Efficiency\n", None, (16, 8)),
    ],
)
def test_core_tiers_count_by_name_or_by_what_is_known_of_the_chip(
    text: str, chip: str | None, cores: tuple[int, int] | None
) -> None:
    named = {} if chip is None else {"machdep.cpu.brand_string": chip}
    assert darwin.parse_perf_levels(darwin.parse_sysctl(text) | named) == cores


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ('"number_processors" : "proc 12:8:4"', (8, 4)),
        ('"number_processors" : "proc 18:6:0:12"', (18, 0)),
        ('"number_processors" : "proc 16:12:4:0"', (12, 4)),
        ('"number_processors" : 12', None),
        (None, None),
    ],
)
def test_the_processor_string_has_three_or_four_counts(text: str | None, cores: tuple[int, int] | None) -> None:
    facts = darwin.facts(outputs(sysctl=M5_CLASS, hardware=text)).environment  # whose tiers have no names
    assert (facts.performance_cores, facts.efficiency_cores) == (cores or (None, None))


def test_gpu_cores_come_from_apples_own_card() -> None:
    cards = json.loads(DISPLAYS)
    cards["SPDisplaysDataType"].insert(0, {"_name": "External", "spdisplays_vendor": "sppci_vendor_amd"})
    cards["SPDisplaysDataType"][1]["_name"] = "kHW_AppleM1Item"
    assert darwin.parse_gpu_cores(json.dumps(cards)) == 30
    assert darwin.parse_gpu_cores("not json") is None
    assert darwin.parse_gpu_cores("[]") is None


@pytest.mark.parametrize(
    ("line", "mode"), [("lowpowermode         1", 1), ("lowpowermode\t0", 0), ("powermode  2", 2), ("", None)]
)
def test_the_power_mode_in_use_is_read_by_either_name(line: str, mode: int | None) -> None:
    text = POWER.replace("lowpowermode         1", line)
    assert darwin.parse_power_mode(text) == mode
    assert darwin.state({"power": text}, on_battery=False).low_power_mode == (None if mode is None else mode == 1)


def test_what_decides_a_macs_speed_keeps_its_results_apart() -> None:
    def key(mode: int | None = 0, version: str = "15.6", **variables: str) -> str:
        text = f"ProductName:\tmacOS\nProductVersion:\t{version}\nBuildVersion:\t24G84\n"
        facts = darwin.facts(outputs(sw_vers=text), mode=mode, variables={"PATH": "/bin", **variables})
        return environment_key(facts.environment)

    kinds = [key(), key(2), key(1), key(version="26.1"), key(GGML_METAL_NO_TENSOR="1")]
    assert len(set(kinds)) == len(kinds)
    assert key(OTHER="1") == key()
    before = Environment(host="h", os="macOS 15.6", machine="arm64", backend="Metal")
    assert environment_key(before) == "2f3ec531176ddc31", "what was stored before keeps its key"


@pytest.mark.parametrize(("version", "warned"), [("14.7", True), ("15.0", False), ("26.1", False)])
def test_a_macos_without_residency_sets_is_told_of(version: str, warned: bool) -> None:
    environment = Environment(host="h", os=f"macOS {version} (23A344)", machine="arm64")
    assert any("macOS 15 or later for steady times" in text for text in darwin.advice(environment)) is warned


def test_cores_are_counted_in_one_way(monkeypatch: pytest.MonkeyPatch) -> None:
    nameless = '"number_processors" : "proc 18:6:0:12"'
    printed = {darwin.FACT_COMMANDS["sysctl"]: M5_CLASS, darwin.FACT_COMMANDS["hardware"]: nameless}
    monkeypatch.setattr(darwin, "run", printed.get)
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr(darwin, "performance_cores", darwin.performance_cores.__wrapped__)
    facts = darwin.facts(outputs(sysctl=M5_CLASS, hardware=nameless)).environment
    assert default_threads() == facts.performance_cores


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("com.apple.system.thermalpressurelevel 0\n", "nominal"),
        ("com.apple.system.thermalpressurelevel 2\n", "heavy"),
        ("com.apple.system.thermalpressurelevel 4\n", "sleeping"),
        ("com.apple.system.thermalpressurelevel 30\n", None),  # the scale of other systems
        ("com.apple.system.thermalpressurelevel: Failed with code 9\n", None),
        (None, None),
    ],
)
def test_the_systems_pressure_level_is_read_without_root(text: str | None, state: str | None) -> None:
    assert darwin.parse_pressure_level(text) == state
    assert darwin.state({"pressure": text}, on_battery=None).thermal_state == state


def test_a_sysctl_that_ends_at_an_unknown_name_costs_only_what_stands_behind_it() -> None:
    """Up to macOS 14.3: `hw.perflevel2` is not there on two tiers of cores."""
    cut = "".join(line for line in M2_ULTRA.splitlines(keepends=True) if "wired" not in line)
    facts = darwin.facts(outputs(sysctl=cut, wired="iogpu.wired_limit_mb: 14000\n"))
    assert facts.environment.wired_limit_bytes == 14000 << 20
    assert darwin.FACT_COMMANDS["wired"] == ("/usr/sbin/sysctl", "iogpu.wired_limit_mb")
    names = darwin.FACT_COMMANDS["sysctl"]
    assert [name for name in names if "perflevel2" in name] == list(names[-2:])
