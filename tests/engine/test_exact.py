"""Greedy speculative decoding through llama.cpp writes what the target alone writes, on every architecture.

`tests/drafters/test_exactness.py` is the same of every drafting method, `tests/test_device.py` of another device.
"""

from contextlib import closing
from pathlib import Path

import pytest

from mlsd.drafters import check_target
from mlsd.engine.llama.model import LlamaModel
from mlsd.errors import UnsupportedError
from mlsd.gguf_tools.shape import TINY_ATTENTION
from mlsd.gguf_tools.source import Source
from mlsd.gguf_tools.surgery.cut import attention_layers, state_layers
from mlsd.gguf_tools.synthetic.tiny import TINY_SET
from mlsd.records import DrafterSpec
from mlsd.units import MIB
from tests.drafters.arena import Arena, prompt_of
from tests.drafters.test_exactness import Guesser

LOGGED_DIGITS = 0.01 * MIB  # llama.cpp's log gives sizes in MiB with two digits
# (blocks with attention memory, blocks with a recurrent state); a feed-forward block of nemotron-h has neither.
MEMORY = {
    "qwen35": (2, 6),
    "qwen35moe": (2, 6),
    "llama": (6, 0),
    "falcon-h1": (4, 4),
    "mamba2": (0, 4),
    "granite-hybrid": (2, 2),
    "jamba": (1, 3),
    "nemotron-h": (1, 2),
    "plamo2": (2, 2),
    "lfm2": (1, 3),
    "qwen3next": (1, 3),
    "kimi-linear": (1, 3),
    "deepseek2": (4, 0),
    "glm4-moe": (3, 0),
    "gpt-oss": (4, 0),
    "gemma3": (3, 0),
    "rwkv7": (0, 4),
}


@pytest.mark.parametrize("gamma", [4, *(pytest.param(gamma, marks=pytest.mark.heavy) for gamma in (1, 2, 8, 16, 32))])
@pytest.mark.parametrize("name", [*TINY_SET, *TINY_ATTENTION])
def test_speculation_writes_what_the_target_writes(arena: Arena, name: str, gamma: int) -> None:
    """With an identical, a perturbed and an unrelated draft, beyond the window where there is one."""
    prompt, exact = prompt_of(gamma, n=12), arena.noise(name) == 0
    for suffix in ("", "-noise003", "-other"):
        run = arena.run(name, "draft-model", gamma, prompt, 48, draft=name + suffix)
        arena.assert_exact(name, prompt, run)
        if exact:
            assert run.verdict is not None and run.verdict.verdict == "lossless"
            assert suffix or run.accepted == run.proposed > 0


@pytest.mark.parametrize(
    ("name", "method", "gamma", "n_paths"),
    [("llama", "draft-tree:top_k=8,commit=redecode", 84, 14), ("falcon-h1", "pld", 72, 0)],
)
def test_noise_is_measured_at_the_width_that_chose_the_tokens(
    arena: Arena, name: str, method: str, gamma: int, n_paths: int
) -> None:
    """From 64 rows on the CPU's attention rounds otherwise; what was kept of such a pass is decoded again, narrow."""
    prompt = prompt_of(0)
    drafter = Guesser(arena.plain(name, prompt, 100), right=0.3, n_paths=n_paths, depth=6)
    run = arena.run(name, method, gamma, prompt, 100, drafter=drafter)
    # On random weights those kernels are so far apart that an honest tree may have no tolerance: it has not diverged.
    assert run.verdict is not None and run.verdict.verdict != "diverged", run.verdict
    arena.assert_forgery_is_found_out(name, prompt, run)


@pytest.mark.parametrize("name", TINY_SET)
def test_memory_is_known_from_the_header(tiny: Path, name: str) -> None:
    source = Source(tiny / f"{name}.gguf")
    assert (len(attention_layers(source)), len(state_layers(source))) == MEMORY[name]
    with closing(LlamaModel(source.path, simulated=True)) as model:
        assert model.is_recurrent == bool(state_layers(source))


@pytest.mark.parametrize("name", [name for name, (_, n_states) in MEMORY.items() if n_states])
def test_trees_are_refused_before_a_load_where_a_state_cannot_hold_them(tiny: Path, name: str) -> None:
    with pytest.raises(UnsupportedError, match="has recurrent layers"):
        check_target(DrafterSpec(name="lookahead"), tiny / f"{name}.gguf")
