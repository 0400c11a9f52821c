"""How often drafters are right: as trials here, public figures, or a person say it."""

import functools
import json
import math
import statistics
from collections.abc import Iterable, Mapping

import msgspec
from msgspec.structs import replace

from mlsd.analysis.predict.costs import measured_ends, mgl_of, outcomes, spread_of_mgl
from mlsd.errors import InputError
from mlsd.folders import asset_path
from mlsd.hardware import apple_passes as passes
from mlsd.records import DRAFT_MODEL, Record
from mlsd.stats import grouped
from mlsd.trials.acceptance import WORDS, rate_of
from mlsd.trials.acceptance import mgl_of as mgl_at
from mlsd.trials.arms import Arm, arm_named, options_text
from mlsd.trials.results import ArmResult
from mlsd.trials.sums import total

PLAIN_WAY = Arm()  # plain decoding
HEADS = ("mtp", "eagle3", "dflash", "dspark")
_ELSEWHERE = 0.15  # of the MGL: another text, quantization or version of the models; texts differ by about so much
_TEXTS = 3  # whose scatter says more than that of rounds


class Acceptance(Record, frozen=True, kw_only=True):
    """How often one drafter is right on one target."""

    way: Arm  # the drafter, without a gamma
    workload: str | None = None  # of a reference; None: a mixture of texts
    alphas: tuple[float, ...] = ()  # given that the position before was accepted; the last one goes on
    # As trials show it, by gamma: the share of rounds that propose, and the chance of a token.
    measured: Mapping[int, tuple[float, float]] = {}
    relative_error: float = 0.0  # standard error of the MGL over the MGL
    source: str
    assumed: tuple[float, float] | None = None  # nobody measured it: the range of `alphas`, which are its middle
    is_lookup: bool = False  # assumed: text that is copied seldom is proposed for as seldom

    def outcomes(self, gamma: int, alpha: float | None = None) -> dict[tuple[int, int], float]:
        """How rounds end; as the nearest measured gamma has it, or at one alpha of an assumed range."""
        if self.measured:
            share, chance = self.measured[min(self.measured, key=lambda one: abs(math.log(one / gamma)))]
            return outcomes((chance,), gamma, share)
        alphas = self.alphas if alpha is None else (alpha,)
        return outcomes(alphas, gamma, alphas[0] if self.is_lookup else 1.0)


