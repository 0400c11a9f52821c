"""Real servers that tests share; whoever asks for one is marked `server`."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from mlsd.records import DRAFT_MODEL, DrafterSpec
from mlsd.servers.endpoint import Endpoint
from mlsd.servers.flags import Binary, read_binary, speculation
from mlsd.servers.launch import Launched, server_flags
from tests.needs import needed
from tests.servers.measured import ONE_THREAD

ASSETS = Path(__file__).parents[2] / "mlsd" / "assets" / "tiny"
TARGET, DRAFT = ASSETS / "tiny-dense.gguf", ASSETS / "tiny-draft.gguf"
GAMMA = 4

Start = Callable[..., Endpoint]


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Whatever asks for a server that somebody else wrote is marked so."""
    for item in items:
        if {"llama_server", "python_server", "mlx_server"} & set(getattr(item, "fixturenames", ())):
            item.add_marker("server")


@pytest.fixture(scope="session")
def llama_server() -> Binary:
    """llama-server of the llama.cpp that is installed."""
    return read_binary(needed("llama-server"))


@pytest.fixture(scope="module")
def start(llama_server: Binary) -> Iterator[Start]:
    """Starts servers that live as long as the module's tests."""
    with ExitStack() as stack:

        def run(*more: str, target: Path = TARGET, spec: DrafterSpec | None = None, gamma: int = GAMMA) -> Endpoint:
            flags = server_flags(llama_server, str(target), ONE_THREAD, 1024, 4)
            if spec is not None:
                draft = str(DRAFT) if spec.name == DRAFT_MODEL else None
                flags += speculation(llama_server, spec, gamma, draft)
            return stack.enter_context(Launched(llama_server, [*flags, *more], 60.0)).endpoint

        yield run


@pytest.fixture(scope="module")
def plain(start: Start) -> Endpoint:
    """llama-server without speculation."""
    return start()


@pytest.fixture(scope="module")
def speculative(start: Start) -> Endpoint:
    """llama-server with a draft model."""
    return start(spec=DrafterSpec(name=DRAFT_MODEL))
