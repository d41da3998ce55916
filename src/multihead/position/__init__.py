"""The position room (under construction)."""
