"""Small inputs as people write them: what was once misread, doubted or passed, each with its verdict and sentence."""

from pathlib import Path

import pytest

from mlsd.audits.check import audit
from mlsd.audits.rows import Audit
from mlsd.audits.tables import Assumed, one_speed, table_contexts
from mlsd.errors import TableError

FOLDER = Path(__file__).parent / "data" / "cases"
_THEORY = "The speedup is 1 + gamma x acceptance in all 9 rows"
# Input -> the first letters of its rows' verdicts, and what is said of one of them.
CASES = {
    "arms/accepts-by-design.csv": ("np", "the speedup is 0.7186"),
    "arms/over-speculation.md": ("npn", "Columns that no rule uses: speedup (ours)"),
    "arms/plain-words-of-something-else.md": ("npnp", "the speedup is 1.36, a round commits at most 4.00 tokens"),
    "arms/plain-of-two-caches.md": ("pppppppp", ""),
    "arms/turned.md": ("nn", "no bytes are known"),
    "acceptance-slash/t.md": ("pp", ""),
    "acceptance-slash/xinfer-481.md": ("nnn", "No peak bandwidth is known of DGX Spark (GB10), RTX PRO 6000"),
    "batched-bench/a.md": ("p", "41.57 tok/s of Qwen2.5-7B Q4_K_M on an M2 Ultra"),
    "cell-forms/percent-of.md": ("ppp", "the speedup is 0.68, a round commits at most 4.00"),
    "cell-forms/t.md": ("pp", "the speedup is 0.68, a round commits at most"),
    **{f"chip-columns/{name}.md": ("pppp", "") for name in ("a", "b", "b2", "b3", "e")},
    "chip-columns/c.md": ("pppp", "no round of such a drafter commits more than 65 tokens"),
    "chip-columns/d.md": ("npnp", "no round of such a drafter commits more than"),
    "chip-columns/two-in-heading.md": ("pp", "of the 614 that the memory has"),
    "chip-columns/two-lines.md": ("pp", "of the 614 that the memory has"),
    **{f"comment-lines/{name}.csv": ("n", "(--peak-gb-s, or a chip)") for name in ("a", "b", "quoted")},
    "chip-columns/or-newer.md": ("n", "(--peak-gb-s, or a chip)"),
    "comment-lines/heading.csv": ("pp", ""),
    "comment-lines/prose.csv": ("np", "The chip of all rows is the one that the text names: M4 Pro."),
    "counts-disagree/accepted-above-output.csv": ("ps", "231 drafted tokens are accepted in an output of 128"),
    "counts-disagree/accepted-above-proposed.csv": ("pi", "130 of 120 proposed tokens are said to be accepted"),
    "counts-disagree/accepted-plus-rounds-above-output.csv": ("ps", "each round adds a token of its own"),
    "counts-disagree/accepted-plus-rounds-below-output.csv": ("ps", "every token is accepted or a round's own"),
    "counts-disagree/consistent.csv": ("pp", "agree"),
    "counts-disagree/proposed-above-gamma-rounds.csv": ("ps", "267 tokens are proposed in 40 rounds of at most 3"),
    "counts-disagree/rate-not-counts.csv": ("ps", "Acceptance is 0.95, 88 of 120 is 0.7333"),
    **{f"flag-cells/{name}.md": ("pp", "The speedup is ") for name in ("honest-fast", "same-words", "table")},
    "gamma-words/k-ctx.md": ("ppp", ""),
    "gamma-words/n-one.md": ("pp", "no round of such a drafter commits more than 33 tokens"),
    "gamma-words/n-runs.md": ("pp", "no round of such a drafter commits more than 33 tokens"),
    "gamma-words/topk.md": ("pp", "the speedup is 1.50, a round commits at most 2.00 tokens"),
    "headings/change-of-memory.md": ("pp", "Columns that no rule uses: KV TG Memory, Change"),
    "headings/end-to-end.md": ("npnp", "Columns that no rule uses: Pair, Base end-to-end tok/s, MTP end-to-end tok/s"),
    "headings/letter-of-branches.md": ("nnn", "Columns that no rule uses: K, Draft (ms)"),
    "headings/mean-of-rates.csv": ("np", "the speedup is 2.10"),
    "headings/prompt-in-speed.csv": ("nn", "is the time of the prompt in it?"),
    "headings/seconds-a-token.md": ("np", "Columns that no rule uses: TPOT (s)"),
    "headings/share-of-draft.md": ("npnp", "the speedup is 0.798"),
    "headings/several-workloads.md": ("np", "Columns that no rule uses: humaneval tps, humaneval speedup"),
    "headings/times-of-ratios.md": ("pp", "the speedup is 5.72, a round commits at most 8.80 tokens"),
    "heading-quant/fast.csv": ("pp", "is this run plain, and which file ran?"),
    "heading-quant/t.md": ("p", "is this run plain, and which file ran?"),
    "inv-threads/lengths.md": ("npn", "1.16 times as fast as the others"),
    "inv-threads/t.csv": ("pppppp", ""),
    "json/llama-bench.csv": ("n", "the model's size and quantization"),
    "json/llama-bench.json": ("n", "the model's size and quantization"),
    "json/timings.json": ("p", "agree"),
    "lists/two-arms.md": ("ppi", "The speedup is 5.41, a round commits at most 2.81 tokens"),
    "logs/failed-before.md": ("n", "the model's size and quantization"),
    "logs/ik-sweep.txt": ("nnn", "the model's size and quantization"),
    "logs/llama-cli-new.txt": ("n", "the model's size and quantization"),
    "logs/mlx-dspark.txt": ("np", ""),
    "logs/mlx_lm.txt": ("np", "the speedup is 1.12"),
    "method-words/t.md": ("pp", "the speedup is 1.617"),
    "speedup-is-mgl/as-published.csv": ("ps" * 8 + "s", _THEORY),
    "speedup-is-mgl/no-chip.csv": ("s" * 9, _THEORY),
    "speedup-is-mgl/with-sizes.csv": ("s" * 9, _THEORY),
    "with-without-brackets/named.md": ("pppp", "the speedup is 1.57"),
    "with-without-brackets/table.md": ("pp", "the speedup is 1.57"),
}


