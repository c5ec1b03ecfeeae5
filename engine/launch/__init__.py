"""How a run starts and how its process ends."""