def stated(
    gamma: int, rate: float | None = None, counts: tuple[int, int] | None = None, mgl: float | None = None
) -> Acceptance:
    """What a log or a person says of a drafter, not yet which: accepted over proposed tokens, both counts, or the MGL.

    Raises InputError for what no round at this gamma can have.
    """
    said = "" if rate is None else f"{rate:.0%}"
    if counts is not None:
        rate, said = counts[0] / counts[1] if counts[1] > 0 else math.nan, f"{counts[0]} of {counts[1]}"
    if rate is not None:
        mgl = mgl_at(rate, "proposed", gamma) if 0 <= rate <= 1 else None
    if mgl is None or not 1 <= mgl <= gamma + 1:
        raise InputError(
            f"No round at gamma {gamma} has such an acceptance.",
            hint="--acceptance lies between 0 and 1 (75 % is 0.75), --accepted N/M has N of M proposed tokens, "
            f"--mgl lies between 1 and {gamma + 1}.",
        )
    what = f"MGL {mgl:.2f} at gamma {gamma}"
    words = f"{said} as stated, {WORDS['proposed']}: {what}" if said else f"{what} as stated"
    alpha = rate_of(mgl, "position", gamma)
    assert alpha is not None
    return Acceptance(way=PLAIN_WAY, alphas=(alpha,), source=words)


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What people measured or assume: of drafts of some targets, or of methods."""

    source: str
    targets: tuple[str, ...] = ()
    drafts: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()
    acceptance: dict[str, float] = {}  # measured, by gamma
    least: float = 0.0  # else the chance of a token is assumed to lie from here
    most: float = 1.0


@functools.cache
def _entries() -> dict[str, tuple[_Entry, ...]]:
    return msgspec.toml.decode(asset_path("acceptance.toml").read_bytes(), type=dict[str, tuple[_Entry, ...]])


def way_of(arm: ArmResult) -> Arm:
    """The drafter of an arm, its draft by its id."""
    spec = arm.case.drafter
    return arm_named(spec.name, spec.draft.id if spec.draft else None, options_text(spec))


def own_acceptances(arms: Iterable[ArmResult]) -> list[Acceptance]:
    """Of every drafter in these arms, at each gamma over all their texts together."""
    found = []
    for way, own in grouped(arms, way_of).items():
        by_gamma = {gamma: total(a.whole for a in same) for gamma, same in grouped(own, lambda a: a.case.gamma).items()}
        ends = {gamma: measured_ends(whole, gamma) for gamma, whole in by_gamma.items() if gamma and whole.rounds}
        if not ends:
            continue
        n_rounds = sum(whole.rounds for whole in by_gamma.values())
        texts = sorted({arm.text for arm in own})
        by_text = [total(a.whole for a in same).mgl or 1.0 for same in grouped(own, lambda a: a.text).values()]
        if len(by_text) >= _TEXTS:
            error = statistics.stdev(by_text) / math.sqrt(len(by_text)) / statistics.fmean(by_text)
        else:
            spreads = [spread_of_mgl(outcomes((alpha,), gamma, share)) for gamma, (share, alpha) in ends.items()]
            error = max(spreads) / math.sqrt(n_rounds)
        source = f"{n_rounds} rounds on {', '.join(texts)}"
        found.append(Acceptance(way=way, measured=ends, relative_error=error, source=source))
    return found


def known_acceptances(target: str) -> list[Acceptance]:
    """What is known of drafts for the target of this id: as somebody measured it, else as other targets' drafts had it.

    Ranges are of drafts that a target could have; none is as large as it.
    """
    found = []
    card = json.loads(asset_path("tiny/family.json").read_text(encoding="utf-8"))["acceptance"]
    name = next((name for name in card if target.lower() == name or target.lower().startswith(f"{name}-")), None)
    if name is not None:
        alphas, source = tuple(card[name]["accepted_given_previous"]), "the tiny family's model card, held-out Python"
        way = arm_named(DRAFT_MODEL, "tiny-draft")
        found.append(Acceptance(way=way, workload="code", alphas=alphas, relative_error=_ELSEWHERE, source=source))
    own = [entry for entry in _entries()["drafts"] if target.lower().startswith(entry.targets)]
    for entry, draft in [(one, draft) for one in own for draft in one.drafts]:
        way = arm_named(DRAFT_MODEL, draft)
        if entry.acceptance:
            of_gammas = (rate_of(1 + int(g) * rate, "position", int(g)) for g, rate in entry.acceptance.items())
            alpha = statistics.fmean(alpha for alpha in of_gammas if alpha is not None)
            found.append(Acceptance(way=way, alphas=(alpha,), relative_error=_ELSEWHERE, source=entry.source))
        else:
            found.append(_within(way, entry.least, entry.most, entry.source))
    return found


def is_method(name: str) -> bool:
    """Whether this is a way to draft without a draft model."""
    return name in HEADS or any(name in entry.methods for entry in _entries()["lookups"])


def any_acceptance(way: Arm, workload: str | None) -> Acceptance:
    """A drafter of which nothing is known on this text: a look-up by a range, heads and drafts by public rows.

    Rows say code or something else of their text, so a workload is either.
    """
    lookup = next((entry for entry in _entries()["lookups"] if way.method in entry.methods), None)
    if lookup is not None:
        return _within(way, lookup.least, lookup.most, lookup.source, is_lookup=True)
    least, middle, most = passes.acceptance_of(way.method, workload or "")
    whose, text = "heads and drafts of all kinds", ""
    if way.method in HEADS:
        whose = way.method if way.method in passes.constants().acceptance else whose
        text = "" if workload is None else " on code" if workload == "code" else " on other text than code"
    found = _within(way, least, most, f"public rows of {whose}{text}")
    return replace(found, alphas=(middle,))


def _within(way: Arm, least: float, most: float, source: str, *, is_lookup: bool = False) -> Acceptance:
    middle = (least + most) / 2
    return Acceptance(way=way, alphas=(middle,), source=source, assumed=(least, most), is_lookup=is_lookup)


def accepted_of(ends: Mapping[tuple[int, int], float]) -> float:
    """Accepted over proposed tokens."""
    proposed = sum(n * k for (k, _), n in ends.items())
    return (mgl_of(ends) - 1) * sum(ends.values()) / proposed if proposed else 0.0
