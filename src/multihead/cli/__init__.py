"""The cli room (under construction)."""
