"""What a chat tells of the sandbox of its tools: a conversation belongs to no run, so no security page shows it."""

from pathlib import Path

import pytest

from engine.cluster.sandboxes import opened_sandboxes
from engine.environments.registry import environment_for
from engine.launch.chat import alert_line
from engine.rollout.chat_tools import ChatTools, ChosenTools
from engine.rollout.security_log import AlertEntry
from engine.spec.chat import Alert
from engine.spec.environment import PythonMath
from engine.spec.message import AssistantMessage, ToolRequest
from engine.spec.run import Dataset
from engine.spec.security import Response
from sandboxes.egress.detectors.finding import Finding
from sandboxes.spec import SandboxSpec

TUNNEL = 'import socket;s=socket.create_connection(("203.0.113.7",2222),2);s.sendall(b"SSH-2.0-x\\r\\n");s.recv(9)'
"""Speaks first, as a server of SSH does that was reached from within."""
WATCHED = SandboxSpec(network="watched", timeout_s=3.0, memory_mib=128)


@pytest.mark.parametrize("quarantine", ["critical", "never"])
async def test_a_chat_tells_what_its_sandbox_tried_and_whether_it_was_frozen_for_it(
    tmp_path: Path, quarantine: str
) -> None:
    shown: list[Alert] = []
    spec = PythonMath(sandbox=WATCHED, response=Response.model_validate({"quarantine": quarantine, "keep_frozen_s": 0}))
    environment = environment_for(spec, Dataset())
    opening = opened_sandboxes(spec, tmp_path, size=1, on_alert=lambda entry: shown.append(alert_line(entry)))
    async with opening as sandboxes:
        chosen = ChosenTools(environment, environment.tasks("heldout")[0], sandboxes.pool, sandboxes.monitor)
        tools = ChatTools(chosen, name="chat")
        _, ends = await tools.act(_calling("print(1)"), wrote="")
        assert (shown, ends) == ([], None)
        await tools.act(_calling(TUNNEL), wrote="")
        assert [(line.rule, line.severity, line.frozen) for line in shown if line.severity == "critical"] == [
            ("ssh-outbound", "critical", quarantine == "critical")
        ]
        assert "203.0.113.7" in " ".join(line.subject for line in shown)
        await tools.close()


def test_what_a_sandbox_named_can_be_stored() -> None:
    finding = Finding(
        rule="r", severity="warning", category="Controllability", attack="T1", title="t", sandbox="s", at=0.0,
        label=None, subject="pool\0example", evidence=(),
    )  # fmt: skip
    line = alert_line(AlertEntry(id="s/1", origin=None, finding=finding, quarantined=False))
    assert line.subject == "pool\\x00example"


def _calling(code: str) -> AssistantMessage:
    return AssistantMessage("", (ToolRequest("python", {"code": code}, "c"),))
