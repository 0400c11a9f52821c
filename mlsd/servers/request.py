"""What a person asks of servers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from mlsd.planning.options import METHODS, Drafts, NPredict, Prompts, Timed, gamma, study
from mlsd.planning.prompts import Task
from mlsd.records import Option

SERVERS = "server"  # the study that trials go to, and the suite of a request alone; `server-parallel-N` of N at once


class ServerRequest(Timed, frozen=True, kw_only=True):
    """Servers to measure, and on what; `rivals` are two servers in place of `url` and `against`, whatever they hold."""

    url: str | None = None  # with speculation
    against: Annotated[str | None, Option("The same server without speculation.", metavar="URL")] = None
    rivals: tuple[str, ...] = ()  # the first to compare with
    launch: Annotated[
        str | None, Option("Start this llama-server; SERVERS is then the target.", metavar="PROGRAM")
    ] = None  # fmt: skip
    target: str | None = None  # with `launch`
    drafts: Drafts = ()
    drafters: Annotated[
        Sequence[str],
        METHODS._replace(meaning="Method, or a --spec-type of the server: NAME:option=value,...; may be repeated."),
    ] = ()
    gammas: Annotated[Sequence[int] | None, gamma(" [default: the preset's, else 4].")] = None
    flags: Annotated[
        str, Option("More flags for the servers that --launch starts, in one string.", flag="--flags")
    ] = ""  # fmt: skip
    with_engine: Annotated[bool, Option("Measure mlsd's own engine in the same blocks.", flag="--engine")] = False
    prompts: Prompts = ("code",)
    tasks: tuple[Task, ...] = ()
    n_predict: NPredict = 128
    parallel: Annotated[
        Sequence[int], Option("Concurrent requests, like 1,2,4.", least=1, flag="--parallel")
    ] = (1,)  # fmt: skip
    patience_s: Annotated[
        float, Option("Give up on a server that is silent for so many seconds.", least=0.1, flag="--patience")
    ] = 120.0  # fmt: skip
    remote: Annotated[bool, Option("Allow a URL on another machine.")] = False
    db: Annotated[str | Path | None, study("results/server.sqlite")] = None
