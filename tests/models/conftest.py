"""What tests of downloads share: the hub's library tries again without a wait."""

from types import SimpleNamespace

import pytest


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the library waited between its tries; nobody sleeps."""
    waited: list[float] = []
    for module in ("file_download", "utils._http"):
        monkeypatch.setattr(f"huggingface_hub.{module}.time", SimpleNamespace(sleep=waited.append))
    return waited
