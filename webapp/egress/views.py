"""The editor of egress policies: presets, what is wrong as it is typed, and whether a connection would pass."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET, require_POST

from engine.spec.toml import toml_of
from webapp.accounts.requests import PageRequest
from webapp.egress import services
from webapp.egress.presets import PRESETS
from webapp.refusals import Invalid

SCHEMES = {"tls": "TLS", "http": "plain HTTP", "other": "something else"}
_FIELDS = ("to", "port", "protocol", "scheme", "method", "resolves_to")
_EXAMPLE = {"to": "pypi.org", "port": "443", "protocol": "tcp", "scheme": "tls", "method": "GET", "resolves_to": ""}


@login_required
@require_GET
def editor(request: PageRequest) -> HttpResponse:
    name = request.GET.get("preset", "")
    preset = PRESETS.get(name, PRESETS["python-packages"])
    text = toml_of(services.as_document(preset.policy))
    return render(request, "egress/editor.html", _context(text, _EXAMPLE))


@login_required
@require_POST
def check(request: PageRequest) -> HttpResponse:
    """The policy as it was typed; without scripts the whole page, with them its part about it."""
    text = request.POST.get("policy", "").replace("\r\n", "\n")
    typed = {name: request.POST.get(name, "").strip()[:300] for name in _FIELDS}
    template = "egress/result.html" if request.htmx else "egress/editor.html"
    return render(request, template, _context(text, typed))


def _context(text: str, typed: dict[str, str]) -> dict[str, Any]:
    """What both answers show: the problems of the policy, or what would become of the connection."""
    shown: dict[str, Any] = {
        "section": "environments", "presets": PRESETS, "text": text, "typed": typed, "schemes": SCHEMES,
    }  # fmt: skip
    try:
        policy = services.policy_of_text(text)
    except Invalid as refusal:
        return shown | {"problems": refusal.problems}
    shown |= {"policy": policy, "in_spec": _in_spec(services.as_document(policy))}
    try:
        given = {name: value for name, value in typed.items() if value}
        return shown | {"answer": services.tried(policy, services.connection_of(given))}
    except Invalid as refusal:
        return shown | {"refusals": refusal.problems}


def _in_spec(document: dict[str, Any]) -> str:
    """As it stands in a run's TOML."""
    return toml_of({"environment": {"sandbox": {"network": "watched", "egress": document}}})
