"""How often drafters are right: as trials here, public figures, or a person say it."""

import functools
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from mlsd.analysis.predict.costs import (
    Outcomes,
    at_gamma,
    mgl_of,
    nearest,
    outcomes,
    outcomes_cut,
    outcomes_of,
    spread_of_mgl,
)
from mlsd.errors import InputError
from mlsd.folders import asset_path, user_dir
from mlsd.hardware import apple_passes as passes
from mlsd.outside import convert, read_toml
from mlsd.records import DRAFT_MODEL, Record
from mlsd.stats import grouped
from mlsd.trials.acceptance_meanings import DESCRIPTIONS, by_position, chance_for, rate_of
from mlsd.trials.arms import Arm, arm_named, options_text
from mlsd.trials.rates import total
from mlsd.trials.results import ArmResult

PLAIN_ARM = Arm()  # plain decoding
HEADS = ("mtp", "eagle3", "dflash", "dspark")
NATIVE = ("mtp",)  # trained with its target
_FAULT = 0.5  # every public native head accepts more than 75 % of first tokens
FAULT_WORDS = (
    "a native head that accepts less than 50 % of first tokens has a fault (a rollback off by one, a norm applied "
    "twice), not a hard text"
)
_ELSEWHERE = 0.15  # of the MGL: another text, quantization or version of the models; texts differ by about so much
_TEXTS = 3  # whose scatter says more than that of rounds


class Acceptance(Record, frozen=True, kw_only=True):
    """How often one drafter is right on one target."""

    arm: Arm  # the drafter, without a gamma
    alphas: tuple[float, ...] = ()  # given that the position before was accepted; the last one goes on
    measured: Mapping[int, Outcomes] = {}  # how rounds ended, by gamma
    relative_error: float = 0.0  # standard error of the MGL over the MGL
    source: str
    assumed: tuple[float, float] | None = None  # nobody measured it: the range of `alphas`, which are its middle
    of_proposed: float | None = None  # accepted over proposed, where unsure tokens end drafts: their length is assumed
    is_lookup: bool = False  # assumed: text that is copied seldom is proposed for as seldom

    def outcomes(self, gamma: int, alpha: float | None = None) -> Outcomes:
        """How rounds end; by the rounds of the nearest measured gamma, or at one alpha of an assumed range."""
        if self.measured:
            near = nearest(self.measured, gamma)
            return at_gamma(self.measured[near], near, gamma)
        alphas = self.alphas if alpha is None else (alpha,)
        if self.of_proposed is not None:
            return outcomes_cut(self.of_proposed, self.arm.p_min, alphas[0], gamma)
        return outcomes(alphas, gamma, alphas[0] if self.is_lookup else 1.0)


class Stated(Record, frozen=True, kw_only=True):
    """What a log or a person says of a drafter: accepted over proposed tokens, both counts, or the MGL.

    Raises InputError for what no round at this gamma can have.
    """

    gamma: int
    rate: float | None = None
    counts: tuple[int, int] | None = None
    mgl: float | None = None
    n_output: int | None = None  # tokens of the answer that `counts` are of: rounds that did not propose count, too

    def __post_init__(self) -> None:
        self.of(PLAIN_ARM)

    def of(self, arm: Arm) -> Acceptance:
        """The acceptance of that drafter."""
        is_lookup = is_look_up(arm.method)
        ends, source = self._ends(is_lookup)
        unsaid = self.n_output is None and self.mgl is None  # how much rounds propose
        if is_lookup and unsaid:
            raise InputError(
                f"{arm.name} proposes in some rounds only, so what is accepted of its proposals gives no speed.",
                hint="Give the length of the answer too: --accepted 140/245 --output-tokens 256; or --mgl.",
            )
        if arm.p_min and unsaid:
            assumed, rate = any_acceptance(arm, None), outcomes_rate(ends)
            source = (
                f"{source.partition(':')[0]}; drafts as long as {assumed.source} would let p_min {arm.p_min:g} stand"
            )
            least, most = assumed.assumed or (0.0, 1.0)
            range_ = (max(least, arm.p_min / 2 + 0.02), most)  # what is less often right is seldom sure enough
            return replace(
                assumed, of_proposed=rate, assumed=range_, source=f"{source} (--output-tokens or --mgl says it)"
            )
        first = outcomes_rate(ends)
        if arm.method in NATIVE and self.gamma == 1 and first < _FAULT:
            source += f"; {FAULT_WORDS}"
        return Acceptance(arm=arm, measured={self.gamma: ends}, source=source)

    def _ends(self, is_lookup: bool) -> tuple[Outcomes, str]:
        gamma, said, mgl, length = self.gamma, "", self.mgl, float(self.gamma)
        if self.counts is not None:
            accepted, proposed = self.counts
            rate, said = accepted / proposed if proposed > 0 else math.nan, f"{accepted} of {proposed}"
            if self.n_output is not None:
                rounds, least = self.n_output - accepted, math.ceil(proposed / gamma)
                if least - gamma <= rounds < least:  # the last round ran over the answer's end
                    rounds = least
                length = proposed / rounds if rounds > 0 else math.nan
                said += f" in an answer of {self.n_output} tokens, {length:.2f} proposed a round"
        else:
            rate = self.rate if self.rate is not None else 0.0
            said = "" if self.rate is None else f"{self.rate:.0%}"
        if mgl is None:
            mgl = 1 + rate * length if 0 <= rate <= 1 and 0 < length <= gamma else math.nan
        drafting = round(_PARTS * length / gamma) if length == length else 0
        lengths = ((gamma, 0, drafting), (0, 0, _PARTS - drafting))
        if not is_lookup:  # drafts that end early: as long as whole tokens allow on both sides of the mean
            low = min(int(length), gamma - 1) if length == length else 0
            above = round(_PARTS * (length - low)) if length == length else 0
            lengths = ((low + 1, 0, above), (low, 0, _PARTS - above))
        chance = chance_for(lengths, mgl) if 1 <= mgl <= gamma + 1 else None
        if chance is None:
            raise InputError(
                f"No round at gamma {gamma} has such an acceptance.",
                hint="--acceptance lies between 0 and 1 (75 % is 0.75), --accepted N/M has N of M proposed tokens, "
                f"--mgl lies between 1 and {gamma + 1}.",
            )
        ends = defaultdict[tuple[int, int], float](float)
        for proposed, _, n in lengths:
            for end, share in outcomes((chance,), proposed).items():
                ends[end] += share * n / _PARTS
        what = f"MGL {mgl:.2f} at gamma {gamma}"
        return dict(ends), f"{said} as stated, {DESCRIPTIONS['proposed']}: {what}" if said else f"{what} as stated"


