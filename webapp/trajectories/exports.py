"""Trajectories as files: one, or all that a filter leaves, as JSON lines.

One conversation is in memory at a time, and one trajectory of a page of rows.  Branches repeat what they share, so that
a trajectory may be far smaller than its export: ``MOST_TOKENS`` bounds that.
"""

import json
import re
from collections.abc import Iterator
from typing import Any, Literal

from django.http import StreamingHttpResponse

from engine.spec import trajectory as spec
from engine.spec.branches import branches_of
from webapp.refusals import Refused
from webapp.runs.models import Run
from webapp.streams import streamed
from webapp.trajectories.atif_export import atif_of
from webapp.trajectories.chat_export import conversations_of
from webapp.trajectories.models import Trajectories, Trajectory

ExportFormat = Literal["chat", "atif"]
MOST_TOKENS = 2**23
"""The most tokens of the contexts of all branches of one trajectory."""
ROWS_AT_ONCE = 50


def export_of(row: Trajectory, export_format: ExportFormat) -> StreamingHttpResponse:
    """Raises Refused where the branches together are too long."""
    document = row.document
    if problem := too_long(document):
        raise Refused(problem)
    pieces = _encoded(lines_of(document, row.run, export_format))
    content_type, ending = _KINDS[export_format]
    headers = _attachment(f"{row.trajectory_id}.{ending}")
    return StreamingHttpResponse(streamed(pieces), content_type=content_type, headers=headers)


def export_of_run(run: Run, found: Trajectories, export_format: ExportFormat) -> StreamingHttpResponse:
    """A line for each conversation, or for each trajectory; what is too long has a line that says so."""
    headers = _attachment(f"run-{run.number}.{export_format}.jsonl")
    pieces = _encoded(_lines_of_run(run, found, export_format))
    return StreamingHttpResponse(streamed(pieces), content_type="application/jsonl", headers=headers)


_KINDS = {"chat": ("application/jsonl", "chat.jsonl"), "atif": ("application/json", "atif.json")}


def _attachment(name: str) -> dict[str, str]:
    """An engine may call a trajectory anything; a header and a file system take less."""
    harmless = re.sub(r"[^\w.-]", "-", name, flags=re.ASCII)
    return {"Content-Disposition": f'attachment; filename="{harmless}"'}


def too_long(document: spec.Trajectory) -> str | None:
    tokens = sum(document.segments[branch].token_count for branch in branches_of(document))
    remedy = "read the document itself, which holds what they share once"
    return f"its branches have {tokens:,} tokens, and {MOST_TOKENS:,} are exported: {remedy}" * (tokens > MOST_TOKENS)


def lines_of(document: spec.Trajectory, run: Run, export_format: ExportFormat) -> Iterator[str]:
    """The pieces of a text, each line of which is a document."""
    if export_format == "chat":
        return (f"{_json(conversation)}\n" for conversation in conversations_of(document, str(run.id)))
    return _atif_pieces(atif_of(document, str(run.id), run.spec["environment"]["id"]))


def _atif_pieces(parts: Iterator[dict[str, Any]]) -> Iterator[str]:
    """One document, of which only a part is made at a time."""
    yield _json(next(parts))[:-1]
    separator = ', "subagent_trajectories": ['
    for part in parts:
        yield separator + _json(part)
        separator = ", "
    yield "]}\n" if separator == ", " else "}\n"


def _json(document: dict[str, Any]) -> str:
    return json.dumps(document, ensure_ascii=False, allow_nan=False)


def _lines_of_run(run: Run, found: Trajectories, export_format: ExportFormat) -> Iterator[str]:
    """Page after page, so that neither a cursor nor a transaction stays open while the receiver reads."""
    rows = list(found[:ROWS_AT_ONCE])
    while rows:
        for row in rows:
            row.run = run
            yield from _pieces(row, export_format)
        rows = list(found.filter(seq__lt=rows[-1].seq)[:ROWS_AT_ONCE])


def _encoded(pieces: Iterator[str]) -> Iterator[bytes]:
    return (piece.encode() for piece in pieces)


def _pieces(row: Trajectory, export_format: ExportFormat) -> Iterator[str]:
    document = row.document
    if problem := too_long(document):
        return iter([_json({"trajectory": document.id, "refused": problem}) + "\n"])
    return lines_of(document, row.run, export_format)