def sentences(result: Audit) -> str:
    said = [finding.sentence for row in result.rows for finding in row.findings]
    return "\n".join([*result.notes, *said, *(what for row in result.rows for what in row.missing)])


def test_every_input_of_the_folder_has_its_verdict_here() -> None:
    assert {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*") if path.is_file()} == set(CASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_an_input_as_people_write_it_has_its_verdict_and_sentence(name: str) -> None:
    verdicts, sentence = CASES[name]
    result = audit(name, *table_contexts(FOLDER / name))
    assert "".join(row.verdict[0] for row in result.rows) == verdicts
    assert sentence.lower() in sentences(result).lower()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tok_s", "model", "chip", "verdict", "sentence"),
    [
        (3000, "Llama-3.1-70B Q8_0", "M1", "impossible", "GB/s of the 800 that the memory has"),
        (38, "Qwen3.6-27B Q4_K_M", "M3 Max", "possible", "is this run plain, and which file ran?"),
        (25, "Qwen3.5-9B Q4_K_M", "M4 Pro", "possible", "that public rows lead to expect"),
        (25, "Qwen3.5-9B Q4_K_M", "M9", "not judged", "No peak bandwidth is known of M9"),
        (25, "Qwen3.5-9B Q4_K_M", "M9", "not judged", "known are M1, M1 Pro"),
    ],
)
def test_one_speed_is_bounded_by_the_widest_memory_of_its_chips_family_or_not_judged(
    tok_s: float, model: str, chip: str, verdict: str, sentence: str
) -> None:
    result = audit("one", one_speed(tok_s, Assumed(model=model, chip=chip)))
    assert result.rows[0].verdict == verdict
    assert sentence in sentences(result)


def test_a_round_costs_its_tokens_over_its_speedup_in_plain_steps(tmp_path: Path) -> None:
    path = tmp_path / "t.md"
    path.write_text("| method | tok/s | MGL |\n|--|--|--|\n| plain | 20 | |\n| mtp | 30 | 3.0 |\n")
    plain, drafted = audit("t", *table_contexts(path)).rows
    assert plain.round_cost is None and drafted.round_cost == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("It ran at 31.2 tok/s here, and at 28 t/s there.\n", "line 1: It ran at 31.2 tok/s"),
        ("| a | b |\n|--|--|\n| 1 | 2 |\n", "columns seen: line 3: a, b"),
        ("- prefill: 400 tok/s\n- MTP: 31.5 tok/s\n", "line 2: - MTP: 31.5 tok/s"),
        (
            "| config | tok/s vs static |\n|--|--|\n| adaptive | 0.858x |\n",
            "columns seen: line 3: config, tok/s vs static",
        ),
        (
            "A paper of trees, few adapt.\nSpeedup\n7.25\nand so on, as said\nthen more, too\nthe end of it, at last\n",
            "it holds no table",
        ),
        ("Nothing to see.\n", "it holds no table, and no log that is known"),
    ],
)
def test_what_cannot_be_read_is_refused_with_what_was_seen(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "t.md"
    path.write_text(text)
    with pytest.raises(TableError) as refused:
        table_contexts(path)
    assert sentence in refused.value.message


@pytest.mark.parametrize(
    ("cell", "plain"),
    [
        ("none", True), ("--spec-type none", True), ("AR, T=0.6 top-k 20", True), ("baseline", True), ("MTP off", True),
        ("no speculation", True), ("without draft", True), ("plain @ 4k", True), ("-", True),
        ("--spec-type draft-mtp --spec-draft-n-max 2", False), ("--dspark", False), ("-md 0.6B", False),
        ("--draft 4", False), ("base + MTP", False), ("AR + draft", False), ("standard SD", False),
        ("Vanilla speculative decoding", False), ("greedy speculative", False), ("no-think MTP", False),
        ("plain draft model", False), ("off-the-shelf draft", False),
    ],
)  # fmt: skip
def test_a_cell_is_plain_decoding_only_if_all_of_it_says_so(cell: str, plain: bool) -> None:
    from mlsd.audits.headings import is_plain

    assert is_plain(cell) == plain
