"""The numbers of one arm."""

from __future__ import annotations

import msgspec

from mlsd.analysis.results.trials import summarize
from tests.analysis.studies import MOE, blocks


def test_a_trial_that_something_disturbed_counts_in_no_speed() -> None:
    plain = [trial for _, trial in blocks(MOE, repeats=3) if trial.arm == "ar"][:3]
    slow = msgspec.structs.replace(
        plain[0], decode_ns=100 * (plain[0].decode_ns or 0), valid=False, invalid_reason="it waited", disturbed=True
    )
    calm, shaken = summarize(plain[1:], plain, "none"), summarize([slow, *plain[1:]], plain, "none")
    assert shaken.n_valid == 2 and shaken.decode_tok_s == calm.decode_tok_s
    assert summarize([slow], plain, "none").decode_tok_s is None
