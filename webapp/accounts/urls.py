"""Pages of this app."""

from django.urls import path

from webapp.accounts import views

app_name = "accounts"
urlpatterns = [
    path("sign-in", views.sign_in, name="sign-in"),
    path("sign-out", views.sign_out, name="sign-out"),
    path("password", views.password, name="password"),
    path("teams/<slug:slug>/", views.team, name="team"),
    path("teams/<slug:slug>/members", views.add_member, name="add-member"),
    path("teams/<slug:slug>/members/<int:membership_id>/role", views.change_role, name="change-role"),
    path("teams/<slug:slug>/members/<int:membership_id>/remove", views.remove_member, name="remove-member"),
    path("teams/<slug:slug>/keys", views.create_key, name="create-key"),
    path("teams/<slug:slug>/keys/<int:key_id>/revoke", views.revoke_key, name="revoke-key"),
]
