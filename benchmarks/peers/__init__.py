"""Programs that run inside a peer's own virtual environment, with the repository on their import path."""
