"""The phone that runs the apps: what a call of a tool gives, who is logged in, and whether an errand is done."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from engine.environments.apps.database import Database
from engine.environments.apps.functions import APPS, FUNCTIONS, Refused, documentation, faults_in
from engine.environments.tool_schemas import short_text, tool
from engine.environments.tool_world import ActionResult
from engine.seeds import derived_seed
from engine.spec.message import ToolRequest

TOOLS = (
    tool("list_apis", "Lists the functions of an app, or without one the apps.", {}, {"app": short_text()}),
    tool("read_doc", "Shows what a function takes and does, e.g. mail.send.", {"api": short_text()}),
    tool("call", "Calls a function of an app.", {"api": short_text(), "arguments": {"type": "object"}}),
)
MOST_FAULTS = 5
"""So many faults of a call's arguments are shown."""


@dataclass(frozen=True, slots=True)
class Phone:
    password: str
    seed: int
    """The tokens follow from it."""

    def token(self, app: str) -> str:
        return str(1000 + derived_seed("apps token", self.seed, app) % 9000)

    def called(self, database: Database, request: ToolRequest) -> ActionResult[Database]:
        arguments = request.arguments
        try:
            match request.name:
                case "list_apis":
                    return ActionResult(database, _listed_apis(arguments.get("app")))
                case "read_doc":
                    return ActionResult(database, documentation(_known(arguments["api"])))
                case _:
                    return self._made(database, _known(arguments["api"]), arguments["arguments"])
        except Refused as refused:
            return ActionResult(database, f"error: {refused}", refused.error_class)

    def _made(self, database: Database, name: str, arguments: Mapping[str, Any]) -> ActionResult[Database]:
        if faults := faults_in(name, arguments):
            raise Refused("arguments", "; ".join(faults[:MOST_FAULTS]))
        app, _, verb = name.partition(".")
        if verb == "login":
            if arguments["password"] != self.password:
                raise Refused("illegal", "wrong password")
            after, _ = FUNCTIONS[name].run(database, arguments)
            return ActionResult(after, json.dumps({"token": self.token(app)}))
        if app not in database.logged_in or arguments["token"] != self.token(app):
            raise Refused("illegal", f"no token of {app}: log in first")
        after, given = FUNCTIONS[name].run(database, arguments)
        return ActionResult(after, json.dumps(given))


def _listed_apis(app: str | None) -> str:
    if app is None:
        return ", ".join(APPS)
    if app not in APPS:
        raise Refused("index", f"no such app; there is {', '.join(APPS)}")
    return ", ".join(name for name in FUNCTIONS if name.startswith(f"{app}."))


def _known(name: str) -> str:
    if name not in FUNCTIONS:
        raise Refused("unknown-tool", "no such api; list_apis shows what there is")
    return name
