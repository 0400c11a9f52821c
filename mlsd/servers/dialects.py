"""Which protocol a server speaks: asked, not guessed, and waited for while it loads."""

from __future__ import annotations

import time
from collections.abc import Callable

from mlsd.errors import ServerError
from mlsd.servers.connection import Connection
from mlsd.servers.endpoint import Endpoint
from mlsd.servers.llama_server import LlamaServer
from mlsd.servers.ollama import Ollama
from mlsd.servers.openai import LlamaCppPython, LMStudio, MlxLm, MlxVlm, OpenAI, Vllm
from mlsd.servers.protocols import Health, ListedModel, ModelList, Props, Version

_POLL_S = 0.1


def connect(url: str, patience_s: float, draft: str | None = None) -> Endpoint:
    """The server at a URL that `check_url` passed. `draft` names the draft model where a request can ask for one.

    Raises: ServerError when nothing answers, or in no protocol that is known.
    """
    connection = Connection(url, patience_s)
    try:
        return _endpoint(connection, draft)
    except BaseException:
        connection.close()
        raise


def _endpoint(connection: Connection, draft: str | None) -> Endpoint:
    props = connection.get("/props", Props, "default_generation_settings")
    if props is not None:
        return LlamaServer(connection, props)
    version = connection.get("/api/version", Version, "version")
    if version is not None:
        running = (connection.get(path, ModelList, "models") for path in ("/api/ps", "/api/tags"))
        models = next((found.models for found in running if found and found.models), None)
        return Ollama(connection, _first(models, connection.url), version.version)
    loaded = connection.get("/api/v0/models", ModelList, "data")
    if loaded is not None and loaded.data:
        ready = tuple(model for model in loaded.data if model.state == "loaded")
        return LMStudio(connection, _first(ready, connection.url), draft, switches=draft is not None)
    health = connection.get("/health", Health, "status")
    if health is not None and health.status == "ok":
        return MlxLm(connection, ListedModel(), draft)
    listed = connection.get("/v1/models", ModelList, "data")
    if health is not None and health.loaded_model is not None:
        return MlxVlm(connection, ListedModel(id=health.loaded_model))
    if listed is not None:
        model = _first(listed.data, connection.url)
        if model.owned_by == "vllm":
            reply = connection.get("/version", Version, "version")
            return Vllm(connection, model, build="" if reply is None else reply.version)
        kind = LlamaCppPython if model.owned_by == "me" else OpenAI  # it lists its models as its user's own
        return kind(connection, model, draft)
    raise ServerError(
        f"{connection.url} answers, but speaks no protocol that mlsd knows.",
        hint="Known: llama-server, llama-cpp-python, vLLM, mlx_lm.server, mlx-vlm, Ollama, LM Studio, OpenAI's.",
    )


def _first(models: tuple[ListedModel, ...] | None, url: str) -> ListedModel:
    if not models:
        raise ServerError(f"{url} has no model loaded.", hint="Load only the one to measure.")
    return models[0]


def wait_for(url: str, patience_s: float, alive: Callable[[], bool]) -> Endpoint:
    """The server that is starting at `url`; `alive` tells whether its process still runs.

    Raises: ServerError when it died or did not answer in time.
    """
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return connect(url, patience_s)
        except ServerError as error:
            if not alive() or time.monotonic() > deadline:
                raise ServerError(f"The server did not come up: {error.message}", hint=error.hint) from error
        time.sleep(_POLL_S)
