"""Terminal tasks: folders of the Harbor form, the environment over them, and what scores them."""
