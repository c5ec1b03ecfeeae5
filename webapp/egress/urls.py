"""Pages of this app."""

from django.urls import path

from webapp.egress import views

app_name = "egress"
urlpatterns = [
    path("egress/", views.editor, name="editor"),
    path("egress/check", views.check, name="check"),
]
