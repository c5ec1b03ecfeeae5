"""Pages of this app."""

from django.urls import path

from webapp.library import views

app_name = "library"
urlpatterns = [
    path("models/", views.index, name="list"),
    path("models/new", views.new, name="new"),
    path("models/import", views.import_one, name="import"),
    path("models/versions/<int:version_id>/", views.detail, name="version"),
    path("models/versions/<int:version_id>/cancel", views.cancel, name="cancel"),
    path("models/versions/<int:version_id>/delete", views.delete, name="delete"),
    path("runs/<uuid:run_id>/checkpoints/<int:step>/promote", views.promote, name="promote"),
]
