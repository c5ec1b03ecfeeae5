"""Pages of this app."""

from django.urls import path

from webapp.environments import views

app_name = "catalog"
urlpatterns = [path("environments/", views.environments, name="environments")]
