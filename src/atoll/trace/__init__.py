"""What happened: one event model for real runs and for virtual time."""
