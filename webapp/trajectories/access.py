"""The door to trajectories: through their run's."""

from uuid import UUID

from django.http import Http404

from webapp.accounts.access import Who
from webapp.runs.access import run_for
from webapp.trajectories.models import Trajectory


def trajectory_for(who: Who, run_id: UUID | str, trajectory_id: str) -> Trajectory:
    run = run_for(who, run_id)
    if "\0" in trajectory_id:
        raise Http404
    trajectory = Trajectory.objects.filter(run=run, trajectory_id=trajectory_id).first()
    if trajectory is None:
        raise Http404
    trajectory.run = run
    return trajectory
