"""Foreign files to typed facts; no judgement here."""
