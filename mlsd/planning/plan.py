"""From suites and a profile to an ordered plan: which cases, in which blocks, on which loads of models.

Pure: the models come in as a mapping, the order from a seed. Owns pairing and order. Measures and prints nothing.

A block holds the arms that are measured together, in random order; every block with SD arms holds the AR arm, so that
each speedup is a ratio within one block. Repeats are the outermost loop of a group, so that slow drift of the machine
spreads over all of its cases instead of sitting in one.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import msgspec

from mlsd.errors import SuiteError
from mlsd.planning.prompts import LoadPrompt, load_prompt
from mlsd.planning.suite import MOST_GAMMA, MOST_REPEATS, MOST_TOKENS, DrafterChoice, Part, Profile, Suite
from mlsd.records import (
    AUTO_GAMMA,
    DRAFT_MODEL,
    Case,
    DrafterSpec,
    EngineOptions,
    ModelRef,
    PromptRef,
    Record,
    Sampling,
    is_adaptive,
)

TrialRole = Literal["study", "baseline"]
Refuse = Callable[[DrafterSpec, str], str | None]  # (method, id of the target) -> why it cannot work there


class Overrides(Record, frozen=True, kw_only=True):
    """What the command line changes of a suite; None leaves the suite's own value."""

    repeats: int | None = None
    gammas: tuple[int, ...] | None = None
    drafts: tuple[str, ...] | None = None  # roles or model ids, in place of a part's draft models
    prompts: tuple[str, ...] | None = None
    n_predict: int | None = None
    limit: int | None = None  # stop after the block that reaches so many study trials
    seed: int = 0  # of the order, and of sampling
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    rollback: str = "auto"  # of SD arms
    first_repeat: int = 0  # repeats are counted from here, to add to those that are measured
    engine: EngineOptions = EngineOptions()
    ignore_eog: bool = True  # go on after an end-of-generation token


AS_WRITTEN = Overrides()


class PlannedTrial(Record, frozen=True, kw_only=True):
    """One place in a block."""

    case: Case
    case_id: str  # `case.id`, computed once
    role: TrialRole  # a trial of the study, or the AR arm that SD arms are paired with


class Block(Record, frozen=True, kw_only=True):
    """The arms of one prompt, measured together once, in this order."""

    number: int  # content hash (48 bits) of its cases and its repeat: the same in every plan that holds this block
    suite: str
    repeat: int
    trials: tuple[PlannedTrial, ...]


class Group(Record, frozen=True, kw_only=True):
    """What one load of a target, and of the drafts beside it, measures."""

    target: ModelRef
    drafts: tuple[ModelRef, ...]
    blocks: tuple[Block, ...]

    @property
    def models(self) -> tuple[ModelRef, ...]:
        """All that lie in memory together, the target first; a target that drafts for itself stands there twice."""
        return (self.target, *self.drafts)

    @property
    def weight_bytes(self) -> int | None:
        """Size of the models in memory together; None where a size is not known."""
        sizes = [model.n_bytes for model in dict.fromkeys(self.models)]
        return None if None in sizes else sum(size for size in sizes if size is not None)


class LeftOut(Record, frozen=True, kw_only=True):
    """A part of a suite that the profile cannot measure, and why."""

    suite: str
    role: str
    model: str | None  # the other model of the pair, where the role is a draft
    n_trials: int  # study trials missing because of it
    reason: str


class Plan(Record, frozen=True, kw_only=True):
    """Everything to be measured, in order."""

    profile: str
    suites: tuple[str, ...]
    seed: int
    groups: tuple[Group, ...]
    left_out: tuple[LeftOut, ...] = ()

    def blocks(self) -> Iterator[Block]:
        """All blocks in order."""
        return itertools.chain.from_iterable(group.blocks for group in self.groups)

    def trials(self) -> Iterator[PlannedTrial]:
        """All trials in order."""
        return itertools.chain.from_iterable(block.trials for block in self.blocks())

    def cases(self) -> dict[str, Case]:
        """Every case once, by id, in order of first use."""
        return {trial.case_id: trial.case for trial in self.trials()}

    def models(self) -> dict[str, ModelRef]:
        """Every model once, by id, in order of first use."""
        return {model.id: model for group in self.groups for model in group.models}

    @property
    def study_trials(self) -> dict[str, int]:
        """Trials of the study by suite; a suite that is left out counts 0."""
        counts = Counter(trial.case.suite for trial in self.trials() if trial.role == "study")
        return {suite: counts[suite] for suite in self.suites}

    @property
    def paired_baselines(self) -> int:
        """AR trials measured beside SD arms and not counted among the study's."""
        return sum(trial.role == "baseline" for trial in self.trials())


