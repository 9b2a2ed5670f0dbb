"""What must move: the schedule table and its readings."""
