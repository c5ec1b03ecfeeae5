"""Lengths and differences of ready datasets, computed by the engine in a process of its own, slice by slice."""

import shutil
from pathlib import Path

from django.conf import settings
from django.utils import timezone

from engine.spec.dataset_report import DifferenceReport, LengthsReport
from webapp import queue
from webapp.catalog.models import Measurement, MeasurementKind
from workers.app import app
from workers.engine_process import EngineFailed, output_of
from workers.version_work import MEASUREMENT_LOCK, alone

SLICE_S = 20.0
LONGEST_S = 180.0
MOST_BYTES = 4 * 2**30


@app.task(name=queue.MEASURE_DATASET, soft_time_limit=200, time_limit=240)
def measure_dataset(measurement_id: str) -> None:
    """Do a slice of it; the next one gets a message of its own.  A second message at the same time does nothing."""
    with alone(MEASUREMENT_LOCK, int(measurement_id)) as is_alone:
        related = ("version__dataset__team", "model__model__team", "before__dataset__team")
        measurement = (
            Measurement.objects.select_related(*related).filter(id=int(measurement_id)).first() if is_alone else None
        )
        if measurement is None or not measurement.is_unfinished:
            return
        try:
            _measure(measurement)
        except (EngineFailed, OSError) as error:
            _fail(measurement, f"measuring {error}", "try it again")
        if Measurement.objects.get(id=measurement.id).is_unfinished:
            queue.send(queue.MEASURE_DATASET, measurement_id)
        else:
            shutil.rmtree(_folder(measurement), ignore_errors=True)


def _measure(measurement: Measurement) -> None:
    report = _difference(measurement) if measurement.kind == MeasurementKind.DIFFERENCE else _lengths(measurement)
    if isinstance(report, DifferenceReport) or report.state == "ready":
        _update(measurement, rows_done=measurement.version.rows, report=report.model_dump(mode="json"))
    elif report.state == "refused":
        _fail(measurement, report.problem, "choose another model")
    else:
        _update(measurement, rows_done=report.rows_done)


def _difference(measurement: Measurement) -> DifferenceReport:
    assert measurement.before is not None  # a difference has two versions
    folders = [str(measurement.before.folder), str(measurement.version.folder)]
    output = output_of(["engine.datasets", "difference", *folders], seconds=LONGEST_S, most_bytes=MOST_BYTES)
    return DifferenceReport.model_validate_json(output)


def _lengths(measurement: Measurement) -> LengthsReport:
    assert measurement.model is not None  # lengths are counted under a model
    progress = _folder(measurement)
    progress.mkdir(mode=0o700, parents=True, exist_ok=True)
    folders = [str(measurement.version.folder), str(measurement.model.folder), str(progress)]
    arguments = ["engine.datasets", "lengths", *folders, "--seconds", str(SLICE_S)]
    return LengthsReport.model_validate_json(output_of(arguments, seconds=LONGEST_S, most_bytes=MOST_BYTES))


def _folder(measurement: Measurement) -> Path:
    return Path(settings.PALESTRA_DATASETS) / "measurements" / str(measurement.id)


def _fail(measurement: Measurement, message: str, remedy: str) -> None:
    _update(measurement, problem={"field": measurement.kind, "value": "", "message": message, "remedy": remedy})


def _update(measurement: Measurement, **fields: object) -> None:
    Measurement.objects.filter(id=measurement.id).update(heartbeat_at=timezone.now(), **fields)