def expand(
    suites: Sequence[Suite],
    profile: Profile,
    models: Mapping[str, ModelRef],
    overrides: Overrides = AS_WRITTEN,
    *,
    load: LoadPrompt = load_prompt,
    refuse: Refuse | None = None,
) -> Plan:
    """Bind roles to models, build every case, pair and order them.

    `models` gives the model of each id: the manifest's idea of it to plan, the real file's hash to run. `load` gives
    the prompt of each name; `refuse` says why a method cannot work on the target of an id, or None when it can.

    Raises: SuiteError for a role or model that does not exist or a value that means nothing; PromptError.
    """
    _check(overrides)
    grids = _Grids(profile, models, overrides, load, refuse)
    for suite in suites:
        for part in suite.parts:
            grids.add(suite, part)
    groups = tuple(
        Group(target=target, drafts=drafts, blocks=_ordered(cells, overrides.seed, overrides.first_repeat))
        for (target, drafts), cells in _adjacent(grids.cells)
    )
    return Plan(
        profile=profile.name,
        suites=tuple(suite.name for suite in suites),
        seed=overrides.seed,
        groups=groups if overrides.limit is None else _limited(groups, overrides.limit),
        left_out=grids.left_out,
    )


class _Cell(Record, frozen=True, kw_only=True):
    """The arms of one prompt on one load, before they are repeated and ordered."""

    suite: str
    repeats: int
    trials: tuple[PlannedTrial, ...]


_Models = tuple[ModelRef, tuple[ModelRef, ...]]  # a target and the drafts loaded beside it
_Arm = tuple[DrafterSpec, tuple[int, ...]]  # a drafter and its gammas


