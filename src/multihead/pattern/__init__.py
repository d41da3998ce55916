"""The pattern room (under construction)."""
