"""Whether a JSON value fits a schema; as a program, in a process that can be ended: a pattern may take for ever."""

import json
import resource
import sys
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry

MEMORY_BYTES = 2**30


def fits(schema: dict[str, Any], value: Any) -> bool:
    """References lead into the schema itself; any other one raises, and nothing is fetched."""
    return bool(Draft202012Validator(schema, registry=Registry()).is_valid(value))


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    given = json.load(sys.stdin)
    print("fits" if fits(given["schema"], given["value"]) else "differs")
