"""People, teams, and the keys that programs use in their name."""

import hashlib
import hmac
import secrets
from typing import Any, ClassVar

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.db import models
from django.db.models.functions import Lower


class UserManager(BaseUserManager["User"]):
    def create_user(self, email: str, password: str | None = None, **fields: Any) -> "User":
        user = self.model(email=email.strip().lower(), **fields)
        user.set_password(password)
        user.save(using=self._db)
        return user

    def get_by_natural_key(self, email: str | None) -> "User":
        return self.get(email=(email or "").strip().lower())


class User(AbstractBaseUser):
    """Somebody who signs in with an e-mail address.  What they may do hangs on their memberships, never on the user."""

    email = models.EmailField(max_length=254, unique=True)
    name = models.CharField(max_length=100, blank=True)
    is_active = models.BooleanField(default=True)
    must_change_password = models.BooleanField(default=False)
    """The password was made by somebody else: pages ask for a new one first."""
    created_at = models.DateTimeField(auto_now_add=True)

    USERNAME_FIELD = "email"
    REQUIRED_FIELDS: ClassVar[list[str]] = []
    objects: ClassVar[UserManager] = UserManager()

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=models.Q(email=Lower("email")), name="user_email_is_lower_case")
        ]

    def __str__(self) -> str:
        return self.email

    @property
    def display_name(self) -> str:
        return self.name or self.email.split("@")[0]


class Role(models.TextChoices):
    OWNER = "owner"
    MEMBER = "member"
    REVIEWER = "reviewer"
    VIEWER = "viewer"


class Team(models.Model):
    name = models.CharField(max_length=100)
    slug = models.SlugField(max_length=60, unique=True)
    last_run_number = models.PositiveIntegerField(default=0)
    """Run numbers are given out under this row's lock, so they have no gaps and no doubles."""
    created_at = models.DateTimeField(auto_now_add=True)
    members: "models.ManyToManyField[User, Membership]" = models.ManyToManyField(
        User, through="Membership", related_name="teams"
    )

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["team", "user"], name="membership_is_unique"),
            models.CheckConstraint(condition=models.Q(role__in=Role.values), name="membership_role_is_known"),
        ]


class Scope(models.TextChoices):
    READ = "read", "Read"
    LAUNCH = "launch", "Launch, cancel, pause"
    REVIEW = "review", "Review alerts"


class ApiKey(models.Model):
    """Acts for ``user`` inside ``team``, never beyond what the user's role there allows.

    ``pal_<prefix>_<secret>`` is shown once; the row keeps its SHA-256.  The secret has 256 random
    bits, so a fast hash is enough.
    """

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="api_keys")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="api_keys")
    name = models.CharField(max_length=100)
    prefix = models.CharField(max_length=16, unique=True)
    digest = models.CharField(max_length=64)
    scopes = models.JSONField(default=list)
    created_at = models.DateTimeField(auto_now_add=True)
    last_used_at = models.DateTimeField(null=True)
    revoked_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"{self.name} (pal_{self.prefix}_…)"

    @staticmethod
    def generate() -> tuple[str, str, str]:
        """A new key's prefix, digest, and full text."""
        prefix = secrets.token_hex(4)
        text = f"pal_{prefix}_{secrets.token_urlsafe(32)}"
        return prefix, hashlib.sha256(text.encode()).hexdigest(), text

    def matches(self, text: str) -> bool:
        return hmac.compare_digest(self.digest, hashlib.sha256(text.encode()).hexdigest())


class AuditEntry(models.Model):
    """Who did what to what, written in the transaction that did it and never changed."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="audit_entries")
    user = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    who = models.CharField(max_length=254)
    """The e-mail address as it was, kept when the user is gone."""
    verb = models.CharField(max_length=60)
    """E.g. ``run.cancel``."""
    target = models.CharField(max_length=200)
    """E.g. ``run 7f3a…``."""
    details = models.JSONField(default=dict)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes: ClassVar = [models.Index(fields=["team", "-id"], name="audit_by_team")]


class SignInFailure(models.Model):
    """A wrong password, or one that is being looked at; counted per address and e-mail, in the database so that every
    web process counts the same."""

    email = models.CharField(max_length=254)
    address = models.GenericIPAddressField(null=True)
    at = models.DateTimeField(auto_now_add=True)

    class Meta:
        indexes: ClassVar = [models.Index(fields=["email", "at"], name="sign_in_failure_by_email")]


class IdempotentResponse(models.Model):
    """What a POST with an ``Idempotency-Key`` answered, so that sending it again answers the same."""

    team = models.ForeignKey(Team, on_delete=models.CASCADE, related_name="+")
    key = models.CharField(max_length=200)
    fingerprint = models.CharField(max_length=64)
    """SHA-256 of method, path and body."""
    status = models.PositiveSmallIntegerField(default=0)
    body = models.JSONField(null=True)
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        constraints: ClassVar = [models.UniqueConstraint(fields=["team", "key"], name="idempotency_key_is_unique")]
        indexes: ClassVar = [models.Index(fields=["created_at"], name="idempotent_answer_by_age")]
