"""What a sandbox tries to send, whether it may, and what is known about it afterwards.  docs/egress.md.

``policy`` says what is allowed, ``decision.decide`` applies it, ``record`` keeps every attempt, ``detectors``
look for what nobody asked for.  All four are pure: sockets live in ``interception`` and ``gateway``.
"""
