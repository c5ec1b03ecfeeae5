"""The Django project as a whole."""

import pytest
from django.core.management import call_command
from django.test import Client


@pytest.mark.django_db
def test_models_and_migrations_agree() -> None:
    call_command("makemigrations", check=True, dry_run=True, verbosity=0)


@pytest.mark.django_db
def test_health_needs_the_database() -> None:
    assert Client().get("/healthz").json() == {"status": "ok"}


@pytest.mark.django_db
def test_metrics_are_for_this_host_or_the_token_only(settings) -> None:
    settings.PALESTRA_METRICS_TOKEN = "open sesame"
    assert b"python_info" in Client(REMOTE_ADDR="127.0.0.1").get("/metrics").content
    stranger = Client(REMOTE_ADDR="192.0.2.7")
    assert stranger.get("/metrics").status_code == 404
    assert stranger.get("/metrics", headers={"authorization": "Bearer open sesame"}).status_code == 200
    behind_proxy = Client(REMOTE_ADDR="127.0.0.1", headers={"x-forwarded-for": "192.0.2.7"})
    assert behind_proxy.get("/metrics").status_code == 404


@pytest.mark.django_db
def test_no_script_may_run_that_is_not_ours() -> None:
    policy = Client().get("/metrics", REMOTE_ADDR="127.0.0.1").headers["Content-Security-Policy"]
    assert "script-src 'self';" in policy
    assert "unsafe-inline" not in policy.partition("script-src")[2].partition(";")[0]


def test_plotly_and_htmx_come_from_their_wheels() -> None:
    from django.contrib.staticfiles import finders

    assert finders.find("vendor/plotly.min.js")
    assert finders.find("django_htmx/htmx-2.min.js")
    assert not finders.find("vendor/datasets")
