"""The plain values that pass between the parts of mlsd: what to run, what happened, on which machine.

All are frozen `msgspec.Struct`s, so they compare by value and cross the process boundary as JSON unchanged.
No I/O, no clock, no numpy. A field that was not measured is None, never 0 and never a guess.
"""

from __future__ import annotations

import enum
import hashlib
from typing import Annotated, Literal, NamedTuple, get_args

import msgspec

from mlsd.names import clean

ArmKind = Literal["ar", "sd"]
Source = Literal["engine", "server"]
# From best to worst. Not judged: the output differs or may, and nothing honest tells rounding from a fault.
Verdict = Literal["lossless", "near_tie", "not_judged", "diverged"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
KvType = Literal["f16", "f32", "bf16", "q8_0", "q5_0", "q4_0"]
Strategy = Literal["auto", "trim", "snapshots", "ladder", "device-ladder", "checkpoint", "unchecked"]
STRATEGIES: tuple[str, ...] = get_args(Strategy)[1:]  # that remove rejected tokens; auto is one of them
OptionValue = str | int | float | bool
# Whoever reads a record from a file, a process or a network gets no other number than these.
Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]  # as many as a database holds
MOST_FEW = 10_000_000
Few = Annotated[int, msgspec.Meta(ge=0, le=MOST_FEW)]  # tokens, repeats, places: something is made for each
Token = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]  # llama.cpp's ids have 32 bits
Amount = Annotated[float, msgspec.Meta(ge=0, le=1e300)]

NO_DRAFTER = "none"
GAMMAS = (1, 2, 4, 8, 16)  # that a method is tried at where none is given
ADAPTIVE = "adaptive"  # the word for a draft length that adapts among gammas, and the option of a method that sets it
DRAFT_MODEL = "draft-model"
N_TOKENS = "n_tokens"  # in `Trial.stats`, where the tokens themselves are not known


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all records: frozen, keyword-only."""


class Named(Record, frozen=True, kw_only=True):
    """A record of names that others chose: its texts are cleaned."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if isinstance(value := getattr(self, name), str) and value != (cleaned := clean(value)):
                msgspec.structs.force_setattr(self, name, cleaned)


class Option(NamedTuple):
    """What may be set of a command and of the function of its name: declared at the field that holds it."""

    meaning: str
    least: float | None = None
    most: float | None = None
    above: float | None = None  # it must be more than this
    flag: str = ""  # "": the field's name, in the singular where it holds several
    form: str = ""  # of the text that is typed, where the field's type does not say it: file, goal
    offer: str = ""  # what the Tab key offers: models, methods, profiles, prompts, suites
    metavar: str | None = None


Seed = Annotated[int, Option("Seed of sampling and of the order of arms.", least=0, most=(1 << 31) - 1)]

# --- what to run ------------------------------------------------------------------------------------------------


class Sampling(Record, frozen=True, kw_only=True):
    """How the target picks a token. Temperature 0 is greedy and ignores the other fields."""

    temperature: Annotated[float, Option("0 is greedy.", least=0, most=1_000)] = 0.0
    top_k: Annotated[int, Option("Keep the k most likely tokens (0: all).", least=0)] = 0
    top_p: Annotated[float, Option("Keep this much probability.", above=0, most=1)] = 1.0
    seed: Seed = 0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


class EngineOptions(Record, frozen=True, kw_only=True):
    """Settings of the native contexts; the same for every arm of a block."""

    n_ctx: Annotated[int | None, Option("Tokens of context [default: what the run needs].", least=1)] = None
    n_batch: int = 2048
    n_ubatch: int = 512
    n_threads: Annotated[
        int | None, Option("CPU threads [default: fast cores; one less of up to 4].", least=1)
    ] = None  # fmt: skip
    n_gpu_layers: Annotated[int, Option("Layers on the GPU [default: all].", least=-1)] = -1
    flash_attention: Annotated[Literal["auto", "on", "off"], Option("llama.cpp's setting of this name.")] = "auto"
    kv_type: Annotated[KvType, Option("Type of keys and values: f16, f32, bf16, q8_0, q5_0, q4_0.", metavar="TYPE")] = (
        "f16"
    )


