from hypothesis import settings

# How long an example takes says nothing on a shared machine, and the first one pays for imports.
settings.register_profile("untimed", deadline=None)
settings.load_profile("untimed")
