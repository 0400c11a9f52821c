"""Trials whose own counts or times do not agree."""

from __future__ import annotations

import pandas as pd

from mlsd.records import Record

PARTS_TOLERANCE = 0.02  # how far the parts of a trial's rounds may sum to other than its decode time


class Contradiction(Record, frozen=True, kw_only=True):
    """A trial whose own figures do not agree."""

    trial_id: int
    rule: str
    sentence: str


def contradictions(trials: pd.DataFrame) -> list[Contradiction]:
    """Finished trials that break an identity.

    tokens = 1 + sum committed; sum committed = rounds + accepted (one less when an accepted end-of-generation token
    ended the output, so that no bonus followed); the parts of the rounds sum to the decode time within 2 %.
    """
    done = trials[(trials["status"] == "ok") & (trials["rounds"].fillna(0) > 0)]
    found = []
    columns = ["trial_id", "n_tokens", "rounds", "accepted", "committed", "parts_ns", "decode_ns"]
    for row in done[columns].to_dict("records"):
        trial_id, committed = int(row["trial_id"]), row["committed"]
        if row["n_tokens"] != committed + 1:
            text = f"{row['n_tokens']} tokens, but the first and {committed} committed by rounds"
            found.append(Contradiction(trial_id=trial_id, rule="tokens", sentence=text))
        if row["rounds"] + row["accepted"] - committed not in (0, 1):
            text = f"{committed} tokens committed by {row['rounds']} rounds with {row['accepted']} accepted"
            found.append(Contradiction(trial_id=trial_id, rule="committed", sentence=text))
        if pd.notna(row["decode_ns"]) and abs(row["parts_ns"] - row["decode_ns"]) > PARTS_TOLERANCE * row["decode_ns"]:
            parts, whole = row["parts_ns"] / 1e6, row["decode_ns"] / 1e6
            text = f"the parts of its rounds sum to {parts:.2f} ms, its decode time is {whole:.2f} ms"
            found.append(Contradiction(trial_id=trial_id, rule="parts", sentence=text))
    return found
