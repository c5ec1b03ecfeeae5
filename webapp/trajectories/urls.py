"""Pages of this app."""

from django.urls import path

from webapp.trajectories import views

app_name = "trajectories"
urlpatterns = [
    path("runs/<uuid:run_id>/trajectories/", views.index, name="list"),
    path("runs/<uuid:run_id>/trajectories/<str:trajectory_id>/", views.detail, name="detail"),
]
