"""An engine whose boxes get into trouble."""

import pytest

from tests.webapp.runs.conftest import Engine, egress_record
from webapp.runs.models import Run


@pytest.fixture
def engine(launching_run: Run) -> Engine:
    return Engine(launching_run)


@pytest.fixture
def alarming_run(engine: Engine, launching_run: Run) -> Run:
    """A box tried a mining pool twice in turn 1 of train-1-0-0, was frozen for it, and the trajectory was told."""
    records = [egress_record(1), egress_record(2, attempt={"protocol": "dns", "name": "pool.example", "port": 53})]
    events = [engine.started(), engine.egress(*records), engine.alert()]
    told = engine.trajectory(alerts=["box-1/1"], masked_because="quarantined", stop_reason="frozen")
    assert engine.post(*events, told).status_code == 200
    launching_run.refresh_from_db()
    return launching_run
