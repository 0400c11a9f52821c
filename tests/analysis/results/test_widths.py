"""What a calibration showed of wide passes, in words."""

from mlsd.analysis.results.widths import widths_words
from mlsd.store.rows import WidthExactness


def compared(rows: int, n_changed: int = 0, *, is_equal: bool = True) -> WidthExactness:
    gap = 0.002 if n_changed else None
    return WidthExactness(
        model_key="m", rows=rows, n_tokens=256, is_equal=is_equal, largest_difference=0.0 if is_equal else 0.11,
        n_changed=n_changed, largest_gap=gap,
    )  # fmt: skip


def test_a_setting_is_told_what_was_shown_of_passes_as_wide_as_its_own_and_over_how_many_tokens() -> None:
    found = {width: compared(width) for width in (2, 5)} | {9: compared(9, 3, is_equal=False)}
    assert widths_words(found, 5) == "passes of up to 5 rows equal single ones bit for bit over 256 tokens"
    assert (
        widths_words(found, 9) == "passes of 9 rows change 3 of 256 tokens, whose two best logits lay up to 0.002 apart"
    )
    assert widths_words(found, 17).endswith("apart; none as wide as 17 rows was compared")
    assert "change no token of single ones, but logits by up to 0.11, over 256 tokens" in widths_words(
        {5: compared(5, is_equal=False)}, 5
    )
    assert widths_words({}, 5) == widths_words(found, 1) == "", "nothing was compared, or nothing is wide"
