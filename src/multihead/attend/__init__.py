"""The attend room (under construction)."""
