"""``python -m workers.serving [--alive FILE]``: keeps the server of models, and takes in what its keys have used.

    rows of keys ──► served.json ──► engine serve-models ──► usage/<day>.jsonl ──► rows of usage
                                          ▲ starts it, and starts it again

One host serves all teams (an advisory lock says which).  Lines of usage are read once each: how far a file has been
read is written with what was read.  The server runs while there is a key that opens something.
"""

import os

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "webapp.settings")
os.environ.setdefault("PALESTRA_DB_POOL", "0")

import django

django.setup()

import argparse  # noqa: E402
import signal  # noqa: E402
import subprocess  # noqa: E402
import sys  # noqa: E402
import time  # noqa: E402
from collections import Counter  # noqa: E402
from datetime import date  # noqa: E402
from pathlib import Path  # noqa: E402
from threading import Event  # noqa: E402
from uuid import UUID  # noqa: E402

import structlog  # noqa: E402
from django.conf import settings  # noqa: E402
from django.db import DatabaseError, connection, transaction  # noqa: E402
from django.db.models import F, Q  # noqa: E402
from django.utils import timezone  # noqa: E402
from pydantic import ValidationError  # noqa: E402

from engine.spec.serving import ServedFile, ServedKey, ServedModel, UsageLine  # noqa: E402
from webapp.serving.models import ServingKey, ServingUsage, UsageFile  # noqa: E402
from workers.engine_environment import ENGINE, passed_on  # noqa: E402

LOOK_EVERY_S = 0.5
RESTART_AFTER_S = 5.0
"""The time that a server which ended by itself is left alone."""
MOST_LOOK_S = 2 * LOOK_EVERY_S
"""No more than this passes for the server between two looks."""
SILENT_S = 60.0
"""A server that does not say for so long that all is well is ended, and started again."""
MOST_READ_BYTES = 2**22
"""The part of a file that is taken in at once."""
LOCK = 0x70617365
"""The advisory lock of the host."""
log = structlog.get_logger(__name__)


def served_file() -> ServedFile:
    """What the rows say is served now."""
    now = timezone.now()
    rows = ServingKey.objects.select_related("run", "model_version__model__team").filter(
        Q(expires_at=None) | Q(expires_at__gt=now), revoked_at=None
    )
    models = {}
    keys = []
    for row in rows.order_by("created_at", "id"):
        if row.model_is_gone:
            continue
        models[row.run_id, row.step, row.model_version_id] = _model_of(row)
        keys.append(
            ServedKey(
                id=str(row.id), sha256=row.digest, model=row.model_name,
                expires_at=None if row.expires_at is None else row.expires_at.timestamp(),
                requests_per_minute=row.requests_per_minute, parallel=row.parallel, tokens_per_day=row.tokens_per_day,
            )
        )  # fmt: skip
    return ServedFile(models=list(models.values()), keys=keys)


def _model_of(row: ServingKey) -> ServedModel:
    if (version := row.model_version) is not None:
        return ServedModel(name=row.model_name, folder=version.folder, catalog=version.pinned)
    return ServedModel(name=row.model_name, run=str(settings.PALESTRA_RUNS / str(row.run_id)), step=row.step)


