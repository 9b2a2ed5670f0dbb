"""Planning: parallel groups on a cluster, what they cost together, what stops them, and the best placement."""
