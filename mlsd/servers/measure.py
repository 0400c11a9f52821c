"""From what a person asks of servers to their trials in the store: URLs or launched servers, in interleaved blocks."""

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import asdict, replace

from mlsd.drafters import preset_gamma, resolve_spec
from mlsd.engine.context import padded, threads_of
from mlsd.errors import InputError, ServerError
from mlsd.gguf_tools.read import model_facts
from mlsd.gguf_tools.source import Source
from mlsd.hardware import read_environment
from mlsd.measure.parent.blocks import ALL, Experiment, Watcher, machine_lock, next_repeat
from mlsd.measure.parent.race import Race
from mlsd.measure.parent.requests import BenchResult, check_database, conduct, result_of
from mlsd.measure.process import run_info
from mlsd.methods import METHODS
from mlsd.models.library import LocalModel, resolve_model
from mlsd.planning.block_order import order_blocks
from mlsd.planning.job import Job, ModelFile, TrialRole, prompt_key
from mlsd.planning.prompts import Prompt, find_prompt, load_prompt, task_prompts
from mlsd.planning.question import parse_drafter
from mlsd.planning.request import MOST_BLOCKS, refuse_stop
from mlsd.planning.time_estimate import preparation_line, preparation_s
from mlsd.records import DRAFT_MODEL, NO_DRAFTER, Case, DrafterSpec, QualityWarning, Sampling
from mlsd.servers.bench import SPECULATION, Arm, ServerBench, Side
from mlsd.servers.connection import START, Tell, check_url
from mlsd.servers.endpoint import Endpoint, Request, connect
from mlsd.servers.flags import TYPES, read_binary, read_flags, speculation, type_of
from mlsd.servers.launch import Launched, by_hand, find_program, server_flags
from mlsd.servers.request import SERVERS, ServerRequest
from mlsd.store import sessions
from mlsd.store.newest import study_path
from mlsd.store.store import Store
from mlsd.trials.intervals import Stopping
from mlsd.trials.results import SessionPlan

UNREPORTED = "drafting not reported"  # the drafter of a rival that does not say whether it has one
_TEMPLATE_TOKENS = 256
_TOP_UP = ("code", "factual", "reasoning", "chinese")  # where more prompts are needed at once than were given
_PEEK = "1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4,"


class ServerResult(BenchResult, frozen=True, kw_only=True):
    """The same of servers, and what was found out about them."""

    notes: tuple[str, ...]
    deterministic: bool  # the plain server repeats itself
    base: str = ""  # the target's id at the server that others are compared with, where none of them is plain
    agreement: tuple[str, ...] = ()  # of two such servers: whether they write the same, and why they may not


def serve(request: ServerRequest, db: Path | None = None, watcher: Watcher | None = None) -> ServerResult:
    """Measure what was asked for; whatever was started is ended.

    Raises: InputError, UnsupportedError, ServerError and what `measure` raises.
    """
    prompts = _prompts(request)
    if request.tasks:
        refuse_stop(request)
        request = replace(request, stop_at_eog=True)
    with ExitStack() as stack:
        tell = None if watcher is None else watcher.tell
        if request.launch is None:
            return measure(_given(request, stack, tell), request, prompts, (), db, watcher)
        sides, files = _launched(request, request.launch, prompts, stack, tell)
        return measure(sides, request, prompts, files, db, watcher)


def _prompts(request: ServerRequest) -> tuple[Prompt, ...]:
    tasks = tuple(task_prompts(request.tasks).values())
    prompts = tasks or tuple({prompt.key: prompt for prompt in map(find_prompt, request.prompts)}.values())
    for prompt in prompts:
        if prompt.messages or prompt.think is not None:
            raise InputError(
                f"A server is not asked {prompt.key}: it gets single texts, in its own chat template where it has one.",
                hint="Measure chats of a file, and thinking, with mlsd bench.",
            )
    for name in _TOP_UP:
        if len(prompts) < max(request.parallel) and name not in {prompt.key for prompt in prompts}:
            prompts += (load_prompt(name),)
    return prompts


# --- servers that are there ---------------------------------------------------------------------------------------


