"""Sessions in the database, looked up only by what could be a key of one."""

from django.contrib.sessions.backends import db


class SessionStore(db.SessionStore):
    def _validate_session_key(self, key: str | None) -> bool:
        """A cookie may hold anything, and PostgreSQL cannot even be asked for a NUL."""
        if key is None or not (key.isascii() and key.isalnum()):
            return False
        is_valid: bool = super()._validate_session_key(key)  # type: ignore[misc]  # the stubs leave the method out
        return is_valid
