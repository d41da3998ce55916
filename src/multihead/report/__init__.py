"""The report room (under construction)."""
