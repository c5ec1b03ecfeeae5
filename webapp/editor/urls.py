"""Pages of this app."""

from django.urls import path

from webapp.editor import views

app_name = "experiments"
urlpatterns = [
    path("experiments/", views.index, name="list"),
    path("experiments/new", views.new, name="new"),
    path("experiments/<uuid:experiment_id>/", views.detail, name="detail"),
]
