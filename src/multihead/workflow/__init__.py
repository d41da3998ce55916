"""The workflow room (under construction)."""
