"""Pages of this app."""

from django.urls import path

from webapp.security import views

app_name = "security"
urlpatterns = [
    path("alerts/", views.inbox, name="alerts"),
    path("alerts/rules/", views.rules, name="rules"),
    path("alerts/decide", views.decide_many, name="decide"),
    path("alerts/<int:alert_id>/", views.detail, name="alert"),
    path("alerts/<int:alert_id>/alike/", views.alike_alerts, name="alike"),
    path("alerts/<int:alert_id>/acknowledge", views.acknowledge, name="acknowledge"),
    path("runs/<uuid:run_id>/security/", views.of_run, name="run"),
    path("runs/<uuid:run_id>/trajectories/<str:trajectory_id>/review-decision", views.rule, name="rule"),
]