class _Grids:
    """Collects the cells of every load, and what had to be left out."""

    def __init__(
        self,
        profile: Profile,
        models: Mapping[str, ModelRef],
        overrides: Overrides,
        load: LoadPrompt,
        refuse: Refuse | None,
    ) -> None:
        self._profile, self._models, self._overrides = profile, models, overrides
        self._load, self._refuse = load, refuse
        # Greedy decoding ignores the seed, so the seed must not make another case of it.
        self._sampling = Sampling()
        if overrides.temperature:
            self._sampling = Sampling(
                temperature=overrides.temperature, top_k=overrides.top_k, top_p=overrides.top_p, seed=overrides.seed
            )
        self._prompts: dict[str, PromptRef] = {}
        self._seen: dict[bytes, str] = {}  # what a suite measures already -> the target's role
        self.cells: dict[_Models, list[_Cell]] = {}
        self._left_out: dict[tuple[str, str, str | None, str], int] = {}

    def add(self, suite: Suite, part: Part) -> None:
        """All cells of one part."""
        prompts = self._overrides.prompts or part.prompts
        repeats = self._overrides.repeats or suite.repeats
        for role in part.targets:
            found: list[tuple[int, ModelRef, _Arm]] = []
            for number, (choice, gammas) in enumerate(self._choices(part)):
                own_plain = choice is None or part.baseline == "study"
                n_trials = (len(gammas) + own_plain) * len(prompts) * repeats
                arm = self._arm(suite, role, choice, gammas, prompts, n_trials)
                if arm is not None:
                    found.append((number, self._models[arm[0]], (arm[1], gammas)))
            for (target, drafts, _), arms in _bundles(part, found).items():
                cells = self.cells.setdefault((target, drafts), [])
                for prompt in prompts:
                    trials = self._trials(suite, part, target, arms, self._prompt(prompt))
                    cells.append(_Cell(suite=suite.name, repeats=repeats, trials=trials))

    def _choices(self, part: Part) -> list[tuple[DrafterChoice | None, tuple[int, ...]]]:
        """The drafters of a part, each with its gammas; None is plain decoding."""
        drafters = _drafters(part, self._overrides.drafts)
        if not drafters:
            return [(None, ())]
        return [
            (choice, (AUTO_GAMMA,) if adaptive else self._overrides.gammas or choice.gammas or part.gammas)
            for choice in drafters
            for adaptive in (is_adaptive(DrafterSpec(name=choice.name, options=choice.options)),)
        ]

    def _arm(
        self,
        suite: Suite,
        role: str,
        choice: DrafterChoice | None,
        gammas: tuple[int, ...],
        prompts: tuple[str, ...],
        n_trials: int,
    ) -> tuple[str, DrafterSpec] | None:
        """The target of a role and a drafter on it, or None when they are left out, which is noted."""
        target, reason = self._bound(role)
        if target is None:
            self._leave_out(suite, role, None, n_trials, reason)
            return None
        spec = self._drafter(suite, choice, target, n_trials)
        if spec is None:
            return None
        measured = msgspec.json.encode((suite.name, target, spec, gammas, prompts), order="sorted")
        if measured in self._seen:
            reason = f"{self._seen[measured]} is the same model in this profile"
            self._leave_out(suite, role, None, n_trials, reason)
            return None
        refusal = self._refuse(spec, target) if self._refuse is not None else None
        if refusal is not None:
            self._leave_out(suite, spec.name, target, n_trials, refusal)
            return None
        self._seen[measured] = role
        return target, spec

    def _bound(self, role: str) -> tuple[str | None, str]:
        """The model id of a role, or None with the reason why there is none."""
        model = self._profile.roles.get(role)
        if model is None:
            default = f"profile {self._profile.name} binds no model to {role}"
            return None, self._profile.left_out.get(role, default)
        if model not in self._models:
            raise SuiteError(
                f"Profile {self._profile.name} binds {role} to {model!r}, which is no model of the manifest.",
                hint="`mlsd models list` shows all; correct the profile.",
            )
        return model, ""

    def _drafter(self, suite: Suite, choice: DrafterChoice | None, target: str, n_trials: int) -> DrafterSpec | None:
        """The drafter of a choice on a target, or None when it is left out; no choice is plain decoding."""
        if choice is None:
            return DrafterSpec()
        if choice.draft is None:
            return DrafterSpec(name=choice.name, options=choice.options)
        known = choice.draft in self._profile.roles or choice.draft in self._profile.left_out
        if not known and choice.draft in self._models:  # named by its id on the command line
            model: str | None = choice.draft
            reason = ""
        elif not known and self._overrides.drafts is not None:
            roles = ", ".join(role for role in self._profile.roles if role.startswith("draft"))
            raise SuiteError(
                f"There is no draft called {choice.draft!r} in profile {self._profile.name}.",
                hint=f"Choose from {roles or 'no role'}, or give a model id of `mlsd models list`.",
            )
        else:
            model, reason = self._bound(choice.draft)
        if model == target:
            model, reason = None, "the draft is the target itself in this profile"
        if model is None:
            self._leave_out(suite, choice.draft, target, n_trials, reason)
            return None
        return DrafterSpec(name=choice.name, options=choice.options, draft=self._models[model])

    def _leave_out(self, suite: Suite, role: str, model: str | None, n_trials: int, reason: str) -> None:
        """Note what is missing; what is missing for one reason is one entry."""
        key = (suite.name, role, model, reason)
        self._left_out[key] = self._left_out.get(key, 0) + n_trials

    @property
    def left_out(self) -> tuple[LeftOut, ...]:
        """What had to be left out, in the order it was noted."""
        return tuple(
            LeftOut(suite=suite, role=role, model=model, n_trials=n_trials, reason=reason)
            for (suite, role, model, reason), n_trials in self._left_out.items()
        )

    def _prompt(self, name: str) -> PromptRef:
        if name not in self._prompts:
            self._prompts[name] = self._load(name).ref
        return self._prompts[name]

    def _trials(
        self, suite: Suite, part: Part, target: ModelRef, arms: Iterable[_Arm], prompt: PromptRef
    ) -> tuple[PlannedTrial, ...]:
        """The AR arm, then each drafter at each of its gammas."""
        plain = Case(
            suite=suite.name,
            target=target,
            prompt=prompt,
            n_predict=self._overrides.n_predict or suite.n_predict,
            sampling=self._sampling,
            engine=self._overrides.engine,
            ignore_eog=self._overrides.ignore_eog,
        )
        role: TrialRole = "baseline" if part.drafters and part.baseline == "paired" else "study"
        cases = [(plain, role)]
        for spec, gammas in arms:
            drafted = msgspec.structs.replace(plain, drafter=spec, rollback=self._overrides.rollback)
            cases += [(msgspec.structs.replace(drafted, gamma=gamma), "study") for gamma in gammas]
        return tuple(PlannedTrial(case=case, case_id=case.id, role=role) for case, role in cases)


