"""What a person asks of servers."""

from mlsd.planning.prompts import Task
from mlsd.planning.request import Goal
from mlsd.records import EngineOptions, Record, Sampling

SERVERS = "server"  # the study that trials go to, and the suite of a request alone; `server-parallel-N` of N at once


class ServerRequest(Record, frozen=True, kw_only=True):
    """Servers to measure, and on what."""

    url: str | None = None  # with speculation
    against: str | None = None  # without
    rivals: tuple[str, ...] = ()  # in place of both: two servers, whatever they hold, the first to compare with
    launch: str | None = None  # the llama-server program, in place of URLs
    target: str | None = None  # with `launch`
    drafts: tuple[str, ...] = ()
    drafters: tuple[str, ...] = ()  # our names, or the server's own types
    gammas: tuple[int, ...] | None = None  # None: the preset's, else 4
    flags: str = ""
    prompts: tuple[str, ...] = ("code",)
    tasks: tuple[Task, ...] = ()
    patience_s: float = 120.0
    remote: bool = False
    n_predict: int = 128
    repeats: int = 3
    goal: Goal | None = None  # in place of `repeats`
    sampling: Sampling = Sampling()
    ignore_eog: bool = True
    parallel: tuple[int, ...] = (1,)  # requests at once
    seed: int = 0
    engine: EngineOptions = EngineOptions()  # of launched servers, and of our own loop
    with_engine: bool = False  # measure our own loop in the same blocks