class ModelRef(Named, frozen=True, kw_only=True):
    """Which model, by content: the id is for people, the hash decides."""

    id: str
    sha256: str | None = None  # of the GGUF file
    n_bytes: Count | None = None

    @property
    def key(self) -> str:
        """What stores know it by: its hash, or its id while no hash is known."""
        return self.sha256 or f"id:{self.id}"


class DrafterSpec(Record, frozen=True, kw_only=True):
    """Which drafting method with which options; `draft` only where the method needs a second model."""

    name: str = NO_DRAFTER
    options: dict[str, OptionValue] = {}
    draft: ModelRef | None = None


class PromptRef(Record, frozen=True, kw_only=True):
    """Which prompt, by content."""

    key: str
    sha256: str  # of the UTF-8 text before any chat template; of all the user's turns where it has earlier ones
    n_tokens: Few | None = None  # the exact length asked for; None: as long as the text is
    workload: str | None = None  # factual, code, reasoning, chinese, summarization, ...


class Case(Record, frozen=True, kw_only=True):
    """One configuration. Two cases are the same exactly when their `id` is the same."""

    suite: str
    target: ModelRef
    prompt: PromptRef
    n_predict: Few
    drafter: DrafterSpec = DrafterSpec()
    gamma: Few = 0  # the most tokens a drafter may propose a round; 0 for the AR arm
    rollback: str = "auto"
    sampling: Sampling = Sampling()
    engine: EngineOptions = EngineOptions()
    ignore_eog: bool = True
    server: str | None = None  # somebody's server, its build and flags; None: our own engine

    @property
    def source(self) -> Source:
        """Who decoded: never pooled with the other."""
        return "engine" if self.server is None else "server"

    @property
    def arm(self) -> ArmKind:
        return "ar" if self.drafter.name == NO_DRAFTER else "sd"

    @property
    def id(self) -> str:
        """Content hash (16 hex digits) of everything that can change a number; no path, no date."""
        return content_id(self)


def content_id(record: Record, *without: str) -> str:
    """The first 16 hex digits of the SHA-256 of the record's canonical JSON (sorted keys), some fields left out."""
    fields = msgspec.to_builtins(record)
    for name in without:
        del fields[name]
    return hashlib.sha256(msgspec.json.encode(fields, order="sorted")).hexdigest()[:16]


# --- what happened ----------------------------------------------------------------------------------------------


class Round(Record, frozen=True, kw_only=True):
    """One round: draft, verify, accept, roll back. Times are exclusive parts of the round's wall time.

    committed = accepted + 1 (the bonus token), except when an accepted end-of-generation token ends the output.
    """

    proposed: Count  # drafted tokens sent to verification
    accepted: Count  # proposed tokens that matched and were committed
    committed: Count  # tokens added to the output
    rows: Count  # positions decoded on the target in this round, replays after a checkpoint included
    draft_ns: Count  # all work of the drafter, catch-up on accepted tokens included
    verify_ns: Count  # the target pass over 1 + proposed positions, device synchronised
    rollback_ns: Count  # making target and draft forget rejected positions, replays included
    sample_ns: Count  # reading tokens or rows from the device and the acceptance rule
    other_ns: Count  # the rest of the round: bookkeeping

    @property
    def wall_ns(self) -> int:
        return self.draft_ns + self.verify_ns + self.rollback_ns + self.sample_ns + self.other_ns


