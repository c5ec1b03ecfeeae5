"""Egress policies over REST: presets, whether one can be used, and whether connections would pass it."""

from dataclasses import asdict
from typing import Any

from django.http import HttpRequest
from ninja import Router, Schema
from pydantic import Field

from engine.spec.toml import toml_of
from sandboxes.egress.policy import EgressPolicy
from webapp.api.doors import somewhere
from webapp.api.requests import Request
from webapp.egress import services
from webapp.egress.presets import PRESETS

router = Router(tags=["egress"])


class PresetOut(Schema):
    name: str
    about: str
    policy: dict[str, Any]
    toml: str


class PresetList(Schema):
    items: list[PresetOut]


class StageOut(Schema):
    stage: str = Field(description="`resolve`, `connect` or `request`")
    allowed: bool
    rule: str | None = Field(description="The rule that decided, or that would have allowed it but for the reason")
    reason: str
    sentence: str = Field(description="What the agent reads")


class AnswerOut(Schema):
    connection: dict[str, Any]
    passes: bool
    address: str = Field(description="What the host name was taken to resolve to, or the address itself")
    special_range: str | None
    stages: list[StageOut] = Field(description="The last one decided")


class PolicyCheckRequest(Request):
    policy: EgressPolicy
    connections: list[services.Connection] = Field(default=[], max_length=100)


class PolicyCheckOut(Schema):
    policy: dict[str, Any]
    toml: str
    answers: list[AnswerOut]


@router.get("/egress-presets", response=PresetList, operation_id="list_egress_presets")
def list_presets(request: HttpRequest) -> PresetList:
    """Policies to begin with."""
    items = [
        PresetOut(name=name, about=preset.about, policy=document, toml=toml_of(document))
        for name, preset in PRESETS.items()
        for document in [services.as_document(preset.policy)]
    ]
    return PresetList(items=items)


@router.post(
    "/egress-policies/check",
    response=PolicyCheckOut,
    operation_id="check_egress_policy",
    auth=somewhere("read"),
)
def check(request: HttpRequest, wanted: PolicyCheckRequest) -> PolicyCheckOut:
    """Whether the policy can be used, whether each connection would pass it, and by which rule.  Nothing is kept."""
    document = services.as_document(wanted.policy)
    answers = [_answer(services.tried(wanted.policy, connection)) for connection in wanted.connections]
    return PolicyCheckOut(policy=document, toml=toml_of(document), answers=answers)


def _answer(answer: services.ConnectionAnswer) -> AnswerOut:
    return AnswerOut(
        connection=answer.connection.model_dump(),
        passes=answer.passes,
        address=answer.address,
        special_range=answer.special_range,
        stages=[StageOut(**asdict(stage)) for stage in answer.stages],
    )
