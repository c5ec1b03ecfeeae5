"""A server of the Model Context Protocol that behaves as its first argument says.  Runs in a sandbox."""

import json
import os
import sys
import time

MANNER = sys.argv[1] if len(sys.argv) > 1 else "good"
REFERRED = {
    "type": "object",
    "properties": {"pattern": {"$ref": "#/$defs/Text"}, "many": {"type": "array", "items": {"$ref": "#/$defs/Text"}}},
    "$defs": {"Text": {"type": "string", "pattern": "^(a+)+$"}},
}
ADD = {
    "name": "add",
    "description": "Adds two numbers.",
    "inputSchema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}
LOOP = {"type": "object", "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/A"}}}
DOUBLING = {
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/0"}},
    "$defs": {str(n): {"anyOf": [{"$ref": f"#/$defs/{n + 1}"}] * 2} for n in range(14)} | {"14": {}},
}
LISTS = {
    "good": [ADD, {"name": "refer", "inputSchema": REFERRED}],
    "twice": [ADD, ADD],
    "spaces": [ADD | {"name": "a b"}],
    "nothing": [],
    "no list": "add",
    "thousands": [ADD | {"name": f"add{n}"} for n in range(10_000)],
    "long": [ADD | {"description": "x" * 10_000}],
    "no schema": [{"name": "add"}],
    "not an object": [ADD | {"inputSchema": {"type": "string"}}],
    "broken schema": [ADD | {"inputSchema": {"type": "object", "required": 7}}],
    "elsewhere": [ADD | {"inputSchema": {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1/a"}}}}],
    "loop": [ADD | {"inputSchema": LOOP}],
    "doubling": [ADD | {"inputSchema": DOUBLING}],
    "surrogate": [ADD | {"description": "\ud800"}],
}


def write(message: dict) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def result(request: dict, **held: object) -> None:
    write({"id": request["id"], "result": held})


def called(request: dict) -> None:
    arguments = request["params"].get("arguments", {})
    match MANNER:
        case "dies":
            os._exit(1)
        case "hangs":
            time.sleep(1000)
        case "garbage":
            sys.stdout.write("Traceback: no JSON here\n")
            sys.stdout.flush()
        case "endless line":
            while True:
                sys.stdout.write("x" * 65536)
        case "flood":
            while True:
                write({"method": "notifications/message", "params": {}})
        case "other id":
            write({"id": 10**6, "result": {"content": [{"type": "text", "text": "not yours"}]}})
            time.sleep(1000)
        case "no content":
            result(request, content=None)
        case "error":
            write({"id": request["id"], "error": {"code": 1, "message": "nothing to add"}})
        case "is error":
            result(request, content=[{"type": "text", "text": "too large"}], isError=True)
        case "huge":
            result(request, content=[{"type": "text", "text": "y" * 500_000}])
        case "strange":
            result(request, content=[7, {"type": "image", "data": "AAAA"}, {"type": "text", "text": "a\0b\ud800c"}])
        case "asks":
            write({"id": "mine", "method": "sampling/createMessage", "params": {}})
            refused = json.loads(sys.stdin.readline())
            result(request, content=[{"type": "text", "text": refused["error"]["message"]}])
        case _:
            result(request, content=[{"type": "text", "text": str(arguments.get("a", 0) + arguments.get("b", 0))}])


def main() -> None:
    if MANNER == "silent":
        time.sleep(1000)
    if MANNER == "exits":
        return
    for line in sys.stdin:
        request = json.loads(line)
        match request.get("method"):
            case "initialize":
                result(request, protocolVersion="2025-06-18", capabilities={"tools": {}}, serverInfo={"name": "test"})
            case "tools/list" if MANNER == "pages":
                result(request, tools=[], nextCursor="more")
            case "tools/list" if MANNER == "changes":
                seen = os.path.exists("/work/changed")
                result(request, tools=[ADD] if seen else LISTS["good"])
            case "tools/list":
                result(request, tools=LISTS.get(MANNER, LISTS["good"]))
            case "tools/call":
                called(request)


if __name__ == "__main__":
    main()