class ServingHost:
    """``tick`` does what is due."""

    def __init__(self, folder: Path, *, port: int, host: str) -> None:
        self._folder, self._port, self._host = folder, port, host
        self._file, self._usage, self._alive = folder / "served.json", folder / "usage", folder / "alive"
        self._process: subprocess.Popen[bytes] | None = None
        self._ended_at = -RESTART_AFTER_S
        self._written = ""
        self._touched, self._looked_at, self._silent_s = 0, 0.0, 0.0
        self._usage.mkdir(parents=True, exist_ok=True)

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def tick(self) -> None:
        file = served_file()
        self._write(file.model_dump_json())
        self._look_after(wanted=bool(file.keys))
        self.take_in()

    def close(self) -> None:
        """End the server, which lets its calls end, and take in the last lines."""
        self._look_after(wanted=False)
        self.take_in()

    def take_in(self) -> None:
        """What was recorded since the last look."""
        for file in sorted(self._usage.glob("*.jsonl")):
            while _taken_in(file):
                pass

    def _write(self, content: str) -> None:
        if content == self._written and self._file.exists():
            return
        partial = self._file.with_suffix(".partial")
        partial.touch(mode=0o600)
        partial.write_text(content)
        partial.replace(self._file)
        self._written = content

    def _look_after(self, *, wanted: bool) -> None:
        if self._process is not None and self._hangs():
            log.error("the server of models hangs and is ended", silent_s=round(self._silent_s))
            self._process.kill()
            self._process.wait()
        if self._process is not None and self._process.poll() is not None:
            log.warning("the server of models has ended", code=self._process.returncode)
            self._process, self._ended_at = None, time.monotonic()
        if wanted and self._process is None and time.monotonic() - self._ended_at >= RESTART_AFTER_S:
            self._alive.touch()
            self._silent_s = 0.0
            self._process = subprocess.Popen(
                [sys.executable, "-m", "engine", "serve-models", str(self._file), "--usage", str(self._usage),
                 "--alive", str(self._alive), "--host", self._host, "--port", str(self._port), "--with-parent"],
                cwd=settings.ROOT, env=passed_on(ENGINE),
            )  # fmt: skip
        elif not wanted and self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    def _hangs(self) -> bool:
        """Counts the time in which this host looked: where all stood still, the server did too."""
        touched, now = self._alive.stat().st_mtime_ns, time.monotonic()
        self._silent_s = 0.0 if touched != self._touched else self._silent_s + min(now - self._looked_at, MOST_LOOK_S)
        self._touched, self._looked_at = touched, now
        return self._silent_s > SILENT_S


def _taken_in(file: Path) -> bool:
    """Take in the next whole lines of a file; return whether there were any."""
    with transaction.atomic():
        UsageFile.objects.get_or_create(name=file.name)
        read = UsageFile.objects.select_for_update().get(name=file.name)
        with file.open("rb") as lines:
            lines.seek(read.offset)
            content = lines.read(MOST_READ_BYTES)
        whole = content[: content.rfind(b"\n") + 1]
        if not whole:
            return False
        sums = {name: Counter[tuple[str, date, str]]() for name in ("calls", "prompt_tokens", "sampled_tokens")}
        for text in whole.splitlines():
            try:
                line = UsageLine.model_validate_json(text)
            except ValidationError:
                log.error("a line of usage cannot be read", file=file.name)
                continue
            at = (line.key, date.fromisoformat(file.stem), line.outcome[:40])
            sums["calls"][at] += line.calls
            sums["prompt_tokens"][at] += line.prompt_tokens
            sums["sampled_tokens"][at] += line.sampled_tokens
        known = set(ServingKey.objects.filter(id__in=_ids(sums["calls"])).values_list("id", flat=True))
        for key, day, outcome in sums["calls"]:
            if _id(key) in known:
                added = {name: of_all[key, day, outcome] for name, of_all in sums.items()}
                row, _ = ServingUsage.objects.get_or_create(key_id=_id(key), day=day, outcome=outcome)
                ServingUsage.objects.filter(id=row.id).update(**{name: F(name) + more for name, more in added.items()})
        UsageFile.objects.filter(name=file.name).update(offset=F("offset") + len(whole))
    return True


def _ids(sums: Counter[tuple[str, date, str]]) -> set[UUID]:
    return {id_ for key, _, _ in sums if (id_ := _id(key)) is not None}


def _id(key: str) -> UUID | None:
    try:
        return UUID(key)
    except ValueError:
        return None


def serve(stopping: Event, *, listens_at: str, alive: Path | None = None) -> None:
    """Until ``stopping``.  A database that restarts is waited for; the server goes on meanwhile."""
    host = ServingHost(settings.PALESTRA_HOME / "serving", port=settings.PALESTRA_SERVING_PORT, host=listens_at)
    is_host = False
    try:
        while not stopping.wait(LOOK_EVERY_S):
            try:
                is_host = is_host or _locked()
                if is_host:
                    host.tick()
                if alive is not None:
                    alive.touch()
            except DatabaseError as error:
                log.warning("the database cannot be reached", error=str(error))
                is_host = False
                connection.close()
                stopping.wait(1.0)
    finally:
        if is_host:
            host.close()


def _locked() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_lock(%s)", [LOCK])
        return bool(cursor.fetchone()[0])


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m workers.serving", description="The host of served models.")
    parser.add_argument("--alive", type=Path, help="a file that is touched while models are looked after")
    parser.add_argument("--host", default="127.0.0.1", help="where the server listens (default: 127.0.0.1)")
    options = parser.parse_args()
    stopping = Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())
    log.info("the serving host looks for keys")
    serve(stopping, listens_at=options.host, alive=options.alive)


if __name__ == "__main__":
    main()
