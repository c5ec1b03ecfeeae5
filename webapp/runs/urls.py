"""Pages of this app."""

from django.urls import path

from webapp.runs import views

app_name = "runs"
urlpatterns = [
    path("", views.overview, name="list"),
    path("runs/", views.overview),
    path("runs/<uuid:run_id>/", views.detail, name="detail"),
    path("runs/<uuid:run_id>/snapshot", views.first_look, name="snapshot"),
    path("runs/<uuid:run_id>/counts", views.counts, name="counts"),
    path("runs/<uuid:run_id>/series", views.zoomed, name="zoomed"),
    path("runs/<uuid:run_id>/lanes", views.earlier_lanes, name="lanes"),
    path("runs/<uuid:run_id>/parts/<slug:name>", views.part, name="part"),
    path("runs/<uuid:run_id>/cancel", views.cancel, name="cancel"),
    path("runs/<uuid:run_id>/pause", views.pause, name="pause"),
    path("runs/<uuid:run_id>/resume", views.resume, name="resume"),
]