class Losslessness(Record, frozen=True, kw_only=True):
    """How the output compares with plain greedy decoding of the same target on the same prompt."""

    verdict: Verdict
    first_difference: Few | None = None  # index of the first output token that differs
    top2_gap: Amount | None = None  # target logit of its best token minus that of the second, at that index
    worst_gap: Amount | None = None  # largest target logit gap between the best and the emitted token, teacher-forced
    tolerance: Amount | None = None  # gap up to which noise explains a difference: the largest of its kind
    n_different: Count | None = None  # output tokens that are not the best of one-by-one decoding, teacher-forced
    n_compared: Count | None = None  # output tokens that were compared so
    n_positions_off: int | None = None  # positions in the target's memory beyond those that the tokens need
    live_distance: Amount | None = None  # rms of the best logits behind the memory, to the nearest that was fed
    live_limit: Amount | None = None  # up to which it is what its tokens make
    live_noise: Amount | None = None  # of memories that were fed in different ways, among each other

    @property
    def differences_per_1000(self) -> float | None:
        return 1000 * self.n_different / self.n_compared if self.n_different is not None and self.n_compared else None


class Status(enum.StrEnum):
    """The one word on what a trial is good for; `Trial.reason` says why it is not simply valid."""

    VALID = "valid"  # every call succeeded, the rollback is exact, and the output is that of plain decoding
    HOT = "hot"  # as valid, while passes were slower than before, as at each attempt: it counts, marked
    DISTURBED = "disturbed"  # its output is right; its block was stopped, starved or heated, so its time is not used
    INVALID = "invalid"  # it gave an output that is not proven to be the target's own
    FAILED = "failed"  # it gave no number

    @property
    def counts(self) -> bool:
        return self in (Status.VALID, Status.HOT)

    @property
    def is_final(self) -> bool:
        """Whether a plan that holds it need not measure it again."""
        return self not in (Status.FAILED, Status.DISTURBED)

    @property
    def right(self) -> bool:
        """Whether its output is that of plain decoding."""
        return self.counts or self is Status.DISTURBED


class Trial(Record, frozen=True, kw_only=True):
    """One measured repeat of a case. A failed trial has a `reason` and no times."""

    case_id: str
    arm: ArmKind
    gamma: Few
    block: Count  # number of the planned block; which measurement of it this is, the store knows
    repeat: Few
    position: Few  # place within the block, 0 first
    status: Status
    started_at: str  # ISO 8601, UTC
    reason: str | None = None  # why it is not valid, or what was hot
    n_prompt: Few | None = None
    prompt_sha256: str | None = None  # of the tokens that the target read, as 32-bit numbers
    tokens: tuple[Token, ...] = ()  # the output, first token included
    text: str | None = None
    prefill_ns: Count | None = None  # target prefill, up to the first output token
    draft_prefill_ns: Count | None = None
    decode_ns: Count | None = None  # from the first output token to the last, device synchronised
    load_ns: Count | None = None  # model load and context creation, when this trial caused one
    rounds: tuple[Round, ...] = ()
    rollback_target: str | None = None  # strategy in use
    rollback_draft: str | None = None
    timed: bool = True  # False: it measured what is accepted; its times are not the method's, and not there
    fell_back: str | None = None  # why the drafter worked in another way than was asked for
    failed_native_calls: Count = 0
    losslessness: Losslessness | None = None  # None when sampling is not greedy
    peak_rss_bytes: Count | None = None
    stats: dict[str, Amount] = {}  # drafter-specific counts and times, named with units
    earlier: tuple[str, ...] = ()  # the target's own answers to earlier turns, as they stand in the prompt
    conditions: Conditions | None = None

    @property
    def valid(self) -> bool:
        return self.status.counts

    @property
    def n_tokens(self) -> int:
        """Output tokens; of a server that gives no ids as many as it says (`stats`)."""
        return len(self.tokens) or int(self.stats.get(N_TOKENS, 0))


class Anchors(Record, frozen=True, kw_only=True):
    """How long the same two passes of a target take between blocks: heat slows wide ones first, narrow ones later."""

    target: str  # model id
    width: Count  # positions of the wide pass: gamma + 1 of the widest arm
    one_ns: Count | None  # median of passes over one position; None: the wide pass had not moved
    wide_ns: Count


