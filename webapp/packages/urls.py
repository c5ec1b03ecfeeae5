"""Pages of this app."""

from django.urls import path

from webapp.packages import views

app_name = "packages"
urlpatterns = [
    path("packages/", views.index, name="list"),
    path("packages/new", views.new, name="new"),
    path("packages/import", views.import_one, name="import"),
    path("packages/versions/<int:version_id>/", views.detail, name="version"),
    path("packages/versions/<int:version_id>/check", views.check, name="check"),
    path("packages/versions/<int:version_id>/publish", views.publish, name="publish"),
    path("packages/versions/<int:version_id>/cancel", views.cancel, name="cancel"),
    path("packages/versions/<int:version_id>/delete", views.delete, name="delete"),
]
