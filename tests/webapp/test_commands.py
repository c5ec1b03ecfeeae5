"""The commands that ``./dev`` and operators use."""

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from webapp.accounts.models import User
from webapp.experiments.models import Experiment
from webapp.runs.models import Run

pytestmark = pytest.mark.django_db


def call(*arguments: str) -> dict[str, Any]:
    out = StringIO()
    call_command(*arguments, stdout=out)
    return json.loads(out.getvalue())


def test_bootstrap_makes_the_sample_once() -> None:
    first, second = call("bootstrap"), call("bootstrap")
    assert (first["created"], second["created"], second["password"]) == (True, False, None)
    assert first["experiment_id"] == second["experiment_id"]
    assert User.objects.get(email=first["email"]).check_password(first["password"])
    assert Experiment.objects.count() == 1


def test_launch_sample_queues_the_sample_with_the_seed() -> None:
    reported = call("launch_sample", "--seed", "7")
    run = Run.objects.get(id=reported["run"])
    assert (run.run_spec.seed, run.experiment, run.number) == (7, Experiment.objects.get(), reported["number"])


def test_launch_sample_takes_another_spec(tmp_path: Any) -> None:
    file = tmp_path / "run.toml"
    file.write_text('name = "mine"\n[schedule]\nsteps = 2\n')
    assert Run.objects.get(id=call("launch_sample", "--spec", str(file))["run"]).total_steps == 2


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("name = 1\n", "name = 1:"),
        ("name = ", "is not TOML"),
        ("seed = " + "9" * 5000, "line 1: a number"),
        (None, "cannot read"),
    ],
)
def test_launch_sample_refuses_a_bad_spec_and_creates_nothing(tmp_path: Any, text: str | None, reported: str) -> None:
    file = tmp_path / "run.toml"
    if text is not None:
        file.write_text(text)
    with pytest.raises(CommandError, match=reported) as refusal:
        call("launch_sample", "--spec", str(file))
    assert refusal.value.returncode == 2
    assert Run.objects.count() == 0


def test_run_status_counts_what_is_stored(run: Run) -> None:
    reported = call("run_status", str(run.id))
    assert (reported["state"], reported["events_stored"], reported["events_duplicated"], reported["last_seq"]) == (
        "queued",
        0,
        0,
        0,
    )
    with pytest.raises(CommandError, match="there is no run"):
        call("run_status", "00000000-0000-0000-0000-000000000000")


def test_a_lost_password_is_replaced(alice: User) -> None:
    reported = call("reset_password", "Alice@example.org")
    fresh = User.objects.get(id=alice.id)
    assert fresh.check_password(reported["password"])
    assert fresh.must_change_password
