"""Pages of this app."""

from django.urls import path

from webapp.task_sets import views

app_name = "task_sets"
urlpatterns = [
    path("task-sets/", views.index, name="list"),
    path("task-sets/new", views.new, name="new"),
    path("task-sets/import", views.import_one, name="import"),
    path("task-sets/versions/<int:version_id>/", views.detail, name="version"),
    path("task-sets/versions/<int:version_id>/check", views.check, name="check"),
    path("task-sets/versions/<int:version_id>/publish", views.publish, name="publish"),
    path("task-sets/versions/<int:version_id>/cancel", views.cancel, name="cancel"),
    path("task-sets/versions/<int:version_id>/delete", views.delete, name="delete"),
]
