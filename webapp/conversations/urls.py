"""Pages of this app."""

from django.urls import path

from webapp.conversations import views

app_name = "conversations"
urlpatterns = [
    path("conversations/", views.overview, name="list"),
    path("conversations/<uuid:conversation_id>/", views.detail, name="detail"),
    path("runs/<uuid:run_id>/conversations", views.begin, name="begin"),
    path("models/versions/<int:version_id>/conversations", views.begin_with, name="begin-with"),
]
