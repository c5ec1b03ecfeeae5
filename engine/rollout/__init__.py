"""Episodes: a policy, a task and a sandbox meet here and become a trajectory."""
