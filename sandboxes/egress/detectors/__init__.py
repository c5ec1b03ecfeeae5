"""What looks dangerous in a box's attempts and commands.  Pure and streaming; ``suite`` runs all.  docs/egress.md."""
