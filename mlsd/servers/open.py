"""From what a person asks for to sides that are ready: one URL or two, or servers that mlsd launches."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import replace

from mlsd.drafters import preset_gamma, resolve_spec
from mlsd.engine.context import padded
from mlsd.errors import InputError, ServerError
from mlsd.gguf_tools.source import Source
from mlsd.measure.parent.blocks import Watcher
from mlsd.methods import METHODS
from mlsd.models.library import LocalModel, resolve_model
from mlsd.planning.prompts import Prompt, find_prompt, load_prompt, task_prompts
from mlsd.planning.question import parse_drafter
from mlsd.records import DRAFT_MODEL, NO_DRAFTER, DrafterSpec
from mlsd.servers.bench import SPECULATION, Side
from mlsd.servers.connection import Tell, check_url
from mlsd.servers.endpoint import Endpoint, Request, connect
from mlsd.servers.flags import TYPES, read_binary, read_flags, speculation, type_of
from mlsd.servers.launch import Launched, find_program, server_flags
from mlsd.servers.measure import ServerResult, measure
from mlsd.servers.request import ServerRequest

UNREPORTED = "drafting not reported"  # the drafter of a rival that does not say whether it has one
_TEMPLATE_TOKENS = 256
_TOP_UP = ("code", "factual", "reasoning", "chinese")  # where more prompts are needed at once than were given
_PEEK = "1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4,"


def serve(request: ServerRequest, db: Path | None = None, watcher: Watcher | None = None) -> ServerResult:
    """Measure what was asked for; whatever was started is ended.

    Raises: InputError, UnsupportedError, ServerError and what `measure` raises.
    """
    prompts = _prompts(request)
    if request.tasks:
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
    named = [url for url in (*request.rivals, request.url, request.against) if url is not None]
    if not named:
        raise InputError("No server was named.", hint="Give a URL, or --launch PROGRAM and a target.")
    urls = [check_url(url, request.remote) for url in named]
    if len(urls) == 2 and urls[0] == urls[1]:
        raise InputError("Both URLs name the same server.", hint="Start a second one.")
    draft = request.drafts[0] if request.drafts else None
    ends: list[Endpoint] = []
    for url in urls:
        ends.append(connect(url, request.patience_s, draft, tell))
        stack.callback(ends[-1].close)
    spec = DrafterSpec(name=SPECULATION)
    if request.rivals:
        told = [_drafts(end) for end in ends]
        names = [UNREPORTED if not isinstance(one, bool) else SPECULATION if one else NO_DRAFTER for one in told]
        return [Side(DrafterSpec(name=name), 0, end) for name, end in zip(names, ends, strict=True)]
    if len(ends) == 1:
        if ends[0].program.names_draft and draft is None:
            raise InputError(
                f"{ends[0].program.name} drafts with the model that a request names, and none was named.",
                hint="Name it as the server lists it: --draft NAME. Then this one server is both arms.",
            )
        if not ends[0].switches:
            raise InputError(
                f"{ends[0].program.name} cannot leave drafting off in a request, so one server cannot be both arms.",
                hint="Start a second one without speculation, and name it with --against.",
            )
        return [Side(DrafterSpec(), 0, ends[0], draft=False), Side(spec, 0, ends[0])]
    speculative, plain = ends
    if found := _drafts(plain):  # a slip that the counts show, or an answer that breaks off
        if (other := _drafts(speculative)) is True and found is True:
            raise InputError("Both servers draft, so neither is plain.", hint="Start the one of --against without.")
        if isinstance(found, ServerError) and other:
            raise found
        speculative, plain = plain, speculative
    return [Side(DrafterSpec(), 0, plain), Side(spec, 0, speculative)]


def _drafts(endpoint: Endpoint) -> bool | ServerError | None:
    """Whether a server reports drafted tokens on a text that every method drafts well; None where it reports none, nor
    that there are none; or how it failed to answer.
    """
    try:
        prompt = endpoint.tokenize(_PEEK) or _PEEK
        answer = endpoint.complete(Request(prompt=prompt, n_predict=24))
        counts = (answer.proposed, answer.accepted)
        return None if counts == (None, None) else any(counts)
    except ServerError as error:
        return error


# --- servers that mlsd launches -----------------------------------------------------------------------------------


def _launched(
    request: ServerRequest, program: str, prompts: Sequence[Prompt], stack: ExitStack, tell: Tell | None
) -> tuple[list[Side], tuple[LocalModel, ...]]:
    if request.target is None or request.against is not None:
        raise InputError("--launch needs the target, and no --against.", hint="mlsd server --launch PROGRAM TARGET")
    binary, more = read_binary(find_program(program)), read_flags(request.flags)
    target = resolve_model(request.target, make=True)
    drafts = tuple(resolve_model(draft, make=True) for draft in request.drafts)
    arms = [(spec, gamma, draft) for spec, draft in _specs(request, drafts) for gamma in _gammas(request, spec)]
    n_ctx = _context(request, prompts, target, max(gamma for _, gamma, _ in arms))
    common = server_flags(binary, str(target.path), request.engine, n_ctx, max(request.parallel))
    sides = []
    for spec, gamma, draft in ((DrafterSpec(), 0, None), *arms):
        own = speculation(binary, spec, gamma, None if draft is None else str(draft.path)) if gamma else []
        server = stack.enter_context(Launched(binary, [*common, *own, *more], request.patience_s, tell))
        sides.append(Side(spec, gamma, server, must_draft=type_of(spec).startswith("draft-")))
    return sides, (target, *drafts)


def _specs(request: ServerRequest, drafts: tuple[LocalModel, ...]) -> list[tuple[DrafterSpec, LocalModel | None]]:
    """Every method with each draft it takes; a draft that no method takes is a draft model."""
    specs = [parse_drafter(text) for text in request.drafters]
    if drafts and not any(map(_takes_draft, specs)):
        specs = [DrafterSpec(name=DRAFT_MODEL), *specs]
    if not specs:
        raise InputError("No drafting method is given.", hint="Give --draft FILE, or --drafter NAME.")
    found: list[tuple[DrafterSpec, LocalModel | None]] = []
    for spec in specs:
        spec = resolve_spec(spec) if spec.name in METHODS and spec.name in TYPES else spec
        if not _takes_draft(spec):
            found.append((spec, None))
            continue
        if not drafts:
            raise InputError(f"{spec.name} needs a second model.", hint="Name it with --draft.")
        found += [(replace(spec, draft=draft.ref), draft) for draft in drafts]
    return found


def _takes_draft(spec: DrafterSpec) -> bool:
    return type_of(spec).startswith("draft-") and not type_of(spec).startswith("draft-mtp")


def _gammas(request: ServerRequest, spec: DrafterSpec) -> tuple[int, ...]:
    own = preset_gamma(spec) if spec.name in METHODS else None
    return tuple(request.gammas or (own or 4,))


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
