"""The testing room (under construction)."""
