"""The audit log as people read it.  What writes it is ``webapp/accounts/audit.py``."""
