"""A slow receiver of a file keeps no database connection from others."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.test import AsyncClient

from tests.webapp.models import FILES, ready_version
from tests.webapp.runs.conftest import Engine
from webapp.accounts.models import Team, User
from webapp.audit import views
from webapp.trajectories import exports


def _is_connected() -> bool:
    return connection.connection is not None


async def _received(user: User, path: str) -> list[tuple[bytes, bool]]:
    """The pieces of an answer, each with whether the request had a connection while it was sent."""
    client = AsyncClient()
    await client.aforce_login(user)
    answer = await client.get(path)
    assert answer.status_code == 200
    assert await sync_to_async(_is_connected)(), "the view queries in the thread that is looked at"
    return [(piece, await sync_to_async(_is_connected)()) async for piece in answer.streaming_content]


@pytest.mark.django_db(transaction=True)
def test_a_connection_goes_back_before_a_piece_is_sent_also_where_pages_of_rows_come_between(
    team: Team, alice: User, engine: Engine, settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.PALESTRA_MODELS = tmp_path
    version = ready_version(team)
    assert engine.post(engine.started(), *(engine.trajectory(index=index) for index in range(3))).status_code == 200
    monkeypatch.setattr(exports, "ROWS_AT_ONCE", 1)
    monkeypatch.setattr(views, "LINES_AT_ONCE", 1)
    run = f"/api/v1/runs/{engine.run_id}"
    for path, pieces in (
        (f"/api/v1/model-versions/{version.id}/download", 2 * (len(FILES) + 1)),
        (f"{run}/trajectories/train-1-0/export", 1),
        (f"{run}/trajectory-export", 3),
        (f"/teams/{team.slug}/audit/entries.csv", 1 + team.audit_entries.count()),
    ):
        received = asyncio.run(_received(alice, path))
        assert len(received) >= pieces
        assert [piece for piece, is_connected in received if is_connected] == []
