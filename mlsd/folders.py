"""Where the data files of mlsd lie: inside the wheel, or at the top of a checkout."""

from __future__ import annotations

from pathlib import Path

from mlsd.errors import InputError

_PACKAGE = Path(__file__).parent


def data_path(name: str) -> Path:
    """The path of a data file or folder that ships with mlsd (``suites``, ``gguf_manifest.toml``).

    An installed wheel carries them under ``mlsd/data``; in a checkout they stand at the top level.
    """
    for place in (_PACKAGE / "data" / name, _PACKAGE.parent / name):
        if place.exists():
            return place
    raise InputError(f"mlsd's own file {name} is missing.", hint="Reinstall mlsd: the installation is incomplete.")


def asset_path(name: str) -> Path:
    """The path of a file under ``mlsd/assets`` (prompts, tiny models)."""
    place = _PACKAGE / "assets" / name
    if not place.exists():
        raise InputError(f"mlsd's own asset {name} is missing.", hint="Reinstall mlsd: the installation is incomplete.")
    return place
