"""What a package is written against is the engine's own contract, field for field; and needs nothing but Python."""

import ast
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

import pytest

import palestra_env
from engine.environments import contract
from engine.spec import message, trajectory

ROOT = Path(palestra_env.__file__).parent
CALLS_NEVER_ARRIVE = {"unknown-tool", "arguments", "frozen"}


@pytest.mark.parametrize(
    ("ours", "theirs", "left_out"),
    [
        (palestra_env.Task, trajectory.Task, {"part"}),
        (palestra_env.ToolSchema, message.ToolSchema, {"document"}),
        (palestra_env.ToolRequest, message.ToolRequest, {"malformed"}),
        (palestra_env.ToolCall, trajectory.ToolCall, {"arguments", "written", "status", "began_at"}),
        (palestra_env.Message, message.Message, {"speaker"}),
        (palestra_env.AssistantMessage, message.AssistantMessage, {"malformed"}),
        (palestra_env.Observation, contract.Observation, set()),
        (palestra_env.Rewards, contract.Rewards, set()),
    ],
)
def test_the_types_have_the_fields_of_the_engines(ours: Any, theirs: Any, left_out: set[str]) -> None:
    known = [field.name for field in fields(theirs)] if is_dataclass(theirs) else list(theirs.model_fields)
    assert [field.name for field in fields(ours)] == [name for name in known if name not in left_out]


@pytest.mark.parametrize("name", ["Environment", "Session"])
def test_the_protocols_have_the_methods_of_the_engines(name: str) -> None:
    def methods(kind: Any) -> set[str]:
        return {word for word in vars(kind) if not word.startswith("_")}

    assert methods(getattr(palestra_env, name)) == methods(getattr(contract, name))


def test_error_classes_are_the_engines_but_for_those_of_calls_that_never_arrive() -> None:
    assert set(get_args(palestra_env.ErrorClass)) == set(get_args(trajectory.ErrorClass)) - CALLS_NEVER_ARRIVE


@pytest.mark.parametrize("path", sorted(ROOT.glob("*.py")), ids=lambda path: path.name)
def test_it_imports_the_standard_library_alone(path: Path) -> None:
    imported = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(path.read_text()))
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert imported <= {*sys.stdlib_module_names, "palestra_env"}
