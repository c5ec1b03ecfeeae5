"""Egress policies: presets, every fault with its rule, and what a connection meets, by page, REST and command."""

from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client

from sandboxes.egress.policy import EgressPolicy
from webapp.accounts.models import Team, User
from webapp.egress import services
from webapp.egress.presets import PRESETS

POLICY: dict[str, Any] = {
    "name": "work",
    "rules": [
        {"name": "no-uploads", "action": "deny", "hosts": ["upload.pypi.org"]},
        {"name": "packages", "action": "allow", "hosts": ["pypi.org", "*.mirror.example.org"], "ports": [443]},
        {"name": "reads", "action": "allow", "hosts": ["deb.debian.org"], "ports": [80], "methods": ["GET"]},
        {"name": "inside", "action": "allow", "hosts": ["db.corp.example"], "cidrs": ["10.1.0.0/16"], "ports": [5432]},
    ],
}
HOSTILE = "<script>alert(1)</script>"


@pytest.mark.parametrize(
    ("connection", "passes", "rule", "reason"),
    [
        ({"to": "pypi.org", "port": 443}, True, "packages", "allowed-by-rule"),
        ({"to": "PyPI.org.", "port": 443}, True, "packages", "allowed-by-rule"),
        ({"to": "a.mirror.example.org", "port": 443}, True, "packages", "allowed-by-rule"),
        ({"to": "mirror.example.org", "port": 443}, False, None, "no-rule"),
        ({"to": "pypi.org", "port": 80}, False, None, "no-rule"),
        ({"to": "upload.pypi.org", "port": 443}, False, "no-uploads", "denied-by-rule"),
        ({"to": "203.0.113.9", "port": 443}, False, None, "no-rule"),
        ({"to": "169.254.169.254", "port": 80}, False, None, "special-range"),
        ({"to": "pypi.org", "port": 443, "resolves_to": "10.0.0.1"}, False, None, "special-range"),
        ({"to": "deb.debian.org", "port": 80, "scheme": "http"}, True, "reads", "allowed-by-rule"),
        ({"to": "deb.debian.org", "port": 80, "scheme": "http", "method": "PUT"}, False, "reads", "method-not-allowed"),
        ({"to": "deb.debian.org", "port": 80, "scheme": "tls"}, False, "reads", "method-not-allowed"),
        ({"to": "db.corp.example", "port": 5432, "scheme": "other", "resolves_to": "10.1.2.3"}, True, "inside",
         "allowed-by-rule"),
        ({"to": "db.corp.example", "port": 5432, "scheme": "other"}, False, None, "no-rule"),
        ({"to": "pypi.org", "port": 443, "protocol": "udp"}, False, None, "protocol-not-forwarded"),
    ],
)  # fmt: skip
def test_a_connection_passes_or_not_and_by_which_rule(
    connection: dict[str, Any], passes: bool, rule: str | None, reason: str
) -> None:
    answer = services.tried(services.policy_of(POLICY), services.connection_of(connection))
    found = answer.deciding
    assert (answer.passes, found.reason) == (passes, reason)
    if reason not in ("no-rule", "special-range", "not-resolved", "protocol-not-forwarded"):
        assert found.rule == rule
    assert found.sentence


def test_every_preset_reads_again_as_what_it_is() -> None:
    for preset in PRESETS.values():
        assert EgressPolicy.model_validate(services.as_document(preset.policy)) == preset.policy
    assert not services.tried(PRESETS["nothing"].policy, services.connection_of({"to": "a.org", "port": 443})).passes


@pytest.mark.django_db
def test_all_faults_of_a_policy_are_named_with_their_rule(api_of: Callable[..., Any], alice: User, team: Team) -> None:
    broken = {
        "rules": [
            {"name": "a", "action": "allow", "hosts": ["*"], "ports": [443]},
            {"name": "b", "action": "allow", "hosts": ["b.org"], "ports": [0]},
            {"name": "c", "action": "allow", "hosts": ["c.org"]},
            {"name": "d", "action": "permit", "hosts": ["d.org"], "ports": [1], "colour": "red"},
        ]
    }
    answer = api_of(alice).post("/egress-policies/check", {"policy": broken})
    assert answer.status_code == 422
    problems = answer.json()["problems"]
    assert {problem["field"].split(".")[2] for problem in problems} == {"0", "1", "2", "3"}
    assert all(problem["remedy"] for problem in problems)