def _given(request: ServerRequest, stack: ExitStack, tell: Tell | None) -> list[Side]:
    if request.with_engine or request.flags or request.drafters or request.gammas:
        raise InputError(
            "--engine, --flags, --drafter and --gamma are for servers that mlsd launches.", hint="Use --launch."
        )
    if request.rivals and (len(request.rivals) != 2 or request.against is not None):
        raise InputError("Two servers are compared, without --against.", hint="mlsd server URL URL")
    urls = [check_url(url, request.remote) for url in (*request.rivals, request.url, request.against) if url]
    if not urls:
        raise InputError("No server was named.", hint="Give a URL, or --launch PROGRAM and a target.")
    if len(urls) == 2 and urls[0] == urls[1]:
        raise InputError("Both URLs name the same server.", hint="Start a second one.")
    draft = request.drafts[0] if request.drafts else None
    ends: list[Endpoint] = []
    for url in urls:
        try:
            ends.append(connect(url, request.patience_s, draft, tell))
        except ServerError as error:
            start = by_hand("llama-server") if error.hint == START else ""
            raise ServerError(error.message, hint=f"{error.hint} {start}".strip()) from error
        stack.callback(ends[-1].close)
    spec, program = DrafterSpec(name=SPECULATION), ends[0].program
    if request.rivals:
        names: dict[object, str] = {True: SPECULATION, False: NO_DRAFTER}
        return [Side(DrafterSpec(name=names.get(_drafts(end), UNREPORTED)), 0, end) for end in ends]
    if len(ends) == 1:
        if program.names_draft and draft is None:
            raise InputError(
                f"{program.name} drafts with the model that a request names, and none was named.",
                hint="Name it as the server lists it: --draft NAME. Then this one server is both arms.",
            )
        if not ends[0].switches:
            raise InputError(
                f"{program.name} cannot leave drafting off in a request, so one server cannot be both arms.",
                hint="Start a second one without speculation, and name it with --against.",
            )
        return [Side(DrafterSpec(), 0, ends[0], draft=False), Side(spec, 0, ends[0])]
    speculative, plain = ends
    if drafts := _drafts(plain):  # a slip that the counts show, or an answer that breaks off
        if (other := _drafts(speculative)) is True and drafts is True:
            raise InputError("Both servers draft, so neither is plain.", hint="Start the one of --against without.")
        if isinstance(drafts, ServerError) and other:
            raise drafts
        speculative, plain = plain, speculative
    return [Side(DrafterSpec(), 0, plain), Side(spec, 0, speculative)]


def _drafts(endpoint: Endpoint) -> bool | ServerError | None:
    """Whether a server reports drafted tokens on a text that every method drafts well; None where it reports none, nor
    that there are none; or how it failed to answer.
    """
    try:
        prompt = endpoint.tokenize(_PEEK) or _PEEK
        answer = endpoint.complete(Request(prompt=prompt, n_predict=24))
    except ServerError as error:
        return error
    counts = (answer.proposed, answer.accepted)
    return None if counts == (None, None) else any(counts)


# --- servers that mlsd launches -----------------------------------------------------------------------------------


def _launched(
    request: ServerRequest, program: str, prompts: Sequence[Prompt], stack: ExitStack, tell: Tell | None
) -> tuple[list[Side], tuple[LocalModel, ...]]:
    if request.target is None or request.against is not None:
        raise InputError("--launch needs the target, and no --against.", hint="mlsd server --launch PROGRAM TARGET")
    binary, more = read_binary(find_program(program)), read_flags(request.flags)
    target = resolve_model(request.target, make=True)
    drafts = tuple(resolve_model(draft, make=True) for draft in request.drafts)
    arms: list[tuple[DrafterSpec, int, LocalModel | None]] = [(DrafterSpec(), 0, None)]
    for spec, draft in _specs(request, drafts):
        preset = preset_gamma(spec) if spec.name in METHODS else None
        arms += ((spec, gamma, draft) for gamma in request.gammas or (preset or 4,))
    n_ctx = _context(request, prompts, target, max(gamma for _, gamma, _ in arms))
    common = server_flags(binary, str(target.path), request.engine, n_ctx, max(request.parallel))
    sides = []
    for spec, gamma, draft in arms:
        drafting = speculation(binary, spec, gamma, None if draft is None else str(draft.path)) if gamma else []
        server = stack.enter_context(Launched(binary, [*common, *drafting, *more], request.patience_s, tell))
        sides.append(Side(spec, gamma, server, must_draft=type_of(spec).startswith("draft-")))
    return sides, (target, *drafts)


