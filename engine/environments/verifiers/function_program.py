"""What runs inside the sandbox of a team's own verifier.  Standard library only.

python3 -I -c CODE        {"source", "result", "row"} on standard input  ->  score.json: {"score"} or {"fault"}
"""

import json
import os
import sys
from typing import Any

SCORE = "/work/score.json"


def scored(source: str, result: str, row: dict[str, Any]) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "verifier"}
    try:
        exec(compile(source, "<verifier>", "exec"), names)
        score = names["verify"](result, row)
    except BaseException as error:  # SystemExit included: it has decided nothing
        return {"fault": f"{type(error).__name__}: {error}"[:300]}
    if type(score) not in (bool, int, float):
        return {"fault": f"verify returned a {type(score).__name__}, and neither True, False nor a number"[:300]}
    return {"score": score}


def _main() -> None:
    given = json.load(sys.stdin)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the end: what it prints is nobody's result
    document = scored(**given)
    with open(SCORE, "w") as file:
        json.dump(document, file)


if __name__ == "__main__":
    _main()