_PARTS = 10_000  # that rounds of two lengths are counted in


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What people measured or assume: of drafts of some targets, or of methods."""

    source: str
    targets: tuple[str, ...] = ()
    drafts: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    method: str = DRAFT_MODEL
    text: str = ""
    acceptance: dict[str, float] = {}  # measured, accepted / proposed by gamma
    accepted: tuple[int, ...] = ()  # measured, by position
    reached: tuple[int, ...] = ()
    drafting: float = 1.0  # share of rounds that proposed, of such counts
    date: str = ""
    least: float = 0.0  # else the chance of a token is assumed to lie from here
    most: float = 1.0

    def tells(self, workload: str | None) -> bool:
        """Whether it was measured on text of this kind; prose is any but code."""
        return workload in (None, self.text) or (self.text == "prose" and workload != "code")

    @property
    def measured(self) -> dict[int, Outcomes]:
        """How rounds ended, by gamma."""
        if self.accepted:
            alphas = [a / r for a, r in zip(self.accepted, self.reached, strict=True)]
            return {len(alphas): outcomes(alphas, len(alphas), self.drafting)}
        rates = {int(gamma): rate for gamma, rate in self.acceptance.items()}
        return {g: outcomes((rate_of(1 + g * rate, "position", g) or 0.0,), g) for g, rate in rates.items()}


@functools.cache
def _entries() -> dict[str, tuple[_Entry, ...]]:
    return msgspec.toml.decode(asset_path("acceptance.toml").read_bytes(), type=dict[str, tuple[_Entry, ...]])


class _Brought(Record, frozen=True):
    measured: tuple[_Entry, ...]


def _brought() -> tuple[_Entry, ...]:
    """What `mlsd record acceptances` wrote on another machine and somebody put here. Raises: InputError."""
    path = user_dir() / "acceptance.toml"
    if not path.exists():
        return ()
    return convert(read_toml(path, InputError), _Brought, str(path), hint="Remove or mend it.").measured


def entries_of(arms: Iterable[ArmResult], source: str, date: str) -> str:
    """The acceptance of these arms by position, with the rounds that reached it, in the form of `acceptance.toml`.

    Of each drafter on each kind of text the longest draft; a drafter with options of its own has no entry.
    """
    lines = ["# Written by `mlsd record acceptances`: put it into the folder MLSD_HOME of another machine."]
    groups = grouped(
        (arm for arm in arms if not arm.is_plain), lambda a: (a.case.target.id, arm_of(a), a.case.prompt.workload)
    )
    for (target, arm, text), drafting in groups.items():
        gamma = max(arm.case.gamma for arm in drafting)
        same = [arm for arm in drafting if arm.case.gamma == gamma]
        whole, positions = total(arm.whole for arm in same), by_position([(total(a.whole for a in same), len(same))])
        if arm.options or not positions:
            continue
        fields = {
            "targets": [target], "drafts": [arm.draft.id] if arm.draft else [], "method": arm.method, "text": text,
            "accepted": [one.accepted for one in positions], "reached": [one.reached for one in positions],
            "drafting": positions[0].reached / whole.rounds,
            "source": f"{source}, {whole.rounds} rounds", "date": date,
        }  # fmt: skip
        lines += ["", "[[measured]]", *(f"{name} = {json.dumps(value)}" for name, value in fields.items())]
    return "\n".join(lines) + "\n"


def arm_of(arm: ArmResult) -> Arm:
    """The drafter of an arm, its draft by its id."""
    spec = arm.case.drafter
    return arm_named(spec.name, spec.draft.id if spec.draft else None, options_text(spec))


def own_acceptances(arms: Iterable[ArmResult]) -> list[Acceptance]:
    """Of every drafter in these arms, at each gamma over all their texts together."""
    acceptances = []
    for arm, measured in grouped(arms, arm_of).items():
        by_gamma = {
            gamma: total(a.whole for a in same) for gamma, same in grouped(measured, lambda a: a.case.gamma).items()
        }
        ends = {gamma: outcomes_of(whole) for gamma, whole in by_gamma.items() if gamma and whole.endings}
        if not ends:
            continue
        n_rounds = sum(whole.rounds for whole in by_gamma.values())
        texts = sorted({arm.text for arm in measured})
        by_text = [total(a.whole for a in same).mgl or 1.0 for same in grouped(measured, lambda a: a.text).values()]
        if len(by_text) >= _TEXTS:
            error = statistics.stdev(by_text) / math.sqrt(len(by_text)) / statistics.fmean(by_text)
        else:
            error = max(map(spread_of_mgl, ends.values())) / math.sqrt(n_rounds)
        source = f"{n_rounds} rounds on {', '.join(texts)}"
        acceptances.append(Acceptance(arm=arm, measured=ends, relative_error=error, source=source))
    return acceptances


def known_acceptances(target: str, workload: str | None = None) -> list[Acceptance]:
    """What is known of drafters for the target of this id: as measured, else as other targets' drafts had it.

    A measurement on other text, or on one that was not said, tells nothing of a workload. Of several at one gamma the
    mean counts. Ranges are of drafts that a target could have.
    """
    entries = {
        kind: [entry for entry in _entries()[kind] if target.lower().startswith(entry.targets or ("\0",))]
        for kind in ("measured", "assumed")
    }
    entries["measured"] += [entry for entry in _brought() if target.lower().startswith(entry.targets)]
    acceptances = []
    ways = [(one, draft) for one in entries["measured"] if one.tells(workload) for draft in one.drafts or (None,)]
    for (method, draft), same in grouped(ways, lambda pair: (pair[0].method, pair[1])).items():
        by_gamma: dict[int, list[Outcomes]] = {}
        for entry, _ in same:
            for gamma, ends in entry.measured.items():
                by_gamma.setdefault(gamma, []).append(ends)
        acceptances.append(
            Acceptance(
                arm=arm_named(method, draft),
                measured={gamma: _mean(several) for gamma, several in by_gamma.items()},
                relative_error=_ELSEWHERE,
                source="; ".join(f"{entry.source}, {entry.date}" for entry, _ in same),
            )
        )
    for entry in entries["assumed"]:
        acceptances += [
            _within(arm_named(DRAFT_MODEL, name), entry.least, entry.most, entry.source) for name in entry.drafts
        ]
    return acceptances


def _mean(several: Sequence[Outcomes]) -> Outcomes:
    shares = defaultdict[tuple[int, int], float](float)
    for ends in several:
        for end, share in ends.items():
            shares[end] += share / len(several)
    return dict(shares)


def is_method(name: str) -> bool:
    """Whether what this method drafts is predicted without a draft model."""
    return name in HEADS or is_look_up(name)


def is_look_up(name: str) -> bool:
    """Whether it proposes from text that is there."""
    return any(name in entry.methods for entry in _entries()["assumed"])


def any_acceptance(arm: Arm, workload: str | None) -> Acceptance:
    """A drafter of which nothing is known on this text: a look-up by a range, heads and drafts by public rows.

    Rows say code or something else of their text, so a workload is either.
    """
    lookup = next((entry for entry in _entries()["assumed"] if arm.method in entry.methods), None)
    if lookup is not None:
        return _within(arm, lookup.least, lookup.most, lookup.source, is_lookup=True)
    least, middle, most = passes.acceptance_of(arm.method, workload or "")
    whose, text = "heads and drafts of all kinds", ""
    if arm.method in HEADS:
        whose = arm.method if arm.method in passes.constants().acceptance else whose
        text = "" if workload is None else " on code" if workload == "code" else " on other text than code"
    assumed = _within(arm, least, most, f"public rows of {whose}{text}")
    return replace(assumed, alphas=(middle,))


def _within(arm: Arm, least: float, most: float, source: str, *, is_lookup: bool = False) -> Acceptance:
    middle = (least + most) / 2
    return Acceptance(arm=arm, alphas=(middle,), source=source, assumed=(least, most), is_lookup=is_lookup)


def outcomes_rate(ends: Outcomes) -> float:
    """Accepted over proposed tokens."""
    proposed = sum(n * k for (k, _), n in ends.items())
    return (mgl_of(ends) - 1) * sum(ends.values()) / proposed if proposed else 0.0
