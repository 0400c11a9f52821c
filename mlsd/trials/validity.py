"""When a trial is invalid: its numbers must not be reported as true."""

from mlsd.records import Case, Losslessness


def invalid_reason(
    case: Case, strategy: str | None, failed_native_calls: int, losslessness: Losslessness | None
) -> str | None:
    """Why a trial's numbers must not be reported as true, or None when they may be."""
    if strategy == "unchecked":
        return f"unchecked rollback: {failed_native_calls} native calls failed and were ignored"
    if failed_native_calls:
        return f"{failed_native_calls} native calls failed"
    if not case.sampling.greedy:
        return None
    if losslessness is None:
        return "no plain decoding of the same prompt to compare with"
    if losslessness.verdict in ("lossless", "near_tie"):
        return None
    if losslessness.verdict == "not_judged":
        return "not judged: memories of the same text differ by more than rounding does, whatever is taken back"
    if losslessness.first_difference is not None:
        return f"output differs from plain decoding at token {losslessness.first_difference}"
    if losslessness.n_positions_off:
        return f"the number of positions that the memory holds is off by {losslessness.n_positions_off:+d}"
    return (
        f"the memory left behind is not what its tokens make: its logits are off by {losslessness.live_distance:.3g}, "
        f"arithmetic explains {losslessness.live_limit:.3g}"
    )
