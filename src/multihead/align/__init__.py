"""Aligners of recurrent decoders: one query at a time against a memory, with what was looked at before."""
