"""The rules of now in torch's form; `thalweg.optim` has their names."""
