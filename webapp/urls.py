"""Where every path of the web process leads."""

from django.urls import include, path

from webapp.health import health, metrics
from webapp.ingest.endpoint import receive_batch
from webapp.rest import api

urlpatterns = [
    path("", include("webapp.accounts.urls")),
    path("", include("webapp.audit.urls")),
    path("", include("webapp.environments.urls")),
    path("", include("webapp.library.urls")),
    path("", include("webapp.datasets.urls")),
    path("", include("webapp.task_sets.urls")),
    path("", include("webapp.packages.urls")),
    path("", include("webapp.egress.urls")),
    path("", include("webapp.editor.urls")),
    path("", include("webapp.runs.urls")),
    path("", include("webapp.conversations.urls")),
    path("", include("webapp.serving.urls")),
    path("", include("webapp.trajectories.urls")),
    path("", include("webapp.security.urls")),
    path("api/v1/", api.urls),
    path("ingest/v1/runs/<uuid:run_id>/batches", receive_batch),
    path("healthz", health),
    path("metrics", metrics),
]
