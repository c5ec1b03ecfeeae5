"""Pages of this app."""

from django.urls import path

from webapp.datasets import views

app_name = "datasets"
urlpatterns = [
    path("datasets/", views.index, name="list"),
    path("datasets/new", views.new, name="new"),
    path("datasets/import", views.import_one, name="import"),
    path("datasets/versions/<int:version_id>/", views.detail, name="version"),
    path("datasets/versions/<int:version_id>/prepare", views.prepare, name="prepare"),
    path("datasets/versions/<int:version_id>/lengths", views.lengths, name="lengths"),
    path("datasets/versions/<int:version_id>/compare", views.compare, name="compare"),
    path("datasets/versions/<int:version_id>/cancel", views.cancel, name="cancel"),
    path("datasets/versions/<int:version_id>/delete", views.delete, name="delete"),
]
