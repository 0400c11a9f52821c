"""What a model's name says of its size: ``Qwen3.5-35B-A3B-Q4_K_M.gguf``, ``gemma-4-26b-a4b-it-4bit``, ``8B Q4_K_M``.

Names are read in any case, with or without owner, ending and part of a split file.
"""

import re

from mlsd.records import Record

# Names round the parameters, and no pass reads the table of input embeddings.
LEAST_SHARE = 0.8
_START, _END = r"(?<![a-z0-9.])", r"(?![a-z0-9])"
_TOTAL = re.compile(rf"{_START}e?(\d+(?:\.\d+)?)b(?![a-z0-9])|{_START}(\d{{2,3}})m{_END}")
_ACTIVE = re.compile(rf"(?<![a-z0-9])a(\d+(?:\.\d+)?)b{_END}|(?<![a-z0-9])a(\d{{3}})m{_END}")
_ACTIVE_OF_EXPERTS = re.compile(rf"{_START}(\d+)b[-_ ]\d+e{_END}")  # Llama-4-Scout-17B-16E: 17 are active
_MIXTURE = re.compile(
    r"moe|mixtral|gpt-oss|^(?!.*(?:llama|qwen)).*deepseek|ds4|next|flash|glm-?(?:4\.[5-9]|[5-9])|kimi|minimax|jamba|maverick|scout"
    r"|step-|\dx\d|nemotron-3-(?:nano|super|ultra)|lfm2\S*-(?:8b|24b)|grok|ling-|ring-|ernie"
    r"|(?<![0-9.])(?:26|30|35|36)b"  # most often a mixture whose active part was left out of its name
)
_LARGEST_DENSE = 80.0  # larger ones without a word on experts are mixtures more often than not
# Mixtures whose names say less than is published of them: total and active, 10^9.
_PUBLISHED = (
    ("gpt-oss-120b", 116.8, 5.1),
    ("gpt-oss-20b", 20.9, 3.6),
    ("mixtral-8x7b", 46.7, 12.9),
    ("mixtral-8x22b", 141.0, 39.0),
    ("glm-4.5-air", 106.0, 12.0),
    ("qwen3-coder-next", 80.0, 3.0),
)
_BITS = (
    re.compile(rf"(?<![a-z0-9])(?:bf|fp|f)(16|32){_END}"),
    re.compile(r"(?<![a-z0-9])(?:mx|nv)?fp([48])(?:a16)?(?![0-9])"),
    re.compile(r"(?<![a-z0-9])(?:i1[-_])?[iotdrv]?q([1-8])(?!\.\d)(?:[a-z_-]|$|(?=[^0-9a-z]))"),
    re.compile(rf"(?<![a-z0-9])int([48]){_END}"),
    re.compile(r"(?<![a-z0-9.])([1-9](?:\.\d+)?|16)[ -]?(?:bits?|bpw)(?![a-z])"),
)
_STORED = re.compile(
    r"(?<![a-z0-9])(?:ud[-_]|i1[-_])?(?:[iotd]?q[1-8][a-z]?(?:_[a-z0-9]+)*|(?:bf|fp|f)(?:16|32)|(?:mx|nv)?fp[48]\w*"
    r"|[2-8][ -]?bits?)(?![a-z0-9])"
)

_KIND = re.compile(rf"(?<![a-z0-9])(ud-)?q([2-8])_([k01])(?:_(?:xl|[sml]))?{_END}")
_SCALES = {"0": (0.5, 0.5), "1": (1.0, 1.0), "k": (0.5, 1.6)}  # bits; files of K-quants mix in larger blocks


class ModelName(Record, frozen=True, kw_only=True):
    """What a name says; None for what it does not."""

    total_b: float | None = None  # parameters, 10^9
    active_b: float | None = None  # of these, used for one token: all of them in a dense model
    bits: float | None = None  # of a stored weight at least, without scales

    @property
    def least_bytes(self) -> float | None:
        """Bytes of weights that one token reads at least."""
        if self.active_b is None or self.bits is None:
            return None
        return LEAST_SHARE * self.active_b * 1e9 * self.bits / 8


def read_model_name(text: str, quantization: str = "") -> ModelName:
    """Read a name; a quantization that is stated beside it counts before the one in it."""
    name = " ".join(text.lower().removesuffix(".gguf").split("/")[-1].split())
    published = next((sizes for start, *sizes in _PUBLISHED if start in name.replace(" ", "-")), None)
    total, active = published or _sizes(name)
    return ModelName(total_b=total, active_b=active, bits=_least_bits(quantization.lower()) or _least_bits(name))


def _sizes(name: str) -> tuple[float | None, float | None]:
    total_match, active_match = _TOTAL.search(name), _ACTIVE.search(name)
    total = None if total_match is None else _billions(total_match)
    if active_match is not None:
        return total, _billions(active_match)
    if (of_experts := _ACTIVE_OF_EXPERTS.search(name)) is not None:
        return None, float(of_experts[1])
    is_dense = total is not None and total <= _LARGEST_DENSE and not _MIXTURE.search(name)
    return total, total if is_dense else None


def _billions(match: re.Match[str]) -> float:
    return float(match[1]) if match[1] else float(match[2]) / 1e3


def _least_bits(name: str) -> float | None:
    # ``MXFP4-Q8`` stores its experts in 4 bits.
    return min((float(found) for pattern in _BITS for found in pattern.findall(name)), default=None)


def stored_bits(name: str) -> tuple[float, float] | None:
    """Least and most bits of a stored weight with its scales, by the quantization that the name states."""
    kinds = _KIND.findall(name.lower())
    if len(kinds) != 1:
        return None
    larger, bits, kind = kinds[0]
    if larger:  # of which nothing says how many tensors are stored in how many bits more
        return float(bits), 16.0
    return float(bits) + _SCALES[kind][0], float(bits) + _SCALES[kind][1]


def stored_as(text: str) -> list[str]:
    """The quantizations that a text names."""
    return list(dict.fromkeys(text[found.start() : found.end()].strip() for found in _STORED.finditer(text.lower())))


def same_model(name: str, other: str) -> bool:
    """Whether two names differ in nothing but how the weights are stored."""
    return name != other and _without_bits(name) == _without_bits(other) != ""


def _without_bits(name: str) -> str:
    return " ".join(re.sub(r"[-_ ]+", " ", _STORED.sub(" ", name.lower())).split())
