"""Passes on an Apple chip that was not measured, by constants fitted to public rows (`assets/passes.toml`).

``T(1) = (A + X / e) / (s P) + L t + c p / n``: A bytes of weights that every token reads, X those of the experts it
uses, P the memory's published peak, s and e the shares of it that matrices and small experts reach; L layers of t each;
p quantized parameters on n GPU cores. T(k) of llama.cpp is a multiple of T(1) (`_roofline`), of MLX
``T(1) + (k - 1) r p / n``. `python -m benchmarks published` fits and checks them.
"""

import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from mlsd.folders import asset_path
from mlsd.gguf_tools.shape import Shape
from mlsd.hardware.chips import bins, peak_bandwidth
from mlsd.hardware.metal_kernels import FEW_ROWS, VERIFICATION_KERNELS
from mlsd.records import ModelFacts, Record

Engine = Literal["llama.cpp", "mlx"]
Blocks = Literal["K", "Q4_0", "Q8_0"]  # K-quants and i-quants; plain blocks of 4 or 5 bits; of 8, and unquantized

# Architectures whose mixers are recurrent in most layers.
_RECURRENT = ("qwen35", "qwen35moe", "qwen3next", "falcon-h1", "mamba2", "granitehybrid", "nemotron_h", "kimi-linear")
_SMALL_EXPERT = 768  # feed-forward width up to which an expert's matrices are too small for the memory's speed
_GB_S_A_CORE = 12.0  # of a chip of which only the bandwidth is known; 9 to 15 in the table
_BLOCK_LAYERS = 5.0  # a DFlash or DSpark head is as large as so many layers of its target
_EAGLE_LAYERS, _EAGLE_VOCAB = 1.5, 32_000
_ASSISTANT = 450_000_000  # parameters of Gemma 4's drafter: files of 240 to 280 MB in 4 bits (OpenWhispr PR 1269)
_FEW: dict[Blocks, int] = {"K": FEW_ROWS["Q4_K"], "Q4_0": FEW_ROWS["Q4_0"], "Q8_0": FEW_ROWS["Q8_0"]}
_MATRIX, _AT_ONCE = 9, 32  # rows from which matrix kernels run (of experts the latter), and what one of them computes
# 32 rows against as many of a long prompt: 0.9, 1.35 and 1.9 times (llama.cpp 10581 on M1 Pro and M2 Ultra, 4624).
_SLOWER_THAN_PREFILL = 1.3
_EXTENDED = 4  # rows from which K-quants take the extended vector kernels before b11404
SETTLED = 9900  # the build of llama.cpp before which MTP was as it was merged: its rounds took longer
FEW_PROPOSED = 4  # tokens a round, the most that several public rows of llama.cpp test
SURE = 0.7  # of T(1): what a round takes at least, whatever its rows cost
# Plain rows of one machine at two depths (llama.cpp 27525, mlx-swift-lm 606, omlx 524) lose 2.0 to 4.6 times what their
# keys and values take to be read; the middle.
_CONTEXT = 2.8
_MIDDLE = 3  # the generation of a chip of which only the bandwidth is known
_OLD = 1.4  # of a round's range on M1 and M2 with MLX, where programs differ most: its exponent
_WIDTH = 3000.0  # of the layers that `layer_ms` is of


class Work(Record, frozen=True, kw_only=True):
    """What one token asks of a machine."""

    n_layers: int
    n_embd: int
    n_parameters: int  # active
    always_bytes: float
    expert_bytes: float = 0.0  # of the experts that a token uses
    expert_width: int = _SMALL_EXPERT
    n_vocab: int = 0
    recurrent: bool = False
    has_assistant: bool = False  # its MTP drafter is a small model of its own, as Gemma 4's
    quantized: bool = True
    blocks: Blocks = "Q8_0"  # how most of its matrices are stored

    @property
    def kind(self) -> Literal["attention", "hybrid", "mixture"]:
        return "mixture" if self.expert_bytes else "hybrid" if self.recurrent else "attention"


