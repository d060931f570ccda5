"""Slots that ranks share out among them: each keeps, and updates, a part of every variable."""
