"""What looks dangerous in a sandbox's attempts and commands.  Pure and streaming; ``suite`` runs all.
docs/egress.md."""