def _specs(request: ServerRequest, drafts: tuple[LocalModel, ...]) -> Iterator[tuple[DrafterSpec, LocalModel | None]]:
    """Every method with each draft it takes; a draft that no method takes is a draft model."""

    def takes_draft(spec: DrafterSpec) -> bool:
        return type_of(spec).startswith("draft-") and not type_of(spec).startswith("draft-mtp")

    specs = [parse_drafter(text) for text in request.drafters]
    if drafts and not any(map(takes_draft, specs)):
        specs = [DrafterSpec(name=DRAFT_MODEL), *specs]
    if not specs:
        raise InputError("No drafting method is given.", hint="Give --draft FILE, or --drafter NAME.")
    for spec in specs:
        resolved = resolve_spec(spec) if spec.name in METHODS and spec.name in TYPES else spec
        if not takes_draft(resolved):
            yield resolved, None
        elif not drafts:
            raise InputError(f"{spec.name} needs a second model.", hint="Name it with --draft.")
        else:
            yield from ((replace(resolved, draft=draft.ref), draft) for draft in drafts)


def _context(request: ServerRequest, prompts: Sequence[Prompt], target: LocalModel, gamma: int) -> int:
    """Positions a request may need: a token has a byte at least."""
    if request.engine.n_ctx is not None:
        return request.engine.n_ctx

    def most_tokens(prompt: Prompt) -> int:
        n_bytes = len(" ".join((*prompt.earlier, prompt.text)).encode())
        return n_bytes + 1 + (_TEMPLATE_TOKENS + request.n_predict) * (len(prompt.earlier) + prompt.chat)

    longest = max(prompt.n_tokens or most_tokens(prompt) for prompt in prompts)
    needed = padded(longest + request.n_predict + gamma + 1)
    trained = Source(target.path).count("context_length", None)
    return needed if trained is None else min(needed, trained)


# --- trials -------------------------------------------------------------------------------------------------------


def measure(
    sides: Sequence[Side],
    wanted: ServerRequest,
    prompts: Sequence[Prompt],
    files: tuple[LocalModel, ...] = (),
    db: Path | None = None,
    watcher: Watcher | None = None,
) -> ServerResult:
    """Measure every side against the first, and store each request as a trial.

    The first one is plain and the others have its target; or they are rivals with models of their own, of which only
    speed and text are compared. `files` are the models of launched servers, the target first.
    Raises: ServerError when the first server cannot even answer once; LockError, StoreError, InputError.
    """
    path = db or study_path(SERVERS)
    with machine_lock(), ExitStack() as stack:
        for side in sides:
            stack.callback(side.stop)
        check_database(path)
        environment = read_environment(run_info(wanted.engine))
        bench = ServerBench(sides, wanted, prompts, files)
        _announce(sides, files, watcher or Watcher())
        bench.prepare()
        blocks = _blocks(bench)
        cases = {case.id: case for block in blocks for _, case in block}
        bench.arm_of = {case.id: arm for block in blocks for arm, case in block}
        # Calls with the same cases go on with one another, where a process stands for as much in both.
        identity = " ".join((str(sides[0].launched), *sorted(cases)))
        decides = SessionPlan(
            id=f"{SERVERS} {hashlib.sha256(identity.encode()).hexdigest()[:16]}",
            pool="all",
            stopping=Stopping.FIXED if wanted.goal is None else Stopping.SEQUENTIAL,
            process_per_arm=not sides[0].launched,
            base=bench.target(0).id if bench.rivals else "",
            n_threads=threads_of(wanted.engine),
        ).count(cases.values())
        with Store.open(path) as store:
            first = next_repeat(store, environment, cases)
            last = first + (MOST_BLOCKS if wanted.goal else wanted.repeats)
            study: TrialRole = "study"
            planned = [[(case, case.id, study) for _, case in block] for block in blocks]
            slots = order_blocks(dict.fromkeys(range(first, last), planned), wanted.seed, turn=bench.arm_of.__getitem__)
            job = Job(
                target=ModelFile(ref=slots[0].case.target, path=str(files[0].path) if files else ""),
                prompts={prompt_key(case.prompt): bench.prompts[case.prompt.key] for case in cases.values()},
                slots=slots,
            )
            before = sessions.of_cases(store, environment, decides, cases.values())
            earlier = [measured for session in before for measured in session.trials]
            race = None if wanted.goal is None else Race(wanted.goal, plan=decides, earlier=earlier)
            facts = tuple(model_facts(model.path, ref=model.ref) for model in files)
            record = {"profile": None, "suites": [SERVERS], "servers": [side.spec.name for side in sides]}
            record |= sessions.as_stored(decides)
            plan = Experiment(loads=(job,), environment=environment, facts=facts, record=record, seed=wanted.seed)
            outcome, warnings = conduct(plan, store, watcher, race or ALL, bench.at)
            bench.note_drafting()
            advice = "See the page on servers in the documentation."
            noted = tuple(QualityWarning(code="server", message=note, advice=advice) for note in bench.notes)
            store.add_warnings(outcome.run_id, noted)
            of_run, done = sessions.of_run(store, outcome.run_id), (outcome, (*warnings, *noted))
            result = result_of(store, path, done, of_run, models=files, race=race)
    return ServerResult(
        **asdict(result),
        notes=tuple(bench.notes),
        deterministic=bench.deterministic,
        base=decides.base,
        agreement=tuple(bench.agreement()),
    )


