"""What happened in a run, on its way to disk, to the service and to the terminal."""
