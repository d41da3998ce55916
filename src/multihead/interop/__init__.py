"""The interop room (under construction)."""
