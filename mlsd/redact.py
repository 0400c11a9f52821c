"""Keys and tokens never reach a file or a screen, whoever sends them back."""

import os
from typing import Any

# Whose values nobody may see; a secret that lies in a file is made known with `hide`.
VARIABLES = ("MLSD_SERVER_KEY", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
_MASK = "***"
_hidden: set[str] = set()


def hide(secret: str | None) -> None:
    """From now on mask this text wherever it turns up."""
    if secret and secret.strip():
        _hidden.add(secret.strip())


def secrets() -> tuple[str, ...]:
    """Every text that must not be seen, the longest first."""
    named = {value for name in VARIABLES if (value := os.environ.get(name, "").strip())}
    return tuple(sorted(named | _hidden, key=len, reverse=True))


def redact(text: str) -> str:
    """A text without secrets."""
    for secret in secrets():
        text = text.replace(secret, _MASK)
    return text


def redacted(value: Any) -> Any:
    """The same of a value as JSON has them, the names of its fields included."""
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, dict):
        return {redact(str(name)): redacted(item) for name, item in value.items()}
    return [redacted(item) for item in value] if isinstance(value, list) else value
