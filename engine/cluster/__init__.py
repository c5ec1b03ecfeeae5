"""The processes of a run, and how they reach each other; the only Ray of the engine."""
