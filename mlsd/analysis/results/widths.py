"""Whether passes as wide as a setting's were shown to give what single passes give: calibrations, read back."""

from collections.abc import Iterable, Mapping

from mlsd.store.rows import WidthExactness, environment_key
from mlsd.store.store import Store
from mlsd.trials.results import ArmResult
from mlsd.units import counted

Certificate = Mapping[int, WidthExactness]  # by rows of a pass


def certificates(store: Store) -> dict[tuple[str, str], Certificate]:
    """The newest comparison of each width, by machine and model key."""
    machines = {run.id: environment_key(run.environment) for run in store.runs()}
    by_machine: dict[tuple[str, str], dict[int, WidthExactness]] = {}
    for run_id, each in store.figures(WidthExactness):
        by_machine.setdefault((machines[run_id], each.model_key), {})[each.rows] = each
    return dict(by_machine)


def of_arm(arm: ArmResult | None, by_machine: Mapping[tuple[str, str], Certificate]) -> str:
    """What the certificate of an arm's target on its machine says of its passes; empty where there is none."""
    if arm is None or not arm.trials:
        return ""
    return widths_words(by_machine.get((arm.trials[0].environment_key, arm.case.target.key), {}), arm.case.gamma + 1)


def widths_words(certificate: Certificate, rows: int = 0) -> str:
    """What is known of passes of 2 to `rows` rows, 0: of all that were compared, and over how many tokens."""
    widest = max(certificate, default=0)
    if not widest or rows == 1:
        return ""
    within = [each for width, each in certificate.items() if width <= (rows or widest)]
    changed = [each for each in within if each.n_changed]
    findings = []
    if changed:
        first = min(changed, key=lambda each: each.rows)
        gap = "" if first.largest_gap is None else f", whose two best logits lay up to {first.largest_gap:.2g} apart"
        findings = [f"passes of {first.rows} rows change {first.n_changed} of {counted(first.n_tokens, 'token')}{gap}"]
    elif within:
        equal, most = "equal single ones bit for bit", max(each.largest_difference for each in within)
        if not all(each.is_equal for each in within):
            equal = f"change no token of single ones, but logits by up to {most:.2g},"
        findings = [f"passes of up to {max(each.rows for each in within)} rows {equal}{_over(within)}"]
    if rows > widest:
        findings.append(f"none as wide as {rows} rows was compared")
    return "; ".join(findings)


def _over(within: Iterable[WidthExactness]) -> str:
    return f" over {counted(min(each.n_tokens for each in within), 'token')}"
