"""Which protocol a server speaks: asked, not guessed, and waited for while it loads."""

import time
from collections.abc import Callable

from mlsd.errors import ServerError
from mlsd.servers.connection import Connection, Tell
from mlsd.servers.endpoint import Endpoint
from mlsd.servers.llama_server import LlamaServer
from mlsd.servers.ollama import Ollama
from mlsd.servers.openai import LM_STUDIO, MLX_LM, MLX_VLM, OTHER, OWNED, VLLM, OpenAI, Vllm
from mlsd.servers.protocols import ListedModel

_POLL_S = 0.1
_KNOWN = ("llama-server", "mlx_lm.server", "mlx-vlm", "Ollama", "LM Studio", "OpenAI's")


def connect(url: str, patience_s: float, draft: str | None = None, tell: Tell | None = None) -> Endpoint:
    """The server at a URL that `check_url` passed. `draft` names the draft model where a request can ask for one.

    Raises: ServerError when nothing answers, or in no protocol that is known.
    """
    connection = Connection(url, patience_s, tell)
    try:
        return _endpoint(connection, draft)
    except BaseException:
        connection.close()
        raise


def _endpoint(connection: Connection, draft: str | None) -> Endpoint:
    props = connection.get("/props", "default_generation_settings")
    if props is not None:
        return LlamaServer(connection, props)
    about = connection.get("/api/version", "version")
    if about is not None:
        running = (connection.get(path, "models") for path in ("/api/ps", "/api/tags"))
        models = next((found.models for found in running if found and found.models), None)
        return Ollama(connection, _first(models, connection.url), about.version or "")
    loaded = connection.get("/api/v0/models", "data")
    if loaded is not None and loaded.data:
        ready = tuple(model for model in loaded.data if model.state == "loaded")
        return OpenAI(connection, _first(ready, connection.url).id, LM_STUDIO, draft, switches=draft is not None)
    listed = connection.get("/v1/models", "data")
    models = () if listed is None else listed.data or ()
    dialect = OWNED.get(models[0].owned_by or "", OTHER) if models else OTHER
    if dialect is VLLM:
        about = connection.get("/version", "version")
        return Vllm(connection, models[0].id, VLLM, build=(about and about.version) or "")
    health = None if dialect is not OTHER else connection.get("/health", "status")
    if health is not None and health.status == "ok":
        return OpenAI(connection, None, MLX_LM, draft, model=_served(models))
    if health is not None and health.loaded_model is not None:
        return OpenAI(connection, health.loaded_model, MLX_VLM)
    if listed is not None:
        return OpenAI(connection, _first(models, connection.url).id, dialect, draft)
    raise ServerError(
        f"{connection.url} answers, but speaks no protocol that mlsd knows.",
        hint=f"Known: {', '.join((*_KNOWN, *(one.server.program for one in OWNED.values())))}.",
    )


def _first(models: tuple[ListedModel, ...] | None, url: str) -> ListedModel:
    writing = [model for model in models or () if model.writes]
    if not writing:
        raise ServerError(f"{url} has no model loaded that writes text.", hint="Load only the one to measure.")
    return writing[0]


def _served(models: tuple[ListedModel, ...]) -> str:
    """What mlx_lm.server serves: it lists what the machine has downloaded, and last the folder that it was given."""
    name = models[-1].id if models else None
    return name.rpartition("/")[2] if name and (len(models) == 1 or name.startswith("/")) else "unnamed model"


def wait_for(url: str, patience_s: float, alive: Callable[[], bool], tell: Tell | None = None) -> Endpoint:
    """The server that is starting at `url`; `alive` tells whether its process still runs.

    Raises: ServerError when it died or did not answer in time.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return connect(url, patience_s, tell=tell)
        except ServerError as error:
            if not alive() or time.monotonic() > deadline:
                raise ServerError(f"The server did not come up: {error.message}", hint=error.hint) from error
        time.sleep(_POLL_S)
