"""Evidence to findings."""
