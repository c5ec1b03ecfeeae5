"""Secrets do not reach the logs."""

import json

import pytest

from webapp.logs import redact


@pytest.mark.parametrize(
    "text",
    [
        "Bearer SECRET", "key pal_0a1b2c3d_SECRET used", "pst_0a1b2c3d_SECRET",
        "postgres://palestra:SECRET@db/palestra failed",
    ],
)  # fmt: skip
def test_what_looks_like_a_secret_is_blacked_out(text: str) -> None:
    assert "SECRET" not in redact(None, "info", {"event": text})["event"]


def test_a_port_is_no_secret() -> None:
    assert redact(None, "info", {"event": "http://127.0.0.1:8265/ is up"})["event"] == "http://127.0.0.1:8265/ is up"


@pytest.mark.parametrize("name", ["password", "attempt_token", "Authorization", "secret_key", "api_key"])
def test_what_is_called_a_secret_is_blacked_out(name: str) -> None:
    assert redact(None, "info", {"event": "x", name: "SECRET", "run": "7"}) == {
        "event": "x",
        name: "[redacted]",
        "run": "7",
    }


@pytest.mark.parametrize(
    "value",
    [
        ConnectionError("redis://:SECRET@valkey:6379/0 is down"),
        {"Authorization": "SECRET"},
        {"headers": [{"cookie": "SECRET"}]},
        [("redis://:SECRET@valkey:6379/0",)],
    ],
    ids=repr,
)
def test_a_secret_inside_a_value_is_blacked_out(value: object) -> None:
    assert "SECRET" not in json.dumps(redact(None, "info", {"event": "x", "given": value}))


def test_what_is_no_secret_stays_what_it_is() -> None:
    given = {"event": "x", "seconds": 0.5, "step": 3, "ok": True, "run": None, "states": ["queued", {"to": "running"}]}
    assert redact(None, "info", given) == given
