"""The layer room (under construction)."""
