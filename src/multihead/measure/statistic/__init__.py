"""The measure/statistic room (under construction)."""
