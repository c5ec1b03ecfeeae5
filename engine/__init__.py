"""The engine of Palestra: rollouts, credit, updates.

Importing this package is cheap on purpose: the web process reads ``engine.spec`` and must never
pull in torch or Ray.  ``docs/architecture.md`` says which folder may import which.
"""