class AppleChip(Record, frozen=True, kw_only=True):
    """What of a chip decides."""

    peak_gb_s: float
    gpu_cores: float
    generation: int | None  # 1 for M1; None where only a bandwidth is known
    ultra: bool = False


class Constants(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The fitted numbers: milliseconds, shares and factors."""

    share: float
    expert_share: float
    layer_ms: float
    mlx: float  # factor of layer_ms
    recurrent: float
    recurrent_mlx: float
    mixture: float
    mixture_mlx: float
    ultra: float
    ultra_mlx: float
    first_mlx: float  # of M1 with MLX
    width: float  # exponent of n_embd / 3000
    unpack_ms: float  # of 10^9 quantized parameters on one core
    generations: dict[str, float]  # factors of layer_ms; M3 is 1
    # of llama.cpp: what computing one row takes of T(1), by `Blocks` and of experts; factors of it; the power of rows
    roofline: dict[str, float]
    # of MLX: ms of one more row, 10^9 parameters and one core, by generation; and of how many of a row's experts no row
    # before it read
    rows: dict[str, float]
    rows_ultra: float  # factor of it on an Ultra
    rows_recurrent: float  # factor of it where most mixers are recurrent: they take rows one after the other
    programs: dict[str, float]  # factor of what a round takes beyond T(1), of programs with rows of their own
    free_rows: float  # since M3: n further rows cost n^2 / (n + this)
    prefill: dict[str, float]  # ms of one token of a prompt, likewise, by generation
    round_ms: dict[str, float]  # that a round takes beside its passes, for each of them, by engine
    level: float  # of the intervals that follow
    plain_spread: dict[str, float]  # factor both ways, by kind
    # least and most factor of what a round takes beyond 0.7 T(1), by engine, "wide" with more than 4 proposals
    round_spread: dict[str, tuple[float, float]]
    prefill_spread: float
    acceptance: dict[str, tuple[float, float, float]]  # of a token, by method and text: least, middle, most
    fitted: str  # to what, and when
    checked: str  # how it did on sources that it was not fitted to


@functools.cache
def constants() -> Constants:
    """The constants that ship."""
    return msgspec.toml.decode(asset_path("passes.toml").read_bytes(), type=Constants)


def apple_chip(name: str, *, peak_gb_s: float | None = None, gpu_cores: int | None = None) -> AppleChip | None:
    """A chip by its name; of bins that nothing tells apart the largest. None for one that is not in the table."""
    candidates = bins(name)
    if not candidates:
        return None
    peak = peak_gb_s or peak_bandwidth(name, gpu_cores=gpu_cores)[0]
    peak = peak or max((chip.peak_bandwidth_gb_s or 0.0 for chip in candidates), default=0.0)
    cores = gpu_cores or max(
        (chip.gpu_cores for chip in candidates if chip.peak_bandwidth_gb_s in (peak, None)),
        default=max(chip.gpu_cores for chip in candidates),
    )
    if not peak:
        return None
    return AppleChip(peak_gb_s=peak, gpu_cores=cores, generation=candidates[0].generation, ultra=candidates[0].is_ultra)


def unnamed_chip(peak_gb_s: float) -> AppleChip:
    """A machine of which only the memory's peak is known."""
    return AppleChip(peak_gb_s=peak_gb_s, gpu_cores=peak_gb_s / _GB_S_A_CORE, generation=None)


def work_of(facts: ModelFacts) -> Work | None:
    """What one token of a model reads and computes; None where its bytes or layers are not known.

    Experts that a token does not use are the rest of the file: ``X = (all - active) K / (E - K)``.
    """
    if not facts.n_layers or not facts.active_bytes:
        return None
    used, experts = facts.n_experts_used or 0, facts.n_experts or 0
    parameters = facts.n_parameters_active or facts.active_bytes
    expert_bytes = 0.0
    if experts > used and facts.weight_bytes:
        expert_bytes = min(
            (facts.weight_bytes - facts.active_bytes) * used / (experts - used), facts.active_bytes / 1.2
        )
    bits = 8 * facts.active_bytes / parameters
    return Work(
        n_layers=facts.n_layers,
        n_embd=facts.n_embd or 4096,
        n_parameters=parameters,
        always_bytes=facts.active_bytes - expert_bytes,
        expert_bytes=expert_bytes,
        expert_width=_expert_width(facts, parameters, expert_bytes),
        n_vocab=facts.n_vocab or 0,
        recurrent=facts.architecture in _RECURRENT,
        has_assistant=facts.ref.id.lower().startswith("gemma-4"),
        quantized=bits < 15,
        blocks=_blocks(facts.tensor_types),
    )


def _blocks(types: Mapping[str, int]) -> Blocks:
    """How most matrices of a file are stored."""
    counted = {name: n for name, n in types.items() if name != "F32"}
    most = max(counted, key=lambda name: counted[name], default="Q8_0")
    if re.match(r"(Q8_0|B?F16|F32|MXFP8|8BIT)", most):
        return "Q8_0"
    return "Q4_0" if re.match(r"Q[45]_[01]|IQ4_NL|MXFP4|NVFP4|[2-6]BIT", most) else "K"


def context_bytes(shape: Shape) -> float:
    """What a token of context costs each pass, in bytes of weights: keys and values in 16 bits, `_CONTEXT` times."""
    layers = shape.n_layers // shape.full_attention_interval if shape.full_attention_interval else shape.n_layers
    return _CONTEXT * layers * 2 * shape.n_head_kv * shape.head_dim * 2


def _expert_width(facts: ModelFacts, parameters: int, expert_bytes: float) -> int:
    """Feed-forward width of an expert: its parameters over three matrices of the model's width."""
    if not expert_bytes or not facts.n_embd or not facts.n_layers or not facts.n_experts_used or not facts.active_bytes:
        return _SMALL_EXPERT
    routed = parameters * expert_bytes / facts.active_bytes
    return max(1, round(routed / (facts.n_layers * facts.n_experts_used * 3 * facts.n_embd)))


class Runtime(Record, frozen=True, kw_only=True):
    """A program on a chip, and what passes take there."""

    chip: AppleChip
    program: str = "llama.cpp"  # or one on MLX: by a name that `Constants` knows, or any other
    build: int = 0  # of llama.cpp: 0 for the kernels before b11404; of later ones the middle of a range
    constants: Constants = msgspec.field(default_factory=constants)

    @property
    def engine(self) -> Engine:
        return "llama.cpp" if "llama" in self.program else "mlx"

    @property
    def generation(self) -> int:
        """The generation whose numbers the chip takes: the newest that was fitted and is not newer than it."""
        fitted = sorted(int(name[1:]) for name in self.constants.generations)
        return max((number for number in fitted if number <= (self.chip.generation or _MIDDLE)), default=fitted[0])

    def plain_ms(self, work: Work) -> float:
        """T(1)."""
        c, chip = self.constants, self.chip
        layer: float = c.layer_ms * (work.n_embd / _WIDTH) ** c.width
        layer *= c.generations[f"M{self.generation}"]
        for applies, factor, with_mlx in (
            (True, 1.0, c.mlx),
            (work.recurrent, c.recurrent, c.recurrent_mlx),
            (work.expert_bytes > 0, c.mixture, c.mixture_mlx),
            (chip.ultra, c.ultra, c.ultra_mlx),
            (chip.generation == 1, 1.0, c.first_mlx),
        ):
            if applies:
                layer *= factor * (with_mlx if self.engine == "mlx" else 1.0)
        read = work.always_bytes / (chip.peak_gb_s * 1e6 * c.share) + self._expert_ms(work)
        unpack = c.unpack_ms * work.n_parameters / 1e9 / chip.gpu_cores if work.quantized else 0.0
        return read + work.n_layers * layer + unpack

    def spread(self, work: Work) -> float:
        """The factor both ways that holds `level` of plain times; wider where only a bandwidth is known."""
        factor = self.constants.plain_spread[work.kind]
        return factor if self.chip.generation is not None else math.exp(1.5 * math.log(factor))

    def prefill_ms(self, work: Work) -> float:
        """One token of a prompt."""
        prefill = self.constants.prefill
        each: float = prefill[f"M{self.generation}"] * (prefill["mixture"] if work.expert_bytes else 1.0)
        return each * work.n_parameters / 1e9 / self.chip.gpu_cores

    def pass_length(self, work: Work, rows: int, t_one_ms: float) -> float:
        """T(rows) / T(1)."""
        if self.engine == "mlx":
            return 1 + self._mlx_rows_ms(work, rows - 1) / t_one_ms
        return math.sqrt(self._roofline(work, rows) * self._few_rows(work, rows))

    def round_length(
        self, target: Work, method: str, gamma: int, *, step: Work | None, t_one_ms: float | None = None
    ) -> float:
        """T_round / T(1): a pass of gamma + 1 rows, drafting steps, and what each pass takes beside itself.

        `step` is one drafting step (None: a look-up); `t_one_ms` a measured T(1). An empty method is the pass alone.
        """
        plain_ms = t_one_ms or self.plain_ms(target)
        wide = self.pass_length(target, gamma + 1, plain_ms)
        if not method:
            return wide
        each = 0.0 if step is None else self.plain_ms(step)
        steps = 1 if drafts_a_block(method) else gamma
        passes = 1 + (steps if step is not None else 0)
        beyond = wide - 1 + (steps * each + passes * self.constants.round_ms[self.engine]) / plain_ms
        program = self.program
        if self.engine == "llama.cpp":
            program = f"llama.cpp before b{SETTLED}" if 0 < self.build < SETTLED else ""
        return 1 + self.constants.programs.get(program, 1.0) * beyond

    def round_range(self, length: float, target: Work, gamma: int) -> tuple[float, float]:
        """Both ends of T_round / T(1) that hold `level` of rounds."""
        least, most = self.constants.round_spread[spread_key(self.engine, gamma)]
        if self.engine == "llama.cpp":
            few = math.sqrt(self._roofline(target, gamma + 1) / self._few_rows(target, gamma + 1))
            least, most = joint(least, 1 / few), joint(most, few)
        elif (self.chip.generation or _MIDDLE) < _MIDDLE:
            least, most = least**_OLD, most**_OLD
        return SURE + (length - SURE) * least, SURE + (length - SURE) * most

    def speedups(self, length: float, target: Work, gamma: int, mgl: Sequence[float]) -> tuple[float, float, float]:
        """Least, middle and most speedup ``MGL / length`` of rounds that take `length` of T(1).

        `mgl` is least, middle and most. What acceptance and length leave open is independent: logs add as squares.
        """
        shortest, longest = self.round_range(length, target, gamma)
        value = mgl[1] / length
        down, up = joint(mgl[0] / mgl[1], length / longest), joint(mgl[2] / mgl[1], length / shortest)
        return value * down, value, value * up

    def _roofline(self, work: Work, rows: int) -> float:
        """T(rows) / T(1) of llama.cpp before b11404: reading weights takes 1, computing a row r, with a round corner.

        ``((1 + (r k)^p) / (1 + r^p))^(1/p)``; r goes by how weights are stored and by generation. Plain blocks take
        extended vector kernels, where k rows are ``k^b``, and K-quants ``e k^b`` from 4 rows on; experts never do.
        Matrix kernels, from 9 rows on and of experts from 32, compute 32 at once.
        """
        if rows < 2:
            return 1.0
        f = self.constants.roofline
        kernel, computed = "experts" if work.expert_bytes else work.blocks, float(rows)
        r, p = f[kernel] * f.get(f"M{self.generation}", 1.0), f["corner"]
        if kernel in ("Q4_0", "Q8_0"):
            computed = rows ** f["power"]
        elif kernel == "K" and rows >= _EXTENDED:
            computed = f[f"extended M{3 if self.generation >= 3 else 1}"] * rows ** f["power"]
        vectors = float(((1 + (r * computed) ** p) / (1 + r**p)) ** (1 / p))
        if rows < (_AT_ONCE if work.expert_bytes else _MATRIX):
            return vectors
        at_once = _AT_ONCE * self.prefill_ms(work) / self.plain_ms(work)
        return min(vectors, _SLOWER_THAN_PREFILL * at_once * math.ceil(rows / _AT_ONCE))

    def _few_rows(self, work: Work, rows: int) -> float:
        """The least that kernels of b11404 and later may take of T(1): no public row of them was found.

        They compute 8 rows at once, from the row on from which they were found to be faster, so there they take what
        the older ones take just before. Those of experts are the older ones.
        """
        few, old = _FEW[work.blocks], self._roofline(work, rows)
        if self.build < VERIFICATION_KERNELS or rows < few or work.expert_bytes:
            return old
        edge = math.sqrt(self._roofline(work, few - 1) * self._roofline(work, few))
        return min(old, edge * math.ceil(rows / 8))

    def _mlx_rows_ms(self, work: Work, further: int) -> float:
        """What `further` rows add to a pass of MLX.

        Its kernels since M3 read a group of weights once for a few rows, so the first rows cost less than later ones.
        Rows of a mixture share experts with the rows before them in part: the rest is read as for T(1).
        """
        c, rows = self.constants, float(further)
        rows *= further / (further + c.free_rows) if self.generation >= 3 else 1.0
        for applies, factor in ((self.chip.ultra, c.rows_ultra), (work.recurrent, c.rows_recurrent)):
            rows *= factor if applies else 1.0
        dense = work.n_parameters * work.always_bytes / (work.always_bytes + work.expert_bytes)
        experts = c.rows["mixture"] * further * self._expert_ms(work)
        return c.rows[f"M{self.generation}"] * dense / 1e9 / self.chip.gpu_cores * rows + experts

    def _expert_ms(self, work: Work) -> float:
        """Reading the experts of one token: small ones do not reach the memory's speed."""
        c = self.constants
        small: float = c.expert_share ** min(1.0, _SMALL_EXPERT / work.expert_width)
        return work.expert_bytes / small / (self.chip.peak_gb_s * 1e6 * c.share)


def head_work(target: Work, method: str) -> Work | None:
    """What one drafting step of a head beside the target reads; None for methods that are no heads.

    A prediction block (mtp) is one layer and the LM head; DFlash and DSpark propose a whole block in one step.
    """
    layer, each = target.n_parameters / target.n_layers, target.n_vocab * target.n_embd
    parameters = {
        "mtp": _ASSISTANT if target.has_assistant else layer + each,
        "eagle3": _EAGLE_LAYERS * layer + _EAGLE_VOCAB * target.n_embd,
        "dflash": _BLOCK_LAYERS * layer + each,
        "dspark": _BLOCK_LAYERS * layer + each,
    }.get(method)
    if parameters is None:
        return None
    a_parameter = (target.always_bytes + target.expert_bytes) / target.n_parameters
    return Work(
        n_layers=round(_BLOCK_LAYERS) if drafts_a_block(method) else 1,
        n_embd=target.n_embd,
        n_parameters=round(parameters),
        always_bytes=parameters * a_parameter,
        quantized=target.quantized,
        blocks=target.blocks,
    )


def drafts_a_block(method: str) -> bool:
    """Whether one drafting step gives all proposals of a round."""
    return method in ("dflash", "dspark")


def spread_key(engine: Engine, gamma: int) -> str:
    """Whose `round_spread` a round goes by."""
    return "llama.cpp wide" if engine == "llama.cpp" and gamma > FEW_PROPOSED else engine


def joint(*factors: float) -> float:
    """Factors of one direction that have nothing to do with each other: their logarithms add up as squares."""
    logs = [math.log(factor) for factor in factors]
    return math.exp(math.copysign(math.hypot(*logs), sum(logs)))


def acceptance_of(method: str, text: str = "", at: Constants | None = None) -> tuple[float, float, float]:
    """The chance of a token by public rows: least, middle, most; of code, or of prose for any other text."""
    acceptances = (at or constants()).acceptance
    name_of_text = f"{method} {text if text in ('', 'code') else 'prose'}".strip()
    return next(acceptances[name] for name in (name_of_text, method, "any") if name in acceptances)
