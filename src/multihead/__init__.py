"""multihead: build, run, study and mend multi-head attention."""
