"""The measure room (under construction)."""