def _announce(sides: Sequence[Side], files: Sequence[LocalModel], watcher: Watcher) -> None:
    """Say what comes before the first block, and how long starting the servers that are launched takes."""
    asking = f"asking {'both' if len(sides) == 2 else f'all {len(sides)}'} sides what they answer"
    if sides[0].launched:
        start_s = preparation_s(model.ref for model in files)
        doing, then = "Starting a server, anew for each turn of a side", f"before the first block also {asking}"
        watcher.ready(preparation_line(doing, start_s, then))
    else:
        watcher.ready(preparation_line(f"{asking[0].upper()}{asking[1:]}", None))


def _blocks(bench: ServerBench) -> list[list[tuple[Arm, Case]]]:
    """A block for each group of prompts that are sent at once: every arm's cases, those of an arm together.

    The last group is topped up from the first prompts. Raises: InputError where there are too few of them.
    """
    blocks, prompts = [], list(bench.prompts.values())
    for n in bench.wanted.parallel:
        if len(prompts) < n:
            raise InputError(
                f"{n} requests at once need {n} different prompts; {len(prompts)} were given.", hint="Add --prompt."
            )
        arms: list[Arm] = [*range(len(bench.sides)), *([None] if bench.wanted.with_engine and n == 1 else [])]
        suite = SERVERS if n == 1 else f"{SERVERS}-parallel-{n}"
        for start in range(0, len(prompts), n):
            group = (prompts * 2)[start : start + n]
            blocks.append(
                [(arm, case) for arm in arms for prompt in group for case in _cases(bench, arm, prompt, suite)]
            )
    return blocks


def _cases(bench: ServerBench, arm: Arm, prompt: Prompt, suite: str) -> Iterator[Case]:
    wanted = bench.wanted
    plain = Case(
        suite=suite, target=bench.target(arm), prompt=prompt.ref, n_predict=wanted.n_predict,
        sampling=Sampling() if wanted.sampling.greedy else wanted.sampling, engine=wanted.engine,
        ignore_eog=wanted.ignore_eog,
    )  # fmt: skip
    if arm is None:
        drafting = [side for side in bench.sides[1:] if side.spec.name in METHODS]
        yield from (plain, *(replace(plain, drafter=side.spec, gamma=side.gamma) for side in drafting))
        return
    side, server = bench.sides[arm], f"{bench.server(arm).description} {wanted.flags}".strip()
    yield replace(plain, drafter=side.spec, gamma=side.gamma, server=server)
