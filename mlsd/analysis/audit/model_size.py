"""What a model reads for one token at least, by what tables call it: ``Qwen3.5-35B-A3B Q4_K_M``, ``8B 4-bit``."""

from __future__ import annotations

import re

# Names round the parameters, and no pass reads the table of input embeddings.
LEAST_SHARE = 0.8
_BILLIONS = re.compile(r"(?<![A-Za-z0-9.])(E?)(\d+(?:\.\d+)?)[Bb](?![A-Za-z])")
_ACTIVE = re.compile(r"(?<![A-Za-z0-9])A(\d+(?:\.\d+)?)[Bb](?![A-Za-z])")
# Mixtures whose names do not say how many parameters are active.
_MIXTURE = re.compile(
    r"moe|mixtral|gpt-oss|deepseek|next|flash|glm|kimi|minimax|jamba|maverick|scout|\dx\d", re.IGNORECASE
)
_QUANT = re.compile(r"(?<![A-Za-z0-9])(?:UD[-_])?(?:I?Q|oQ)[1-8][a-z]?(?:_[A-Z0-9]+)*(?![A-Za-z0-9])", re.IGNORECASE)
_BITS = (
    (re.compile(r"(?<![A-Za-z0-9])(?:BF16|FP16|F16)(?![0-9])", re.IGNORECASE), None, 16.0),
    (re.compile(r"(?<![A-Za-z0-9])(?:MXFP4|NVFP4)(?![0-9])", re.IGNORECASE), None, 4.0),
    (re.compile(r"(?<![A-Za-z0-9])I?Q([1-8])(?:_|$|(?=[^0-9A-Za-z]))", re.IGNORECASE), 1, 0.0),
    (re.compile(r"(?<![A-Za-z0-9])oQ([2-8])", re.IGNORECASE), 1, 0.0),
    (re.compile(r"(?<![A-Za-z0-9.])([2-8])[ -]?bits?(?![A-Za-z])", re.IGNORECASE), 1, 0.0),
)


def least_pass_bytes(name: str) -> float | None:
    """Bytes of weights that one token reads at least: active parameters by bits; None where the name lacks either."""
    whole, active, bits = _BILLIONS.search(name), _ACTIVE.search(name), least_bits(name)
    if whole is None or bits is None or (active is None and _MIXTURE.search(name)):
        return None
    billions = float(active.group(1)) if active else float(whole.group(2))
    return LEAST_SHARE * billions * 1e9 * bits / 8


def least_bits(name: str) -> float | None:
    """Bits of a weight at least, without scales; None where the name does not say."""
    for pattern, group, bits in _BITS:
        if found := pattern.search(name):
            return bits if group is None else float(found.group(group))
    return None


def same_model(one: str, other: str) -> bool:
    """Whether two names differ in nothing but how the weights are stored."""
    return one != other and _without_bits(one) == _without_bits(other) != ""


def _without_bits(name: str) -> str:
    for pattern in (_QUANT, *(pattern for pattern, _, _ in _BITS)):
        name = pattern.sub(" ", name)
    return " ".join(re.sub(r"[-_ ]+", " ", name).lower().split())
