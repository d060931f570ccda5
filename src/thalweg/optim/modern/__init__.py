"""Modern rules in torch's form; `thalweg.optim` has their names."""
