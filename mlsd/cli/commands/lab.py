"""``mlsd lab``: several machines that measure for one study."""

from pathlib import Path

import click

from mlsd.cli.help import CommandGroup
from mlsd.cli.options import Whole, certificate_option, json_option
from mlsd.cli.output import note, print_json, print_table, say


@click.group(cls=CommandGroup)
def lab() -> None:
    """Print how several machines measure for one study: start a lab, join it on each, then `mlsd run --lab`.

    All traffic is encrypted, and only holders of the lab's certificate file can take part. Each of them can run
    programs on the others.
    """


@lab.command()
@click.option("--host", default="0.0.0.0", show_default=True, help="Where to listen; 127.0.0.1 is this machine alone.")
@click.option("--port", type=Whole(0, 65535), default=8786, show_default=True)
@certificate_option
@click.option("--ssh", "hosts", multiple=True, metavar="HOST", help="Let HOST join over your ssh; may be repeated.")
@click.option(
    "--remote-python", default="python3", show_default=True, metavar="COMMAND", help="What runs Python with mlsd there."
)
@click.option("--pull", is_flag=True, help="Let machines of --ssh download models when a plan needs them.")
def start(
    host: str, port: int, certificate: Path | None, hosts: tuple[str, ...], remote_python: str, pull: bool
) -> None:
    """Print how to join the lab that runs here until interrupted. The certificate is made when there is none.

    A machine of --ssh joins by itself and leaves with the lab; ssh must reach it without a question (a key, a known
    host; on a Mac: Remote Login), and it needs the same mlsd, but no copy of the certificate.
    """
    from mlsd.lab.cluster import Remote
    from mlsd.lab.cluster import start as run

    def started(address: str, path: Path) -> None:
        note(f"Copy {path} to every machine, mode 600: whoever has it can join.")
        say(f"mlsd lab join {address} --certificate lab.pem")

    def lost(name: str, reason: str) -> None:
        note(f"{name} was lost{f' ({reason})' if reason else ''}; joining again.")

    run(host, port, certificate, started, [Remote(host=h, python=remote_python) for h in hosts], lost, may_pull=pull)


@lab.command()
@click.argument("address")
@certificate_option
@click.option("--pull", is_flag=True, help="Download models that are not here when a plan needs them.")
def join(address: str, certificate: Path | None, pull: bool) -> None:
    """Print what this machine does for the lab at ADDRESS until interrupted; it rejoins after a lost connection."""
    from mlsd.lab.cluster import join as run

    note("This machine measures for the lab until you press Ctrl-C. Do not use it until then.")
    run(address, certificate, may_pull=pull, on_loss=lambda reason: note(f"The lab was lost; joining again. {reason}"))


@lab.command()
@click.argument("address")
@certificate_option
@json_option
def status(address: str, certificate: Path | None, as_json: bool) -> None:
    """Print the machines of the lab at ADDRESS, and what they measure."""
    from mlsd.lab.cluster import Cluster
    from mlsd.lab.machine import status
    from mlsd.report.tables.records import machines_table

    with Cluster(address, certificate) as cluster:
        machines = {a: (card, doing) for a, (card, doing, _) in cluster.ask(status).items()}
    if as_json:
        print_json({"machines": {a: {"card": card, "doing": doing} for a, (card, doing) in machines.items()}})
    else:
        print_table(machines_table(machines))
