"""Paths of the audit log's pages."""

from django.urls import path

from webapp.audit import views

app_name = "audit"
urlpatterns = [
    path("teams/<slug:slug>/audit/", views.entries, name="entries"),
    path("teams/<slug:slug>/audit/entries.csv", views.export, name="export"),
]
