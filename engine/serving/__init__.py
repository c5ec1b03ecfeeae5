"""The engine's environments for other trainers: GEM and OpenEnv over HTTP, in a process of its own."""
