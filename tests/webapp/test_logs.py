"""Secrets do not reach the logs."""

import pytest

from webapp.logs import redact


@pytest.mark.parametrize(
    "text",
    ["Bearer SECRET", "key pal_0a1b2c3d_SECRET used", "postgres://palestra:SECRET@db/palestra failed"],
)
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
