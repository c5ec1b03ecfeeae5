"""One cgroup per sandbox, where this process may make any: limits for all of its processes together, and a freezer."""
