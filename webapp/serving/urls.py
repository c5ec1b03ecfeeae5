"""Pages of this app."""

from django.urls import path

from webapp.serving import views

app_name = "serving"
urlpatterns = [
    path("serving/", views.overview, name="list"),
    path("serving/keys", views.create, name="create"),
    path("serving/<uuid:key_id>/", views.detail, name="detail"),
    path("serving/<uuid:key_id>/revoke", views.revoke, name="revoke"),
]
