"""Variables that no process of the engine gets: those of the service's files, and one that somebody adds tomorrow."""

import os
import re

import pytest

from devtools.home import ROOT

FILES = (".env.example", ".env.postgres.example", ".env.valkey.example")
TOMORROWS = "PAYMENTS_API_TOKEN"


def variables_in(file: str) -> set[str]:
    """Also those that are commented out."""
    return set(re.findall(r"^(?:# )?([A-Z_]+)=", (ROOT / file).read_text(), re.MULTILINE))


SERVICES = {TOMORROWS, "PALESTRA_METRICS_TOKEN", "HF_TOKEN"} | {name for file in FILES for name in variables_in(file)}
OF_ENGINES = variables_in(".env.engine.example")


def give_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process has every variable of every file; those that it has already keep their values."""
    for name in SERVICES | OF_ENGINES:
        monkeypatch.setenv(name, os.environ.get(name, f"value-of-{name}"))
