"""In whose name a command acts."""

from django.core.management.base import CommandError

from webapp.accounts.models import Membership, Role, Team, User


def member_of(slug: str, email: str) -> tuple[Team, User]:
    """The team and its owner or member.  Raises CommandError."""
    roles = Membership.objects.select_related("team", "user").filter(team__slug=slug, user__email=email)
    found = roles.filter(role__in=[Role.OWNER, Role.MEMBER]).first()
    if found is None:
        raise CommandError(f"{email} is no owner or member of a team {slug}; name one who is")
    return found.team, found.user
