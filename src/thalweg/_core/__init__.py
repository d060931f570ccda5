"""One step, told once: what every face hands over, and what becomes of it."""