@pytest.mark.django_db
def test_rest_answers_with_the_deciding_rule_and_presets(api_of: Callable[..., Any], victor: User, team: Team) -> None:
    body = {"policy": POLICY, "connections": [{"to": "pypi.org", "port": 443}, {"to": "evil.org", "port": 443}]}
    answer = api_of(victor, scopes=("read",)).post("/egress-policies/check", body)
    assert answer.status_code == 200
    first, second = answer.json()["answers"]
    assert ([stage["stage"] for stage in first["stages"]], first["passes"]) == (["resolve", "connect", "request"], True)
    assert ([stage["stage"] for stage in second["stages"]], second["stages"][0]["reason"]) == (["resolve"], "no-rule")
    assert {preset["name"] for preset in api_of(victor).get("/egress-presets").json()["items"]} == set(PRESETS)
    assert Client().post("/api/v1/egress-policies/check", body, content_type="application/json").status_code == 401


@pytest.fixture
def browser(alice: User) -> Client:
    client = Client()
    client.force_login(alice)
    return client


@pytest.mark.django_db
def test_the_page_begins_with_a_preset_and_answers_as_it_is_typed(browser: Client) -> None:
    page = browser.get("/egress/?preset=debian-packages").content.decode()
    assert "deb.debian.org" in page
    typed = {"policy": 'name = "x"\n', "to": "pypi.org", "port": "443", "protocol": "tcp", "scheme": "tls"}
    part = browser.post("/egress/check", typed, headers={"HX-Request": "true"}).content.decode()
    assert part.lstrip().startswith('<div class="stack" id="result"')
    assert "no rule allows it" in part
    whole = browser.post("/egress/check", typed).content.decode()
    assert "<html" in whole
    assert "no rule allows it" in whole
    assert Client().get("/egress/").status_code == 302


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"policy": f"name = '{HOSTILE}'"}, "1 problem of the policy"),
        ({"policy": "rules = ["}, "no TOML"),
        ({"policy": "x" * 70_000}, "More than 65536 characters"),
        ({"policy": "\n[" + "a." * 30_000 + "a]"}, "ine 2: a key of 30001 parts"),
        ({"policy": "a = " + "1" * 5000}, "ine 1: a number or word of 5000 characters"),
        ({"to": HOSTILE}, "would be denied"),
        ({"port": "70000"}, "port"),
        ({"to": ""}, "This is no connection"),
        ({"resolves_to": "nowhere"}, "resolves_to"),
    ],
)
def test_what_cannot_be_read_is_a_sentence_and_never_markup(
    browser: Client, changes: dict[str, str], words: str
) -> None:
    typed = {"policy": 'name = "x"\n', "to": "pypi.org", "port": "443", "protocol": "tcp", "scheme": "tls"}
    part = browser.post("/egress/check", typed | changes, headers={"HX-Request": "true"})
    assert part.status_code == 200
    assert words in part.content.decode()
    assert HOSTILE not in part.content.decode()


def test_the_command_says_the_same(tmp_path: Path) -> None:
    out = StringIO()
    call_command("egress_policy", "--preset", "python-packages", "--connect", "pypi.org:443", "--connect",
                 "[::1]:22", stdout=out)  # fmt: skip
    first, second = out.getvalue().splitlines()
    assert first.startswith("pypi.org:443: passes: policy 'python-packages' (rule 'pypi')")
    assert second.startswith("::1:22: denied")
    (tmp_path / "p.toml").write_text('[[rules]]\nname = "a"\naction = "allow"\n')
    with pytest.raises(CommandError, match=r"rules\.0"):
        call_command("egress_policy", "--file", str(tmp_path / "p.toml"))