class Conditions(Record, frozen=True, kw_only=True):
    """The machine around one trial, read outside the timed region, and what the worker got of it."""

    load_1min: Amount | None = None
    on_battery: bool | None = None
    low_power_mode: bool | None = None
    thermal_state: str | None = None  # "nominal" or the platform's word for more
    available_bytes: Count | None = None
    swap_used_bytes: Count | None = None
    generation_ns: Count | None = None  # the whole generation, from clearing the memory on
    processor_ns: Count | None = None  # of all the worker's threads in that time
    machine_ns: Count | None = None  # of all programs of the machine in that time, counted in hundredths of a second
    anchors: Anchors | None = None  # felt before the trial's block, where heat is watched


class QualityWarning(Record, frozen=True, kw_only=True):
    """Doubt as a value: a code that programs can match, and what to do about it."""

    code: str
    message: str
    advice: str
    case_id: str | None = None


# --- where it happened ------------------------------------------------------------------------------------------


class Device(Record, frozen=True, kw_only=True):
    """One compute device as the native library names it."""

    name: str
    description: str
    kind: str  # CPU, GPU, iGPU, accelerator
    memory_bytes: int | None = None  # all that models may take of it; on Metal the recommended working set


class BackendInfo(Record, frozen=True, kw_only=True):
    """Which build of the native library runs on which devices."""

    backend: str  # Metal, CUDA, CPU, ... : where layers are offloaded
    device: str  # description of the device that does the work
    devices: tuple[Device, ...]
    binding_version: str
    build: str  # commit of ggml inside the library
    system_info: str
    memory_bytes: int | None = None  # of that device


class Environment(Named, frozen=True, kw_only=True):
    """The machine and the build. None: could not be read (never guessed)."""

    host: str  # a stable hash of the machine's identity, not its name
    os: str  # "macOS 26.5 (25F71)", "Linux 6.1.0"
    machine: str  # "arm64", "x86_64"
    chip: str | None = None
    hardware_model: str | None = None  # "Mac14,12"
    performance_cores: Count | None = None
    efficiency_cores: Count | None = None
    logical_cores: Count | None = None
    gpu_cores: Count | None = None
    memory_bytes: Count | None = None
    wired_limit_bytes: Count | None = None
    peak_bandwidth_gb_s: Amount | None = None
    peak_bandwidth_source: str | None = None
    backend: str | None = None  # "Metal", "CPU", "CUDA"
    device: str | None = None  # the device's name as llama.cpp prints it
    power_source: str | None = None  # "ac", "battery"
    low_power_mode: bool | None = None
    thermal_state: str | None = None
    speed_settings: str | None = None  # what else decides a Mac's speed: "macOS 15.6, powermode 2, GGML_METAL_..."
    mlsd_version: str | None = None
    llama_cpp_python_version: str | None = None
    llama_cpp_build: str | None = None  # commit or system info of the native library
    python_version: str | None = None


class Footprint(Record, frozen=True, kw_only=True):
    """What one context takes beside the weights."""

    kv_bytes: int  # keys and values of attention blocks
    states_bytes: int  # recurrent states, snapshots included
    compute_bytes: int  # of the largest pass
    output_bytes: int  # logits or tokens on the host

    @property
    def total_bytes(self) -> int:
        return self.kv_bytes + self.states_bytes + self.compute_bytes + self.output_bytes


class ModelFacts(Named, frozen=True, kw_only=True):
    """What a GGUF file says of itself."""

    ref: ModelRef
    architecture: str
    name: str | None = None
    n_layers: Count | None = None
    n_vocab: Count | None = None
    n_embd: Count | None = None
    n_experts: Count | None = None
    n_experts_used: Count | None = None
    n_parameters: Count | None = None
    n_parameters_active: Count | None = None  # read for one token; no embedding table unless it is the LM head
    weight_bytes: Count | None = None  # all tensors
    active_bytes: Count | None = None  # read for one token
    tensor_types: dict[str, Count] = {}  # quantization type -> number of tensors
    synthetic: bool = False  # marked in its metadata as random weights