def _drafters(part: Part, drafts: tuple[str, ...] | None) -> tuple[DrafterChoice, ...]:
    """The drafters of a part, its draft models replaced by `drafts` where those are given."""
    models = [choice for choice in part.drafters if choice.name == DRAFT_MODEL]
    if drafts is None or not models:
        return part.drafters
    others = [choice for choice in part.drafters if choice.name != DRAFT_MODEL]
    return (*(msgspec.structs.replace(models[0], draft=draft) for draft in dict.fromkeys(drafts)), *others)


def _bundles(
    part: Part, found: Sequence[tuple[int, ModelRef, _Arm]]
) -> dict[tuple[ModelRef, tuple[ModelRef, ...], int], list[_Arm]]:
    """The arms that share a block, by the models that they need."""
    drafts = [(arm[0].draft,) if arm[0].draft else () for _, _, arm in found]
    all_of_them = tuple(dict.fromkeys(itertools.chain.from_iterable(drafts)))
    bundles: dict[tuple[ModelRef, tuple[ModelRef, ...], int], list[_Arm]] = {}
    for own, (number, target, arm) in zip(drafts, found, strict=True):
        key = (target, all_of_them, 0) if part.one_load else (target, own, 0 if part.together else number)
        bundles.setdefault(key, []).append(arm)
    return bundles


def _adjacent(cells: Mapping[_Models, list[_Cell]]) -> Iterator[tuple[_Models, list[_Cell]]]:
    """Loads in order of first use, those of one target together: its file then still lies in the page cache."""
    targets = dict.fromkeys(target for target, _ in cells)
    for target in targets:
        yield from ((models, cells[models]) for models in cells if models[0] == target)


def _ordered(cells: Sequence[_Cell], seed: int, first: int) -> tuple[Block, ...]:
    """Repeats outermost; within a repeat the blocks, and within a block the arms, in random order from the seed."""
    blocks = []
    for repeat in range(first, first + max(cell.repeats for cell in cells)):
        once = [_block(cell, repeat, seed) for cell in cells if repeat < first + cell.repeats]
        random.Random(f"{seed} {repeat}").shuffle(once)
        blocks += once
    return tuple(blocks)


def block_number(repeat: int, case_ids: Iterable[str]) -> int:
    """The number of the block that measures these cases in a repeat."""
    content = " ".join([str(repeat), *sorted(case_ids)])
    return int(hashlib.sha256(content.encode()).hexdigest()[:12], 16)


def _block(cell: _Cell, repeat: int, seed: int) -> Block:
    """One repeat of a cell; its number and its order depend on nothing but its own content and the seed."""
    number = block_number(repeat, (trial.case_id for trial in cell.trials))
    trials = list(cell.trials)
    random.Random(f"{seed} {number}").shuffle(trials)
    return Block(number=number, suite=cell.suite, repeat=repeat, trials=tuple(trials))


def _limited(groups: Iterable[Group], limit: int) -> tuple[Group, ...]:
    """Whole blocks in order until `limit` study trials are reached."""
    kept, count = [], 0
    for group in groups:
        blocks = []
        for block in group.blocks:
            if count >= limit:
                break
            blocks.append(block)
            count += sum(trial.role == "study" for trial in block.trials)
        if blocks:
            kept.append(msgspec.structs.replace(group, blocks=tuple(blocks)))
    return tuple(kept)


_MOST_TEMPERATURE = 1_000
_MOST_SEED = (1 << 31) - 1


def _check(overrides: Overrides) -> None:
    ranges = {
        "repeats": (1, MOST_REPEATS),
        "n_predict": (2, MOST_TOKENS),
        "limit": (1, math.inf),
        "temperature": (0, _MOST_TEMPERATURE),
        "seed": (-_MOST_SEED, _MOST_SEED),
    }
    for name, (least, most) in ranges.items():
        value = getattr(overrides, name)
        if value is not None and not least <= value <= most:  # not-a-number fails as well
            asked = f"at least {least}" if most == math.inf else f"from {least:,} to {most:,}"
            raise SuiteError(f"--{name.replace('_', '-')} is {value}, but must be {asked}.")
    for gamma in overrides.gammas or ():
        if not 1 <= gamma <= MOST_GAMMA:
            raise SuiteError(f"--gamma holds {gamma}, but a drafter proposes 1 to {MOST_GAMMA:,} tokens a round.")
    for name in ("gammas", "prompts", "drafts"):
        values = getattr(overrides, name)
        if values is not None and len(values) != len(set(values)):
            raise SuiteError(f"--{name.removesuffix('s')} holds a value twice: {values}.")
