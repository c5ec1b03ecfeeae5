"""A run's steps: what is played, scored, held back, credited, learned and saved, and in which order."""
