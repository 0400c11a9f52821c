"""``mlsd probe``: which rollback strategies are exact for a model on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from mlsd.cli import options as shared
from mlsd.cli.output import print_json, print_table, say, working
from mlsd.records import EngineOptions
from mlsd.units import NS_PER_MS

if TYPE_CHECKING:
    from mlsd.engine.probe import ProbeReport, Role
    from mlsd.measure.messages import Probed


@click.command()
@shared.model_argument("target", metavar="MODEL")
@shared.json_option
@shared.build_option
@shared.engine_options
def probe(target: str, as_json: bool, engine: EngineOptions, **_: Any) -> None:
    """Roll MODEL back in every way and compare its logits with a fresh decode of the same tokens.

    MODEL is a GGUF path or an id that `mlsd models list` shows. The engine picks its strategies by this test.
    """
    shared.check_models(target)
    from mlsd.measure.messages import ModelJob, Probed
    from mlsd.measure.process import call

    with working(f"Rolling {target} back in every way"):
        job = ModelJob(model=shared.model_file(target), engine=engine)
        result = call("serve:probe_model", job, Probed, doing="probing a model")
    if as_json:
        figures = ("strategies", "kernel_noise", "tolerance", "control_diff", "device_round_ns", "host_round_ns")
        of_report = {name: getattr(result.report, name) for name in (*figures, "target", "draft")}
        print_json({"model": result.model, "backend": result.backend, "device": result.device, **of_report})
    else:
        _print(result)


def _print(result: Probed) -> None:
    from mlsd.engine.probe import NOISE_WIDTHS
    from mlsd.report.tables.records import probe_table

    report = result.report
    print_table(probe_table(result))
    say(
        f"Kernel noise of passes up to {max(NOISE_WIDTHS)} wide (largest logit difference from single-token passes): "
        f"{report.kernel_noise:.3g}"
    )
    say(f"Without rollback the same logits differ by: {report.control_diff:.6f}")
    place = "from the graph" if report.samples_on_device else "from the logits"
    in_graph, by_hand = report.device_round_ns / NS_PER_MS, report.host_round_ns / NS_PER_MS
    say(f"Greedy tokens come {place}: plain rounds of {in_graph:.3f} ms with the graph, {by_hand:.3f} ms without.")
    say(f"As a target: {_chosen(report, 'target')}.  As a draft: {_chosen(report, 'draft')}.")


def _chosen(report: ProbeReport, role: Role) -> str:
    found = {gamma: report.best(role, gamma) or "no exact strategy" for gamma in (2, 4, 8, 16)}
    if len(set(found.values())) == 1:
        return found[4]
    return ", ".join(f"{name} at gamma {gamma}" for gamma, name in found.items())
