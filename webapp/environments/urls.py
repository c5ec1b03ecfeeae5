"""Pages of this app."""

from django.urls import path

from webapp.environments import version_views, views

app_name = "catalog"
urlpatterns = [
    path("environments/", views.environments, name="environments"),
    path("environments/new", version_views.new, name="new_environment"),
    path("environments/check", version_views.check, name="check_environment"),
    path("environments/try", version_views.try_draft, name="try_draft"),
    path("environments/<int:environment_id>/", version_views.version, name="environment"),
    path("environments/<int:environment_id>/try", version_views.try_version, name="try_environment"),
    path("environments/<int:environment_id>/delete", version_views.delete, name="delete_environment"),
]
