"""Questions over a team's own dataset: the environment, its episodes, and the tasks that its rows are."""
